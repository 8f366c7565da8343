"""From received transfers to Arrow columns, for the source, its tasks and the commands."""

from __future__ import annotations

from amqp_spark.arrow.v0_10.decode.corrupt import DEFAULT_NAME as DEFAULT_CORRUPT_COLUMN
from amqp_spark.arrow.v0_10.decode.encoded import decode_maps
from amqp_spark.arrow.v0_10.decode.located import Chunk, joined
from amqp_spark.arrow.v0_10.decode.plan import ALLOWED, DEFAULT_SCHEMA, ColumnPlan, schema_problems, schema_with
from amqp_spark.arrow.v0_10.decode.values import servable

__all__ = [
    "ALLOWED",
    "DEFAULT_CORRUPT_COLUMN",
    "DEFAULT_SCHEMA",
    "Chunk",
    "ColumnPlan",
    "decode_maps",
    "joined",
    "schema_problems",
    "schema_with",
    "servable",
]
