"""The columns of the source: their names and types, and their decoding from frames to Arrow."""

from __future__ import annotations

from amqp_spark.arrow.v0_10.decode.located import Chunk
from amqp_spark.arrow.v0_10.decode.plan import ALLOWED, DEFAULT_SCHEMA, ColumnPlan, schema_problems, schema_with

__all__ = ["ALLOWED", "DEFAULT_SCHEMA", "Chunk", "ColumnPlan", "schema_problems", "schema_with"]
