"""Exactly-once from quorum queues of RabbitMQ: nothing lost, nothing twice, whatever dies."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.redelivery import identity
from amqp_core.v0_9.spec import BasicProperties
from amqp_core.v0_9.topology import QueueInfo
from amqp_spark import crashpoints
from amqp_spark.datasource import unsettled
from amqp_spark.datasource.exactly_once import waiting
from amqp_spark.errors import LogError, SpoolError, StateError, UnsupportedModeError
from amqp_spark.spool.state_files import StateFiles
from amqp_spark.transactions.__main__ import main
from tests.broker.source_0_9_support import ExactlyOncePlace, drained, numbers
from tests.broker.stream_support import Stream
from tests.spark.driver import bodies, running
from tests.support.process import wait_until
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.broker.exactly_once_support import Fate
    from tests.spark.driver import Driver
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


class Consumer(ExactlyOncePlace):
    """The consumer of a quorum queue, and its state in the spool."""

    def state(self) -> dict[str, Any]:
        """The newest file of the state."""
        files = sorted((self.directory / "spool").glob("amqp-spark.state.*.json"))
        loaded: dict[str, Any] = json.loads(files[-1].read_text())
        return loaded

    def publish_named(self, names: Iterable[int]) -> None:
        """Send messages with equal bodies and a message_id each."""
        with self.connect() as client:
            for name in names:
                client.publish(
                    Message(b"same", BasicProperties(delivery_mode=2, message_id=f"{name}")), routing_key=self.queue
                )
            client.confirm()


@pytest.fixture
def consumer(rabbitmq: RabbitMQNode, tmp_path: Path) -> Iterator[Consumer]:
    with closing(Consumer(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")) as consumer:
        consumer.directory = tmp_path
        consumer.declare(x_delivery_limit=-1)
        yield consumer


def test_a_queue_is_read_once_and_nothing_is_left(consumer: Consumer) -> None:
    consumer.publish(numbers(1000))
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=300)
    assert drained(driver) == numbers(1000)
    consumer.stop()
    wait_until(lambda: consumer.count() == (0, 0), "all are accepted")
    assert consumer.files() == []
    assert consumer.state()["doubts"] == []


@pytest.mark.sampled("nbytes", every=3)
@pytest.mark.parametrize(("nbytes", "count"), [(300, 20_000), (4_000, 7_000), (100_000, 300)])
def test_a_backlog_of_large_messages_comes_once_and_in_order(
    consumer: Consumer, caplog: pytest.LogCaptureFixture, nbytes: int, count: int
) -> None:
    """The first session learns their size before it lets many come."""
    sent = [body + bytes(nbytes) for body in numbers(count)]
    consumer.publish(sent)
    driver = consumer.driver(available_now=True, bufferBytes="8m", maxBytesPerTrigger="2m")
    assert drained(driver) == sent
    assert "AMQP_BUFFER_OVERFLOWED" not in caplog.text
    consumer.stop()
    assert consumer.state()["recognised"] == 0


def test_the_usual_limit_comes_back_while_messages_flow(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A subscription with another limit follows on the same channel."""
    restart, chosen = unsettled.UnsettledFlowControl.restart, list[int | None]()
    most_unsettled = unsettled.UnsettledFlowControl.most_unsettled

    def choose(flow: unsettled.UnsettledFlowControl, *given: Any, **named: Any) -> int | None:
        chosen.append(most_unsettled(flow, *given, **named))
        if len(chosen) == 1:  # as after the loss of a session
            flow._losses = 1
        return chosen[-1]

    def restarted(flow: unsettled.UnsettledFlowControl) -> None:
        restart(flow)
        flow._calm_since -= unsettled.CALM_SECONDS

    monkeypatch.setattr(unsettled.UnsettledFlowControl, "most_unsettled", choose)
    monkeypatch.setattr(unsettled.UnsettledFlowControl, "restart", restarted)
    consumer.publish(numbers(3000))
    driver = consumer.driver(bufferBytes="8m", maxMessagesPerTrigger=400)
    assert bodies(driver.rows(3000)) == numbers(3000)
    driver.trigger()
    consumer.stop()
    wait_until(lambda: consumer.count() == (0, 0), "all are accepted")
    assert len(chosen) > 1
    assert (chosen[-1] or 0) > (chosen[0] or 0)
    assert "subscri" not in caplog.text


@pytest.mark.sampled("point", every=2)
@pytest.mark.parametrize("point", crashpoints.QUORUM_POINTS)
def test_a_connection_is_lost_at_a_point(consumer: Consumer, fate: Fate, point: str) -> None:
    consumer.publish(numbers(1000))
    fate.cut_at(point)
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=300)
    assert drained(driver) == numbers(1000)
    assert fate.point == "", "it came there"
    consumer.stop()
    wait_until(lambda: consumer.count() == (0, 0), "all are accepted")
    assert consumer.files() == []
    assert consumer.state()["recognised"] == (len(driver.batches[0]) if point == crashpoints.SPOOLED_UNACKED else 0)


@pytest.mark.sampled("point", every=2)
@pytest.mark.parametrize("point", [crashpoints.RECOGNISED_UNACKED, crashpoints.REACKED_WITHOUT_BARRIER])
def test_a_connection_is_lost_while_messages_are_recognised(consumer: Consumer, fate: Fate, point: str) -> None:
    consumer.publish(numbers(1000))
    fate.cut_at(crashpoints.SPOOLED_UNACKED)
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=300)
    fates = [point]

    def next_fate() -> None:
        if fates and not fate.point:
            fate.cut_at(fates.pop())

    found: list[bytes] = []
    while (rows := driver.trigger()) is not None:
        next_fate()
        found += bodies(rows)
    assert found == numbers(1000)
    consumer.stop()
    wait_until(lambda: consumer.count() == (0, 0), "all are accepted")


def test_messages_beyond_the_end_are_not_returned_with_each_batch(
    consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue with a limit of deliveries would drop the first of them: RabbitMQ 4.0 after 20 barriers."""
    consumer.publish(numbers(10))
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=1)
    driver.trigger()
    receiver = running(driver.reader)._receiver  # type: ignore[union-attr]
    wait_until(receiver.all_taken, "the end is found")
    consumer.publish(numbers(20, 100))
    assert drained(driver) == numbers(10)
    _, consumers = consumer.count()
    assert consumers > 1, "those that hold one message each"
    for _ in range(2):
        receiver.consumers[0].surveyed(QueueInfo(consumer.queue, 0, consumers), counts_held=False)
    assert "needs to be the only one" not in caplog.text
    consumer.stop()
    consumer.wait_for_count(20, 0)
    with consumer.connect() as client:
        found = take(client.subscribe(consumer.queue, max_unsettled=20), 20)
    assert [message.body for message in found] == numbers(20, 100)
    assert max(identity(message).deliveries for message in found) <= 2
    assert [message.redelivered for message in found].count(True) > 1, "there were several barriers"


def test_named_messages_with_equal_bodies_are_recognised(consumer: Consumer, fate: Fate) -> None:
    consumer.publish_named(range(500))
    fate.cut_at(crashpoints.SPOOLED_UNACKED)
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=100)
    assert len(drained(driver)) == 500
    assert fate.point == ""


def test_a_process_that_was_suspended_leaves_its_last_batch_to_its_successor(
    consumer: Consumer, rabbitmq: RabbitMQNode
) -> None:
    """It was suspended behind the file of its state that owns the batch, which the successor has read."""
    successors: list[Driver] = []

    def suspended(files: StateFiles, epoch: int, serial: int, content: bytes) -> int:
        patched.undo()
        files.write(epoch, serial, content)
        rabbitmq.evaluate('[rabbit_networking:close_connection(Each, "") || Each <- rabbit_networking:connections()]')
        successors.append(consumer.driver(driver))
        successors[0].latest()
        newest = files.latest()
        assert newest is not None
        return newest.epoch

    driver = consumer.driver(minMessagesPerTrigger=10)
    driver.latest()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(waiting, "KEEP_ALIVE_SECONDS", 60.0)
        patched.setattr(StateFiles, "write", suspended)
        consumer.publish(numbers(10))
        with pytest.raises(StateError, match="AMQP_CONSUMER_REPLACED"):
            driver.trigger_until_rows()
    assert bodies(successors[0].trigger_until_rows()) == numbers(10)


@pytest.mark.parametrize("point", crashpoints.QUORUM_POINTS)
def test_equal_messages_are_never_lost(
    consumer: Consumer, fate: Fate, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer.publish([b"same"] * 500)
    fate.cut_at(point)
    driver = consumer.driver(available_now=True, maxMessagesPerTrigger=100)
    read = len(drained(driver))
    assert 500 < read <= 600 if point == crashpoints.SPOOLED_UNACKED else read == 500
    assert fate.point == ""
    assert caplog.text.count("equal messages without a message_id") == 1


WARNING = "equal messages without a message_id"


def test_equal_messages_are_seen_that_stand_far_apart(consumer: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    consumer.publish(numbers(50) * 20)
    assert len(drained(consumer.driver(available_now=True))) == 1000
    assert caplog.text.count(WARNING) == 1


def test_messages_that_can_be_told_apart_are_not_taken_for_equal(
    consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    consumer.publish_named(range(500))
    consumer.publish(numbers(500))
    assert len(drained(consumer.driver(available_now=True, maxMessagesPerTrigger=300))) == 1000
    assert WARNING not in caplog.text


def test_a_classic_queue_is_refused(consumer: Consumer) -> None:
    with consumer.connect() as client:
        client.delete_queue(consumer.queue)
        client.declare_queue(consumer.queue, durable=True)
    with pytest.raises(UnsupportedModeError, match=r"is a classic queue, and .* needs a quorum queue or a stream"):
        consumer.driver().trigger_until_rows()


def test_a_queue_with_a_single_active_consumer_is_refused(consumer: Consumer) -> None:
    with consumer.connect() as client:
        client.delete_queue(consumer.queue)
    consumer.declare(x_single_active_consumer=True)
    with pytest.raises(UnsupportedModeError, match=r"x-single-active-consumer.*Declare the queue without it"):
        consumer.driver().trigger_until_rows()


def test_a_queue_that_delays_what_comes_back_is_refused(consumer: Consumer) -> None:
    """Nothing but time shows that a message in doubt comes again: the queue says until then that it is empty."""
    with consumer.connect() as client:
        client.delete_queue(consumer.queue)
    consumer.declare(x_delayed_retry_type="failed", x_delayed_retry_min=5000, x_delivery_limit=-1)
    with pytest.raises(UnsupportedModeError, match=r"x-delayed-retry-type failed.*Declare the queue without it"):
        consumer.driver().trigger_until_rows()


def test_a_stream_without_its_queue_type_is_refused(consumer: Consumer) -> None:
    with consumer.connect() as client:
        client.delete_queue(consumer.queue)
        client.declare_queue(consumer.queue, durable=True, arguments={"x-queue-type": "stream"})
    with pytest.raises(LogError, match=r"AMQP_QUEUE_IS_LOG.*Set queueType=stream"):
        consumer.driver().trigger_until_rows()


@pytest.mark.parametrize(("arguments", "limit"), [({}, "20"), ({"x_delivery_limit": 7}, "7"), (None, "")])
def test_a_limit_of_deliveries_is_a_warning_at_the_start(
    consumer: Consumer,
    fate: Fate,
    caplog: pytest.LogCaptureFixture,
    arguments: dict[str, Any] | None,
    limit: str,
) -> None:
    """Once, and not again on the next session. The queue of the fixture has none."""
    if arguments is not None:
        with consumer.connect() as client:
            client.delete_queue(consumer.queue)
        consumer.declare(**arguments)
    consumer.publish(numbers(10))
    fate.cut_at(crashpoints.SPOOLED_UNACKED)
    assert drained(consumer.driver(available_now=True)) == numbers(10)
    found = [each.getMessage() for each in caplog.records if "x-delivery-limit=-1" in each.getMessage()]
    assert fate.point == ""
    assert len(found) == bool(limit)
    assert all(f"comes back more than {limit} times" in text for text in found)


def test_a_queue_with_another_consumer_is_refused(consumer: Consumer) -> None:
    consumer.publish(numbers(10))
    with consumer.connect() as other:
        other.subscribe(consumer.queue, max_unsettled=1)
        with pytest.raises(StateError, match="the queue has 1 other consumer"):
            consumer.driver().trigger_until_rows()


def test_a_consumer_that_comes_later_is_noticed(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("amqp_spark.datasource.backlog.SURVEY_SECONDS", 0.5)
    consumer.publish(numbers(10))
    driver = consumer.driver()
    driver.rows(10)
    with consumer.connect() as other:
        other.subscribe(consumer.queue, max_unsettled=1)

        def noticed() -> bool:
            driver.trigger()
            return "has 2 consumers, and exactly-once needs to be the only one" in caplog.text

        wait_until(noticed, "it is noticed")


@pytest.mark.thorough
def test_two_queries_with_one_consumer_id(consumer: Consumer) -> None:
    consumer.publish(numbers(10))
    consumer.driver().rows(10)
    with pytest.raises(StateError, match="another query has held the lock"):
        consumer.driver().trigger_until_rows()


def test_a_new_queue_is_given_time(consumer: Consumer) -> None:
    with consumer.connect() as client:
        client.delete_queue(consumer.queue)
    driver = consumer.driver(declare="ifMissing", queueType="quorum", available_now=True)
    assert drained(driver) == []


def test_a_batch_is_replayed_after_a_restart(consumer: Consumer) -> None:
    consumer.publish(numbers(200))
    first = consumer.driver(maxMessagesPerTrigger=100)
    while (rows := first.trigger(fail=True)) is None:
        pass
    consumer.stop()
    second = consumer.driver(first, maxMessagesPerTrigger=7, numPartitions=3)
    assert sorted(second.restart_batch() or []) == sorted(rows)


def test_a_spool_of_the_other_protocol_is_refused(consumer: Consumer) -> None:
    spool = consumer.directory / "spool"
    spool.mkdir()
    (spool / "amqp-spark-spool.json").write_text(json.dumps({"version": 1, "consumerId": consumer.queue}))
    with pytest.raises(SpoolError, match="has messages of AMQP 0-10, and the broker speaks AMQP 0-9-1"):
        consumer.driver().trigger_until_rows()


def test_a_spool_of_another_consumer_is_refused(consumer: Consumer) -> None:
    consumer.publish(numbers(10))
    assert drained(consumer.driver(available_now=True)) == numbers(10)
    consumer.stop()
    consumer.publish(numbers(5, 10))
    with pytest.raises(SpoolError, match=rf"AMQP_SPOOL_FOREIGN.*belongs to consumer '{consumer.queue}', not to 'else'"):
        consumer.driver(consumerId="else").trigger_until_rows()
    consumer.stop()
    wait_until(lambda: consumer.count() == (5, 0), "nothing is received")
    assert consumer.take() == numbers(5, 10)


def test_the_state_of_another_virtual_host_is_refused_and_can_be_adopted(
    consumer: Consumer, rabbitmq: RabbitMQNode, fate: Fate
) -> None:
    """Both have a queue of this name, and the same consumerId and spool: each would lose what the other one owns."""
    consumer.publish(numbers(100))
    fate.point, fate.error = crashpoints.BARRIER_UNNOTED, RuntimeError("the reader fails")
    with pytest.raises(RuntimeError, match="the reader fails"):
        consumer.driver(maxMessagesPerTrigger=40).trigger_until_rows()
    consumer.stop()
    address = rabbitmq.url("default")
    with closing(Consumer(address, rabbitmq.username, rabbitmq.password, "quorum")) as other:
        other.queue, other.directory = consumer.queue, consumer.directory
        other.declare(x_delivery_limit=-1)
        other.publish(numbers(5, 200))
        with pytest.raises(StateError, match=r"AMQP_CONSUMER_OTHER_BROKER.*is of another broker or virtual host"):
            other.driver(available_now=True).trigger_until_rows()
        other.stop()
        wait_until(lambda: other.count() == (5, 0), "nothing is received")
        owned = drained(consumer.driver(available_now=True, maxMessagesPerTrigger=40))
        assert owned == numbers(100)
        consumer.stop()
        assert drained(other.driver(available_now=True, adoptState=True)) == numbers(5, 200)
        other.stop()
        with pytest.raises(StateError, match="AMQP_CONSUMER_OTHER_BROKER"):
            consumer.driver(available_now=True).trigger_until_rows()
        consumer.stop()


@pytest.mark.thorough
def test_messages_that_wait_for_long_are_fetched_again(consumer: Consumer, caplog: pytest.LogCaptureFixture) -> None:
    """The broker would take them back; their acknowledgement would be ignored, and they would come twice."""
    consumer.publish(numbers(100))
    driver = consumer.driver(consumerTimeout="12s", maxMessagesPerTrigger=30)
    driver.rows(30)
    wait_until(lambda: "AMQP_MESSAGES_HELD_LONG" in caplog.text, "the session is replaced")
    assert sorted(bodies(driver.rows(100))) == numbers(100)


def test_the_command_shows_what_is_in_doubt(
    consumer: Consumer, fate: Fate, capsys: pytest.CaptureFixture[str], tmp_path: Path, rabbitmq: RabbitMQNode
) -> None:
    consumer.publish(numbers(100))
    fate.point, fate.error = crashpoints.SPOOLED_UNACKED, RuntimeError("the reader fails")
    driver = consumer.driver(minMessagesPerTrigger=40, maxMessagesPerTrigger=40)
    with pytest.raises(RuntimeError, match="the reader fails"):
        driver.trigger_until_rows()
    consumer.stop()
    password = tmp_path / "password"
    password.write_text(consumer.password)
    login = ["--username", consumer.username, "--password-file", str(password), "--option", "protocol=0-9-1"]
    spool = ["--consumer-id", consumer.queue, "--spool", str(consumer.directory / "spool")]
    assert main([consumer.address, *login, *spool]) == 0
    shown = capsys.readouterr().out
    assert "acknowledgements in doubt: of 40 message(s) in 1 batch(es)" in shown
    assert "0 recognised and dropped" in shown
    assert "another broker" not in shown
    elsewhere = rabbitmq.url("default")
    assert main([elsewhere, *login, *spool]) == 0
    assert "it is of another broker or virtual host" in capsys.readouterr().out
    assert drained(consumer.driver(available_now=True, maxMessagesPerTrigger=40)) == numbers(100)
    consumer.stop()
    assert main([consumer.address, *login, *spool, "--json"]) == 0
    (state,) = json.loads(capsys.readouterr().out)["states"]
    assert (state["recognised"], state["in_doubt"]["messages"]) == (40, 0)
    other = tmp_path / "other"
    other.mkdir()
    (other / "amqp-spark-spool.json").write_text((consumer.directory / "spool" / "amqp-spark-spool.json").read_text())
    assert main([consumer.address, *login, "--consumer-id", consumer.queue, "--spool", str(other)]) == 0
    assert f"the spool '{other}' has no state of it" in capsys.readouterr().out


@pytest.mark.spark
def test_a_query_of_spark(spark: SparkSession, consumer: Consumer, tmp_path: Path) -> None:
    consumer.publish(numbers(1000))
    stream = Stream(spark, consumer, tmp_path)
    options: dict[str, Any] = {
        "protocol": "0-9-1",
        "deliveryGuarantee": "exactly-once",
        "consumerId": consumer.queue,
        "spoolLocation": str(tmp_path / "spool"),
        "maxMessagesPerTrigger": 300,
    }
    stream.drain(stream.frame(consumer.queue, **options))
    assert stream.bodies() == numbers(1000)
    wait_until(lambda: consumer.count() == (0, 0), "all are accepted")
    consumer.publish(numbers(10, 1000))
    stream.drain(stream.frame(consumer.queue, **options))
    assert stream.bodies() == numbers(1010)
