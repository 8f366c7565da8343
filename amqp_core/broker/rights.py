"""What a login may do, as RabbitMQ has it: patterns for names, and which operation needs which right to which name.

Checks of rights come before those of the model, so that a login does not learn what exists that it may not use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn

from amqp_core.broker.model.errors import Refusal, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

EVERYTHING: Final = ".*"
NOTHING: Final = ""
"""As pattern: matches the empty name only, which nothing has."""
SERVER_NAMED: Final = "amq.gen-AAAAAAAAAAAAAAAAAAAAAA"
"""Stands for the names that the broker makes up, which all look alike."""
# The default exchange has this name where rights are concerned.
_DEFAULT_EXCHANGE: Final = "amq.default"
# Names that are remembered as allowed; a publisher uses few.
_MOST_REMEMBERED: Final = 1000


class Right(Enum):
    """Kind of a right. Immutable: any thread may use it."""

    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Patterns:
    """Regular expressions, one for each right. Immutable: any thread may use it.

    As on RabbitMQ, a name is allowed where the pattern is found anywhere in it (``^`` and ``$`` bind it), and an empty
    pattern allows nothing.

    Raises:
        re.error: one is not valid.
    """

    configure: str = EVERYTHING
    write: str = EVERYTHING
    read: str = EVERYTHING
    _compiled: Mapping[Right, re.Pattern[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compiled = {each: re.compile(getattr(self, each.value) or r"\A\Z") for each in Right}
        object.__setattr__(self, "_compiled", compiled)

    def allow(self, right: Right, name: str) -> bool:
        """Whether a name may be used so."""
        return self._compiled[right].search(name) is not None


@dataclass(frozen=True, slots=True)
class Grants:
    """The patterns of one user.

    Args:
        everywhere: of the virtual hosts that have none of their own; ``None``: it may not open those.
        by_host: of virtual hosts by name.
    """

    everywhere: Patterns | None = None
    by_host: Mapping[str, Patterns] = field(default_factory=dict)

    def of(self, virtual_host: str) -> Patterns | None:
        """The patterns of a virtual host; ``None``: the user may not open it."""
        return self.by_host.get(virtual_host, self.everywhere)


class Rights:
    """The rights of one login in one virtual host, by operation. Not thread-safe.

    Args:
        patterns: ``None``: everything is allowed.

    Raises:
        Refused: UNAUTHORIZED, from each method.
    """

    def __init__(self, patterns: Patterns | None = None, username: str = "", virtual_host: str = "/") -> None:
        self._patterns = patterns
        self._username = username
        self._virtual_host = virtual_host
        self._writable: set[str] = set()

    def publish(self, exchange: str) -> None:
        """Publish to an exchange: write."""
        if self._patterns is None or exchange in self._writable:
            return
        self._require(Right.WRITE, "exchange", exchange)
        if len(self._writable) >= _MOST_REMEMBERED:
            self._writable.clear()
        self._writable.add(exchange)

    def consume(self, queue: str) -> None:
        """Consume or get from a queue, or purge it: read."""
        self._require(Right.READ, "queue", queue)

    def declare_queue(self, name: str, *, dead_letters_to: object = None) -> None:
        """Declare a queue, which exists or not: configure.

        Args:
            name: empty: the broker makes one up.
            dead_letters_to: the exchange of its dead letters, if the queue is new: read of the queue, and write of it.
        """
        name = name or SERVER_NAMED
        self._require(Right.CONFIGURE, "queue", name)
        if isinstance(dead_letters_to, str):
            self._require(Right.READ, "queue", name)
            self._require(Right.WRITE, "exchange", dead_letters_to)

    def delete_queue(self, name: str) -> None:
        """Delete a queue: configure."""
        self._require(Right.CONFIGURE, "queue", name)

    def declare_exchange(self, name: str, *, alternate: object = None) -> None:
        """Declare an exchange, which exists or not: configure.

        Args:
            alternate: its alternate exchange, if it is new: read of the exchange, and write of the alternate one.
        """
        self._require(Right.CONFIGURE, "exchange", name)
        if isinstance(alternate, str):
            self._require(Right.READ, "exchange", name)
            self._require(Right.WRITE, "exchange", alternate)

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange: configure."""
        self._require(Right.CONFIGURE, "exchange", name)

    def bind_queue(self, queue: str, exchange: str) -> None:
        """Bind or unbind a queue: write of the queue, read of the exchange."""
        self._require(Right.WRITE, "queue", queue)
        self._require(Right.READ, "exchange", exchange)

    def bind_exchange(self, destination: str, source: str) -> None:
        """Bind or unbind an exchange: write of the destination, read of the source."""
        self._require(Right.WRITE, "exchange", destination)
        self._require(Right.READ, "exchange", source)

    def see_queue(self, name: str) -> None:
        """Declare a queue passively, or ask about it: any right, as RabbitMQ 4.3 has it (before: none)."""
        self._require_any("queue", name)

    def see_exchange(self, name: str) -> None:
        """Declare an exchange passively, or ask about it: any right, as RabbitMQ 4.3 has it (before: none)."""
        self._require_any("exchange", name)

    def _require(self, right: Right, kind: str, name: str) -> None:
        if not self._allow(right, kind, name):
            self._refuse(right, kind, name)

    def _require_any(self, kind: str, name: str) -> None:
        if not any(self._allow(right, kind, name) for right in Right):
            self._refuse(Right.CONFIGURE, kind, name)

    def _allow(self, right: Right, kind: str, name: str) -> bool:
        return self._patterns is None or self._patterns.allow(right, _name(kind, name))

    def _refuse(self, right: Right, kind: str, name: str) -> NoReturn:
        place = f"{kind} '{_name(kind, name)}' in vhost '{self._virtual_host}'"
        text = f"{right.value} access to {place} refused for user '{self._username}'"
        raise Refused(Refusal.UNAUTHORIZED, text)


def _name(kind: str, name: str) -> str:
    return _DEFAULT_EXCHANGE if kind == "exchange" and not name else name
