"""One connection to the fake broker, with one session."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from amqp_core.api import Capabilities, Route
from amqp_core.errors import ConnectionLost, NotFound, ResourceLocked
from amqp_spark.sink.prepared_transactions import PreparedBranch
from tests.support.fake_broker.messages import FakeInfo, FakeMessage
from tests.support.fake_broker.names import MARKERS, OURS, STATE
from tests.support.fake_broker.publisher import FakePublisher, FakeQueries
from tests.support.fake_broker.subscription import FakeSubscription
from tests.support.fake_broker.transactions import FakeTransactions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Block, Identity, Ready, Target
    from tests.support.fake_broker.broker import FakeBroker
    from tests.support.fake_broker.script import Script


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
            selectors=True,
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

    def declare_exchange(self, exchange: str, kind: str, *, durable: bool = False) -> None:
        raise NotImplementedError("the fake broker has the state of a consumer in a queue, as brokers of 0-10 have it")

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
            if queue.startswith(OURS):
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

    def returned(self, block: Block) -> list[int]:
        return self.redelivered(block) if self.broker.earlier_deliveries else []

    def first_is_redelivered(self, block: Block) -> bool:
        return False

    def identities(self, block: Block, indices: Sequence[int] | None = None) -> list[Identity | None]:
        raise NotImplementedError("it has no quorum queues")

    def pass_barrier(self, queue: str) -> Ready | None:
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
        if queue.startswith(STATE):
            assert self.broker.locks.get(queue.replace(".state.", ".lock.", 1)) is self, f"{queue} without its lock"

    def publish_to_queue(self, queue: str, body: bytes, *, content_type: str) -> None:
        with self.broker.changed:
            self.call("marker" if queue.startswith(MARKERS) else "state")
            assert content_type == "application/json"
            assert queue in self.broker.queues
            self.check_lock(queue)
            if queue.startswith(MARKERS):
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
    def is_blocked(self) -> bool:
        return False

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

    def close(self) -> bool:
        self._leave("closed")
        return True

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
