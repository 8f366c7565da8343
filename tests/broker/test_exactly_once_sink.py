"""Exactly-once through the three entries of the sink, in a real Spark."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.errors import StateError, UnsupportedModeError
from tests.broker.exactly_once_support import Writer, nothing_is_left, prepared_of
from tests.broker.sink_scenarios import Target, duplicates, put_file, taken
from tests.broker.stream_support import depth

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from amqp_spark.sink import AmqpBatchSink
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker]

STREAMS = ("stream", "foreachBatch")


@pytest.fixture
def writer(broker: Broker, queue: str) -> Writer:
    """Whose queues are looked at; it publishes nothing by itself."""
    return Writer(broker, queue)


def options_of(writer: Writer, **options: Any) -> dict[str, str]:
    target = Target(writer.broker, writer.queue, writer.vhost)
    return target.options(deliveryGuarantee="exactly-once", transactionalId=writer.identity, **options)


def run_stream(entry: str, frame: DataFrame, checkpoint: Path, options: dict[str, str]) -> None:
    """A stream to its end; raises what it fails with."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer = writer.format("amqp").options(**options) if entry == "stream" else writer.foreachBatch(sink(options))
    query = writer.start()
    try:
        assert query.awaitTermination(240), "the query did not end"
    finally:
        query.stop()


def sink(options: dict[str, str]) -> AmqpBatchSink:
    from amqp_spark.sink import AmqpBatchSink  # noqa: PLC0415 - see tests/conftest.py

    given: dict[str, Any] = {**options}
    return AmqpBatchSink(**given)


def files(spark: SparkSession, directory: Path, per_batch: int = 2) -> DataFrame:
    """A stream of files with column ``id``."""
    reader = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", per_batch)
    return reader.parquet(str(directory)).selectExpr("CAST(id AS STRING) AS body")


@pytest.mark.parametrize("entry", STREAMS)
def test_a_stream_publishes_every_row_once(
    spark: SparkSession, connect: Connect, writer: Writer, tmp_path: Path, entry: str
) -> None:
    for begin in range(0, 600, 100):
        put_file(tmp_path / "rows", begin, begin + 100)
    run_stream(entry, files(spark, tmp_path / "rows"), tmp_path / "checkpoint", options_of(writer))
    client = connect()
    assert duplicates(taken(client, writer.queue), 600) == 0
    nothing_is_left(client, writer)


@pytest.mark.sampled("entry", every=2)
@pytest.mark.parametrize("entry", STREAMS)
def test_a_batch_that_spark_has_not_logged_is_not_published_again(
    spark: SparkSession, connect: Connect, writer: Writer, tmp_path: Path, entry: str
) -> None:
    """The checkpoint is set back by one batch, which is what a driver leaves that dies after the decision."""
    for begin in range(0, 400, 100):
        put_file(tmp_path / "rows", begin, begin + 100)
    checkpoint = tmp_path / "checkpoint"
    run_stream(entry, files(spark, tmp_path / "rows"), checkpoint, options_of(writer))
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    put_file(tmp_path / "rows", 400, 500)
    run_stream(entry, files(spark, tmp_path / "rows"), checkpoint, options_of(writer))
    client = connect()
    assert duplicates(taken(client, writer.queue), 500) == 0
    nothing_is_left(client, writer)


def test_a_batch_write_publishes_once_for_each_batch_id(spark: SparkSession, connect: Connect, writer: Writer) -> None:
    def write(end: int, batch: int) -> None:
        frame = spark.range(0, end, 1, 2).selectExpr("CAST(id AS STRING) AS body")
        frame.write.format("amqp").options(**options_of(writer, batchId=batch)).mode("append").save()

    client = connect()
    for _ in range(2):
        write(100, 5)
        assert depth(client, writer.queue) == 100
        nothing_is_left(client, writer)
    with pytest.raises(Exception, match=r"Batch 5 was published .* before, and is not the same now") as failed:
        write(101, 5)
    assert StateError.__name__ in str(failed.value)
    with pytest.raises(Exception, match=r"Option batchId is 4, and transactionalId .* has published 5 already"):
        write(100, 4)
    nothing_is_left(client, writer)
    write(100, 6)
    assert taken(client, writer.queue) == Counter(dict.fromkeys(range(100), 2))
    nothing_is_left(client, writer)


def test_a_batch_write_needs_a_batch_id(spark: SparkSession, writer: Writer) -> None:
    with pytest.raises(Exception, match="Option 'batchId' is required by a batch write with deliveryGuarantee=exactly"):
        spark.range(1).selectExpr("'x' AS body").write.format("amqp").options(**options_of(writer)).mode(
            "append"
        ).save()


def test_a_batch_of_no_query_is_refused_by_the_sink_of_foreach_batch(
    spark: SparkSession, connect: Connect, writer: Writer
) -> None:
    """A thread of one's own inside ``foreachBatch`` and Spark Connect look the same."""
    frame = spark.range(0, 10, 1, 2).selectExpr("CAST(id AS STRING) AS body")
    with pytest.raises(UnsupportedModeError, match=r"Spark does not say which streaming query this is, .*nothing was"):
        sink(options_of(writer))(frame, 0)
    client = connect()
    assert depth(client, writer.queue) == 0
    assert prepared_of(client, writer) == []


@pytest.mark.sampled("entry", every=2)
@pytest.mark.parametrize("entry", STREAMS)
def test_a_new_checkpoint_publishes_all_that_it_reads(
    spark: SparkSession, connect: Connect, writer: Writer, tmp_path: Path, entry: str
) -> None:
    put_file(tmp_path / "rows", 0, 100)
    for _ in range(2):
        run_stream(entry, files(spark, tmp_path / "rows"), tmp_path / "checkpoint", options_of(writer))
        shutil.rmtree(tmp_path / "checkpoint")
    client = connect()
    assert taken(client, writer.queue) == Counter(dict.fromkeys(range(100), 2))
    nothing_is_left(client, writer)


@pytest.mark.sampled("entry", every=2)
@pytest.mark.parametrize("entry", STREAMS)
def test_a_checkpoint_that_was_rolled_back_stops_the_query(
    spark: SparkSession, connect: Connect, writer: Writer, tmp_path: Path, entry: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    put_file(tmp_path / "rows", 0, 100)
    run_stream(entry, files(spark, tmp_path / "rows"), checkpoint, options_of(writer))
    shutil.copytree(checkpoint, tmp_path / "copy")
    for begin in (100, 200):
        put_file(tmp_path / "rows", begin, begin + 100)
        run_stream(entry, files(spark, tmp_path / "rows"), checkpoint, options_of(writer))
    with pytest.raises(Exception, match=r"Spark runs batch 1 .* has published batch 2 of it already"):
        run_stream(entry, files(spark, tmp_path / "rows"), tmp_path / "copy", options_of(writer))
    client = connect()
    assert duplicates(taken(client, writer.queue), 300) == 0
    nothing_is_left(client, writer)


def test_one_query_may_not_change_its_transactional_id(
    spark: SparkSession, connect: Connect, writer: Writer, tmp_path: Path
) -> None:
    put_file(tmp_path / "rows", 0, 100)
    run_stream("stream", files(spark, tmp_path / "rows"), tmp_path / "checkpoint", options_of(writer))
    put_file(tmp_path / "rows", 100, 200)
    renamed = options_of(writer) | {"transactionalId": f"{writer.identity}-{uuid.uuid4().hex[:4]}"}
    with pytest.raises(Exception, match="published under another transactionalId before"):
        run_stream("stream", files(spark, tmp_path / "rows"), tmp_path / "checkpoint", renamed)
    run_stream("stream", files(spark, tmp_path / "rows"), tmp_path / "checkpoint", options_of(writer))
    assert duplicates(taken(connect(), writer.queue), 200) == 0
