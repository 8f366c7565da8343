"""Functions for queries over messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # noqa: TC002 - Spark evaluates the hints of the function below
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from amqp_spark.arrow.decode import decode_maps, servable
from amqp_spark.errors import HeadersError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Every header as text.
TEXTS = t.MapType(t.StringType(), t.StringType())


def decode_headers(column: Column | str, kind: t.DataType = TEXTS) -> Column:
    """Decode headers (``application_headers BINARY``) to a STRUCT of typed headers, or to a MAP.

    Use it to inspect headers that are passed on unchanged. The rules are those of the source: an absent header is NULL,
    and values are widened only without loss. A row that does not fit fails the query with HeadersError: as NULL it
    would pass or fail a filter unnoticed.

    Raises SchemaError if ``kind`` is neither, or has a type to which no header can be converted.
    """
    problems = servable(kind, "headers")
    if not isinstance(kind, t.StructType | t.MapType):
        problems = [
            f"headers: {kind.simpleString()} is not possible; allowed: STRUCT<header TYPE, ...>, MAP<STRING, ...>"
        ]
    if problems:
        raise SchemaError(problems)

    def decode(maps: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark knows no other form
        decoded, errors = decode_maps(maps, kind)
        if errors:
            row = min(errors)
            raise HeadersError(len(errors), errors[row])
        return decoded

    decoded: Column = arrow_udf(decode, kind)(column)  # type: ignore[call-overload]  # the type is in its hints
    return decoded
