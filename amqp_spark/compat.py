"""The pyspark names that source and sink use, in one place, with a clear error if pyspark is too old."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:  # 4.0 and 4.1 have no admission control: the end of a batch could not be planned
    raise ImportError("amqp_spark needs pyspark 4.2 or newer") from error

__all__ = [
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "WriterCommitMessage",
]
