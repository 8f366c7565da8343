"""A broker in memory behind :class:`amqp_core.api.Client`, for tests without a network.

Queues, bindings, locks, transactions and branches work as on a 0-10 broker. A test can cut or refuse connections, let
commands fail, and script the outcome of what is published. Frames are built by hand here, not by the library's encoder.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from amqp_core.api import Capabilities, Route
from amqp_core.errors import AmqpError, ConnectionLost, NotFound, ResourceLimitExceeded, ResourceLocked
from amqp_core.transfer_ledger import Counted, Rejected, Transfers
from amqp_spark.sink.prepared_transactions import PreparedBranch
from amqp_spark.state.xids import xid_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Block, Client, Identity, Target, Xid

_OURS: Final = "amqp-spark."
"""Queues of exactly-once; the others belong to the test."""
_MARKERS: Final = "amqp-spark.markers."
_STATE: Final = "amqp-spark.state."


@dataclass
class Script:
    """Faults of one connection that publishes."""

    breaks_after: int | None = None
    """So many transfers are sent, then the connection is lost."""
    completes: int = 0
    """So many of them are complete by then."""
    error: AmqpError = field(default_factory=lambda: ConnectionLost("the connection was cut"))
    breaks_at_finish: bool = False
    breaks_at_question: int | None = None
    """The connection is lost when so many rounds of queries were answered."""
    rejects: dict[int, int] = field(default_factory=dict)
    """Transfer of this connection, counted from 0: reject code."""
    refuses: int | None = None
    """This transfer gets an execution.exception."""
    full: bool = False
    """Rejects with code 1 mean a full queue, as on Broker-J."""


@dataclass
class CommitOutcome:
    """A local transaction whose answer never comes."""

    commits: bool
    error: Exception


@dataclass
class FakeMessage:
    """A message in a queue."""

    body: bytes
    serial: int
    redelivered: bool = False


class Received(NamedTuple):
    """See :class:`amqp_core.api.Message`."""

    body: bytes
    transfer_id: int


class FakeInfo(NamedTuple):
    """See :class:`amqp_core.api.QueueInfo`."""

    message_count: int | None
    subscriber_count: int | None


@dataclass
class FakeBlock:
    """See :class:`amqp_core.api.Block`."""

    frames: bytes
    ends: list[int]
    first_id: int
    largest: int


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
    """Queues, bindings and branches, and the connections that use them.

    Args:
        given: names of empty queues, and scripts of the first connections. Without names there is the queue ``q``,
            bound with the key ``k`` at two exchanges.
        qpidd: behave as qpidd, not as Broker-J: accept and drop unroutable messages, list branches in one frame.
        protocol: with 0-9-1 it has the capabilities of RabbitMQ: no credit, but a limit of unsettled messages; its
            publishers return what a script rejects with code 312. Frames stay those of 0-10.
        counts_held: see :attr:`amqp_core.api.Capabilities.counts_held_messages`.
    """

    def __init__(
        self, *given: str | Script, qpidd: bool = False, counts_held: bool = True, protocol: str = "0-10"
    ) -> None:
        queues = [each for each in given if isinstance(each, str)]
        self.changed = threading.Condition(threading.RLock())
        self.qpidd = qpidd
        self.protocol = protocol
        self.lacks: frozenset[str] = frozenset()
        """Capabilities that it does not have."""
        self.counts_held = counts_held and protocol == "0-10"
        self.counts_all = False
        """Whether its counts include messages that consumers hold, although no capability says so."""
        self.cap: float = float("inf")
        """Most unsettled messages that it sends to a consumer, whatever limit that has asked for."""
        self.counts: list[int] = []
        """Message counts of the next answers: they may be late."""
        self.stalls: Counter[str] = Counter()
        """How many consumers of a queue, one after the other from the present one on, get nothing more."""
        self.earlier_deliveries = 0
        """Number of earlier deliveries that blocks report."""
        self.cancels: list[AmqpError] = []
        """Errors that end the next consumers, whose connections go on."""
        self.declared: dict[str, dict[str, object] | None] = {}
        """Arguments of the queues that were declared."""
        self.queues: dict[str, deque[FakeMessage]] = {queue: deque() for queue in queues or ["q"]}
        self.exchanges = {"amq.direct": "direct", "amq.topic": "topic", "other": "direct"}
        self.bindings = set() if queues else {("q", "amq.direct", "k"), ("q", "other", "k")}
        """Queue, exchange and key."""
        self.calls: list[str] = []
        """Commands that change something, by a short name."""
        self.on_command: Callable[[str], None] = lambda name: None
        """Called before every command."""
        self.fails: defaultdict[str, list[AmqpError]] = defaultdict(list)
        """Errors of the next commands of a name (``connect``: of the next connections)."""
        self._serial = 0
        # --- connections
        self.scripts = [each for each in given if isinstance(each, Script)]
        self.clients: list[FakeClient] = []
        """Every client, in the order of their connections."""
        self.live: list[FakeClient] = []
        self.ghosts: list[FakeClient] = []
        """Clients whose connection was cut on their side only: the broker takes them for live ones until ``bury``."""
        self.connects = 0
        self.connecting_s = 0.0
        """How long each connection takes."""
        self.heartbeat_s = 30.0
        self.locks: dict[str, FakeClient] = {}
        # --- consumers
        self.block_messages = 50
        self.held_elsewhere: Counter[str] = Counter()
        self.holders_are_seen = True
        """Whether those who hold messages elsewhere are counted as consumers."""
        self.consumers: Counter[str] = Counter()
        """Consumers beside the clients of this broker."""
        self.early_flushes = 0
        """So many flush rounds end before they send anything, as on Broker-J with competing consumers."""
        self.accepted: list[bytes] = []
        self.rejected: list[tuple[bytes, str]] = []
        self.subscriptions: list[dict[str, object]] = []
        self.queries = 0
        self.syncs = 0
        self.silence_timeouts: list[float] = []
        """How long each accept and sync lets the broker be silent."""
        self.waits: list[float] = []
        """Seconds that clients waited for a single message; no wait takes real time."""
        self.on_wait: Callable[[], None] = lambda: None
        # --- publishers
        self.max_frame_size = 65535
        self.asked: Counter[str] = Counter()
        self.rounds = 0
        """How many times queries were sent together."""
        self.arrives = True
        """Whether answers are there before they are waited for."""
        self.on_taken: Callable[[], None] = lambda: None
        """Called before each transfer is taken."""
        self.taken: list[bytes] = []
        """Every transfer that was sent, duplicates and rejected ones included, in order."""
        self.modes: list[int] = []
        """The accept-mode of each of them, which go to amq.direct."""
        # --- transactions
        self.commit_outcomes: list[CommitOutcome] = []
        """Outcomes of the next local transactions."""
        self.begun: dict[str, list[tuple[str, bytes]]] = {}
        """Messages published to queues in each branch, by the text of its xid."""
        self.open_branches: set[str] = set()
        self.prepared: dict[str, Xid] = {}
        self.expired: set[str] = set()
        """Branches that still have a timeout, and are not prepared."""
        self.rolled_back: list[str] = []
        self.timers: dict[str, list[int]] = {}
        """The timeouts that were set, in seconds, by branch."""
        self.term = 3600
        """Timeout of a branch for which none was set."""
        self.on_timeout: Callable[[], None] = lambda: None
        """Called after a timeout was set."""
        self.most_listed = 10_000
        """With more prepared branches dtx.recover costs the connection."""
        self.markers: list[PreparedBranch] = []
        """Every marker that was published, in or outside of a branch."""

    # --- connections

    def connect(self, options: ConnectOptions) -> Client:  # mypy compares FakeClient with the whole interface
        """Return a new client."""
        time.sleep(self.connecting_s)
        with self.changed:
            self.connects += 1
            if self.fails["connect"]:
                raise self.fails["connect"].pop(0)
            client = FakeClient(self, self.scripts.pop(0) if self.scripts else Script(), options)
            self.clients.append(client)
            self.live.append(client)
            self.changed.notify_all()
            return client

    def cut(self, error: Exception | None = None) -> None:
        """Drop every connection; what they held goes back to its queue, flagged as redelivered."""
        with self.changed:
            for client in self.live[:]:
                client.end(error or ConnectionLost("the connection was cut"))

    def cut_one_sided(self) -> None:
        """Every client loses its connection and the broker does not see it: what they held stays theirs."""
        with self.changed:
            for client in self.live:
                client.error = ConnectionLost("the connection was cut on this side")
            self.ghosts += self.live
            self.live.clear()
            self.changed.notify_all()

    def bury(self) -> None:
        """The broker gives up the clients that it has not heard of: what they held goes back to its queue."""
        with self.changed:
            while self.ghosts:
                self.forget(self.ghosts.pop())
            self.changed.notify_all()

    def forget(self, client: FakeClient) -> None:
        """Return the messages of a client to their queues, and release its locks."""
        self.requeue(client, list(client.held))
        self.locks = {name: holder for name, holder in self.locks.items() if holder is not client}

    # --- messages

    def publish(self, queue: str, *bodies: bytes) -> None:
        """Put messages into a queue."""
        with self.changed:
            for body in bodies:
                self._serial += 1
                self.queues[queue].append(FakeMessage(body, self._serial))
            self.changed.notify_all()

    def requeue(self, client: FakeClient, ids: Sequence[int]) -> None:
        """Messages that a client holds go back to their queue, flagged."""
        held = [client.held.pop(each) for each in ids]
        for queue, message in sorted(held, key=lambda entry: entry[1].serial, reverse=True):
            message.redelivered = True
            if queue in self.queues:
                self.queues[queue].appendleft(message)

    def messages(self, queue: str) -> list[FakeMessage]:
        """Messages of a queue that were not accepted: those that clients hold first."""
        with self.changed:
            held = [entry for client in (*self.live, *self.ghosts) for entry in client.held.values()]
            return [message for name, message in held if name == queue] + list(self.queues.get(queue, ()))

    def depth(self, queue: str) -> int:
        """Number of messages of a queue that were not accepted."""
        return len(self.messages(queue))

    def held(self) -> int:
        """Number of messages that clients hold, without those of exactly-once."""
        with self.changed:
            return sum(not queue.startswith(_OURS) for client in self.live for queue, _ in client.held.values())

    def seen_consumers(self, queue: str) -> int:
        """Consumers of a queue as the broker sees them."""
        seen = [client.subscription for client in (*self.live, *self.ghosts)]
        others = self.holders_are_seen and bool(self.held_elsewhere[queue])
        return sum(each is not None and each.queue == queue for each in seen) + self.consumers[queue] + others

    def delete(self, queue: str) -> None:
        """Delete a queue with its messages and bindings."""
        with self.changed:
            self.queues.pop(queue, None)
            self.bindings = {each for each in self.bindings if each[0] != queue}

    def wait(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until a condition holds; every change of the broker looks again."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not condition():
                assert time.monotonic() < deadline, "the condition did not come true"
                self.changed.wait(0.02)

    # --- state of exactly-once

    @property
    def states(self) -> dict[str, bytes]:
        """The state messages by the name of their queue."""
        with self.changed:
            found = {queue: self.messages(queue) for queue in self.queues if queue.startswith(_STATE)}
            return {queue: messages[0].body for queue, messages in found.items() if messages}

    def forget_states(self) -> None:
        """Delete all state queues."""
        for queue in self.states:
            self.delete(queue)

    def put_state(self, queue: str, body: bytes) -> None:
        """Put a state message in place of the one that is there."""
        with self.changed:
            self.queues[queue] = deque()
            self.publish(queue, body)


class FakeClient:
    """One connection with one session; see :class:`amqp_core.api.Client`."""

    def __init__(self, broker: FakeBroker, script: Script, options: ConnectOptions) -> None:
        self.broker = broker
        self.script = script
        self.options = options
        self.transactions = FakeTransactions(self)
        self.held: dict[int, tuple[str, FakeMessage]] = {}
        self.next_id = 0
        self.error: Exception | None = None
        self.ended = ""
        """How the client has ended it."""
        self.paused = False
        self.woken = False
        self.services = 0
        self.on_service: Callable[[], None] = lambda: None
        self.subscription: FakeSubscription | None = None
        """To a queue of the test."""
        self.publishers: list[FakePublisher] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def peer(self) -> str:
        return "fake:5672"

    @property
    def protocol(self) -> str:
        return self.broker.protocol

    @property
    def heartbeat_s(self) -> float:
        return self.broker.heartbeat_s

    @property
    def server_properties(self) -> dict[str, object]:
        return {"product": "fake"}

    @property
    def mechanism(self) -> str:
        return "PLAIN"

    @property
    def max_frame_size(self) -> int:
        return 65535

    def may_read(self, _queue: str) -> bool:
        return True

    def may_write(self, _exchange: str) -> bool:
        return True

    @property
    def capabilities(self) -> Capabilities:
        qpidd = self.broker.qpidd
        capabilities = Capabilities(
            counts_held_messages=self.broker.counts_held,
            rejects_unroutable=not qpidd,
            lists_branches_in_one_frame=qpidd,
            zero_timeout_is_none=not qpidd,
        )
        if self.protocol != "0-10":
            capabilities = replace(
                capabilities, credit=False, browse=False, selectors=False, binding_queries=False,
                local_transactions=False, distributed_transactions=False, returns_unroutable=True,
                consumer_priorities=True, counts_deliveries=True, unlimited_deliveries=True, queue_types=True,
                consumer_timeouts=True,
            )  # fmt: skip
        return replace(capabilities, **dict.fromkeys(self.broker.lacks, False))

    def command(self, name: str) -> None:
        """A command that changes nothing."""
        self.broker.on_command(name)
        self.check()

    def call(self, name: str) -> None:
        """Note a command; raise the error that the test wants."""
        self.command(name)
        self.broker.calls.append(name)
        if self.broker.fails[name]:
            error = self.broker.fails[name].pop(0)
            if error.retryable or isinstance(error, (NotFound, ResourceLocked)):
                self.end(error)
            raise error

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    # --- queues

    def query_queue(self, queue: str) -> FakeInfo | None:
        with self.broker.changed:
            self.command("query")
            self.broker.queries += 1
            if queue not in self.broker.queues:
                return None
            count = len(self.broker.queues[queue])
            if self.broker.counts_held or self.broker.counts_all:
                count = self.broker.depth(queue) + self.broker.held_elsewhere[queue]
            self.read_all()
            if self.broker.counts:
                count = self.broker.counts.pop(0)
            return FakeInfo(count, self.broker.seen_consumers(queue))

    def read_all(self) -> None:
        """Without credit, all that is under way comes before the answer to a command, even if reading is paused."""
        if not self.capabilities.credit and self.subscription is not None:
            while self.subscription.send_block():
                self.subscription.drop_without_room()

    def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        with self.broker.changed:
            assert (durable, exclusive, auto_delete) in {(True, False, False), (False, True, True)}
            self.broker.declared[queue] = arguments
            self.call("lock" if exclusive else "declare")
            if not exclusive:
                self.broker.queues.setdefault(queue, deque())
            elif self.broker.locks.setdefault(queue, self) is not self:
                self.end(ResourceLocked(405, None, "another session has it", "queue.declare"))
                self.check()
            self.broker.changed.notify_all()

    def declare_lock(self, queue: str) -> None:
        self.declare_queue(queue, exclusive=True, auto_delete=True)

    def fetcher(self, queue: str) -> FakeSubscription:
        return self.subscribe(queue)

    def delete_queue(self, queue: str) -> None:
        with self.broker.changed:
            self.call("unlock")
            assert self.broker.locks.pop(queue) is self
            self.broker.changed.notify_all()

    def bind(self, queue: str, exchange: str, binding_key: str) -> None:
        self.command("bind")
        self.broker.bindings.add((queue, exchange, binding_key))

    def unbind(self, queue: str, exchange: str, binding_key: str) -> None:
        self.command("unbind")
        self.broker.bindings.remove((queue, exchange, binding_key))

    def is_bound(self, exchange: str, binding_key: str) -> bool:
        return any(each[1:] == (exchange, binding_key) for each in self.broker.bindings)

    def query_routes(self, targets: Sequence[Target]) -> FakeQueries:
        if self.script.breaks_at_question == self.broker.rounds:
            self.error, self.script.breaks_at_question = self.script.error, None
        self.check()
        self.broker.rounds += 1
        return FakeQueries(self, [self.route(*target) for target in targets])

    def route(self, exchange: str, key: str | None) -> Route:
        broker = self.broker
        if key is None:
            broker.asked[f"exchange {exchange}"] += 1
            kind = broker.exchanges.get(exchange)
            return Route(kind is not None, kind or "")
        if not exchange:
            broker.asked[f"queue {key}"] += 1
            return Route(key in broker.queues)
        broker.asked[f"bound {exchange} {key}"] += 1
        # qpidd takes an empty key for none: is anything bound at all?
        return Route(exchange in broker.exchanges and (not key or self.is_bound(exchange, key)))

    # --- messages

    def subscribe(
        self,
        queue: str,
        *,
        accept: bool = True,
        acquire: bool = True,
        exclusive: bool = False,
        selector: str | None = None,
        max_unsettled: int | None = None,
        arguments: dict[str, object] | None = None,
    ) -> FakeSubscription:
        with self.broker.changed:
            self.command("subscribe")
            assert not self.capabilities.credit or (max_unsettled, arguments) == (None, None)
            subscription = FakeSubscription(self, queue, accept=accept, acquire=acquire)
            if not self.capabilities.credit:
                self.broker.stalls[queue] = max(0, self.broker.stalls[queue] - 1)
                assert max_unsettled is None or 1 <= max_unsettled <= 65535
                assert (max_unsettled is None) is not accept
                subscription.limit(max_unsettled)
            if queue.startswith(_OURS):
                return subscription
            if exclusive and self.broker.seen_consumers(queue):
                raise ResourceLocked(405, None, "exclusive", "message.subscribe")
            self.broker.subscriptions.append(
                {"queue": queue, "accept": accept, "acquire": acquire, "exclusive": exclusive, "selector": selector}
            )
            if not self.capabilities.credit:
                self.broker.subscriptions[-1] |= {"max_unsettled": max_unsettled, "arguments": arguments}
            self.subscription = subscription
            return subscription

    def accept(self, ranges: Sequence[tuple[int, int]], *, silence_timeout_s: float = 0.0) -> None:
        with self.broker.changed:
            self.command("accept")
            self.broker.silence_timeouts.append(silence_timeout_s)
            self.transactions.accepts += _ids(ranges)
            if not self.transactions.is_local:
                self.transactions.apply()

    def reject(self, ranges: Sequence[tuple[int, int]], *, text: str = "", silence_timeout_s: float = 0.0) -> None:
        with self.broker.changed:
            self.command("reject")
            self.broker.silence_timeouts.append(silence_timeout_s)
            self.broker.rejected += [(self.held.pop(each)[1].body, text) for each in _ids(ranges)]
            self.broker.changed.notify_all()

    def log_entry(self, block: Block, index: int) -> None:
        return None

    def earlier_deliveries(self, block: Block) -> int:
        return self.broker.earlier_deliveries

    def redelivered(self, block: Block) -> list[int]:
        raise NotImplementedError("it has no quorum queues")

    def first_is_redelivered(self, block: Block) -> bool:
        return False

    def identities(self, block: Block, indices: Sequence[int] | None = None) -> list[Identity | None]:
        raise NotImplementedError("it has no quorum queues")

    def pass_barrier(self, queue: str) -> bool | None:
        raise NotImplementedError("it has no quorum queues")

    def release(self, ranges: Sequence[tuple[int, int]], *, sync: bool = False) -> None:
        with self.broker.changed:
            self.command("release")
            self.broker.requeue(self, _ids(ranges))
            self.broker.changed.notify_all()

    def sync(self, *, silence_timeout_s: float = 0.0) -> None:
        with self.broker.changed:
            self.command("sync")
            self.broker.silence_timeouts.append(silence_timeout_s)
            self.broker.syncs += 1
            self.read_all()

    def check_lock(self, queue: str) -> None:
        """A state is taken and replaced only by the session that holds its lock."""
        if queue.startswith(_STATE):
            assert self.broker.locks.get(queue.replace(".state.", ".lock.", 1)) is self, f"{queue} without its lock"

    def publish_to_queue(self, queue: str, body: bytes, *, content_type: str) -> None:
        with self.broker.changed:
            self.call("marker" if queue.startswith(_MARKERS) else "state")
            assert content_type == "application/json"
            assert queue in self.broker.queues
            self.check_lock(queue)
            if queue.startswith(_MARKERS):
                self.broker.markers.append(PreparedBranch.load(body))
            if self.transactions.open:
                self.broker.begun[self.transactions.open].append((queue, body))
                return
            self.transactions.published.append((queue, body))
            if not self.transactions.is_local:
                self.transactions.apply()

    def confirm(self) -> None:
        self.call("confirm")

    def publisher(self, *, max_in_flight: int, blocked_timeout_s: float = math.inf) -> FakePublisher:
        self.publishers.append(FakePublisher(self, max_in_flight, blocked_timeout_s))
        return self.publishers[-1]

    # --- the connection

    def service(self) -> None:
        self.services += 1
        self.on_service()
        self.command("service")

    @property
    def under_way_bytes(self) -> int:
        return 0  # messages come whole

    def read_at_most(self, nbytes: int) -> None:
        assert nbytes >= 1 << 14

    def pause_reading(self, paused: bool) -> None:
        with self.broker.changed:
            self.paused = paused
            self.broker.changed.notify_all()

    def wake(self) -> None:
        with self.broker.changed:
            self.woken = True
            self.broker.changed.notify_all()

    def close(self) -> None:
        self._leave("closed")

    def discard(self) -> None:
        self._leave("discarded")

    def abort(self) -> None:
        self._leave("aborted")

    def _leave(self, how: str) -> None:
        self.ended = self.ended or how
        self.end(ConnectionLost(f"the client is {how}"))

    def end(self, error: Exception) -> None:
        """The connection or session ends with an error, unless it has ended before."""
        with self.broker.changed:
            self.error = self.error or error
            if self in self.broker.live:
                self.broker.live.remove(self)
                self.broker.forget(self)
            self.broker.changed.notify_all()


def _ids(ranges: Sequence[tuple[int, int]]) -> list[int]:
    return [each for first, last in ranges for each in range(first, last + 1)]


class FakeSubscription:
    """See :class:`amqp_core.api.Subscription`."""

    def __init__(self, client: FakeClient, queue: str, *, accept: bool, acquire: bool) -> None:
        self.client = client
        self.queue = queue
        self.accept = accept
        self.acquire = acquire
        self.credit = 0
        self.bytes = float("inf")
        self.granted: list[int] = []
        self.cursor = 0
        self.ready: list[FakeBlock] = []
        self.most: float | None = None
        """The limit of unsettled messages, if there is no credit."""
        self.under_way = 0
        """Messages that the broker has sent before a stop, and that have not arrived."""
        self.admits: Callable[[int, int, int], bool] | None = None
        self.overflowed = False

    def bound(self, admits: Callable[[int, int, int], bool]) -> None:
        self.admits = admits

    def drop_without_room(self) -> None:
        """Drop the latest block if it has no room, or one before had none."""
        count, nbytes = sum(len(each.ends) for each in self.ready), sum(len(each.frames) for each in self.ready)
        if self.overflowed or (self.admits is not None and not self.admits(count, nbytes, 0)):
            self.overflowed = True
            self.ready = []

    def limit(self, most: int | None) -> None:
        """Let messages come without credit, at most so many unsettled ones."""
        self.most = float("inf") if most is None else most

    @property
    def credit_bytes(self) -> float:
        return self.bytes if self.credit else 0.0

    def grant(self, messages: int) -> None:
        assert self.most is None
        self.client.command("grant")
        self.credit += messages

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        with self.client.broker.changed:
            assert self.most is None
            self.client.command("grant" if messages else "stop")
            self.credit = messages
            self.bytes = float("inf") if nbytes is None else nbytes
            self.granted.append(messages)
            self.client.broker.changed.notify_all()

    def take_blocks(self, timeout: float, *, begun: bool = False) -> list[FakeBlock]:
        broker, client = self.client.broker, self.client
        deadline = time.monotonic() + timeout
        with broker.changed:
            while True:
                if broker.cancels:
                    raise broker.cancels.pop(0)
                if not client.paused and not client.error:
                    self._send(broker.block_messages)
                if self.ready:
                    broker.changed.notify_all()
                    return self.take_arrived()
                client.check()
                left = deadline - time.monotonic()
                if client.woken or left <= 0:
                    client.woken = False
                    return []
                broker.changed.wait(left)

    def take_arrived(self) -> list[FakeBlock]:
        with self.client.broker.changed:
            blocks, self.ready = self.ready, []
            return blocks

    def take_one(self, *, timeout: float) -> Received | None:
        broker = self.client.broker
        with broker.changed:
            self.client.check()
            if self.acquire:
                self.client.check_lock(self.queue)
            found = self._next(min(1, self.credit))
            if not found and timeout and self.credit:
                broker.calls.append("wait")
                broker.waits.append(timeout)
                broker.on_wait()
                found = self._next(1)
            if not found:
                return None
            self.credit -= 1
            return Received(found[0].body, self._deliver(found))

    def flush(self) -> None:
        """Messages are received by the calls that follow, as long as there is credit."""
        assert self.most is None
        self.client.command("flush")

    def probe(self) -> None:
        with self.client.broker.changed:
            assert self.most is None
            self.client.command("flush")
            self.credit, self.bytes = 1, float("inf")
            if self.client.broker.early_flushes > 0:
                self.client.broker.early_flushes -= 1
            else:
                self._send(1)
            self.credit = 0

    def cancel(self) -> None:
        if self.queue.startswith(_MARKERS):
            self.client.call("close")
        self.credit = 0

    def cease(self) -> None:
        """What is under way comes first."""
        with self.client.broker.changed:
            self.client.command("cancel")
            self.under_way = min(self._room(), len(self.client.broker.queues.get(self.queue, ())))
            self.most = 0

    @property
    def ceased(self) -> bool:
        return self.most == 0 and self.under_way == 0

    def _room(self) -> int:
        """Messages that the limit of unsettled ones allows now."""
        assert self.most is not None
        stalled = self.client.broker.stalls[self.queue] > 0
        most = min(self.most, self.client.broker.cap)
        return 0 if stalled else max(0, int(min(most - len(self.client.held), 1 << 30)))

    def send_block(self) -> bool:
        """Send a block of messages, if there are any and they may be sent."""
        return self._send(self.client.broker.block_messages)

    def _send(self, most: int) -> bool:
        if self.most is not None:
            self.credit = self.under_way if self.most == 0 else self._room()
        messages = self._next(min(most, self.credit))
        if not messages:
            self.under_way = 0
            return False
        self.under_way = max(0, self.under_way - len(messages))
        frames, ends, largest = b"", [], 0
        for message in messages:
            raw = transfer_frames(message.body, redelivered=message.redelivered)
            frames += raw
            ends.append(len(frames))
            largest = max(largest, len(raw))
        self.credit -= len(messages)
        self.ready.append(FakeBlock(frames, ends, self._deliver(messages), largest))
        self.bytes -= sum(len(message.body) for message in messages)
        return True

    def _deliver(self, messages: Sequence[FakeMessage]) -> int:
        """Number messages; return the id of the first."""
        first = self.client.next_id
        if self.accept and self.acquire:
            self.client.held.update(enumerate(((self.queue, message) for message in messages), first))
        self.client.next_id += len(messages)
        return first

    def _next(self, count: int) -> list[FakeMessage]:
        """Messages within the credit: a message larger than the rest of the bytes waits for a new credit."""
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


class FakeQueries:
    """See :class:`amqp_core.api.RouteQueries`."""

    def __init__(self, client: FakeClient, found: list[Route]) -> None:
        self.client = client
        self.found = found

    @property
    def arrived(self) -> bool:
        return self.client.broker.arrives

    def answers(self) -> list[Route]:
        self.client.check()
        return self.found


class FakePublisher:
    """See :class:`amqp_core.api.Publisher`; follows the script of its connection."""

    def __init__(self, client: FakeClient, max_in_flight: int, blocked_timeout_s: float) -> None:
        self.client = client
        self.max_in_flight = max_in_flight
        self.blocked_timeout_s = blocked_timeout_s
        self.accept_mode = 1 if client.broker.qpidd else 0
        self.max_frame_size = client.broker.max_frame_size
        self.sent, self.completed = Counted(), Counted()
        self.runs: list[Transfers] = []
        self.rejected: list[Rejected] = []

    @property
    def in_flight(self) -> int:
        return self.sent.transfers - self.completed.transfers

    @property
    def finished(self) -> bool:
        return not self.runs

    def send(self, transfers: Transfers, *, timeout_s: float = math.inf) -> int:
        self.runs.append(transfers)
        self.client.check()
        script, broker, first = self.client.script, self.client.broker, self.sent.transfers
        for index in range(len(transfers)):
            if self.sent.transfers == script.breaks_after:
                self.fail(script.error)
            broker.on_taken()
            broker.taken.append(bytes(transfers.cut(index, index + 1).frames))
            broker.modes.append(broker.taken[-1][19 + len("amq.direct")] if broker.protocol == "0-10" else 0)
            code = script.rejects.get(self.sent.transfers)
            if broker.modes[-1] and not broker.qpidd:
                if script.full:
                    self.fail(ResourceLimitExceeded(506, None, "Maximum depth exceeded"))
            elif code is not None:
                self.rejected.append(Rejected(transfers.tag, transfers.first + index, code, "so it is", transfers))
            if self.sent.transfers == script.refuses:
                self.sent.transfers += 1
                self.fail(NotFound(404, self.sent.transfers - 1, "gone", "message.transfer"))
            self.sent.transfers += 1
        return first

    def finish(self, *, timeout_s: float = math.inf) -> None:
        if not self.runs:
            return
        self.client.check()
        if self.client.script.breaks_at_finish:
            self.fail(self.client.script.error)
        self.completed.transfers = self.sent.transfers
        self.runs.clear()

    def fail(self, error: AmqpError) -> None:
        self.completed.transfers = min(self.client.script.completes, self.sent.transfers)
        self.client.error = error
        raise error

    def unfinished(self) -> list[Transfers]:
        skip, found = self.completed.transfers, []
        for run in self.runs:
            if skip < len(run):
                found.append(run.cut(skip, len(run)))
            skip = max(0, skip - len(run))
        return found

    def take_rejected(self) -> list[Rejected]:
        rejected, self.rejected = self.rejected, []
        return rejected

    def probe(self) -> None:
        """It sends what it is given."""

    def locate(self, command_id: int) -> tuple[object, int] | None:
        for run in self.runs:
            if command_id < len(run):
                return run.tag, run.first + command_id
            command_id -= len(run)
        return None


class FakeTransactions:
    """See :class:`amqp_core.api.Transactions`."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.broker = client.broker
        self.silence_timeout_s = 0.0
        self.is_local = False
        self.accepts: list[int] = []
        self.published: list[tuple[str, bytes]] = []
        self.open = ""
        """Text of the xid of the branch that the session publishes in."""

    # --- local

    def select(self) -> None:
        self.client.command("tx.select")
        self.is_local = True

    def commit(self, sent: Callable[[], None] | None = None, *, silence_timeout_s: float | None = None) -> None:
        with self.broker.changed:
            bodies = [json.loads(body) for queue, body in self.published if queue.startswith(_STATE)]
            self.client.call(" ".join(["swap", *(body["state"] for body in bodies if "state" in body)]))
            if sent is not None:
                sent()
            outcome = self.broker.commit_outcomes.pop(0) if self.broker.commit_outcomes else None
            if outcome is None or outcome.commits:
                self.apply()
            if outcome is not None:
                self.client.end(outcome.error)
                raise outcome.error

    def apply(self) -> None:
        """Accepts and messages take effect."""
        for each in self.accepts:
            queue, message = self.client.held.pop(each)  # a KeyError: this session does not hold it
            if not queue.startswith(_OURS):
                self.broker.accepted.append(message.body)
        for queue, body in self.published:
            self.broker.publish(queue, body)
        self.accepts, self.published = [], []
        self.broker.changed.notify_all()

    # --- distributed, on the session that publishes

    def dtx_select(self) -> None:
        self.client.call("select")

    def start(self, xid: Xid) -> None:
        self.broker.begun[xid_text(xid)] = []  # even if the answer is lost
        self.broker.open_branches.add(xid_text(xid))
        self.client.call("start")
        self.open = xid_text(xid)

    def end(self, xid: Xid, *, fail: bool = False) -> None:
        assert not fail
        self.client.call("end")
        assert xid_text(xid) == self.open
        assert self.client.publishers[-1].finished, "the broker has not completed all of it"

    def prepare(self, xid: Xid) -> None:
        self.client.call("prepare")
        self.broker_prepares(xid)

    def broker_prepares(self, xid: Xid) -> None:
        self._leave(xid)
        self.broker.prepared[xid_text(xid)] = xid

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        if self.client.error is not None:
            return False
        self.broker.calls.append("abandon ended" if ended else "abandon")
        self._leave(xid)
        return True

    def _leave(self, xid: Xid) -> None:
        assert xid_text(xid) == self.open
        self.broker.open_branches.remove(self.open)
        self.open = ""

    # --- distributed, on any session

    def recover(self) -> list[Xid]:
        self.client.call("recover")
        if len(self.broker.prepared) > self.broker.most_listed:
            self.client.end(ConnectionLost("the peer has closed the connection"))
            self.client.check()
        return list(self.broker.prepared.values())

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        self.client.call("set_timeout")
        text = xid_text(xid)
        assert text == self.open or text in self.broker.prepared or text in self.broker.expired
        self.broker.timers.setdefault(text, []).append(seconds)
        self.broker.on_timeout()

    def get_timeout(self, xid: Xid) -> int:
        self.client.call("get_timeout")
        return self.broker.timers.get(xid_text(xid), [self.broker.term])[-1]

    def commit_branch(self, xid: Xid) -> None:
        self.client.call("commit")
        text = xid_text(xid)
        self._may_be_silent(text)
        del self.broker.prepared[text]
        for queue, body in self.broker.begun[text]:
            self.broker.publish(queue, body)

    def rollback_branch(self, xid: Xid) -> None:
        self.client.call("rollback")
        text = xid_text(xid)
        if text not in self.broker.prepared and text not in self.broker.open_branches:
            self.client.end(NotFound(404, 0, "no such branch"))
            self.client.check()
        self._may_be_silent(text)
        self.broker.prepared.pop(text, None)
        self.broker.open_branches.discard(text)
        self.broker.rolled_back.append(text)

    def _may_be_silent(self, text: str) -> None:
        rows = [PreparedBranch.load(body).rows for _, body in self.broker.begun[text]]
        assert self.silence_timeout_s >= sum(rows) / 1000, "the broker may be silent meanwhile"
