"""The first and the last batch of a query with an interval between its triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.broker.stream_support import Stream, depth, numbers, publish, subscribers
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

INTERVAL = "10 minutes"


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


@pytest.mark.parametrize("told", [True, False])
def test_a_query_that_is_stopped_between_triggers_repeats_its_last_batch_only_if_it_cannot_know(
    stream: Stream, connect: Connect, queue: str, told: bool
) -> None:
    client = connect(heartbeat=0)
    publish(client, queue, numbers(100))
    checkpoint = stream.directory / "checkpoint"
    options: dict[str, Any] = {"queryCheckpoint": checkpoint} if told else {}
    query = stream.start(stream.frame(queue, **options), processingTime=INTERVAL)
    try:
        wait_until((checkpoint / "commits" / "0").exists, "the first batch is committed", 120)
    finally:
        query.stop()
    first = stream.bodies()
    assert first, "at once, and not an interval later"
    assert first == numbers(len(first))
    wait_until(lambda: not subscribers(client, queue), "the reader has gone")
    assert depth(client, queue) == (100 - len(first) if told else 100)
    stream.drain(stream.frame(queue, **options))
    assert stream.bodies() == (numbers(100) if told else first + numbers(100))


def test_a_missing_queue_shows_at_once(stream: Stream) -> None:
    query = stream.start(stream.frame("no-such-queue"), processingTime=INTERVAL)
    with pytest.raises(StreamingQueryException, match="Queue 'no-such-queue' does not exist"):
        query.awaitTermination(60)
