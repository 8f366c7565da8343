"""Columns of Spark as maps and lists (0-9-1: tables and arrays), a whole column at a time.

Every type has one wire type (:mod:`.dialect`): STRUCT and MAP are maps, ARRAY is a list, DECIMAL, DATE, TIMESTAMP and
TIMESTAMP_NTZ are texts (:mod:`.texts`); VARIANT depends on its value (:mod:`.variants`).
The source reads each of them back as its original type. A NULL field of a STRUCT is left out of the map; NULL in an
ARRAY and as the value of a MAP is void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_spark.arrow.columns.conversion import LONGEST_KEY, Errors
from amqp_spark.arrow.rows import row_bytes, texts, variants
from amqp_spark.arrow.rows.row_bytes import RowBytes
from amqp_spark.arrow.rows.row_errors import (
    Fault,
    Faults,
    key_too_long,
    no_time,
    not_finite,
    not_utf8,
    text_too_long,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.arrow.rows.dialect import Dialect
    from amqp_spark.arrow.rows.row_bytes import Array, Cell, Mask, Numbers

Encoded: TypeAlias = "tuple[Array, Errors]"
"""Bytes per row, null in null rows; and the reasons of rows that cannot be sent, whose bytes are undefined."""

_IN_MEMORY: Final[dict[type[t.DataType], str]] = {
    t.ByteType: "i1",
    t.ShortType: "i2",
    t.IntegerType: "i4",
    t.LongType: "i8",
    t.FloatType: "f4",
    t.DoubleType: "f8",
}


class _Values(NamedTuple):
    """The values of a column on the wire: ``cells`` and then ``tail``, in the rows that are ``there`` (None: all)."""

    cells: list[Cell]
    tail: Array | None
    there: Mask | None
    faults: Faults


class _Entries(NamedTuple):
    """Contents of the maps or lists of a column: bytes in pieces, number of bytes and number of entries."""

    parts: list[Array | _FixedCells]
    sizes: Numbers
    counts: Numbers
    faults: Faults


class _FixedCells(NamedTuple):
    """Consecutive cells of fixed width, in the rows that are ``there``."""

    cells: list[Cell]
    there: Mask | None


_Cells: TypeAlias = "list[Cell]"  # the encoder has a method list
_Parts: TypeAlias = "list[Array | _FixedCells]"


def encode_map(
    column: Array | pa.ChunkedArray[Any], kind: t.StructType | t.MapType | t.VariantType, wire: Dialect
) -> Encoded:
    """Encode every row as a map: size, count, entries (0-10 section 3.3.1), or as a table: size, entries (0-9-1 section
    4.2.5.5); the schema check has accepted the type."""
    if isinstance(kind, t.VariantType):
        return _variant(row_bytes.whole(column), wire, wire.map, "an object can be sent as a map")
    encoder = _Encoder(wire)
    if isinstance(kind, t.StructType):
        return encoder.encode(row_bytes.whole(column), lambda part: encoder.struct(part, kind, 0))
    return encoder.encode(row_bytes.whole(column), lambda part: encoder.map(part, kind, 0))


def map_parts(
    column: Array | pa.ChunkedArray[Any], kind: t.StructType | t.MapType | t.VariantType, wire: Dialect
) -> tuple[RowBytes, Errors] | None:
    """The same in parts, to be joined with the other parts of a message and not before; None if it is not that easy."""
    rows = row_bytes.whole(column)
    if isinstance(kind, t.VariantType) or rows.null_count:
        return None
    encoder = _Encoder(wire)
    try:
        entries = encoder.struct(rows, kind, 0) if isinstance(kind, t.StructType) else encoder.map(rows, kind, 0)
    except pa.ArrowCapacityError:
        return None
    run = RowBytes(len(rows))
    run.cells(*encoder.head(entries))
    for part in entries.parts:
        if not isinstance(part, _FixedCells):
            run.parts([part], 0)
        elif part.there is None:
            run.parts(part.cells, 0)
        else:
            run.parts([row_bytes.fixed(len(rows), part.cells, part.there)], 0)
    run.parts([], entries.sizes)
    return run, {row: str(fault) for row, fault in entries.faults.items()}


def encode_list(column: Array | pa.ChunkedArray[Any], kind: t.ArrayType | t.VariantType, wire: Dialect) -> Encoded:
    """Encode every row as a list: size, count, items (0-10 section 3.3.1), or as an array: size, items (0-9-1 section
    4.2.5.5); the schema check has accepted the type."""
    if isinstance(kind, t.VariantType):
        return _variant(row_bytes.whole(column), wire, wire.list, "an array can be sent as a list")
    encoder = _Encoder(wire)
    return encoder.encode(row_bytes.whole(column), lambda part: encoder.list(part, kind, 0))


def _variant(column: Array, wire: Dialect, number: int, only: str) -> Encoded:
    bodies, numbers, faults = variants.bodies(column, wire)
    wrong = numbers != number
    there = row_bytes.present(column)
    if there is not None:
        wrong &= there
    kinds = {wire.map: "an object", wire.list: "an array", 0: "neither object nor array"}
    for row in np.flatnonzero(wrong).tolist():
        faults.setdefault(row, Fault(f"a VARIANT that is {kinds[int(numbers[row])]}", f"only {only}"))
    return bodies, {row: str(fault) for row, fault in faults.items()}


class _Encoder:
    """Encodes columns with the wire types of a dialect."""

    def __init__(self, wire: Dialect) -> None:
        self._wire = wire
        self._text_size = f">u{wire.text_size}"
        self._codes: dict[type[t.DataType], int] = {
            t.ByteType: wire.tinyint,
            t.ShortType: wire.smallint,
            t.IntegerType: wire.integer,
            t.LongType: wire.bigint,
            t.FloatType: wire.float,
            t.DoubleType: wire.double,
        }

    # --- maps and lists

    def encode(self, column: Array, inside: Callable[[Array], _Entries]) -> Encoded:
        """Encode every row as a map or list with these contents."""
        try:
            entries = inside(column)
            joined = _joined(len(column), [_FixedCells(self.head(entries), None), *entries.parts])
        except pa.ArrowCapacityError:
            return self._halves(column, inside)
        there = row_bytes.present(column)
        faults = _of_rows(entries.faults, there)
        return row_bytes.masked(joined, there), {row: str(fault) for row, fault in faults.items()}

    def _halves(self, column: Array, inside: Callable[[Array], _Entries]) -> Encoded:
        """Split rows that are together too large for Arrow, to find those that are too large alone."""
        rows = len(column)
        if rows == 1:
            return pa.nulls(1, pa.binary()), {0: "has more than 2 GiB as a map or list; at most 2 GiB are allowed"}
        half = rows // 2
        first, errors = self.encode(column.slice(0, half), inside)
        second, more = self.encode(column.slice(half), inside)
        return pa.concat_arrays([first, second]), errors | {half + row: reason for row, reason in more.items()}

    def head(self, entries: _Entries) -> _Cells:
        """What precedes the contents of a map or list."""
        if self._wire.is_counted:
            return [(">u4", entries.sizes + 4), (">u4", entries.counts)]
        return [(">u4", entries.sizes)]

    def struct(self, column: Array, kind: t.StructType, depth: int) -> _Entries:
        """The fields of a STRUCT as entries of maps; NULL fields have none."""
        rows = len(column)
        there = row_bytes.present(column)
        parts: list[Array | _FixedCells] = []
        sizes, counts = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        faults: Faults = {}
        for index, field in enumerate(kind.fields):
            cells, tail, has, wrong = self._value(cast("Any", column).field(index), field.dataType, depth + 1)
            if has is not None and there is not None and not (there & ~has).any():
                has = None  # NULL only where the STRUCT is NULL, where it is not read
            name = field.name.encode()
            cells = [bytes([len(name)]) + name, *cells]
            parts.append(_FixedCells(cells, has))
            width = row_bytes.width(*cells)
            sizes += width if has is None else has * width
            counts += 1 if has is None else has
            if tail is not None:
                parts.append(tail)
                sizes += row_bytes.lengths(tail)
            for row, fault in wrong.items():
                faults.setdefault(row, fault.inside(f".{field.name}"))
        return _Entries(parts, sizes, counts, faults)

    def map(self, column: Array, kind: t.MapType, depth: int) -> _Entries:
        """The entries of a MAP; NULL values are void."""
        ends, keys, items = _children(column, cast("Any", column).keys, cast("Any", column).items)
        raw = row_bytes.binary(keys)
        lengths = row_bytes.lengths(raw)
        wrong: Faults = {}
        for entry in np.flatnonzero(lengths > LONGEST_KEY).tolist():
            wrong[entry] = key_too_long(int(lengths[entry]))
        wrong = _not_utf8(raw) | wrong
        values = self._value(items, kind.valueType, depth + 1)
        for entry, fault in values.faults.items():
            if entry not in wrong:  # otherwise the key may have no text
                wrong[entry] = fault.inside(f"[{keys[entry].as_py()!r}]")
        entries = _joined(len(keys), [_FixedCells([(">u1", lengths)], None), raw, *self._with_void(values)])
        return _gathered(column, ends, entries, wrong)

    def list(self, column: Array, kind: t.ArrayType, depth: int) -> _Entries:
        """The items of an ARRAY; NULL items are void."""
        ends, elements = _children(column, cast("Any", column).values)
        values = self._value(elements, kind.elementType, depth + 1)
        items = _joined(len(elements), self._with_void(values))
        wrong = {at: fault.inside(f"[{at - int(ends[_row_of(ends, at)])}]") for at, fault in values.faults.items()}
        return _gathered(column, ends, items, wrong)

    def _with_void(self, values: _Values) -> _Parts:
        there = values.there
        parts: _Parts = [_FixedCells(values.cells, there)] if values.cells else []
        if there is not None:
            parts.append(_FixedCells([bytes([self._wire.void])], ~there))
        return parts if values.tail is None else [*parts, values.tail]

    # --- values

    def _value(self, column: Array, kind: t.DataType, depth: int) -> _Values:  # noqa: PLR0911 - one line per type
        """The values of a column that are inside ``depth`` maps and lists."""
        cells: _Cells
        match kind:
            case t.StructType():
                return self._container(column, self._wire.map, self.struct(column, kind, depth))
            case t.MapType():
                return self._container(column, self._wire.map, self.map(column, kind, depth))
            case t.ArrayType():
                return self._container(column, self._wire.list, self.list(column, kind, depth))
            case t.VariantType():
                items, faults = variants.items(column, depth, self._wire)
                return _Values([], items, row_bytes.present(column), faults)
            case t.StringType():
                return self._string(column)
            case t.BinaryType():
                raw = row_bytes.binary(column)
                cells = [bytes([self._wire.binary]), (">u4", row_bytes.lengths(raw))]
                return _Values(cells, raw, row_bytes.present(column), {})
            case t.DecimalType():
                raw = texts.decimals(column)
                return _Values(self._text(row_bytes.lengths(raw)), raw, row_bytes.present(column), {})
            case t.BooleanType():
                bits = _numbers(column.cast(pa.uint8()), "u1")
                return _Values([bytes([self._wire.boolean]), ("u1", bits)], None, row_bytes.present(column), {})
            case t.DateType():
                cells, wrong = texts.date_cells(_numbers(column, "i4"))
                return _dated(column, [*self._text(10), *cells], wrong, "DATE")
            case t.TimestampType():
                cells, wrong = texts.time_cells(_numbers(column, "i8"))
                return _dated(column, [*self._text(27), *cells, b"Z"], wrong, "TIMESTAMP")
            case t.TimestampNTZType():
                cells, wrong = texts.time_cells(_numbers(column, "i8"))
                return _dated(column, [*self._text(26), *cells], wrong, "TIMESTAMP_NTZ")
            case _:
                native = _IN_MEMORY[type(kind)]
                numbers = _numbers(column, native)
                there = row_bytes.present(column)
                cells = [bytes([self._codes[type(kind)]]), (f">{native}", numbers)]
                return _Values(cells, None, there, _of_rows(self._not_finite(numbers), there))

    def _not_finite(self, numbers: Numbers) -> Faults:
        """Faults of numbers that the protocol's brokers refuse."""
        if not self._wire.is_finite or numbers.dtype.kind != "f":
            return {}
        return {row: not_finite() for row in np.flatnonzero(~np.isfinite(numbers)).tolist()}

    def _container(self, column: Array, number: int, entries: _Entries) -> _Values:
        there = row_bytes.present(column)
        tail = row_bytes.masked(_joined(len(column), entries.parts), there)
        return _Values([bytes([number]), *self.head(entries)], tail, there, _of_rows(entries.faults, there))

    def _string(self, column: Array) -> _Values:
        raw = row_bytes.binary(column)
        lengths = row_bytes.lengths(raw)
        faults = _not_utf8(raw)
        for row in np.flatnonzero(lengths > self._wire.longest_text).tolist():
            faults[row] = text_too_long(int(lengths[row]), self._wire.longest_text)
        return _Values(self._text(lengths), raw, row_bytes.present(column), faults)

    def _text(self, size: row_bytes.Size) -> _Cells:
        """What precedes a text of so many bytes."""
        return [bytes([self._wire.text]), row_bytes.number(self._text_size, size)]


def _joined(rows: int, parts: list[Array | _FixedCells]) -> Array:
    """Concatenate the parts of every row; adjacent runs are one piece."""
    out: list[Array] = []
    cells: list[Cell] = []
    for part in parts:
        if isinstance(part, _FixedCells) and part.there is None:
            cells = cells + part.cells
            continue
        if cells:
            out.append(row_bytes.fixed(rows, cells))
            cells = []
        out.append(row_bytes.fixed(rows, part.cells, part.there) if isinstance(part, _FixedCells) else part)
    if cells or not out:
        out.append(row_bytes.fixed(rows, cells))
    return row_bytes.join(*out)


def _of_rows(faults: Faults, there: Mask | None) -> Faults:
    """Faults of rows that are not null."""
    return faults if there is None else {row: fault for row, fault in faults.items() if there[row]}


def _children(column: Array, *children: Array) -> list[Any]:
    """Offsets of the rows among their children, and the children of a slice."""
    ends = row_bytes.bounds(column)
    first, last = int(ends[0]), int(ends[-1])
    return [ends - first, *(child.slice(first, last - first) for child in children)]


def _gathered(column: Array, ends: Numbers, entries: Array, wrong: Faults) -> _Entries:
    """Concatenate the encoded entries or items of each row."""
    raw = row_bytes.runs(entries, ends)
    faults: Faults = {}
    for at in sorted(wrong):
        faults.setdefault(_row_of(ends, at), wrong[at])
    there = row_bytes.present(column)
    return _Entries([row_bytes.masked(raw, there)], row_bytes.lengths(raw), np.diff(ends), faults)


def _row_of(ends: Numbers, child: int) -> int:
    """The row that contains a child."""
    return int(np.searchsorted(ends, child, side="right")) - 1


def _numbers(column: Array, kind: str) -> Numbers:
    """The numbers of a column as stored in memory; arbitrary where it is null."""
    rows = len(column)
    if not rows:
        return np.zeros(0, kind)
    data = np.frombuffer(cast("Any", column.buffers()[1]), kind)
    return data[column.offset : column.offset + rows]


def _not_utf8(raw: Array) -> Faults:
    """Faults of texts that are not UTF-8, which no reader of a str16 could decode."""
    return {row: not_utf8(raw[row].as_buffer().size) for row in row_bytes.not_utf8(raw)}


def _dated(column: Array, cells: list[Cell], wrong: Mask, name: str) -> _Values:
    there = row_bytes.present(column)
    faults = _of_rows({row: no_time(name) for row in np.flatnonzero(wrong).tolist()}, there)
    return _Values(cells, None, there, faults)
