"""Functions for queries over messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # noqa: TC002 - Spark evaluates the hints of the function below
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from amqp_core.address import AUTO_PROTOCOL, PROTOCOLS
from amqp_spark.arrow.decode import decode_maps, unsupported_parts
from amqp_spark.arrow.encode import convert_maps
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import HeadersError, HeadersNotConverted, OptionError, SchemaError

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Every header as text.
TEXTS = t.MapType(t.StringType(), t.StringType())


def decode_headers(column: Column | str, kind: t.DataType | str = TEXTS) -> Column:
    """Decode headers (``application_headers BINARY``) to a STRUCT of typed headers, or to a MAP.

    Use it to inspect headers that are passed on unchanged. The rules are those of the source with timestampUnit=auto:
    an absent header is NULL, and values are widened only without loss. Thread-safe.

    Args:
        column: the encoded headers: maps (0-10 section 3.3.3) or tables (0-9-1 section 4.2.5.5).
        kind: the type to decode to, a STRUCT of headers by name or a MAP, also in Spark's words (``symbol STRING, qty
            INT``); default: every header as text.

    Returns:
        A column of type ``kind``, NULL where ``column`` is. A row that does not fit fails the query with HeadersError:
        as NULL it would pass or fail a filter unnoticed.

    Raises:
        SchemaError: ``kind`` is neither, or has a type to which no header can be converted.
        ParseException: Spark does not know the type that is given in words.
    """
    if isinstance(kind, str):
        kind = t.DataType.fromDDL(kind)
    problems = unsupported_parts(kind, "headers", sent=False)
    if not isinstance(kind, t.StructType | t.MapType):
        allowed = "STRUCT<header TYPE, ...>, MAP<STRING, ...>"
        name = kind.simpleString().upper()
        problems = [SparkCondition.COLUMN_TYPE_UNSUPPORTED(column="headers", type=name, allowed=allowed)]
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


def convert_headers(column: Column | str, protocol: str) -> Column:
    """Convert headers (``application_headers BINARY``) that were read over one protocol for a sink of another one.

    Each header keeps its type, or gets the next one that holds its value (docs/columns.md). Headers that the protocol
    encodes in the same way are not changed. Thread-safe.

    Args:
        column: the encoded headers: maps (0-10 section 3.3.3) or tables (0-9-1 section 4.2.5.5).
        protocol: that of the sink: ``0-10``, ``0-9-1`` or ``0-9``.

    Returns:
        A column of type BINARY, NULL where ``column`` is. A header that the protocol has no type for, or that is
        malformed, fails the query with HeadersNotConverted.

    Raises:
        OptionError: there is no such protocol.
    """
    known = [name for name in PROTOCOLS if name != AUTO_PROTOCOL]
    if protocol not in known:
        given, allowed = repr(protocol), ", ".join(known)
        problem = SparkCondition.OPTION_INVALID(option="protocol", value=given, reason="", allowed=allowed)
        raise OptionError([problem])

    def convert(maps: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # Spark knows no other form
        converted, errors = convert_maps(maps, protocol)
        if errors:
            row = min(errors)
            raise HeadersNotConverted(len(errors), errors[row], protocol)
        return converted

    converted: Column = arrow_udf(convert, t.BinaryType())(column)  # type: ignore[call-overload]  # as above
    return converted
