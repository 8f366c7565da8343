"""The columns of the sink: their names and types, and the problems of a schema that cannot be sent.

Every property that the source reads and a publisher may set can be written, in every type that the source reads it as.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import types as t

from amqp_spark.arrow.decode.schema import COLUMNS as READABLE
from amqp_spark.arrow.decode.schema import type_problems
from amqp_spark.arrow.rows.bodies import LIST_TYPE, MAP_TYPE
from amqp_spark.arrow.rows.messages import MESSAGE_ID
from amqp_spark.arrow.v0_9.properties import PROPERTIES as PROPERTIES_0_9
from amqp_spark.arrow.v0_10.properties import PROPERTIES as PROPERTIES_0_10
from amqp_spark.error_conditions import SparkCondition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_spark.arrow.layout import Property
    from amqp_spark.options import SinkOptions


class Column(NamedTuple):
    """Encoding of a column by the sink."""

    meaning: str
    types: str
    option: str | None = None
    """The option that replaces it."""
    elsewhere: str = ""
    """How 0-9-1 differs."""


_TEXT: Final = ("STRING, or BINARY (its UTF-8)", " At most {most:,} bytes.")
_OPAQUE: Final = ("BINARY, or STRING (sent as UTF-8)", " At most {most:,} bytes.")
_BY_WIRE_TYPE: Final = {
    "bit": ("BOOLEAN", ""),
    "uint8": ("TINYINT, SMALLINT, INT, BIGINT", " From {least} to {most}."),
    "uint16": ("TINYINT, SMALLINT, INT, BIGINT", " From {least} to {most}."),
    "uint32": ("TINYINT, SMALLINT, INT, BIGINT", " From {least} to {most}."),
    "uint64": ("BIGINT, INT", " From 0."),
    "datetime": (
        "TIMESTAMP, TIMESTAMP_NTZ (in UTC), or BIGINT (the number as it is sent)",
        " TIMESTAMP: from 1970 on.",
    ),
    "str8": _TEXT,
    "str16": _TEXT,
    "vbin8": _OPAQUE,
    "vbin16": _OPAQUE,
    "vbin32": _OPAQUE,
    "uuid": ("STRING (the usual text of 36 characters), or BINARY (its 16 bytes)", ""),
    "reply-to": (READABLE["reply_to"].allowed, " At most 255 bytes each."),
    "map": ("STRUCT<header TYPE, ...>, MAP<STRING, ...>, VARIANT (an object), or BINARY (the encoded map)", ""),
}
"""Types, and the limit as a sentence."""

OPTIONS: Final = {
    "routing_key": "routingKey",
    "priority": "priority",
    "delivery_mode": "deliveryMode",
    "ttl": "ttl",
    "content_type": "contentType",
}
"""Options that replace a column in every row; their values are attributes of the name of the column."""


_IN_0_9: Final = {each.name: each for each in PROPERTIES_0_9}
_LIKE_IN_0_9: Final = {
    "discard_unroutable": "true leaves the bit mandatory of basic.publish out.",
    "expiration": "Broker-J, where the property expiration is a time. RabbitMQ: not there (`onUnsupported`).",
    "routing_key": "The same.",
    "content_length": "Always sent.",
}


def _limit_in_0_9(field: Property) -> str:
    is_text = field.wire == "shortstr" and field.name != "ttl"
    return _TEXT[1].format(most=255).strip() if is_text else ""


def _column(field: Property) -> Column:
    """A column of 0-10."""
    types, limit = _BY_WIRE_TYPE[field.wire]
    least, most = field.choices or (0, (1 << 8 * abs(field.width)) - 1)
    elsewhere = _IN_0_9.get(field.name)
    if elsewhere is None:
        text = _LIKE_IN_0_9.get(field.name, "Not there: `onUnsupported`.")
    else:
        own = "" if elsewhere.written == field.written else elsewhere.written
        text = f"{own} {_limit_in_0_9(elsewhere)}".strip() or "The same."
    return Column(field.written + limit.format(least=least, most=most), types, OPTIONS.get(field.name), text)


def _new_column(field: Property) -> Column:
    """A column that 0-10 does not have."""
    return Column("Not there: `onUnsupported`.", _TEXT[0], None, f"{field.written} {_limit_in_0_9(field)}")


COLUMNS: Final = {
    "body": Column(
        "The body; required, and never NULL. STRUCT, MAP and ARRAY are encoded, and `content_type` says so.",
        "BINARY, STRING (sent as UTF-8); STRUCT, MAP<STRING, ...> (`amqp/map`), ARRAY (`amqp/list`), "
        "VARIANT (one of the two, by its value)",
    ),
    "exchange": Column(
        "With `exchangeFromColumn` the exchange of this row, NULL the one of the option; otherwise ignored.", _TEXT[0]
    ),
    **{each.name: _column(each) for each in PROPERTIES_0_10 if each.written},
    **{each.name: _new_column(each) for each in PROPERTIES_0_9 if each.name not in {p.name for p in PROPERTIES_0_10}},
}
"""All columns that the sink sends, in the order of the documentation."""

IGNORED: Final = tuple(name for name in READABLE if name not in COLUMNS)
"""Columns of the source that a publisher cannot set: they are permitted, and ignored."""

WIRE_TYPES: Final = (
    ("BOOLEAN", "boolean", "t", ""),
    ("TINYINT", "int8", "b", ""),
    ("SMALLINT", "int16", "s", ""),
    ("INT", "int32", "I", ""),
    ("BIGINT", "int64", "l", ""),
    ("FLOAT", "float", "f", "0-9-1: finite numbers only"),
    ("DOUBLE", "double", "d", "0-9-1: finite numbers only"),
    ("STRING", "str16", "S", "UTF-8; 0-10: at most 65,535 bytes"),
    ("BINARY", "vbin32", "x", ""),
    ("DECIMAL(p,s)", "str16", "S", "plain, with all digits of the scale: `-1.50`"),
    ("DATE", "str16", "S", "`2026-11-21`"),
    ("TIMESTAMP", "str16", "S", "in UTC, six digits after the second: `2026-11-21T00:05:30.123456Z`"),
    ("TIMESTAMP_NTZ", "str16", "S", "the same without Z"),
    ("ARRAY<...>", "list", "A", "a NULL element is void"),
    ("STRUCT<...>", "map", "F", "a NULL field is left out"),
    ("MAP<STRING, ...>", "map", "F", "a NULL value is void (V); keys have at most 255 bytes of UTF-8"),
    (
        "VARIANT",
        "by its value",
        "by its value",
        "as above; an object is a map, an array a list, null is void, a UUID uuid (0-9-1: its text)",
    ),
)
"""Type of Spark, types on the wire of 0-10 and of 0-9-1 and how: for headers, and for bodies that are maps or lists."""


def schema_problems(schema: t.StructType, options: SinkOptions) -> list[str]:
    """All problems of a schema with these options, one text per problem.

    Names are compared without case.
    """
    problems: list[str] = []
    seen: set[str] = set()
    for field in schema.fields:
        name = field.name.lower()
        if name in seen:
            problems.append(SparkCondition.COLUMN_DUPLICATE(column=field.name))
            continue
        seen.add(name)
        if name in IGNORED or (name == "exchange" and not options.exchange_from_column):
            continue
        if name not in COLUMNS:
            problems.append(_unknown(field.name))
            continue
        if name == MESSAGE_ID and options.stable_message_id:
            problems.append(SparkCondition.COLUMN_CONFLICT(column=field.name, option="stableMessageId"))
        problems += type_problems(field, COLUMNS[name].types.replace("`", ""), sent=True)
        if options.queue_type is not None:
            problems += _stream_problems(field, drops=options.drops_unsupported)
        if name == "body":
            problems += _content_type_problems(field.dataType, options)
    if "body" not in seen:
        allowed = COLUMNS["body"].types.replace("`", "")
        problems.append(SparkCondition.COLUMN_MISSING(column="body", why="", allowed=allowed))
    if options.exchange_from_column and "exchange" not in seen:
        why = ", which exchangeFromColumn=true needs"
        problems.append(SparkCondition.COLUMN_MISSING(column="exchange", why=why, allowed="STRING"))
    if not (options.exchange or options.exchange_from_column or options.routing_key or "routing_key" in seen):
        problems.append(SparkCondition.DESTINATION_MISSING())
    return problems


def _content_type_problems(kind: t.DataType, options: SinkOptions) -> Iterator[str]:
    possible = [MAP_TYPE] if isinstance(kind, t.StructType | t.MapType | t.VariantType) else []
    possible += [LIST_TYPE] if isinstance(kind, t.ArrayType | t.VariantType) else []
    if possible and options.content_type is not None and options.content_type not in possible:
        sql, sent = kind.simpleString().upper(), " or ".join(possible)
        yield SparkCondition.BODY_TYPE_CONFLICT(type=sql, sent=sent, content_type=options.content_type)


def _stream_problems(field: t.StructField, *, drops: bool) -> Iterator[str]:
    """What a stream of RabbitMQ does not keep: it stores messages in the format of AMQP 1.0."""
    name, kind = field.name.lower(), field.dataType
    if name == "cluster_id" and not drops:
        yield _lost_in_streams(field.name)
    if name != "application_headers":
        return
    if isinstance(kind, t.StructType):
        values = {f"{field.name}.{each.name}": each.dataType for each in kind.fields}
    elif isinstance(kind, t.MapType):
        values = {f"{field.name}.value": kind.valueType}
    else:
        values = {field.name: kind} if isinstance(kind, t.VariantType) else {}
    for part, of in values.items():
        if isinstance(of, t.ArrayType | t.MapType | t.StructType | t.VariantType) and not drops:
            yield _lost_in_streams(part)


def _lost_in_streams(part: str) -> str:
    reason = "a stream of RabbitMQ leaves it out (queueType=stream)"
    allowed = "a scalar in application_headers, such as STRING with JSON, or onUnsupported=drop"
    return SparkCondition.COLUMN_PART_UNSUPPORTED(part=part, reason=reason, allowed=allowed)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), COLUMNS, n=2)
    hint = f", which is similar to {' and '.join(near)}" if near else ""
    known = f"{', '.join(COLUMNS)} (and ignored: {', '.join(IGNORED)})"
    return SparkCondition.COLUMN_UNKNOWN(column=name, hint=hint, known=known)
