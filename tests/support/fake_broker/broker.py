"""Queues, bindings and branches of the fake broker, and the connections that use them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError, ConnectionLost
from tests.support.fake_broker.client import FakeClient
from tests.support.fake_broker.messages import FakeMessage
from tests.support.fake_broker.names import OURS, STATE
from tests.support.fake_broker.script import CommitOutcome, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client, Xid
    from amqp_spark.sink.prepared_transactions import PreparedBranch


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
            return sum(not queue.startswith(OURS) for client in self.live for queue, _ in client.held.values())

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
            found = {queue: self.messages(queue) for queue in self.queues if queue.startswith(STATE)}
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
