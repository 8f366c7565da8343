"""From received transfers to Arrow columns, for the source, its tasks and the commands."""

from __future__ import annotations

from amqp_spark.arrow.columns.conversion import unsupported_parts
from amqp_spark.arrow.columns.located import Chunk, joined
from amqp_spark.arrow.decode.maps import decode_maps
from amqp_spark.arrow.decode.plan import ColumnPlan
from amqp_spark.arrow.decode.schema import (
    COLUMNS,
    DEFAULT_CORRUPT_COLUMN,
    DEFAULT_SCHEMA,
    TABLE_TYPES,
    schema_problems,
    schema_with,
)
from amqp_spark.arrow.v0_9.decode.equal import EqualMessages

__all__ = [
    "COLUMNS",
    "DEFAULT_CORRUPT_COLUMN",
    "DEFAULT_SCHEMA",
    "TABLE_TYPES",
    "Chunk",
    "ColumnPlan",
    "EqualMessages",
    "decode_maps",
    "joined",
    "schema_problems",
    "schema_with",
    "unsupported_parts",
]
