"""The names of pyspark that older versions lack, with a clear error if it is too old."""

from __future__ import annotations

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
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
