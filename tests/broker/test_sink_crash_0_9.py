"""SIGKILL for a worker of Spark that publishes to RabbitMQ: rows that come twice are known by their message ids."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import current_timestamp

from amqp_spark import crashpoints
from tests.broker.sink_0_9_support import Place
from tests.broker.sink_scenarios import put_file
from tests.broker.sink_support import login
from tests.broker.stream_support import Stream
from tests.support.query_process import CrashPoints, Publishing, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.thorough, pytest.mark.timeout(600)]

PER_FILE = 300
FILES = 4
COUNT = FILES * PER_FILE


@pytest.fixture(scope="module")
def process(points: CrashPoints) -> Iterator[QueryProcess]:
    with QueryProcess(points=points) as process:
        yield process


def publish_and_kill(place: Place, process: QueryProcess, directory: Path, entry: str, point: str) -> tuple[str, int]:
    """Publish all rows with stable ids while a worker is killed at a point; return the queue and its depth."""
    queue = place.queue()
    options = login(place.broker, protocol="0-9-1", routingKey=queue, stableMessageId="true")
    write = Publishing(name=queue, entry=entry, options=options, directory=directory)
    for begin in range(0, COUNT, PER_FILE):
        put_file(write.rows, begin, begin + PER_FILE)
    process.kill(process.run_to_point(write, point))
    assert process.wait(write) is None, "a lost worker is Spark's to replace"
    count = place.count(queue)
    if point == crashpoints.SYNCED:
        assert count == COUNT + PER_FILE
    return queue, count


@pytest.mark.sampled("entry", every=2)
@pytest.mark.parametrize("point", [crashpoints.BLOCK_SENT, crashpoints.SYNCED])
@pytest.mark.parametrize("entry", ["stream", "foreachBatch"])
def test_a_task_that_is_tried_again_sends_the_same_message_ids(
    rabbitmq: RabbitMQNode, process: QueryProcess, tmp_path: Path, entry: str, point: str
) -> None:
    with ExitStack() as stack:
        place = Place(rabbitmq, "classic", stack)  # its count is never late
        queue, count = publish_and_kill(place, process, tmp_path, entry, point)
        messages = place.received(queue, count)
    copies = Counter((message.properties.message_id, int(message.body)) for message in messages)
    assert len({message_id for message_id, _ in copies}) == COUNT, "each row has an id of its own"
    assert sorted(number for _, number in copies) == list(range(COUNT)), "the same in each attempt"
    assert None not in {message_id for message_id, _ in copies}
    assert max(copies.values()) <= 2


def test_the_source_drops_what_a_task_sent_twice(
    rabbitmq: RabbitMQNode, process: QueryProcess, spark: SparkSession, tmp_path: Path
) -> None:
    """As docs/delivery.md shows. The copies of a row come in different batches."""
    with ExitStack() as stack:
        place = Place(rabbitmq, "classic", stack)
        queue, _ = publish_and_kill(place, process, tmp_path, "stream", crashpoints.SYNCED)
        stream = Stream(spark, rabbitmq, tmp_path / "read")
        options: dict[str, Any] = {"protocol": "0-9-1", "maxMessagesPerTrigger": PER_FILE // 2}
        frame = stream.frame(queue, "body STRING, message_id STRING", **options)
        frame = frame.withColumn("received", current_timestamp()).withWatermark("received", "10 minutes")
        stream.drain(frame.dropDuplicatesWithinWatermark(["message_id"]))
        assert sorted(int(row["body"]) for row in stream.rows) == list(range(COUNT))
        assert place.count(queue) == 0
