"""The options of source and sink: tables, and the checked values made from them."""

from __future__ import annotations

from amqp_spark.options.sink import SinkOptions
from amqp_spark.options.source import SourceOptions
from amqp_spark.options.table import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    CONNECTION,
    DISCARD,
    EXACTLY_ONCE,
    FAIL,
    FAILFAST,
    PERMISSIVE,
    REJECT,
    SINK,
    SOURCE,
    Option,
)

__all__ = [
    "AT_LEAST_ONCE",
    "AT_MOST_ONCE",
    "CONNECTION",
    "DISCARD",
    "EXACTLY_ONCE",
    "FAIL",
    "FAILFAST",
    "PERMISSIVE",
    "REJECT",
    "SINK",
    "SOURCE",
    "Option",
    "SinkOptions",
    "SourceOptions",
]
