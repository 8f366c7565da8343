"""The floor of Spark's Python sink API: Arrow writers that take every batch and do nothing with it.

They spare the worker its collections, as our sink does: workers are shared, so it would depend on chance who has paid.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

# Workers need not find this module on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class NothingSink(DataSource):
    """``format("bench_nothing")``."""

    @classmethod
    def name(cls) -> str:
        return "bench_nothing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        del schema, overwrite
        return BatchWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        del schema, overwrite
        return StreamWriter()


class BatchWriter(DataSourceArrowWriter):
    """Of ``df.write``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _consume(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Of ``df.writeStream``."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return _consume(iterator)


def _consume(batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    from amqp_spark.python_workers import spare_collections  # noqa: PLC0415 - this module is pickled by value

    for _ in batches:
        pass
    spare_collections()
    return WriterCommitMessage()
