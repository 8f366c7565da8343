"""Roles, states and ends of a connection: what the connection state machines of all protocols have in common."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError


class Role(Enum):
    """Side of the connection. Immutable: any thread may use it."""

    CLIENT = auto()
    SERVER = auto()


class State(Enum):
    """State of the connection, named after the control (0-9-1: method) that is awaited from the peer.

    ``CHECKING``: none is, while the server role has the login checked. Immutable: any thread may use it.
    """

    HEADER = auto()
    START = auto()
    START_OK = auto()
    SECURE_OR_TUNE = auto()
    SECURE_OK = auto()
    CHECKING = auto()
    TUNE_OK = auto()
    OPEN_FROM_CLIENT = auto()
    OPEN_OK = auto()
    OPEN = auto()
    CLOSE_OK = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection is open (connection.open-ok); sessions may be attached, or channels opened.

    Immutable: any thread may use it.
    """


@dataclass(frozen=True, slots=True)
class Redirected:
    """The peer asks to connect elsewhere (connection.redirect of 0-10 and 0-9). Immutable: any thread may use it."""

    host: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection has ended. ``error`` is ``None`` after a clean close that this side requested.

    Immutable: any thread may use it.
    """

    error: AmqpError | None
