"""What the cases ask of a client, in either protocol: each call is one thing that both protocols can do.

Calls only send, so that many of them cost one round trip; :meth:`Peer.sync` waits until the broker has done all of
them. Calls that return something wait, too. Clients of this project hide much of what the cases look at, therefore the
two peers are small ones over a blocking socket; they share the project's codec, and nothing else of it.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TIMEOUT_S = 20.0
"""After which a broker that says nothing fails the test."""


# Messages that are asked for in one round; one basic.get each in 0-9-1.
_AT_ONCE = 15


class Closed(Exception):
    """The broker ended the channel, the session or the connection. Code 0: without saying why."""

    def __init__(self, scope: str, code: int, text: str = "") -> None:
        super().__init__(scope, code, text)
        self.scope = scope
        self.code = code
        self.text = text

    @property
    def outcome(self) -> tuple[str, int]:
        """Scope and code, as tables of expected outcomes have them."""
        return self.scope, self.code


class Delivery(NamedTuple):
    """A message that the broker sent. ``number`` is its delivery tag or command id."""

    number: int
    body: bytes
    redelivered: bool
    consumer: str = ""
    exchange: str = ""
    key: str = ""
    headers: Mapping[str, object] = {}
    left: int = -1
    """Messages that are left in the queue, where the answer says so (0-9-1, basic.get)."""


class Fate(NamedTuple):
    """What became of a published message: ``taken``, ``returned`` or ``refused``, and the code if there is one."""

    word: str
    code: int = 0


TAKEN = Fate("taken")


@dataclass
class Declared:
    """What a test has declared, and has to be deleted after it."""

    queues: set[str] = field(default_factory=set)
    exchanges: set[str] = field(default_factory=set)


class Peer(ABC):
    """One connection with one channel or session. Not thread-safe."""

    def __init__(self, port: int, declared: Declared) -> None:
        self.deliveries: list[Delivery] = []
        """What consumers got, in order."""
        self.outgoing = bytearray()
        """Bytes that go with the next call that waits; a case may add what no call sends."""
        self._declared = declared
        self._seen = 0
        self._data = b""
        self._at = 0
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    # --- the socket

    def push(self) -> None:
        """Send what waits to be sent, and wait for nothing."""
        data, self.outgoing = bytes(self.outgoing), bytearray()
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Closed("connection", 0, str(error)) from error

    def read_until(self, done: Callable[[], bool]) -> None:
        """Send what waits, and read until something is so.

        Raises:
            Closed: the broker ended the channel, session or connection before.
        """
        self.push()
        while not done():
            self._read()
            if self.outgoing:
                self.push()

    @abstractmethod
    def _read(self) -> None:
        """Read a frame, and process it."""

    def _fill(self) -> None:
        try:
            more = self._socket.recv(1 << 18)
        except ConnectionError:
            more = b""
        if not more:
            raise Closed("connection", 0)
        self._data, self._at = self._data[self._at :] + more, 0

    # --- declaring: sent only

    def declare_queue(
        self,
        queue: str,
        *,
        alternate: str | None = None,
        arguments: Mapping[str, object] | None = None,
        **flags: bool,
    ) -> None:
        """Declare a queue.

        Args:
            alternate: the exchange that gets what is rejected.
            flags: of the method or command: passive, durable, exclusive, auto_delete.
        """
        if not flags.get("passive"):
            self._declared.queues.add(queue)
        self._declare_queue(queue, alternate, dict(arguments or {}), flags)

    def declare_exchange(
        self,
        exchange: str,
        kind: str,
        *,
        alternate: str | None = None,
        arguments: Mapping[str, object] | None = None,
        **flags: bool,
    ) -> None:
        """Declare an exchange.

        Args:
            alternate: the exchange that gets what cannot be routed.
            flags: of the method or command: passive, durable, auto_delete; internal (0-9-1).
        """
        if not flags.get("passive"):
            self._declared.exchanges.add(exchange)
        self._declare_exchange(exchange, kind, alternate, dict(arguments or {}), flags)

    @abstractmethod
    def _declare_queue(
        self, queue: str, alternate: str | None, arguments: dict[str, object], flags: dict[str, bool]
    ) -> None: ...

    @abstractmethod
    def _declare_exchange(
        self, exchange: str, kind: str, alternate: str | None, arguments: dict[str, object], flags: dict[str, bool]
    ) -> None: ...

    @abstractmethod
    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete a queue."""

    @abstractmethod
    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""

    @abstractmethod
    def purge(self, queue: str) -> None:
        """Delete all messages of a queue that are not held."""

    @abstractmethod
    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        """Bind a queue to an exchange."""

    @abstractmethod
    def unbind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        """Unbind a queue from an exchange."""

    # --- messages: sent only

    @abstractmethod
    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        *,
        headers: Mapping[str, object] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        mandatory: bool = False,
        persistent: bool = False,
    ) -> None:
        """Publish a message; ``mandatory``: it comes back if no queue takes it."""

    @abstractmethod
    def consume(self, queue: str, consumer: str, *, credit: int = 0, accept: bool = True) -> None:
        """Consume; ``credit``: the most messages that are held, 0: no limit. ``accept``: they have to be accepted."""

    @abstractmethod
    def cancel(self, consumer: str) -> None:
        """Cancel a consumer."""

    @abstractmethod
    def accept(self, *deliveries: Delivery) -> None:
        """Settle messages: they are done with."""

    @abstractmethod
    def release(self, *deliveries: Delivery) -> None:
        """Give messages back to their queue, as delivered."""

    @abstractmethod
    def reject(self, *deliveries: Delivery) -> None:
        """Refuse messages: they go where the queue sends what is refused, or are gone."""

    # --- calls that wait

    @abstractmethod
    def sync(self) -> None:
        """Wait until the broker has done all calls, and all published messages are where they belong.

        Raises:
            Closed: it refused one.
        """

    @abstractmethod
    def fates(self) -> list[Fate]:
        """What became of the messages that were published since the last call, in their order."""

    @abstractmethod
    def get(self, *queues: str, most: int = 15, accept: bool = False) -> dict[str, list[Delivery]]:
        """Take up to ``most`` messages out of each queue; ``accept``: they are done with, else they are held."""

    def wait_for(self, count: int) -> list[Delivery]:
        """Wait until consumers got this many messages that no call returned before, and return exactly those."""
        first, self._seen = self._seen, self._seen + count
        self.read_until(lambda: len(self.deliveries) >= self._seen)
        return self.deliveries[first : self._seen]

    @abstractmethod
    def select_tx(self) -> None:
        """From now on what is published and settled is part of a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction, and wait until it is done."""

    @abstractmethod
    def roll_back(self) -> None:
        """Roll the transaction back, and wait until it is done."""

    # --- ends

    @abstractmethod
    def reopen(self) -> None:
        """Close the channel or session if it is open, and open a new one."""

    @abstractmethod
    def after_error(self) -> None:
        """Open a new channel or session, after the broker has ended the last one."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection as the protocol has it."""

    def drop(self) -> None:
        """Close the socket."""
        self._socket.close()

    # --- what is made of these

    def drain(self, *queues: str) -> dict[str, list[bytes]]:
        """Take all messages out of queues that have at most some hundred; return their bodies."""
        found: dict[str, list[bytes]] = {queue: [] for queue in queues}
        more = set(queues)
        while more:
            for queue, deliveries in self.get(*more, most=_AT_ONCE, accept=True).items():
                found[queue] += [each.body for each in deliveries]
                if len(deliveries) < _AT_ONCE:
                    more.discard(queue)
        return found

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Wait until a queue has had this many messages, and take them: for what a broker does in its own time."""
        found: list[Delivery] = []
        until = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < until, f"{count} messages of {queue}: only {[each.body for each in found]} came"
            found += self.get(queue, most=count - len(found), accept=True)[queue]
        return found

    def bodies(self, queue: str) -> list[bytes]:
        """Take all messages out of one queue; return their bodies."""
        return self.drain(queue)[queue]

    def publish_all(self, queue: str, bodies: Iterable[bytes]) -> None:
        """Publish to a queue through the default exchange, and wait."""
        for body in bodies:
            self.publish("", queue, body)
        self.sync()


def answered(action: Callable[[], object]) -> object:
    """What an action returns, or scope and code of how the broker refused it."""
    try:
        return action()
    except Closed as closed:
        return closed.outcome


def outcome(action: Callable[[], object]) -> object:
    """``"ok"``, or scope and code of how the broker refused an action."""
    try:
        action()
    except Closed as closed:
        return closed.outcome
    return "ok"
