"""The columns of the source: which there are, in which types, and how a block of frames becomes a RecordBatch.

:class:`ColumnPlan` is built from the schema of the query on the driver, where everything that cannot be served is
refused at once, and used on the executors. Only the columns of the schema are decoded.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_core.v0_10._columns import locate
from amqp_spark.columns.arrays import take
from amqp_spark.columns.batch import Batch, builder
from amqp_spark.columns.fields import Wire, padded
from amqp_spark.columns.values import servable
from amqp_spark.errors import UNDECODABLE, MessageFormatError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amqp_core.v0_10._columns import Located
    from amqp_spark.columns.arrays import Array, Errors
    from amqp_spark.columns.batch import Build

    OnReject = Callable[[list[int], str], None]

MOST_ROWS: Final = 10_000
"""Most rows of a RecordBatch."""
MOST_BYTES: Final = 16 << 20
"""Most bytes of frames that a RecordBatch is made of; a larger message is alone in its batch."""
_GATHER: Final = 4 << 20  # small blocks are decoded together: a step per column costs as much for one row as for 500
_REASONS: Final = 10  # of rejected messages, told apart per batch
MODES: Final = ("FAILFAST", "REJECT", "PERMISSIVE")
UNITS: Final = ("auto", "s", "ms")

REPLY_TO: Final = t.StructType(
    [t.StructField("exchange", t.StringType()), t.StructField("routing_key", t.StringType())]
)
DEFAULT_SCHEMA: Final = t.StructType(
    [
        t.StructField("queue", t.StringType()),
        t.StructField("position", t.LongType()),
        t.StructField("discard_unroutable", t.BooleanType()),
        t.StructField("immediate", t.BooleanType()),
        t.StructField("redelivered", t.BooleanType()),
        t.StructField("priority", t.ByteType()),
        t.StructField("delivery_mode", t.ByteType()),
        t.StructField("ttl", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("expiration", t.TimestampType()),
        t.StructField("exchange", t.StringType()),
        t.StructField("routing_key", t.StringType()),
        t.StructField("resume_id", t.StringType()),
        t.StructField("resume_ttl", t.LongType()),
        t.StructField("content_length", t.LongType()),
        t.StructField("message_id", t.StringType()),
        t.StructField("correlation_id", t.BinaryType()),
        t.StructField("reply_to", REPLY_TO),
        t.StructField("content_type", t.StringType()),
        t.StructField("content_encoding", t.StringType()),
        t.StructField("user_id", t.BinaryType()),
        t.StructField("app_id", t.BinaryType()),
        t.StructField("application_headers", t.MapType(t.StringType(), t.StringType())),
        t.StructField("body", t.BinaryType()),
    ]
)
"""All columns, in the types that they have when no schema is given."""


class _Allowed(NamedTuple):
    """The types that a column can have."""

    text: str
    scalars: tuple[type[t.DataType], ...]
    nested: tuple[type[t.DataType], ...] = ()


_BIT = _Allowed("BOOLEAN", (t.BooleanType,))
_OCTET = _Allowed("TINYINT, SMALLINT, INT, BIGINT", (t.ByteType, t.ShortType, t.IntegerType, t.LongType))
_NUMBER = _Allowed("BIGINT, or INT (checked)", (t.LongType, t.IntegerType))
_TIME = _Allowed(
    "TIMESTAMP, TIMESTAMP_NTZ (in UTC), or BIGINT (the number as sent)",
    (t.TimestampType, t.TimestampNTZType, t.LongType),
)
_TEXT = _Allowed("STRING, or BINARY", (t.StringType, t.BinaryType))
_OPAQUE = _Allowed("BINARY, or STRING (strictly UTF-8)", (t.BinaryType, t.StringType))
_UUID = _Allowed("STRING (the usual text of a UUID), or BINARY (its 16 bytes)", (t.StringType, t.BinaryType))
_REPLY = _Allowed("STRUCT of any of exchange STRING, routing_key STRING", (), (t.StructType,))
_HEADERS = _Allowed(
    "MAP<STRING, ...>, STRUCT<header TYPE, ...>, VARIANT, or BINARY (the encoded map)",
    (t.VariantType, t.BinaryType),
    (t.StructType, t.MapType),
)
_BODY = _Allowed(
    "BINARY, STRING (strictly UTF-8), or for bodies that are amqp/map or amqp/list STRUCT, MAP<STRING, ...>, "
    "ARRAY, VARIANT",
    (t.BinaryType, t.StringType, t.VariantType),
    (t.StructType, t.MapType, t.ArrayType),
)
ALLOWED: Final = {
    "queue": _Allowed("STRING", (t.StringType,)),
    "position": _Allowed("BIGINT", (t.LongType,)),
    "discard_unroutable": _BIT,
    "immediate": _BIT,
    "redelivered": _BIT,
    "priority": _OCTET,
    "delivery_mode": _OCTET,
    "ttl": _NUMBER,
    "timestamp": _TIME,
    "expiration": _TIME,
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "resume_id": _TEXT,
    "resume_ttl": _NUMBER,
    "content_length": _NUMBER,
    "message_id": _UUID,
    "correlation_id": _OPAQUE,
    "reply_to": _REPLY,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "user_id": _OPAQUE,
    "app_id": _OPAQUE,
    "application_headers": _HEADERS,
    "body": _BODY,
}
"""Per column the types that it can have."""


class ColumnPlan:
    """How to make the columns of a schema. It pickles, and costs nothing until :meth:`batches` is called."""

    def __init__(self, schema: t.StructType, mode: str, timestamp_unit: str) -> None:
        self.schema = schema
        self.mode = mode
        self.timestamp_unit = timestamp_unit
        self.arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._builders: list[Build] = []

    @classmethod
    def build(cls, schema: t.StructType, *, mode: str, timestamp_unit: str) -> ColumnPlan:
        """Check a schema; column names are compared without case.

        Raises:
            SchemaError: with every column that cannot be served, and what is allowed.
        """
        problems = schema_problems(schema, mode=mode)
        if mode not in MODES:
            problems.append(f"mode {mode!r}; allowed: {', '.join(MODES)}")
        if timestamp_unit not in UNITS:
            problems.append(f"timestampUnit {timestamp_unit!r}; allowed: {', '.join(UNITS)}")
        if problems:
            raise SchemaError(problems)
        return cls(schema, mode, timestamp_unit)

    def __reduce__(self) -> tuple[type[ColumnPlan], tuple[t.StructType, str, str]]:
        return type(self), (self.schema, self.mode, self.timestamp_unit)

    def batches(
        self,
        frames: Iterable[bytes],
        *,
        queue: str,
        first_position: int,
        on_reject: OnReject | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Decode blocks of frames whose transfers have consecutive positions from ``first_position`` on.

        ``on_reject`` gets, in mode REJECT, the positions of rows left out and the reason they share.

        Raises:
            MessageFormatError: in mode FAILFAST, for the first message that does not fit.
            DecodeError: a block is not whole frames.
        """
        position = first_position
        for block in _gathered(frames):
            located = locate(block)
            wire = Wire(padded(located.data, max(located.head_end, default=0)), ordered=not located.joined)
            rows = len(located.end)
            low = 0
            while low < rows:
                high = _cut(located, low)
                batch = Batch(wire, located, range(low, high), queue, position + low)
                decoded = self._decode(batch, on_reject)
                if decoded.num_rows:
                    yield decoded
                low = high
            position += rows

    def _decode(self, batch: Batch, on_reject: OnReject | None) -> pa.RecordBatch:
        if not self._builders:
            self._builders = [
                builder(field, arrow.type, self.timestamp_unit)
                for field, arrow in zip(self.schema.fields, self.arrow_schema, strict=True)
            ]
        columns: list[Array] = []
        wrong: dict[int, tuple[str, str]] = {}
        for field, build in zip(self.schema.fields, self._builders, strict=True):
            column, errors = build(batch)
            if not field.nullable and column.null_count:
                errors = _absent(column) | errors
            for row, reason in errors.items():
                wrong.setdefault(row, (field.name, reason))
            if errors and self.mode == "PERMISSIVE":
                column = _without(column, errors)
            columns.append(column)
        for row, reason in batch.broken.items():
            wrong[row] = (UNDECODABLE, reason)
        if wrong:
            columns = self._settle(batch, columns, wrong, on_reject)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _settle(
        self,
        batch: Batch,
        columns: list[Array],
        wrong: dict[int, tuple[str, str]],
        on_reject: OnReject | None,
    ) -> list[Array]:
        """Deal with the rows that do not fit as ``mode`` says."""
        if self.mode == "FAILFAST":
            row = min(wrong)
            raise MessageFormatError(batch.queue, batch.position + row, *wrong[row])
        if self.mode == "PERMISSIVE":
            known = {"queue", "position"}
            return [
                column if not batch.broken or field.name.lower() in known else _without(column, batch.broken)
                for field, column in zip(self.schema.fields, columns, strict=True)
            ]
        if on_reject is not None:
            for reason, positions in _by_reason(wrong, batch.position).items():
                on_reject(positions, reason)
        keep = np.ones(batch.rows, np.bool_)
        keep[list(wrong)] = False
        kept = np.flatnonzero(keep)
        return [take(column, kept) for column in columns]


def schema_problems(schema: t.StructType, *, mode: str = "FAILFAST") -> list[str]:
    """Everything of a schema that cannot be served, one text per problem."""
    problems: list[str] = []
    seen: set[str] = set()
    if not schema.fields:
        problems.append("the schema has no columns")
    for field in schema.fields:
        name = field.name.lower()
        if name in seen:
            problems.append(f"{field.name}: the column occurs twice")
        seen.add(name)
        allowed = ALLOWED.get(name)
        if allowed is None:
            problems.append(f"{field.name}: there is no such column; there are {', '.join(ALLOWED)}")
            continue
        problems += _type_problems(field, name, allowed)
        if mode == "PERMISSIVE" and not field.nullable and name not in ("queue", "position"):
            problems.append(f"{field.name}: NOT NULL cannot be kept with mode=PERMISSIVE")
    return problems


def _type_problems(field: t.StructField, name: str, allowed: _Allowed) -> list[str]:
    kind = field.dataType
    if isinstance(kind, allowed.nested):
        if name != "reply_to":
            return servable(kind, field.name)
        parts = [(f.name.lower(), f.dataType) for f in kind.fields]  # type: ignore[attr-defined]
        names = [part for part, _ in parts]
        if parts and len(set(names)) == len(names):
            served = {f.name for f in REPLY_TO.fields}
            if all(part in served and isinstance(of, t.StringType) for part, of in parts):
                return []
    elif isinstance(kind, allowed.scalars):
        return []
    return [f"{field.name}: {kind.simpleString()} is not possible; allowed: {allowed.text}"]


def _gathered(frames: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks, small ones joined."""
    group: list[bytes] = []
    size = 0
    for block in frames:
        if group and size + len(block) > _GATHER:
            yield group[0] if len(group) == 1 else b"".join(group)
            group, size = [], 0
        group.append(block)
        size += len(block)
    if group:
        yield group[0] if len(group) == 1 else b"".join(group)


def _cut(located: Located, low: int) -> int:
    """Where the batch ends that begins with transfer ``low``."""
    ends = located.end
    begin = ends[low - 1] if low else 0
    high = min(low + MOST_ROWS, len(ends))
    if ends[high - 1] - begin > MOST_BYTES:
        high = max(bisect_right(ends, begin + MOST_BYTES, low, high), low + 1)
    return high


def _absent(column: Array) -> Errors:
    rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
    return dict.fromkeys(rows, "it is absent, and NOT NULL was asked for")


def _without(column: Array, rows: Iterable[int]) -> Array:
    """The column with NULL in these rows."""
    mask = np.zeros(len(column), np.bool_)
    mask[list(rows)] = True
    return take(column, np.arange(len(column)), mask)


def _by_reason(wrong: dict[int, tuple[str, str]], position: int) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row, (column, reason) in sorted(wrong.items()):
        text = reason if column == UNDECODABLE else f"{column}: {reason}"
        if text not in groups and len(groups) >= _REASONS:
            text = "does not fit the schema, like the ones before for other reasons"
        groups.setdefault(text, []).append(position + row)
    return groups


__all__ = ["ALLOWED", "DEFAULT_SCHEMA", "ColumnPlan", "schema_problems"]
