"""The sink: publishes Spark rows to an AMQP exchange.

Importing this package is cheap: pyspark and pyarrow are imported when one of the names below is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_spark.sink.batch_sink import AmqpBatchSink
    from amqp_spark.sink.statistics import Statistics
    from amqp_spark.validation import check_sink as check

__all__ = ["AmqpBatchSink", "Statistics", "check"]

_PLACES = {
    "AmqpBatchSink": "amqp_spark.sink.batch_sink.AmqpBatchSink",
    "Statistics": "amqp_spark.sink.statistics.Statistics",
    "check": "amqp_spark.validation.check_sink",
}


def __getattr__(name: str) -> object:
    if name in _PLACES:
        module, _, attribute = _PLACES[name].rpartition(".")
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
