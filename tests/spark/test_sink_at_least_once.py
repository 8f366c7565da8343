"""Delivery of a task: what is sent again after a loss, what fails and with which words, and when nothing is sent."""

from __future__ import annotations

import pickle
from collections import deque
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from amqp_core.errors import (
    AuthenticationFailed,
    ChannelClosed,
    ConfirmsMissing,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    InternalError,
    OutcomeUnknown,
    PublishingBlocked,
    RejectedUnexpectedly,
    VirtualHostRefused,
)
from amqp_core.v0_9.driver import PUBLISHING
from amqp_spark import crashpoints
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.errors import PublishFailed, RowError, Unroutable, UnsupportedModeError
from amqp_spark.options import SinkOptions
from amqp_spark.sink import routes
from amqp_spark.sink.at_least_once import MOST_REFUSALS, AtLeastOnce
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.task_writer import TaskWriter
from tests.support.fake_broker import FakeBroker, Script
from tests.support.fakepeer_0_9 import FakePeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amqp_spark.sink.statistics import Statistics
    from tests.support.fakepeer_0_9 import Peer

PLAIN = StructType().add("body", "string").add("routing_key", "string")
ROUTED = StructType().add("body", "string").add("routing_key", "string").add("exchange", "string")


def rows(count: int, begin: int = 0, **columns: list[str | None]) -> pa.RecordBatch:
    """A batch whose bodies say which row they are."""
    bodies = [f"row-{number:04}" for number in range(begin, begin + count)]
    arrays = {"body": pa.array(bodies), "routing_key": pa.array(["k"] * count)}
    arrays |= {name: pa.array(values, pa.string()) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks for its routes again after a lost connection only: without this, also when one second has passed."""
    monkeypatch.setattr(routes, "AGAIN_SECONDS", 1e6)


class Task:
    """One task against a broker, with the waits that it made."""

    def __init__(
        self,
        broker: FakeBroker,
        dotted: dict[str, object] | None = None,
        *,
        schema: StructType = PLAIN,
        **options: object,
    ) -> None:
        self.broker = broker
        given = {"url": "amqp://broker", "exchange": "amq.direct"} | options | (dotted or {})
        self.options = SinkOptions.parse(given)
        self.plan = MessagePlan.build(schema, self.options)
        self.pool = Connections(broker.connect)
        self.waits: list[float] = []

    def run(self, *batches: pa.RecordBatch) -> Statistics:
        return self.run_from(batches)

    def run_from(self, batches: Iterable[pa.RecordBatch]) -> Statistics:
        place = TaskId(None, 12, 3)
        policy = AtLeastOnce(self.options, place, connections=self.pool, sleep=self.waits.append)
        return TaskWriter(self.plan, policy).run(batches)

    @property
    def bodies(self) -> list[int]:
        return [int(frame[frame.rindex(b"row-") + 4 :][:4]) for frame in self.broker.taken]


def test_every_row_is_published_once_and_the_connection_kept(fake_sink: FakeBroker) -> None:
    task = Task(fake_sink, maxInFlight=7)
    statistics = task.run(rows(3), rows(0), rows(5000, 3))
    assert task.bodies == list(range(5003))
    assert (statistics.messages, statistics.retries, statistics.resent, statistics.discarded) == (5003, 0, 0, 0)
    assert statistics.nbytes == sum(map(len, fake_sink.taken))
    assert statistics.started > 0
    [client] = fake_sink.clients
    assert [publisher.max_in_flight for publisher in client.publishers] == [7]
    assert client.publishers[0].finished
    task.run(rows(2))
    assert (len(fake_sink.clients), len(client.publishers), client.ended) == (1, 2, "")


@pytest.mark.parametrize(
    ("qpidd", "capability"), [(False, "confirms"), (False, "exchange_queries"), (True, "binding_queries")]
)
def test_a_broker_without_what_the_sink_needs_gets_no_row(qpidd: bool, capability: str) -> None:
    broker = FakeBroker(qpidd=qpidd)
    broker.lacks = frozenset({capability})
    with pytest.raises(UnsupportedModeError, match=rf"The sink.* needs {capability.replace('_', ' ')}") as told:
        Task(broker).run(rows(3))
    assert told.value.condition == "AMQP_CAPABILITY_MISSING"
    assert (broker.taken, broker.clients[0].ended) == ([], "discarded")


def test_a_broker_that_rejects_needs_no_queries_of_bindings() -> None:
    broker = FakeBroker()
    broker.lacks = frozenset({"binding_queries"})
    assert Task(broker).run(rows(3)).messages == 3


def test_without_rows_nothing_is_connected(fake_sink: FakeBroker) -> None:
    statistics = Task(fake_sink, exchange="missing").run(rows(0), rows(0))
    assert (statistics.messages, fake_sink.clients) == (0, [])


@pytest.mark.parametrize("completes", [0, 2, 5])
def test_what_was_not_completed_is_sent_again_in_order(completes: int) -> None:
    broker = FakeBroker(Script(breaks_after=5, completes=completes))
    task = Task(broker)
    statistics = task.run(rows(8))
    assert task.bodies == [0, 1, 2, 3, 4, *range(completes, 8)]
    assert (statistics.messages, statistics.retries, statistics.resent) == (8, 1, 5 - completes)
    assert [client.ended for client in broker.clients] == ["discarded", ""]


def test_a_loss_at_the_end_is_a_loss_too() -> None:
    broker = FakeBroker(Script(breaks_at_finish=True, completes=4), Script(breaks_at_finish=True))
    task = Task(broker)
    statistics = task.run(rows(3), rows(3, 3))
    assert task.bodies == [0, 1, 2, 3, 4, 5, 4, 5, 4, 5]
    assert (statistics.messages, statistics.retries, statistics.resent) == (6, 2, 4)


def test_a_loss_while_spark_computes_is_noticed_and_nothing_skipped() -> None:
    broker = FakeBroker()
    task = Task(broker)

    def upstream() -> Iterator[pa.RecordBatch]:
        yield rows(2)
        broker.clients[0].error = ConnectionLost("cut meanwhile")
        yield rows(2, 2)

    assert task.run_from(upstream()).retries == 1
    assert task.bodies == [0, 1, 0, 1, 2, 3]


def test_attempts_are_counted_in_a_row_and_pauses_grow_up_to_the_longest() -> None:
    broker = FakeBroker(*[Script(breaks_after=1, completes=1)] * 6)
    task = Task(broker, {"retry.maxAttempts": 1, "retry.maxDelay": 5})
    assert task.run(rows(7)).retries == 6  # each connection completed something
    assert task.bodies == list(range(7))

    broker = FakeBroker(*[Script(breaks_after=0)] * 9)
    task = Task(broker, {"retry.maxAttempts": 10, "retry.maxDelay": 5})
    task.run(rows(1))
    longest = [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5, 5]
    assert all(0.5 * most <= wait <= most for wait, most in zip(task.waits, longest, strict=True))


def test_when_attempts_are_used_up_what_was_sent_is_in_doubt() -> None:
    broker = FakeBroker(Script(breaks_after=5, completes=2), *[Script(breaks_after=1)] * 2)
    task = Task(broker, {"retry.maxAttempts": 2})
    with pytest.raises(OutcomeUnknown) as caught:
        task.run(rows(8))
    assert "not confirmed 3 messages of partition 3 in batch 12" in str(caught.value)
    assert caught.value.condition == "AMQP_PUBLISH_OUTCOME_UNKNOWN"
    assert "(the first is row 2)" in str(caught.value)  # where the loss is always the same row, that one is to blame
    assert "retry.maxAttempts=2" in str(caught.value)
    assert [client.ended for client in broker.clients] == ["discarded"] * 3


@pytest.mark.parametrize(("code", "attempts"), [(501, 2), (502, 2), (320, 4), (541, 4)])
def test_what_a_broker_cannot_read_is_sent_twice_at_most(code: int, attempts: int) -> None:
    """It would close every connection for it, and each attempt publishes the rows before it once more."""
    closed = ConnectionClosed(code, "str8 is not UTF-8")
    broker = FakeBroker(*[Script(breaks_after=5, error=closed)] * 9)
    task = Task(broker, {"retry.maxAttempts": 3})
    with pytest.raises(OutcomeUnknown, match="str8 is not UTF-8"):
        task.run(rows(8))
    assert (len(broker.clients), len(task.waits)) == (attempts, attempts - 1)

    broker = FakeBroker(*[Script(breaks_after=2, completes=1, error=closed)] * 9)
    task = Task(broker, {"retry.maxAttempts": 3})
    assert task.run(rows(4)).messages == 4, "a connection that confirmed something begins anew"


def test_a_broker_that_stays_away_after_a_loss_leaves_the_same_doubt() -> None:
    broker = FakeBroker(Script(breaks_after=5, completes=2))
    task = Task(broker, {"retry.maxAttempts": 1})
    task.pool.lease(task.options.connect_options()).give_back()
    broker.fails["connect"] = [ConnectionFailed("connection refused")]
    with pytest.raises(OutcomeUnknown, match=r"not confirmed 3 messages .* connection refused"):
        task.run(rows(8))


def test_what_was_completed_later_is_no_longer_in_doubt() -> None:
    broker = FakeBroker(Script(breaks_after=5, completes=2), Script(breaks_after=6, completes=6))
    task = Task(broker, {"retry.maxAttempts": 1})
    broker.scripts.append(Script(breaks_after=0))
    broker.scripts.append(Script(breaks_after=0))
    with pytest.raises(ConnectionLost):
        task.run(rows(9))


def test_nothing_in_doubt_gives_the_error_itself(fake_sink: FakeBroker) -> None:
    fake_sink.fails["connect"] = [ConnectionFailed("connection refused")] * 3
    task = Task(fake_sink, {"retry.maxAttempts": 2})
    with pytest.raises(ConnectionFailed, match="connection refused"):
        task.run(rows(1))
    assert len(task.waits) == 2


@pytest.mark.parametrize("error", [AuthenticationFailed("no"), VirtualHostRefused("no")])
def test_what_trying_again_cannot_mend_is_not_tried_again(fake_sink: FakeBroker, error: Any) -> None:
    fake_sink.fails["connect"] = [error]
    task = Task(fake_sink)
    with pytest.raises(type(error)):
        task.run(rows(1))
    assert task.waits == []


@pytest.mark.parametrize("in_flight", [0, 2])
def test_a_message_that_is_rejected_after_it_counted_as_delivered_fails_the_task(in_flight: int) -> None:
    """It is nowhere, and a new connection would send only those behind it."""
    late = RejectedUnexpectedly("the broker rejects a message that it had completed")
    broker = FakeBroker(Script(breaks_after=3, completes=3 - in_flight, error=late))
    task = Task(broker)
    with pytest.raises(OutcomeUnknown if in_flight else RejectedUnexpectedly, match="that it had completed"):
        task.run(rows(3), rows(5, 3))
    assert (len(broker.clients), task.waits) == (1, [])


def test_a_kept_connection_that_broke_unseen_costs_no_attempt() -> None:
    broker = FakeBroker()
    task = Task(broker, {"retry.maxAttempts": 0})
    task.run(rows(1))
    broker.clients[0].script = Script(breaks_after=1)
    task.run(rows(2))
    assert task.bodies == [0, 0, 0, 1]
    assert (len(broker.clients), task.waits) == (2, [0.0])


@pytest.mark.parametrize("failure", [ValueError("upstream"), KeyboardInterrupt()])
def test_a_task_that_fails_ends_its_session(fake_sink: FakeBroker, failure: BaseException) -> None:
    def upstream() -> Iterator[pa.RecordBatch]:
        yield rows(2)
        raise failure

    task = Task(fake_sink)
    with pytest.raises(type(failure)):
        task.run_from(upstream())
    assert fake_sink.clients[0].ended == "discarded"
    assert task.pool.idle_count == 0


def test_a_row_that_cannot_be_sent_ends_the_task_and_its_session(fake_sink: FakeBroker) -> None:
    task = Task(fake_sink)
    with pytest.raises(RowError, match=r"Row 5 of partition 3 in batch 12 .*'body'"):
        task.run(rows(4), pa.RecordBatch.from_pydict({"body": ["x", None], "routing_key": ["k", "k"]}))
    assert fake_sink.clients[0].ended == "discarded"


# --- routes


def test_a_missing_exchange_is_refused_before_anything_is_sent(fake_sink: FakeBroker) -> None:
    task = Task(fake_sink, exchange="missing")
    with pytest.raises(PublishFailed, match=r"row 0 of .* for exchange 'missing': there is no such"):
        task.run(rows(3))
    assert fake_sink.taken == []
    assert fake_sink.clients[0].ended == "discarded"


def test_an_exchange_is_asked_for_before_and_after_and_again_after_a_loss(fake_sink: FakeBroker) -> None:
    task = Task(fake_sink)
    task.run(rows(5000), rows(5000))
    assert fake_sink.asked == {"exchange amq.direct": 2}
    fake_sink.clients[0].script = Script(breaks_after=4100)
    task.run(rows(4000), rows(1000, 4000))
    assert fake_sink.asked == {"exchange amq.direct": 2 + 3}


def test_exchanges_of_a_column_are_asked_for_and_named_by_row(fake_sink: FakeBroker) -> None:
    task = Task(fake_sink, schema=ROUTED, exchangeFromColumn=True)
    assert task.run(rows(3, exchange=["other", None, "amq.topic"])).messages == 3
    assert set(fake_sink.asked) == {"exchange other", "exchange amq.direct", "exchange amq.topic"}
    with pytest.raises(PublishFailed, match=r"row 4 .* 'gone': there is no such exchange.*column exchange"):
        task.run(rows(3, exchange=[None] * 3), rows(3, 3, exchange=["other", "gone", "lost"]))
    assert len(fake_sink.taken) == 6


def test_the_default_exchange_needs_no_question(fake_sink: FakeBroker) -> None:
    Task(fake_sink, exchange="").run(rows(1))
    assert not fake_sink.asked


def test_qpidd_is_asked_for_bindings_since_it_tells_nothing() -> None:
    broker = FakeBroker(qpidd=True)
    Task(broker).run(rows(3))
    assert broker.asked == {"exchange amq.direct": 2, "bound amq.direct k": 2}
    with pytest.raises(Unroutable, match=r"row 1 .* with routing key 'unbound': no queue is bound"):
        Task(broker).run(rows(2, routing_key=["k", "unbound"]))
    with pytest.raises(Unroutable, match=r"exchange '' with routing key 'k'"):
        Task(broker, exchange="").run(rows(2))
    Task(broker, exchange="", routingKey="q").run(rows(2))
    Task(broker, exchange="amq.topic").run(rows(2))


@pytest.mark.parametrize("key", [None, ""])
@pytest.mark.parametrize("exchange", ["amq.direct", ""])
def test_an_empty_key_is_not_taken_for_a_bound_one(exchange: str, key: str | None) -> None:
    """qpidd answers the question for the empty key with yes as soon as anything is bound."""
    broker = FakeBroker(qpidd=True)
    broker.queues["k"] = deque()
    with pytest.raises(Unroutable, match=rf"row 2 .* exchange '{exchange}' with routing key '': its routing key is em"):
        Task(broker, exchange=exchange).run(rows(4, routing_key=["k", "k", key, "k"]))
    assert broker.taken == []
    statistics = Task(broker, exchange=exchange, onUnroutable="discard").run(rows(4, routing_key=["k", "k", key, "k"]))
    assert (statistics.messages, statistics.discarded, len(broker.taken)) == (3, 1, 4)


def test_a_row_without_a_key_column_has_an_empty_key() -> None:
    broker = FakeBroker(qpidd=True)
    schema = StructType().add("body", "string")
    with pytest.raises(Unroutable, match=r"row 0 .*is empty or not UTF-8.*column routing_key, option routingKey"):
        Task(broker, schema=schema).run(rows(2).select(["body"]))
    assert broker.taken == []


def test_a_key_that_is_no_text_is_not_taken_for_another_one() -> None:
    """The broker would be asked for the replacement character, and drop what is sent with the octet."""
    broker = FakeBroker(qpidd=True)
    broker.bindings.add(("q", "amq.direct", "\ufffd"))
    schema = StructType().add("body", "string").add("routing_key", "binary")
    batch = rows(1).set_column(1, "routing_key", pa.array([b"\xff"], pa.binary()))
    with pytest.raises(Unroutable, match=r"row 0 .*its routing key is empty or not UTF-8"):
        Task(broker, schema=schema, exchange="amq.direct").run(batch)
    assert broker.taken == []


def vanish(broker: FakeBroker, after: int, *, exchange: bool = False) -> None:
    """Let the queue, and perhaps its exchange, be deleted when so many transfers were taken."""

    def look() -> None:
        if len(broker.taken) == after:
            broker.bindings.clear()
            if exchange:
                broker.exchanges.clear()

    broker.on_taken = look


@pytest.mark.parametrize("after", [100, 199])
def test_a_queue_that_is_deleted_during_a_task_fails_it(after: int) -> None:
    """qpidd completes what it drops then."""
    broker = FakeBroker(qpidd=True)
    vanish(broker, after)
    with pytest.raises(
        Unroutable,
        match=r"200 message\(s\), the first is row 0 of partition 3 in batch 12 for exchange 'amq.direct' with routing "
        r"key 'k': the queue or its binding was deleted during the task, .*may be lost\. Create",
    ):
        Task(broker).run(rows(100), rows(100, 100))
    assert broker.clients[0].ended == "discarded"


@pytest.mark.parametrize("qpidd", [True, False])
@pytest.mark.parametrize("unroutable", ["fail", "discard"])
def test_an_exchange_that_is_deleted_during_a_task_fails_it(qpidd: bool, unroutable: str) -> None:
    """Broker-J then routes by queue name, and completes."""
    broker = FakeBroker(qpidd=qpidd)
    vanish(broker, 100, exchange=True)
    with pytest.raises(PublishFailed, match=r"200 message.* for exchange 'amq.direct': the exchange was deleted, or"):
        Task(broker, onUnroutable=unroutable).run(rows(100), rows(100, 100))


def test_a_queue_that_is_deleted_is_a_warning_with_discard(caplog: pytest.LogCaptureFixture) -> None:
    broker = FakeBroker(qpidd=True)
    vanish(broker, 100)
    assert Task(broker, onUnroutable="discard").run(rows(200)).messages == 200
    assert "200 message(s), the first is row 0" in caplog.text
    assert "the queue or its binding was deleted" in caplog.text


def test_a_queue_that_is_deleted_while_the_broker_is_away_fails_the_task() -> None:
    broker = FakeBroker(Script(breaks_after=150, completes=150), qpidd=True)
    vanish(broker, 149)
    with pytest.raises(Unroutable, match=r"row 0 of .* with routing key 'k': the queue or its binding was deleted"):
        Task(broker).run(rows(100), rows(100, 100))


def test_a_loss_while_the_broker_is_asked_again_is_a_loss_like_others() -> None:
    broker = FakeBroker(Script(breaks_at_question=2), qpidd=True)
    statistics = Task(broker).run(rows(10))
    assert (statistics.messages, statistics.retries, statistics.resent, len(broker.taken)) == (10, 1, 0, 10)
    assert broker.asked["bound amq.direct k"] == 2


def test_qpidd_unroutable_is_counted_once_with_discard_and_sent_all_the_same() -> None:
    broker = FakeBroker(Script(breaks_at_finish=True), qpidd=True)
    statistics = Task(broker, onUnroutable="discard").run(rows(3, routing_key=["k", "unbound", None]))
    assert (statistics.messages, statistics.discarded, statistics.resent) == (1, 2, 3)
    assert len(broker.taken) == 6


# --- what the broker does not take


def test_rejects_fail_the_task_with_count_first_row_and_target() -> None:
    task = Task(FakeBroker(Script(rejects={2: 1, 4: 1})))
    with pytest.raises(Unroutable) as caught:
        task.run(rows(3), rows(3, 3))
    assert str(caught.value).startswith(
        "[AMQP_REJECTED_AS_UNROUTABLE] Cannot publish 1 message(s), the first is row 2 of partition 3 in batch 12 "
        "for exchange 'amq.direct' with routing key 'k': "
        "the broker rejected it with code 1 (so it is): no queue is bound"
    )
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.count) == (Unroutable, str(caught.value), 1)


def test_unroutable_rejects_can_be_discarded_and_are_counted() -> None:
    broker = FakeBroker(Script(rejects={2: 1, 3: 1, 5: 1}))
    task = Task(broker, onUnroutable="discard")
    statistics = task.run(rows(8), rows(1, 8))
    assert (statistics.messages, statistics.discarded) == (6, 3)
    # sent again with accept-mode none (1): a queue that is only full would show itself
    again = [(body, mode) for body, mode in zip(task.bodies, broker.modes, strict=True) if mode]
    assert again == [(2, 1), (3, 1), (5, 1)]
    assert sorted(task.bodies) == sorted([*range(9), 2, 3, 5])


def test_what_is_rejected_again_although_it_asks_for_no_accept_is_not_sent_for_ever() -> None:
    broker = FakeBroker(Script(rejects=dict.fromkeys(range(100), 1)), qpidd=True)
    with pytest.raises(Unroutable, match="rejected it with code 1"):
        Task(broker, {"onUnroutable": "discard"}).run(rows(1))
    assert len(broker.taken) == 2


def test_a_full_queue_is_not_taken_for_an_unroutable_message() -> None:
    task = Task(FakeBroker(Script(rejects={2: 1}, full=True)), onUnroutable="discard")
    with pytest.raises(PublishFailed, match=r"partition 3 in batch 12 .*506: Maximum depth exceeded"):
        task.run(rows(6))


def test_a_loss_after_rejects_that_may_be_discarded_forgets_none() -> None:
    broker = FakeBroker(Script(rejects={2: 1}, breaks_after=4, completes=4))
    task = Task(broker, onUnroutable="discard")
    statistics = task.run(rows(6))
    assert (statistics.messages, statistics.discarded) == (5, 1)
    assert sorted(task.bodies) == [0, 1, 2, 2, 3, 4, 5]


def test_a_loss_is_the_error_where_only_discarded_messages_were_not_confirmed() -> None:
    """On 0-9-1 a message that was returned is neither in doubt nor sent again, although its confirm has not come."""
    broker = FakeBroker(Script(rejects={2: 312}, breaks_at_finish=True, completes=2), protocol="0-9-1")
    task = Task(broker, {"retry.maxAttempts": 0}, onUnroutable="discard")
    with pytest.raises(ConnectionLost):
        task.run(rows(3))


def test_a_full_queue_fails_the_task_whatever_is_said_of_unroutable_ones() -> None:
    task = Task(FakeBroker(Script(rejects={2: 1, 4: 0})), onUnroutable="discard")
    with pytest.raises(PublishFailed, match=r"row 4 .* rejected it with code 0 \(so it is\)\.") as caught:
        task.run(rows(6))
    assert not isinstance(caught.value, Unroutable)


def test_a_reject_before_a_loss_is_not_forgotten() -> None:
    task = Task(FakeBroker(Script(rejects={1: 1}, breaks_after=3, completes=3)))
    with pytest.raises(Unroutable, match="row 1 "):
        task.run(rows(6))


def test_a_refused_transfer_is_named_and_not_tried_again() -> None:
    broker = FakeBroker(Script(refuses=4))
    task = Task(broker)
    with pytest.raises(
        PublishFailed,
        match=r"^\[AMQP_PUBLISH_REFUSED\] Cannot publish row 4 of partition 3 .* exchange 'amq.direct' .* 404: gone",
    ):
        task.run(rows(3), rows(3, 3))
    assert (len(broker.clients), broker.clients[0].ended, task.waits) == (1, "discarded", [])


def test_an_exception_without_command_names_the_task() -> None:
    task = Task(FakeBroker(Script(breaks_after=1, error=InternalError(541, None, "failed inside"))))
    with pytest.raises(
        PublishFailed,
        match=r"^\[AMQP_PUBLISH_REFUSED\] Cannot publish partition 3 .* exchange 'amq.direct': .*541: failed inside",
    ):
        task.run(rows(3))


@pytest.mark.parametrize("code", [320, 504])
def test_a_channel_that_the_broker_closed_for_its_own_reasons_is_no_refusal(code: int) -> None:
    broker = FakeBroker(
        Script(breaks_after=2, completes=1, error=ChannelClosed(code, None, "because")), protocol="0-9-1"
    )
    task = Task(broker)
    statistics = task.run(rows(4))
    assert (statistics.messages, statistics.retries, statistics.resent) == (4, 1, 1)
    assert task.bodies == [0, 1, 1, 2, 3]

    broker = FakeBroker(*[Script(breaks_after=0, error=ChannelClosed(code, None, "because"))] * 3, protocol="0-9-1")
    with pytest.raises(ChannelClosed, match=f"{code} because"):
        Task(broker, {"retry.maxAttempts": 2}).run(rows(4))


def test_a_task_goes_on_when_a_real_client_loses_its_channel() -> None:
    """After a message that was confirmed, and before any; LavinMQ closes it so while its disk is nearly full."""
    found: list[bytes] = []
    closes: list[Callable[[Peer], object]] = [
        lambda peer: peer.channels[PUBLISHING].close(504, "because"),
        lambda peer: peer.channels[PUBLISHING].close(320, "because"),
        lambda peer: peer.refuse(406, "PRECONDITION_FAILED - Server low on disk space"),
    ]

    def script(peer: Peer) -> None:
        peer.open()
        if closes:
            peer.published(3)
            if len(closes) == 3:
                peer.ack(1)
            closes.pop(0)(peer)
        peer.acking = True
        peer.serve()
        found.extend(message.content.body for message in peer.messages)

    with FakePeer(script) as server:
        url = f"amqp://127.0.0.1:{server.port}"
        given = {"url": url, "protocol": "0-9-1", "routingKey": "q", "retry.maxDelay": 0.02}
        options = SinkOptions.parse(given)
        with closing(Connections()) as pool:
            plan = MessagePlan.build(StructType().add("body", "string"), options)
            task = TaskWriter(plan, AtLeastOnce(options, TaskId("the-query", 7, 1), connections=pool))
            statistics = task.run([rows(5).select(["body"])])
    assert (statistics.messages, statistics.retries) == (5, 3)
    assert set(found) >= {b"row-%04d" % number for number in range(1, 5)}, "what was not confirmed came again"


def test_after_a_loss_the_next_host_is_tried_first() -> None:
    """The first one takes connections, but none of them lives for long: a proxy before a node that is gone."""
    found: list[bytes] = []

    def lost(peer: Peer) -> None:
        peer.open()
        peer.published()

    def good(peer: Peer) -> None:
        peer.acking = True
        peer.open()
        peer.serve()
        found.extend(message.content.body for message in peer.messages)

    with FakePeer(lost) as first, FakePeer(good) as second:
        url = f"amqp://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        given = {"url": url, "protocol": "0-9-1", "routingKey": "q", "retry.maxAttempts": 1, "retry.maxDelay": 0.02}
        options = SinkOptions.parse(given)
        with closing(Connections()) as pool:
            plan = MessagePlan.build(StructType().add("body", "string"), options)
            task = TaskWriter(plan, AtLeastOnce(options, TaskId("the-query", 7, 1), connections=pool))
            statistics = task.run([rows(3).select(["body"])])
    assert (statistics.messages, statistics.retries) == (3, 1)
    assert found == [b"row-0000", b"row-0001", b"row-0002"]


@pytest.mark.parametrize(("qpidd", "frame"), [(True, 65535), (False, 4096)])
def test_a_broker_of_another_kind_cannot_take_over(qpidd: bool, frame: int) -> None:
    broker = FakeBroker(Script(breaks_after=1))
    task = Task(broker)

    def upstream() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        broker.qpidd, broker.max_frame_size = qpidd, frame
        yield rows(1, 1)

    with pytest.raises(PublishFailed, match=r"another kind \(AMQP 0-10\) or takes smaller frames"):
        task.run_from(upstream())
    assert broker.taken == [broker.taken[0]]
    assert [client.ended for client in broker.clients] == ["discarded"] * 2


# --- AMQP 0-9-1: returns, confirms, and brokers that block


@pytest.fixture
def rabbit() -> FakeBroker:
    return FakeBroker(protocol="0-9-1")


def test_a_broker_that_returns_is_asked_for_the_exchange_only(rabbit: FakeBroker) -> None:
    assert Task(rabbit).run(rows(4000), rows(1000, 4000)).messages == 5000
    assert rabbit.asked == {"exchange amq.direct": 2}
    with pytest.raises(PublishFailed, match="there is no such exchange"):
        Task(rabbit, exchange="missing").run(rows(3))


@pytest.mark.parametrize("key", [None, "", "unbound"])
def test_a_returned_message_is_unroutable_whatever_its_key(key: str | None) -> None:
    rabbit = FakeBroker(Script(rejects={1: 312, 3: 312}), protocol="0-9-1")
    with pytest.raises(Unroutable) as caught:
        Task(rabbit).run(rows(4, routing_key=["k", key, "k", key]))
    assert str(caught.value) == (
        "[AMQP_UNROUTABLE] Cannot publish 2 message(s), the first is row 1 of partition 3 in batch 12 for exchange "
        f"'amq.direct' with routing key '{key or ''}': no queue is bound for it. Create the queue or the binding, or "
        "set onUnroutable=discard to drop such messages."
    )


def test_returned_messages_are_discarded_without_another_look(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(rejects={1: 312, 3: 312}, breaks_after=6, completes=6))
    task = Task(rabbit, onUnroutable="discard")
    statistics = task.run(rows(8))
    assert (statistics.messages, statistics.discarded) == (6, 2)
    assert task.bodies == list(range(8)), "none is sent twice"


def test_a_full_queue_fails_the_task_even_if_unroutable_messages_may_be_discarded(rabbit: FakeBroker) -> None:
    rabbit.scripts += [Script(rejects={1: 312, 3: 0, 8: 0}), *[Script(rejects={0: 0})] * 10]
    task = Task(rabbit, onUnroutable="discard")
    with pytest.raises(PublishFailed, match="row 3 ") as caught:
        task.run(rows(8))
    assert not isinstance(caught.value, Unroutable)
    assert len(task.waits) == MOST_REFUSALS


def test_a_returned_message_among_nacked_ones_is_what_fails_the_task(rabbit: FakeBroker) -> None:
    """What is nacked would be sent again, so that it is not the cause."""
    rabbit.scripts.append(Script(rejects={1: 0, 3: 312, 4: 0, 6: 312}))
    with pytest.raises(
        Unroutable, match=r"^\[AMQP_UNROUTABLE\] Cannot publish 2 message\(s\), .* row 3 of partition 3"
    ):
        Task(rabbit).run(rows(8))


def test_nacked_messages_are_sent_again_on_another_connection(rabbit: FakeBroker) -> None:
    """A channel of RabbitMQ 3.10 that has met a queue without its leader nacks until that node is back."""
    rabbit.scripts += [Script(rejects=dict.fromkeys((1, 3, 4, 8, 9, 10), 0)), Script()]
    task = Task(rabbit)
    statistics = task.run(rows(8))
    assert (statistics.messages, statistics.retries, statistics.resent) == (8, 1, 0)
    assert task.bodies == [*range(8), 1, 3, 4, 1, 3, 4]


def test_a_broker_that_blocks_for_too_long_fails_the_task_and_the_option_is_named(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(breaks_after=2, error=PublishingBlocked("fake:5672", 90.4, "low on memory")))
    task = Task(rabbit, blockedTimeout=90)
    with pytest.raises(PublishFailed) as caught:
        task.run(rows(8))
    assert str(caught.value).startswith(
        "[AMQP_PUBLISHING_BLOCKED_TOO_LONG] Cannot publish partition 3 in batch 12: fake:5672 has blocked its "
        "publishers for 90 s: low on memory, and option blockedTimeout=90 s is over. Give"
    )
    [client] = rabbit.clients
    assert (client.publishers[0].blocked_timeout_s, client.ended, task.waits) == (90.0, "discarded", [])


def test_a_broker_that_confirms_nothing_for_too_long_fails_the_task(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(breaks_after=2, error=ConfirmsMissing("fake:5672", 90.0, "2")))
    with pytest.raises(PublishFailed) as caught:
        Task(rabbit, blockedTimeout=90).run(rows(8))
    assert str(caught.value).startswith(
        "[AMQP_PUBLISHING_BLOCKED_TOO_LONG] Cannot publish partition 3 in batch 12: fake:5672 has confirmed none of 2 "
        "message(s) for 90 s, and option blockedTimeout=90 s is over. Give"
    )


def test_a_channel_that_stays_stopped_fails_the_task_and_no_connection_fills_the_queue_further() -> None:
    """Broker-J stops each channel whose message it has put into a full queue, also one of a new connection."""
    taken: list[int] = []

    def script(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        taken.append(3)
        peer.flow(active=False)
        peer.ack(3, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        given = {"url": f"amqp://127.0.0.1:{server.port}", "protocol": "0-9-1", "routingKey": "q", "maxInFlight": 3}
        options = replace(SinkOptions.parse({**given, "retry.maxDelay": 0.02}), blocked_timeout=0.3)
        with closing(Connections()) as pool:
            plan = MessagePlan.build(StructType().add("body", "string"), options)
            task = TaskWriter(plan, AtLeastOnce(options, TaskId("the-query", 7, 1), connections=pool))
            with pytest.raises(PublishFailed, match=r"AMQP_PUBLISHING_BLOCKED_TOO_LONG.*channel.flow"):
                task.run([rows(9).select(["body"])])
    assert taken == [3]


def test_a_broker_of_another_protocol_cannot_take_over(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(breaks_after=1))

    def upstream() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        rabbit.protocol = "0-10"
        yield rows(1, 1)

    with pytest.raises(PublishFailed, match=r"of another kind \(AMQP 0-10\)"):
        Task(rabbit).run_from(upstream())


# --- crash points


def test_every_point_of_a_task_is_passed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker(Script(breaks_after=3))
    passed: list[tuple[str, int]] = []
    monkeypatch.setattr(crashpoints, "reached", lambda point: passed.append((point, len(broker.taken))))
    Task(broker).run(rows(5))
    assert passed == [
        (crashpoints.TASK_STARTED, 0),
        (crashpoints.CONNECTION_LOST, 3),
        (crashpoints.BLOCK_SENT, 8),
        (crashpoints.ALL_SENT, 8),
        (crashpoints.SYNCED, 8),
    ]
    assert {point for point, _ in passed} | {crashpoints.MESSAGE_RETURNED} == set(crashpoints.SINK_POINTS)
