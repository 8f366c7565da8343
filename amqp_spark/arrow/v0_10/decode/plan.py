"""The columns of the source: their names and types, and the decoding of a block of frames to a RecordBatch.

:class:`ColumnPlan` is built from the query's schema on the driver, which refuses unsupported columns at once, and used
on the executors. Only the columns of the schema are decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_spark.arrow.v0_10.decode import corrupt
from amqp_spark.arrow.v0_10.decode.arrays import nulls, take
from amqp_spark.arrow.v0_10.decode.batch import Batch, builder
from amqp_spark.arrow.v0_10.decode.located import joined, locate
from amqp_spark.arrow.v0_10.decode.values import servable
from amqp_spark.errors import UNDECODABLE, MessageFormatError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amqp_spark.arrow.v0_10.decode.arrays import Array, Column, Errors
    from amqp_spark.arrow.v0_10.decode.batch import Build
    from amqp_spark.arrow.v0_10.decode.fields import Positions
    from amqp_spark.arrow.v0_10.decode.located import Chunk

    OnReject = Callable[[list[int], str], None]

MOST_ROWS: Final = 10_000
"""Maximum rows of a RecordBatch."""
MOST_BYTES: Final = 16 << 20
"""Maximum bytes of frames decoded to one RecordBatch; a larger message is alone in its batch."""
_GATHER: Final = 4 << 20  # small chunks are decoded together: a step per column costs as much for one row as for 500
_REASONS: Final = 10  # maximum distinct reasons of rejected messages per batch
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
"""All columns, with their types if no schema is given."""


def schema_with(corrupt_column: str | None, schema: t.StructType = DEFAULT_SCHEMA) -> t.StructType:
    """A schema extended by the column of the option ``columnNameOfCorruptRecord``, if that is given."""
    if corrupt_column is None or corrupt_column.lower() in ALLOWED:  # reported with the other errors
        return schema
    return t.StructType([*schema.fields, t.StructField(corrupt_column, t.StringType())])


class _Allowed(NamedTuple):
    """Permitted types of a column."""

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
"""Permitted types by column."""


class ColumnPlan:
    """Decodes the columns of a schema. It pickles, and does no work before :meth:`batches` is called."""

    def __init__(
        self, schema: t.StructType, mode: str, timestamp_unit: str, corrupt_column: str = corrupt.DEFAULT_NAME
    ) -> None:
        self.schema = schema
        self.mode = mode
        self.timestamp_unit = timestamp_unit
        self.corrupt_column = corrupt_column
        self.arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._builders: list[Build] = []

    @classmethod
    def build(
        cls, schema: t.StructType, *, mode: str, timestamp_unit: str, corrupt_column: str | None = None
    ) -> ColumnPlan:
        """Check a schema; column names are compared without case.

        Args:
            schema: of the query.
            mode: the option.
            timestamp_unit: the option.
            corrupt_column: the option ``columnNameOfCorruptRecord``; ``None``: not given.

        Raises:
            SchemaError: with every unsupported column, and the permitted types.
        """
        name = corrupt_column or corrupt.DEFAULT_NAME
        problems = schema_problems(schema, mode=mode, corrupt_column=name)
        if corrupt_column is not None:
            problems += _corrupt_column_problems(schema, corrupt_column)
        if mode not in MODES:
            problems.append(f"mode {mode!r}; allowed: {', '.join(MODES)}")
        if timestamp_unit not in UNITS:
            problems.append(f"timestampUnit {timestamp_unit!r}; allowed: {', '.join(UNITS)}")
        if problems:
            raise SchemaError(problems)
        return cls(schema, mode, timestamp_unit, name)

    def __reduce__(self) -> tuple[type[ColumnPlan], tuple[t.StructType, str, str, str]]:
        return type(self), (self.schema, self.mode, self.timestamp_unit, self.corrupt_column)

    def batches(
        self,
        chunks: Iterable[Chunk],
        *,
        queue: str,
        first_position: int,
        on_reject: OnReject | None = None,
        skipped: Iterable[int] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Decode chunks of transfers that have consecutive positions from ``first_position`` on.

        Args:
            chunks: the transfers, in order.
            queue: their queue.
            first_position: position of the first transfer.
            on_reject: called in mode REJECT with the positions of the rows left out and their common reason.
            skipped: positions that yield no row, whether their messages fit or not.

        Raises:
            MessageFormatError: in mode FAILFAST, for the first message that does not fit.
            DecodeError: the ends of a chunk do not match its transfers.
        """
        position = first_position
        left_out = frozenset(skipped)
        for chunk in _gathered(chunks):
            located = locate(chunk)
            rows = len(located.end)
            low = 0
            while low < rows:
                high = _cut(located.end, low)
                batch = Batch(located, range(low, high), queue, position + low)
                decoded = self._decode(batch, on_reject, left_out)
                if decoded.num_rows:
                    yield decoded
                low = high
            position += rows

    def _decode(self, batch: Batch, on_reject: OnReject | None, left_out: frozenset[int]) -> pa.RecordBatch:
        if not self._builders:
            self._builders = [
                _nothing if self._is_corrupt(field) else builder(field, arrow.type, self.timestamp_unit)
                for field, arrow in zip(self.schema.fields, self.arrow_schema, strict=True)
            ]
        columns: list[Array] = []
        wrong: dict[int, dict[str, str]] = {}
        for field, build in zip(self.schema.fields, self._builders, strict=True):
            column, errors = build(batch)
            if not field.nullable and column.null_count:
                errors = _absent(column) | errors
            for row, reason in errors.items():
                wrong.setdefault(row, {})[field.name] = reason
            if errors and self.mode == "PERMISSIVE":
                column = _without(column, errors)
            columns.append(column)
        for row, reason in batch.broken.items():
            wrong[row] = {UNDECODABLE: reason}
        here = range(batch.position, batch.position + batch.rows)
        gone = {position - batch.position for position in left_out if position in here}
        wrong = {row: reasons for row, reasons in wrong.items() if row not in gone}
        if wrong:
            columns = self._settle(batch, columns, wrong, on_reject)
        if self.mode == "REJECT":
            gone |= wrong.keys()
        if gone:
            columns = _dropped(columns, batch.rows, gone)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _is_corrupt(self, field: t.StructField) -> bool:
        return field.name.lower() == self.corrupt_column.lower()

    def _settle(
        self,
        batch: Batch,
        columns: list[Array],
        wrong: dict[int, dict[str, str]],
        on_reject: OnReject | None,
    ) -> list[Array]:
        """Handle the rows that do not fit according to ``mode``."""
        if self.mode == "FAILFAST":
            row = min(wrong)
            raise MessageFormatError(batch.queue, batch.position + row, *_first(wrong[row]))
        if self.mode == "PERMISSIVE":
            known = {"queue", "position"}
            known_only = [
                column if not batch.broken or field.name.lower() in known else _without(column, batch.broken)
                for field, column in zip(self.schema.fields, columns, strict=True)
            ]
            return [
                corrupt.records(batch, wrong) if self._is_corrupt(field) else column
                for field, column in zip(self.schema.fields, known_only, strict=True)
            ]
        if on_reject is not None:
            for reason, positions in _by_reason(wrong, batch.position).items():
                on_reject(positions, reason)
        return columns


def schema_problems(
    schema: t.StructType, *, mode: str = "FAILFAST", corrupt_column: str = corrupt.DEFAULT_NAME
) -> list[str]:
    """All problems of a schema, one text per problem."""
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
        if allowed is None and name == corrupt_column.lower():
            if not isinstance(field.dataType, t.StringType) or not field.nullable:
                kind = field.dataType.simpleString() + ("" if field.nullable else " NOT NULL")
                problems.append(
                    f"{field.name}: {kind} is not possible for the column that says what did not fit; allowed: STRING"
                )
            continue
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


def _gathered(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Join small chunks."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and size + len(chunk.frames) > _GATHER:
            yield joined(group)
            group, size = [], 0
        group.append(chunk)
        size += len(chunk.frames)
    if group:
        yield joined(group)


def _cut(ends: Positions, low: int) -> int:
    """End of the batch that begins with transfer ``low``."""
    begin = int(ends[low - 1]) if low else 0
    high = min(low + MOST_ROWS, len(ends))
    if ends[high - 1] - begin > MOST_BYTES:
        high = max(int(np.searchsorted(ends[:high], begin + MOST_BYTES, side="right")), low + 1)
    return high


def _absent(column: Array) -> Errors:
    rows = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist()
    return dict.fromkeys(rows, "it is absent, and NOT NULL was asked for")


def _without(column: Array, rows: Iterable[int]) -> Array:
    """The column with NULL in these rows."""
    mask = np.zeros(len(column), np.bool_)
    mask[list(rows)] = True
    return take(column, np.arange(len(column)), mask)


def _dropped(columns: Iterable[Array], rows: int, gone: Iterable[int]) -> list[Array]:
    """The columns without these rows."""
    keep = np.ones(rows, np.bool_)
    keep[list(gone)] = False
    kept = np.flatnonzero(keep)
    return [take(column, kept) for column in columns]


def _nothing(batch: Batch) -> Column:
    """The column of reasons while every row fits: all NULL."""
    return nulls(batch.rows, pa.string())


def _corrupt_column_problems(schema: t.StructType, name: str) -> list[str]:
    """Problems of the option that names the column, together with the schema."""
    given = f"option 'columnNameOfCorruptRecord' is {name!r}, which"
    if name.lower() in ALLOWED:
        return [f"{given} is a column of messages; allowed: any other name"]
    if name.lower() not in {field.name.lower() for field in schema.fields}:
        return [f"{given} the schema does not have: add that column (STRING), or leave the option out"]
    return []


def _first(reasons: dict[str, str]) -> tuple[str, str]:
    """Of several columns that a message does not fit, the first one of the schema."""
    return next(iter(reasons.items()))


def _by_reason(wrong: dict[int, dict[str, str]], position: int) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row, reasons in sorted(wrong.items()):
        column, reason = _first(reasons)
        text = reason if column == UNDECODABLE else f"{column}: {reason}"
        if text not in groups and len(groups) >= _REASONS:
            text = "does not fit the schema, like the ones before for other reasons"
        groups.setdefault(text, []).append(position + row)
    return groups


__all__ = ["ALLOWED", "DEFAULT_SCHEMA", "ColumnPlan", "schema_problems"]
