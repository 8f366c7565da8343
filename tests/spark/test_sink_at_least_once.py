"""Delivery of a task with at-least-once: what is sent again after a loss, and what is in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from amqp_core.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    OutcomeUnknown,
    RejectedUnexpectedly,
    VirtualHostRefused,
)
from amqp_spark import crashpoints
from amqp_spark.errors import RowError, UnsupportedModeError
from tests.support.fake_broker import FakeBroker, Script
from tests.support.sink_task import Task, rows

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.usefixtures("no_time_passes")


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
