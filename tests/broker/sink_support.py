"""Publishing through the sink's three entries, and reading back, for the tests of the sink in a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from amqp_spark.sink import AmqpBatchSink

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.fixtures import Broker

Entry = Literal["batch", "stream", "foreachBatch"]
ENTRIES: tuple[Entry, ...] = ("batch", "stream", "foreachBatch")


def login(broker: Broker, vhost: str = "default", **options: Any) -> dict[str, str]:
    """Options that reach a broker, and more of them; ``__`` in a keyword stands for a dot."""
    given = {"url": broker.url(vhost), "username": broker.username, "password": broker.password}
    return given | {key.replace("__", "."): str(value) for key, value in options.items()}


def write(frame: DataFrame, options: dict[str, str]) -> None:
    """``df.write``: publish a static frame."""
    frame.write.format("amqp").options(**options).mode("append").save()


def publish(entry: Entry, frame: DataFrame, directory: Path, options: dict[str, str]) -> None:
    """Publish a frame through one of the entries; those of streams read it from files again, in one micro-batch."""
    if entry == "batch":
        write(frame, options)
        return
    files = str(directory / "rows")
    frame.write.parquet(files)
    stream = frame.sparkSession.readStream.schema(frame.schema).parquet(files).writeStream
    stream = stream.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
    stream = stream.format("amqp").options(**options) if entry == "stream" else stream.foreachBatch(_sink(options))
    query = stream.start()
    try:
        assert query.awaitTermination(240), "the query did not end"
    finally:
        query.stop()


def _sink(options: dict[str, str]) -> AmqpBatchSink:
    return AmqpBatchSink(**options)  # type: ignore[arg-type]


def browse(spark: SparkSession, broker: Broker, queue: str, schema: str, vhost: str = "default") -> DataFrame:
    """The messages of a queue, as the source reads them."""
    return spark.read.format("amqp").options(**login(broker, vhost, queue=queue)).schema(schema).load()


def same(found: pa.Table, wanted: pa.Table, key: str) -> None:
    """Both tables hold the same rows, in any order; the first difference is shown. ``key`` tells rows apart."""
    assert found.num_rows == wanted.num_rows
    found, wanted = found.sort_by(key), wanted.sort_by(key).select(found.column_names).cast(found.schema)
    for name in found.column_names:
        got, want = found[name].combine_chunks(), wanted[name].combine_chunks()
        if not got.equals(want):
            pairs = enumerate(zip(got.to_pylist(), want.to_pylist(), strict=True))
            row, (is_, should) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
            raise AssertionError(
                f"{key} {found[key][row]}, {name}: {str(is_)[:500]} ({type(is_)}) instead of {str(should)[:500]}"
            )
