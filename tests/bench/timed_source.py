"""``format("amqp")`` that writes down when the engine calls its reader: a line of JSON for each call of interest."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from amqp_spark.data_source import AmqpDataSource
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.validation import check_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

# Workers need not find this module on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

_WORTH_TELLING_S = 0.005


class TimedSource(AmqpDataSource):
    """``format("bench_timed")``; Spark's own option ``path`` is the file that the calls are written to."""

    @classmethod
    def name(cls) -> str:
        return "bench_timed"

    def streamReader(self, schema: StructType) -> AmqpStreamReader:
        options, columns = check_source(self.options, schema)
        reader = TimedReader(options, columns)
        reader.calls = self.options["path"]
        return reader


class TimedReader(AmqpStreamReader):
    """Writes down its first call, and every later one that takes long."""

    calls = ""
    _told = False

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "calls": self.calls}

    def initialOffset(self) -> dict:  # type: ignore[type-arg]
        with self._timed("initialOffset"):
            return super().initialOffset()

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # type: ignore[type-arg]
        with self._timed("latestOffset"):
            return super().latestOffset(start, limit)

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        with self._timed("partitions"):
            return super().partitions(start, end)

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        begin = time.time()  # the clock of file systems, with which it is compared
        try:
            yield
        finally:
            seconds = time.time() - begin
            if not self._told or seconds > _WORTH_TELLING_S:
                self._told = True
                with Path(self.calls).open("a", encoding="ascii") as file:
                    file.write(json.dumps({"call": call, "at": begin, "s": round(seconds, 4)}) + "\n")


def calls_of(path: Path) -> list[dict[str, Any]]:
    """Return the written records, oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
