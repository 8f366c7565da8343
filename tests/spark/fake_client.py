"""An in-memory broker behind the source's client interface, for tests of the receiver without a network.

It settles, requeues and redelivers as a 0-10 broker does, and can be told to cut connections, refuse them, end flush
rounds early or hold messages for other consumers. Frames are built by hand here, not by the library's encoder.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from amqp_core.api import Capabilities
from amqp_core.errors import ConnectionLost, ResourceLocked
from amqp_spark.errors import MessageFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_spark.arrow.decode import Chunk

_FIELDS: list[pa.Field[Any]] = [
    pa.field("queue", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("body", pa.binary()),
]
SCHEMA = pa.schema(_FIELDS)


@dataclass
class FakeMessage:
    body: bytes
    serial: int
    redelivered: bool = False


@dataclass
class FakeBlock:
    frames: bytes
    ends: list[int]
    first_id: int
    largest: int


@dataclass
class FakeInfo:
    message_count: int | None
    subscriber_count: int | None


@dataclass
class SwapOutcome:
    """A transaction whose answer never comes."""

    commits: bool
    error: Exception


def transfer_frames(body: bytes, *, redelivered: bool = False) -> bytes:
    """One message.transfer as three frames (two for an empty body), channel 0."""
    segments = [(1, b"\x04\x01\x01\x00\x01\x00\x02s0"), (2, struct.pack(">IBBBB", 4, 4, 1, 4 if redelivered else 0, 0))]
    segments += [(3, body)] if body else []
    frames = b""
    for index, (kind, payload) in enumerate(segments):
        first, last = 8 if index == 0 else 0, 4 if index == len(segments) - 1 else 0
        pieces = [payload[at : at + 65523] for at in range(0, len(payload), 65523)]
        for number, piece in enumerate(pieces):
            flags = first | last | (2 if number == 0 else 0) | (1 if number == len(pieces) - 1 else 0)
            frames += struct.pack(">BBHBBHI", flags, kind, 12 + len(piece), 0, 1, 0, 0) + piece
    return frames


def bodies_of(frames: bytes) -> Iterator[bytes]:
    """The bodies of the transfers in raw frames, in order."""
    at, body = 0, b""
    while at < len(frames):
        flags, kind, size, _, track = struct.unpack_from(">BBHBB", frames, at)
        if track & 15 == 1:
            if kind == 3:
                body += frames[at + 12 : at + size]
            if flags & 4 and flags & 1:
                yield body
                body = b""
        at += size


class FakeBroker:
    """Queues of messages, and the sessions that hold some of them."""

    def __init__(self, *queues: str, counts_held: bool = True, block_messages: int = 50) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.queues: dict[str, deque[FakeMessage]] = {queue: deque() for queue in queues}
        self.counts_held = counts_held
        self.block_messages = block_messages
        self.heartbeat_s = 30.0
        self.refuse: list[Exception] = []
        """Errors of the next connections."""
        self.held_elsewhere: dict[str, int] = dict.fromkeys(queues, 0)
        self.holders_are_seen = True
        """Whether those who hold messages elsewhere are counted as consumers."""
        self.consumers: dict[str, int] = dict.fromkeys(queues, 0)
        """Consumers beside the clients of this broker."""
        self.ghosts: list[FakeClient] = []
        """Clients whose connection was cut on their side only: the broker takes them for live ones until ``bury``."""
        self.early_flushes = 0
        """So many flush rounds end before they send anything, as on Broker-J with competing consumers."""
        self.clients: list[FakeClient] = []
        self.connects = 0
        self.connecting_s = 0.0
        """How long each connection takes."""
        self.accepted: list[bytes] = []
        self.rejected: list[tuple[bytes, str]] = []
        self.bindings: list[tuple[str, str, str]] = []
        self.subscriptions: list[dict[str, object]] = []
        self.queries = 0
        self.syncs = 0
        self.silence_timeouts: list[float] = []
        """How long each accept and sync lets the broker be silent."""
        self.states: dict[str, bytes] = {}
        self.locks: dict[str, FakeClient] = {}
        self.swaps = 0
        self.swap_outcomes: list[SwapOutcome] = []
        """What becomes of the next transactions."""
        self.on_command: Callable[[str], None] = lambda name: None
        self._serial = 0

    def publish(self, queue: str, *bodies: bytes) -> None:
        with self.changed:
            for body in bodies:
                self._serial += 1
                self.queues[queue].append(FakeMessage(body, self._serial))
            self.changed.notify_all()

    def connect(self, options: ConnectOptions) -> Any:  # it has only the methods that the source uses
        time.sleep(self.connecting_s)
        with self.changed:
            self.connects += 1
            if self.refuse:
                raise self.refuse.pop(0)
            client = FakeClient(self)
            self.clients.append(client)
            self.changed.notify_all()
            return client

    def cut(self, error: Exception | None = None) -> None:
        """Drop every connection; what they held goes back to its queue, flagged as redelivered."""
        with self.changed:
            for client in self.clients[:]:
                client.end(error or ConnectionLost("the connection was cut"))

    def cut_one_sided(self) -> None:
        """Every client loses its connection and the broker does not see it: what they held stays theirs."""
        with self.changed:
            for client in self.clients[:]:
                client.error = ConnectionLost("the connection was cut on this side")
                self.clients.remove(client)
                self.ghosts.append(client)
            self.changed.notify_all()

    def bury(self) -> None:
        """The broker gives up the clients that it has not heard of: what they held goes back to its queue."""
        with self.changed:
            while self.ghosts:
                self.requeue(self.ghosts.pop())
            self.changed.notify_all()

    def requeue(self, client: FakeClient) -> None:
        """What a client held goes back to its queue, flagged, and its locks are free."""
        for queue, message in sorted(client.held.values(), key=lambda entry: entry[1].serial, reverse=True):
            message.redelivered = True
            self.queues[queue].appendleft(message)
        client.held.clear()
        for name in [name for name, holder in self.locks.items() if holder is client]:
            del self.locks[name]

    def seen_consumers(self, queue: str) -> int:
        """Consumers of a queue as the broker sees them."""
        seen = [client.subscription for client in (*self.clients, *self.ghosts)]
        others = self.holders_are_seen and bool(self.held_elsewhere.get(queue))
        return sum(each is not None and each.queue == queue for each in seen) + self.consumers[queue] + others

    def depth(self, queue: str) -> int:
        """Messages that nobody has accepted."""
        with self.changed:
            return len(self.queues[queue]) + sum(len(client.held) for client in (*self.clients, *self.ghosts))

    def held(self) -> int:
        """Messages that clients hold."""
        with self.changed:
            return sum(len(client.held) for client in self.clients)

    def wait(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until a condition holds; every change of the broker looks again."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not condition():
                assert time.monotonic() < deadline, "the condition did not come true"
                self.changed.wait(0.02)


class FakeClient:
    """One incarnation."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.held: dict[int, tuple[str, FakeMessage]] = {}
        self.next_id = 0
        self.error: Exception | None = None
        self.paused = False
        self.woken = False
        self.closed = False
        self.subscription: FakeSubscription | None = None

    @property
    def heartbeat_s(self) -> float:
        return self.broker.heartbeat_s

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(counts_held_messages=self.broker.counts_held)

    def query_queue(self, name: str) -> FakeInfo | None:
        with self.broker.changed:
            self._command("query")
            self.broker.queries += 1
            if name not in self.broker.queues:
                return None
            count = len(self.broker.queues[name])
            if self.broker.counts_held:
                clients = (*self.broker.clients, *self.broker.ghosts)
                held = sum(1 for client in clients for queue, _ in client.held.values() if queue == name)
                count += held + self.broker.held_elsewhere[name]
            return FakeInfo(count, self.broker.seen_consumers(name))

    def declare_queue(self, name: str, *, durable: bool) -> None:
        with self.broker.changed:
            self._command("declare")
            assert durable
            self.broker.queues.setdefault(name, deque())
            self.broker.held_elsewhere.setdefault(name, 0)
            self.broker.consumers.setdefault(name, 0)

    def bind(self, queue: str, exchange: str, key: str) -> None:
        self._command("bind")
        self.broker.bindings.append((queue, exchange, key))

    def subscribe(
        self, queue: str, *, accept: bool, acquire: bool, exclusive: bool, selector: str | None
    ) -> FakeSubscription:
        with self.broker.changed:
            self._command("subscribe")
            if exclusive and self.broker.seen_consumers(queue):
                raise ResourceLocked(405, None, "exclusive", "message.subscribe")
            self.broker.subscriptions.append(
                {"queue": queue, "accept": accept, "acquire": acquire, "exclusive": exclusive, "selector": selector}
            )
            self.subscription = FakeSubscription(self, queue, accept=accept, acquire=acquire)
            return self.subscription

    def accept(self, ranges: Sequence[tuple[int, int]], *, silence_timeout_s: float = 0.0) -> None:
        with self.broker.changed:
            self._command("accept")
            self.broker.silence_timeouts.append(silence_timeout_s)
            for message in self._settled(ranges):
                self.broker.accepted.append(message.body)
            self.broker.changed.notify_all()

    def reject(self, ranges: Sequence[tuple[int, int]], *, text: str, silence_timeout_s: float = 0.0) -> None:
        with self.broker.changed:
            self._command("reject")
            self.broker.silence_timeouts.append(silence_timeout_s)
            for message in self._settled(ranges):
                self.broker.rejected.append((message.body, text))
            self.broker.changed.notify_all()

    def sync(self, *, silence_timeout_s: float = 0.0) -> None:
        with self.broker.changed:
            self._command("sync")
            self.broker.silence_timeouts.append(silence_timeout_s)
            self.broker.syncs += 1

    def service(self) -> None:
        self._command("service")

    def pause_reading(self, paused: bool) -> None:
        with self.broker.changed:
            self.paused = paused
            self.broker.changed.notify_all()

    def wake(self) -> None:
        with self.broker.changed:
            self.woken = True
            self.broker.changed.notify_all()

    def close(self) -> None:
        self.end(ConnectionLost("closed"))
        self.closed = True

    def end(self, error: Exception) -> None:
        with self.broker.changed:
            if self.error is None:
                self.error = error
                self.broker.requeue(self)
                self.broker.clients.remove(self)
            self.broker.changed.notify_all()

    def _settled(self, ranges: Sequence[tuple[int, int]]) -> Iterator[FakeMessage]:
        for first, last in ranges:
            for number in range(first, last + 1):
                yield self.held.pop(number)[1]  # a KeyError is a settlement of what this session does not hold

    def _command(self, name: str) -> None:
        self.broker.on_command(name)
        if self.error is not None:
            raise self.error


class FakeSubscription:
    """A subscription in credit mode."""

    def __init__(self, client: FakeClient, queue: str, *, accept: bool, acquire: bool) -> None:
        self.client = client
        self.queue = queue
        self.accept = accept
        self.acquire = acquire
        self.credit = 0
        self.bytes = 0.0
        self.granted: list[int] = []
        self.cursor = 0
        self.ready: list[FakeBlock] = []

    @property
    def credit_bytes(self) -> float:
        return self.bytes if self.credit else 0.0

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        with self.client.broker.changed:
            self.client._command("grant" if messages else "stop")
            self.credit = messages
            self.bytes = float("inf") if nbytes is None else nbytes
            self.granted.append(messages)
            self.client.broker.changed.notify_all()

    def take_blocks(self, timeout: float) -> list[FakeBlock]:
        broker, client = self.client.broker, self.client
        deadline = time.monotonic() + timeout
        with broker.changed:
            while True:
                if not client.paused and not client.error:
                    self._send(broker.block_messages)
                if self.ready:
                    blocks, self.ready = self.ready, []
                    broker.changed.notify_all()
                    return blocks
                if client.error is not None:
                    raise client.error
                left = deadline - time.monotonic()
                if client.woken or left <= 0:
                    client.woken = False
                    return []
                broker.changed.wait(left)

    def take_arrived(self) -> list[FakeBlock]:
        with self.client.broker.changed:
            blocks, self.ready = self.ready, []
            return blocks

    def probe(self) -> None:
        with self.client.broker.changed:
            self.client._command("flush")
            self.credit, self.bytes = 1, float("inf")
            if self.client.broker.early_flushes > 0:
                self.client.broker.early_flushes -= 1
            else:
                self._send(1)
            self.credit = 0

    def _send(self, most: int) -> bool:
        messages = self._next(min(most, self.credit))
        if not messages:
            return False
        frames, ends, first, largest = b"", [], self.client.next_id, 0
        for message in messages:
            raw = transfer_frames(message.body, redelivered=message.redelivered)
            frames += raw
            ends.append(len(frames))
            largest = max(largest, len(raw))
            if self.accept and self.acquire:
                self.client.held[self.client.next_id] = (self.queue, message)
            self.client.next_id += 1
        self.credit -= len(messages)
        self.ready.append(FakeBlock(frames, ends, first, largest))
        self.bytes -= sum(len(message.body) for message in messages)
        return True

    def _next(self, count: int) -> list[FakeMessage]:
        """What there is credit for: a message larger than what is left of the bytes waits for a new credit."""
        queue = self.client.broker.queues.get(self.queue, deque())
        waiting = itertools.islice(queue, 0 if self.acquire else self.cursor, None)
        found: list[FakeMessage] = []
        room = self.bytes
        for message in itertools.islice(waiting, count):
            room -= len(message.body)  # Broker-J counts bodies only
            if room < 0:
                break
            found.append(message)
        if self.acquire:
            for _ in found:
                queue.popleft()
        else:
            self.cursor += len(found)
        return found


@dataclass
class BodyPlan:
    """Stands in for a ColumnPlan: queue, position and body; a body that begins with ``bad`` does not fit."""

    reads: list[int] = field(default_factory=list)

    def batches(
        self,
        chunks: Iterable[Chunk],
        *,
        queue: str,
        first_position: int,
        on_reject: Callable[[list[int], str], None] | None = None,
        skipped: Iterable[int] = (),
    ) -> Iterator[pa.RecordBatch]:
        position = first_position
        left_out = set(skipped)
        for chunk in chunks:
            rows = list(enumerate(bodies_of(bytes(chunk.frames)), position))
            assert len(chunk.ends) == 4 * len(rows)
            position += len(rows)
            rows = [row for row in rows if row[0] not in left_out]
            bad = [number for number, body in rows if body.startswith(b"bad")]
            if bad:
                if on_reject is None:
                    raise MessageFormatError(queue, bad[0], "body", "a bad body")
                on_reject(bad, "a bad body")
            good = [row for row in rows if row[0] not in bad]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([queue] * len(good), pa.string()),
                    pa.array([row[0] for row in good], pa.int64()),
                    pa.array([row[1] for row in good], pa.binary()),
                ],
                schema=SCHEMA,
            )
