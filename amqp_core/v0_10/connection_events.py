"""Transitions and events of the connection state machine (:mod:`amqp_core.v0_10.connection`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_core.connection_states import Ended, Opened, Redirected, Role, State
from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from amqp_core.blocks import Block


_S = State
# (state, control received) -> next state. A control that is not listed violates the protocol in that state.
CLIENT_TRANSITIONS: dict[tuple[State, type], State] = {
    (_S.START, spec.ConnectionStart): _S.SECURE_OR_TUNE,
    (_S.SECURE_OR_TUNE, spec.ConnectionSecure): _S.SECURE_OR_TUNE,
    (_S.SECURE_OR_TUNE, spec.ConnectionTune): _S.OPEN_OK,
    (_S.OPEN_OK, spec.ConnectionOpenOk): _S.OPEN,
    (_S.OPEN_OK, spec.ConnectionRedirect): _S.CLOSED,
    (_S.CLOSE_OK, spec.ConnectionCloseOk): _S.CLOSED,
}
SERVER_TRANSITIONS: dict[tuple[State, type], State] = {
    (_S.START_OK, spec.ConnectionStartOk): _S.SECURE_OK,
    (_S.SECURE_OK, spec.ConnectionSecureOk): _S.SECURE_OK,
    (_S.TUNE_OK, spec.ConnectionTuneOk): _S.OPEN_FROM_CLIENT,
    (_S.OPEN_FROM_CLIENT, spec.ConnectionOpen): _S.OPEN,
    (_S.CLOSE_OK, spec.ConnectionCloseOk): _S.CLOSED,
}
TRANSITIONS = {Role.CLIENT: CLIENT_TRANSITIONS, Role.SERVER: SERVER_TRANSITIONS}


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A control of the session class arrived on a channel. Not thread-safe: the control can be changed."""

    channel: int
    control: spec.Control


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """A command arrived: with its header and body segments as raw bytes, and the sync bit of its session header.

    Not thread-safe: the command can be changed.
    """

    channel: int
    command: spec.Command
    sync: bool
    header: bytes | None
    body: bytes | None


@dataclass(frozen=True, slots=True)
class CommandUnknown:
    """A command arrived that is not known here: of an optional class (file, stream), or of none at all.

    ``code`` is class code and code in one number. Immutable: any thread may use it.
    """

    channel: int
    code: int


@dataclass(frozen=True, slots=True)
class TransfersReceived:
    """A run of message.transfer arrived on the scanned channel, as raw frames.

    Not thread-safe until the session has numbered the block.
    """

    block: Block


@dataclass(frozen=True, slots=True)
class TransferBegun:
    """The first frames of a large message.transfer arrived on the scanned channel; more will follow.

    Immutable: any thread may use it.
    """

    frames: bytes


Event = (
    Opened | Redirected | Ended | ControlReceived | CommandReceived | CommandUnknown | TransferBegun | TransfersReceived
)
