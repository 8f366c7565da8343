"""The columns of the source: their names, types and meanings, and the problems of a schema that cannot be served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import types as t

from amqp_spark.arrow.columns.conversion import unsupported_parts
from amqp_spark.arrow.columns.dialect import LETTERS
from amqp_spark.arrow.columns.values import name_of
from amqp_spark.arrow.v0_9.properties import PROPERTIES as PROPERTIES_0_9
from amqp_spark.arrow.v0_10 import properties
from amqp_spark.arrow.v0_10.properties import PROPERTIES
from amqp_spark.error_conditions import SparkCondition

if TYPE_CHECKING:
    from amqp_spark.arrow.layout import Property

DEFAULT_CORRUPT_COLUMN: Final = "_corrupt_record"
"""Spark's default, unless its setting ``spark.sql.columnNameOfCorruptRecord`` differs."""


class Column(NamedTuple):
    """A column of the source."""

    default: t.DataType
    """The type without a schema."""
    exact: str
    """The type, as DDL, that loses nothing of what was sent."""
    allowed: str
    """All types with a schema, for documents and errors; by class in the next two attributes."""
    scalars: tuple[type[t.DataType], ...]
    nested: tuple[type[t.DataType], ...] = ()
    meaning: str = ""
    elsewhere: str = ""
    """How 0-9-1 differs."""


def _integer(default: t.DataType, exact: str, allowed: str) -> Column:
    return Column(default, exact, allowed, (t.ByteType, t.ShortType, t.IntegerType, t.LongType))


_REPLY_TO: Final = [field.name for field in properties.REPLY_TO.fields]
_TEXT: Final = Column(t.StringType(), "STRING", "STRING, or BINARY", (t.StringType, t.BinaryType))
_OPAQUE: Final = Column(t.BinaryType(), "BINARY", "BINARY, or STRING (strictly UTF-8)", (t.BinaryType, t.StringType))
_BY_WIRE_TYPE: Final = {
    "bit": Column(t.BooleanType(), "BOOLEAN", "BOOLEAN", (t.BooleanType,)),
    "uint8": _integer(t.ByteType(), "SMALLINT", "TINYINT, SMALLINT, INT, BIGINT"),
    "uint16": _integer(t.IntegerType(), "INT", "INT, BIGINT, or TINYINT, SMALLINT (checked)"),
    "uint32": _integer(t.LongType(), "BIGINT", "BIGINT, or TINYINT, SMALLINT, INT (checked)"),
    "uint64": Column(t.LongType(), "BIGINT", "BIGINT, or INT (checked)", (t.LongType, t.IntegerType)),
    "datetime": Column(
        t.TimestampType(),
        "BIGINT",
        "TIMESTAMP, TIMESTAMP_NTZ (in UTC), or BIGINT (the number as sent)",
        (t.TimestampType, t.TimestampNTZType, t.LongType),
    ),
    "str8": _TEXT,
    "str16": _TEXT,
    "vbin8": _OPAQUE,
    "vbin16": _OPAQUE,
    "vbin32": _OPAQUE,
    "uuid": Column(
        t.StringType(),
        "STRING",
        "STRING (the usual text of a UUID), or BINARY (its 16 bytes)",
        (t.StringType, t.BinaryType),
    ),
    "reply-to": Column(
        t.StructType([t.StructField(name, t.StringType()) for name in _REPLY_TO]),
        f"STRUCT<{', '.join(f'{name}: STRING' for name in _REPLY_TO)}>",
        f"STRUCT of any of {', '.join(f'{name} STRING' for name in _REPLY_TO)}",
        (),
        (t.StructType,),
    ),
    "map": Column(
        t.MapType(t.StringType(), t.StringType()),
        "BINARY",
        "MAP<STRING, ...>, STRUCT<header TYPE, ...>, VARIANT, or BINARY (the encoded map)",
        (t.VariantType, t.BinaryType),
        (t.StructType, t.MapType),
    ),
}
_ABSENT: Final = "NULL."
_IN_0_9: Final = {each.name: each for each in PROPERTIES_0_9}
_IN_0_10: Final = frozenset(each.name for each in PROPERTIES)
_LIKE_IN_0_9: Final = {
    "redelivered": "The same; Broker-J forgets it when it is restarted.",
    "exchange": "The same; empty for the default exchange.",
    "routing_key": "The same.",
    "expiration": "From Broker-J, where the text expiration is a time; a number above 10¹¹ is one.",
    "content_length": "Length of the body.",
}


def _column(field: Property) -> Column:
    """A column of 0-10."""
    elsewhere = _LIKE_IN_0_9.get(field.name, _ABSENT)
    if field.name in _IN_0_9:
        meaning = _IN_0_9[field.name].meaning
        elsewhere = "The same." if meaning == field.meaning else meaning
    return _BY_WIRE_TYPE[field.wire]._replace(meaning=field.meaning, elsewhere=elsewhere)


COLUMNS: Final = {
    "queue": Column(
        t.StringType(),
        "STRING",
        "STRING",
        (t.StringType,),
        meaning="The queue that the message came from.",
        elsewhere="The same.",
    ),
    "position": Column(
        t.LongType(),
        "BIGINT",
        "BIGINT",
        (t.LongType,),
        meaning="Number of the message in what this run received from the queue. Not a key: see delivery.md.",
        elsewhere="The same.",
    ),
    **{each.name: _column(each) for each in PROPERTIES},
    **{
        name: _TEXT._replace(meaning=_ABSENT, elsewhere=each.meaning)
        for name, each in _IN_0_9.items()
        if name not in _IN_0_10
    },
    "delivery_count": _BY_WIRE_TYPE["uint64"]._replace(
        meaning=_ABSENT,
        elsewhere="How often it was returned to its queue: the header `x-delivery-count`; NULL where it is absent.",
    ),
    "stream": Column(
        t.StringType(),
        "STRING",
        "STRING",
        (t.StringType,),
        meaning=_ABSENT,
        elsewhere="The queue that the message came from, if `offset` is not NULL (streams of RabbitMQ); else NULL.",
    ),
    "offset": Column(
        t.LongType(),
        "BIGINT",
        "BIGINT",
        (t.LongType,),
        meaning=_ABSENT,
        elsewhere="Offset of the message in its stream: the header `x-stream-offset`; NULL where it is absent.",
    ),
    "body": Column(
        t.BinaryType(),
        "BINARY",
        "BINARY, STRING (strictly UTF-8), or for bodies that are amqp/map or amqp/list STRUCT, MAP<STRING, ...>, "
        "ARRAY, VARIANT",
        (t.BinaryType, t.StringType, t.VariantType),
        (t.StructType, t.MapType, t.ArrayType),
        "The body; empty when the message has none.",
        "The same.",
    ),
}
"""All columns of the source."""
_TEXTS: Final = {"S": "str16; vbin32 if it is not UTF-8", "c": "str16", "C": "str16"}
TABLE_TYPES: Final = tuple((letter, _TEXTS.get(letter) or name_of(number)) for letter, number in LETTERS.items())
"""Type letters of the tables and arrays of 0-9-1, and the names of the wire types whose values they are read as."""
DEFAULT_SCHEMA: Final = t.StructType([t.StructField(name, column.default) for name, column in COLUMNS.items()])
"""All columns, with their types if no schema is given."""


def schema_with(corrupt_column: str | None, schema: t.StructType = DEFAULT_SCHEMA) -> t.StructType:
    """A schema extended by the column of the option ``columnNameOfCorruptRecord``, if that is given."""
    if corrupt_column is None or corrupt_column.lower() in COLUMNS:  # reported with the other errors
        return schema
    return t.StructType([*schema.fields, t.StructField(corrupt_column, t.StringType())])


def schema_problems(
    schema: t.StructType, *, mode: str = "FAILFAST", corrupt_column: str = DEFAULT_CORRUPT_COLUMN
) -> list[str]:
    """All problems of a schema, one text per problem."""
    problems: list[str] = []
    seen: set[str] = set()
    if not schema.fields:
        problems.append(SparkCondition.SCHEMA_EMPTY())
    for field in schema.fields:
        name = field.name.lower()
        if name in seen:
            problems.append(SparkCondition.COLUMN_DUPLICATE(column=field.name))
        seen.add(name)
        column = COLUMNS.get(name)
        if column is None and name == corrupt_column.lower():
            if not isinstance(field.dataType, t.StringType) or not field.nullable:
                kind = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
                allowed = "STRING that can be NULL"
                problems.append(SparkCondition.COLUMN_TYPE_UNSUPPORTED(column=field.name, type=kind, allowed=allowed))
            continue
        if column is None:
            problems.append(SparkCondition.COLUMN_UNKNOWN(column=field.name, hint="", known=", ".join(COLUMNS)))
            continue
        problems += type_problems(field, column.allowed, sent=False)
        if mode == "PERMISSIVE" and not field.nullable and name not in ("queue", "position"):
            problems.append(SparkCondition.COLUMN_NOT_NULL(column=field.name))
    return problems


def corrupt_column_problems(schema: t.StructType, name: str) -> list[str]:
    """Problems of the option that names the column, together with the schema."""
    if name.lower() in COLUMNS:
        reason = "is a column of messages"
    elif name.lower() not in {field.name.lower() for field in schema.fields}:
        reason = "the schema does not have"
    else:
        return []
    return [SparkCondition.CORRUPT_COLUMN_INVALID(column=name, reason=reason)]


def _is_reply_to(kind: t.DataType) -> bool:
    """Whether a type has one or more fields of reply-to, each once and as STRING."""
    parts = [(field.name.lower(), field.dataType) for field in kind.fields] if isinstance(kind, t.StructType) else []
    served = all(name in _REPLY_TO and isinstance(of, t.StringType) for name, of in parts)
    return served and 0 < len(parts) == len({name for name, _ in parts})


def type_problems(field: t.StructField, allowed: str, *, sent: bool) -> list[str]:
    """Problems of the type of a known column, when it is read or sent."""
    kind, name = field.dataType, field.name.lower()
    column = COLUMNS[name]
    if name == "reply_to":
        if _is_reply_to(kind):
            return []
    elif isinstance(kind, column.nested):
        return unsupported_parts(kind, field.name, sent=sent)
    elif isinstance(kind, column.scalars):
        return []
    sql = kind.simpleString().upper()
    return [SparkCondition.COLUMN_TYPE_UNSUPPORTED(column=field.name, type=sql, allowed=allowed)]
