"""Exchanges and queues of a task with at-least-once that are missing, or vanish while it publishes."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from amqp_spark.errors import PublishFailed, Unroutable
from tests.support.fake_broker import FakeBroker, Script
from tests.support.sink_task import ROUTED, Task, rows

pytestmark = pytest.mark.usefixtures("no_time_passes")


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
