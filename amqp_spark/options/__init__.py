"""The options of source and sink: declared as fields of the classes of their checked values."""

from __future__ import annotations

from amqp_spark.options.connection import CONNECTION
from amqp_spark.options.parsing import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, STREAM, Option
from amqp_spark.options.sink import DISCARD, FAIL, SINK, SinkOptions
from amqp_spark.options.source import CLASSIC, FAILFAST, PERMISSIVE, QUORUM, REJECT, SOURCE, SourceOptions

__all__ = [
    "AT_LEAST_ONCE",
    "AT_MOST_ONCE",
    "CLASSIC",
    "CONNECTION",
    "DISCARD",
    "EXACTLY_ONCE",
    "FAIL",
    "FAILFAST",
    "PERMISSIVE",
    "QUORUM",
    "REJECT",
    "SINK",
    "SOURCE",
    "STREAM",
    "Option",
    "SinkOptions",
    "SourceOptions",
]
