"""The program of :mod:`tests.support.query_process`: a Spark driver that runs queries on commands from its stdin.

One JSON object per line in, one answer per line out. All output of Spark and Python goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from pyspark import InheritableThread, TaskContext

from amqp_spark import crashpoints
from amqp_spark.sink import AmqpBatchSink
from tests.support.process import wait_until
from tests.support.two_hosts import start_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


def sink(
    directory: Path,
    *,
    skip_written: bool = True,
    twice: bool = False,
    fail_task_of: int | None = None,
    fail_batch: int | None = None,
    fail_when: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """A sink that is idempotent by batch id: one file per batch, replaced or (``skip_written``) left as it is.

    ``twice``: two actions, which must give the same rows. ``fail_task_of``: in this batch the first attempt of every
    task fails after it has read something. ``fail_batch``: this batch fails before it is written, as soon as the file
    ``fail_when`` exists.
    """
    directory.mkdir(parents=True, exist_ok=True)

    def write(frame: DataFrame, batch_id: int) -> None:
        target = directory / f"{batch_id}.parquet"
        if not (skip_written and target.exists()):
            if batch_id == fail_task_of:
                frame = frame.mapInArrow(_fail_first_attempt, frame.schema)
            table = frame.toArrow()
            if twice and not frame.toArrow().equals(table):
                raise AssertionError(f"two actions gave different rows of batch {batch_id}")
            if batch_id == fail_batch:
                if fail_when is not None:
                    wait_until(Path(fail_when).exists, f"{fail_when} is there", 120)
                raise RuntimeError(f"batch {batch_id} fails, as it was told to")
            part = directory / f"{batch_id}.parquet.part"
            pq.write_table(table, part)
            part.replace(target)
        crashpoints.reached(crashpoints.BATCH_DONE_UNCOMMITTED)

    return write


def _fail_first_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt of a task, which fails")
        yield batch


def lose_first_attempt(how: dict[str, Any]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: the first attempt of partition 0 fails or waits after ``after`` rows.

    ``fail``: it raises; with ``while``, every attempt does as long as that file exists. ``slow``: it continues when
    that file exists, or is killed by Spark before.
    """

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        first = context is not None and context.attemptNumber() == 0 and context.partitionId() == 0
        if "while" in how:
            first = context is not None and context.partitionId() == 0 and Path(how["while"]).exists()
        passed = 0
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if first and passed >= how["after"]:
                if "fail" in how:
                    raise RuntimeError(how["fail"])
                while not Path(how["slow"]).exists():
                    time.sleep(0.01)

    return pass_on


class BatchWrite:
    """A batch write in a thread of its own, with the interface of a query."""

    def __init__(self, spark: SparkSession, writer: DataFrameWriter) -> None:
        self._error: Exception | None = None
        self._spark = spark
        self._writer = writer
        self._thread = InheritableThread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            # Spark finds Python data sources by the active session of the thread: set it
            self._spark.createDataFrame([], "id BIGINT")
            self._writer.save()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shall see it
            self._error = error

    @property
    def isActive(self) -> bool:
        """Whether the write runs."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """The error of the write."""
        return self._error

    def awaitTermination(self, timeout_s: int) -> bool:
        """Wait for the end of the write; raise its error."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()


class Server:
    """The queries of this driver, by name."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.queries: dict[str, Any] = {}
        """Streaming queries and batch writes."""

    def start(
        self,
        name: str,
        options: dict[str, str],
        schema: str | None,
        checkpoint: str,
        directory: str,
        trigger: dict[str, Any],
        union: bool,
        how: dict[str, Any],
    ) -> dict[str, Any]:
        reader = self.spark.readStream.format("amqp").options(**options)
        frame = (reader if schema is None else reader.schema(schema)).load()
        if union:
            frame = frame.union(frame)
        write = sink(Path(directory), **how)
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        self.queries[name] = writer.trigger(**trigger).start()
        return {}

    def publish(
        self,
        name: str,
        entry: str,
        options: dict[str, str],
        rows: str,
        body: str,
        files_per_batch: int,
        checkpoint: str,
        trigger: dict[str, Any],
        lose: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """Start a query that writes a stream of files, with column ``id``, by the given entry point."""
        reader = self.spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", files_per_batch)
        self._write(name, self._bodies(reader.parquet(rows), body, lose), entry, options, checkpoint, trigger)
        return {}

    def chain(
        self,
        name: str,
        entry: str,
        source: dict[str, str],
        options: dict[str, str],
        checkpoint: str,
        trigger: dict[str, Any],
    ) -> dict[str, Any]:
        """Start a query from queues to an exchange, bodies only."""
        frame = self.spark.readStream.format("amqp").options(**source).schema("body BINARY").load()
        self._write(name, frame, entry, options, checkpoint, trigger)
        return {}

    def _write(
        self,
        name: str,
        frame: DataFrame,
        entry: str,
        options: dict[str, str],
        checkpoint: str,
        trigger: dict[str, Any],
    ) -> None:
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        if entry == "stream":
            writer = writer.format("amqp").options(**options)
        else:
            given: dict[str, Any] = {**options}
            writer = writer.foreachBatch(AmqpBatchSink(**given))
        self.queries[name] = writer.trigger(**trigger).start()

    def save(
        self, name: str, options: dict[str, str], rows: str, body: str, lose: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Start a batch write of files with column ``id``; wait for it as for a query."""
        frame = self._bodies(self.spark.read.schema("id BIGINT").parquet(rows), body, lose)
        self.queries[name] = BatchWrite(self.spark, frame.write.format("amqp").mode("append").options(**options))
        return {}

    def _bodies(self, frame: DataFrame, body: str, lose: dict[str, Any] | None) -> DataFrame:
        frame = frame.selectExpr(f"{body} AS body")
        return frame if lose is None else frame.mapInArrow(lose_first_attempt(lose), "body STRING")

    def wait(self, name: str, timeout_s: int) -> dict[str, Any]:
        """Wait for a query to end; return its error, if it has one."""
        query = self.queries[name]
        try:
            ended = query.awaitTermination(timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shall see it
            return {"ended": True, "error": str(error)}
        return {"ended": bool(ended), "error": None}

    def status(self, name: str) -> dict[str, Any]:
        """Whether a query runs, and its error."""
        query = self.queries[name]
        error = query.exception()
        return {"active": query.isActive, "error": None if error is None else str(error)}

    def stop(self, name: str) -> dict[str, Any]:
        self.queries[name].stop()
        return {}

    def progress(self, name: str) -> dict[str, Any]:
        """All progress reports that Spark has kept, oldest first."""
        return {"progress": [json.loads(each.json) for each in self.queries[name].recentProgress]}


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # only answers go to stdout
    spark = start_session("query process", json.loads(sys.argv[1]))
    jvm: Any = spark._jvm  # the only way to the process id of the JVM
    server = Server(spark)
    print(json.dumps({"jvm": jvm.java.lang.ProcessHandle.current().pid()}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request.pop("do"))(**request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shall see it
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
