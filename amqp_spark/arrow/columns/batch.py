"""One batch of messages, and the functions that make Arrow arrays of its columns, for all protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_core.errors import DecodeError
from amqp_core.typed_values import Typed
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from amqp_spark.arrow.columns import arrays, headers, map_texts
from amqp_spark.arrow.columns.conversion import ConversionError, Errors
from amqp_spark.arrow.columns.values import converter
from amqp_spark.arrow.columns.wire import Spans, is_nowhere
from amqp_spark.arrow.without_pandas import from_numpy, to_numpy

if TYPE_CHECKING:
    from amqp_spark.arrow.columns.arrays import Array, Column
    from amqp_spark.arrow.columns.fields import PackedFields
    from amqp_spark.arrow.columns.located import Located
    from amqp_spark.arrow.columns.shapes import Alike, Find, Found, Question
    from amqp_spark.arrow.columns.wire import Mask, Positions, Wire
    from amqp_spark.arrow.layout import Property


CONVERTED_BYTES: Final = 1 << 20
"""Encoded bytes of maps and lists whose Python values exist at a time: they take up to 256 times as much."""


class Batch(ABC):
    """Some rows of a block; positions of their fields are computed when a column needs them."""

    def __init__(self, located: Located, rows: range, queue: str, position: int) -> None:
        self.wire = located.wire
        self.queue = queue
        self.position = position
        self.rows = len(rows)
        self.broken: Errors = {row - rows.start: why for row, why in located.broken.items() if row in rows}
        self.located = located
        self.alike: Alike | None = None
        """Positions in messages of known shapes; None: they are found in the general way."""
        self.asked: dict[Question, Find] = {}
        """What was asked of this batch."""
        self.range = rows
        """Their indices in the chunk."""

    @cached_property
    def begin(self) -> Positions:
        """Where the messages begin: each where the one before ends."""
        end = self.located.places.end
        begin = self.part(np.roll(end, 1))
        if not self.range.start:
            begin[0] = 0
        return begin

    @property
    def head_begin(self) -> Positions:
        """Where their headers begin."""
        return self.part(self.located.places.head_begin)

    @property
    def head_end(self) -> Positions:
        """Where their headers end."""
        return self.part(self.located.places.head_end)

    @property
    def first(self) -> Positions:
        """Where the bytes begin that decide where the fields of the messages are."""
        return self.head_begin

    def find(self, question: Question, find: Find) -> Found:
        """Positions and masks of fields: ``find`` finds them in the general way.

        The question names what is to be found. Two with one name must have the same answer.
        """
        if self.alike is not None:
            return self.alike.find(question, find)
        self.asked[question] = find
        return cast("Found", find(self))

    def bit(self, wanted: Property) -> tuple[Mask, Mask | None]:
        """A property without bytes: its values, and the rows in which it cannot be (None: none)."""
        return cast("tuple[Mask, Mask | None]", self.find((wanted,), lambda batch: batch.fields_of(wanted).bit(wanted)))

    def fixed(self, wanted: Property) -> tuple[Positions, Mask | None]:
        """Positions of a property of fixed width, and the rows without it (None: none)."""
        found = self.find((wanted,), lambda batch: batch.fields_of(wanted).fixed(wanted))
        return cast("tuple[Positions, Mask | None]", found)

    def sized(self, wanted: Property) -> Spans:
        """Begin and end of a property of variable size."""
        begin, end, absent = self.find((wanted,), lambda batch: batch.fields_of(wanted).sized(wanted))
        return Spans(cast("Positions", begin), cast("Positions", end), absent)

    def header_values(self, wanted: Property, keys: Sequence[bytes]) -> list[Positions]:
        """Per key, the positions of the type codes of its values in the headers; 0 where it is absent."""

        def find(batch: Batch) -> Found:
            return tuple(headers.pick(batch.wire, batch.sized(wanted), keys, batch.broken))

        return cast("list[Positions]", list(self.find((wanted, *keys), find)))

    def header_entries(self, wanted: Property) -> headers.Entries | None:
        """All entries of the headers; None if a few messages have so many that each should be decoded alone."""

        def find(batch: Batch) -> headers.Entries | None:
            return headers.entries(batch.wire, batch.sized(wanted), batch.broken)

        question = (wanted, "entries")
        if self.alike is not None:
            return self.alike.entries(question, find)
        self.asked[question] = find
        return find(self)

    def other(self, located: Located, rows: range) -> Batch:
        """A batch of the same kind."""
        return type(self)(located, rows, self.queue, self.position)

    def part(self, positions: Positions) -> Positions:
        """Of positions in all transfers of the chunk, those of these rows."""
        return positions[self.range.start : self.range.stop]

    @abstractmethod
    def fields_of(self, wanted: Property) -> PackedFields:
        """Positions of the fields among which this one is."""

    @abstractmethod
    def encoded_headers(self) -> Array:
        """Headers as BINARY: encoded maps, untouched."""

    def transfer(self, row: int) -> bytes:
        """The frames of a message, and of any frames before it in the block."""
        return self.located.transfer(self.range.start + row)

    def bodies(self) -> Array:
        """The bodies as BINARY."""
        located = self.located
        if any(row in self.range for row in located.odd):
            return located.bodies(self.range)
        return arrays.binary(self.wire, self.part(located.places.body_begin), self.part(located.places.body_end), None)


Build: TypeAlias = Callable[[Batch], "Column"]


def general(name: str) -> Build | None:
    """The function of a column that is no part of the message; ``None`` for any other."""
    if name == "queue":
        return lambda batch: (arrays.repeated(batch.queue, batch.rows), {})
    if name == "position":
        return lambda batch: (from_numpy(np.arange(batch.position, batch.position + batch.rows)), {})
    return None


def property_builder(wanted: Property, kind: t.DataType, arrow: pa.DataType, unit: str) -> Build:
    """The function of the column of a property that is no struct and no map."""
    match wanted.wire:
        case "bit":
            return partial(_bit, wanted=wanted)
        case "datetime" | "timestamp":
            return partial(_time, wanted=wanted, arrow=arrow, unit=None if isinstance(kind, t.LongType) else unit)
        case "uuid":
            return partial(_uuid, wanted=wanted, text=isinstance(kind, t.StringType))
        case _ if wanted.width > 0:
            return partial(_number, wanted=wanted, arrow=arrow)
        case _:
            return partial(_sized, wanted=wanted, text=isinstance(kind, t.StringType))


# ---- properties ----------------------------------------------------------------------------------------------------


def _bit(batch: Batch, wanted: Property) -> Column:
    values, absent = batch.bit(wanted)
    return from_numpy(values, absent), {}


def _number(batch: Batch, wanted: Property, arrow: pa.DataType) -> Column:
    at, absent = batch.fixed(wanted)
    if is_nowhere(absent):
        return arrays.nulls(batch.rows, arrow)
    if wanted.width < 8:
        return arrays.integers(batch.wire.size(wanted.width, at), absent, arrow)
    return arrays.unsigned(batch.wire.read(">u8", at).astype(np.uint64), absent, arrow)


def _time(batch: Batch, wanted: Property, arrow: pa.DataType, unit: str | None) -> Column:
    at, absent = batch.fixed(wanted)
    if is_nowhere(absent):
        return arrays.nulls(batch.rows, arrow)
    numbers = batch.wire.read(">i8", at).astype(np.int64)
    return arrays.integers(numbers, absent, arrow) if unit is None else arrays.times(numbers, absent, arrow, unit)


def _uuid(batch: Batch, wanted: Property, *, text: bool) -> Column:
    at, absent = batch.fixed(wanted)
    if is_nowhere(absent):
        return arrays.nulls(batch.rows, pa.string() if text else pa.binary())
    if not text:
        return arrays.binary(batch.wire, at, at + 16, absent), {}
    raw = batch.wire.read("V16", at).view(np.uint8).reshape(batch.rows, 16)
    return arrays.uuid_text(raw, absent), {}


def _sized(batch: Batch, wanted: Property, *, text: bool) -> Column:
    raw = bytes_of(batch.wire, batch.sized(wanted), wanted)
    return arrays.text(raw) if text else (raw, {})


def bytes_of(wire: Wire, spans: Spans, wanted: Property) -> Array:
    """The bytes of a field of variable size, without its size."""
    begin, end, absent = spans
    if is_nowhere(absent):
        return pa.nulls(len(begin), pa.binary())
    return arrays.binary(wire, begin - wanted.width, end, absent)


# ---- headers -------------------------------------------------------------------------------------------------------


def headers_builder(wanted: Property, kind: t.DataType, arrow: pa.DataType, unit: str) -> Build:
    """The function of the column of the headers."""
    if isinstance(kind, t.BinaryType):
        return lambda batch: (encoded_headers(batch, wanted), {})
    if isinstance(kind, t.StructType):
        keys = [field.name.encode() for field in kind.fields]
        struct = partial(_struct, kind=kind, arrow=cast("pa.StructType", arrow), unit=unit)
        return lambda batch: struct(batch.wire, batch.sized(wanted), batch.header_values(wanted, keys))
    one_by_one = _each_alone(kind, arrow, unit)
    if not _is_map_of_texts(kind):
        return lambda batch: one_by_one(batch.wire, batch.sized(wanted))

    def build(batch: Batch) -> Column:
        spans = batch.sized(wanted)
        found = batch.header_entries(wanted)
        return _map_of_texts(batch.wire, spans, found, arrow, unit) or one_by_one(batch.wire, spans)

    return build


def decoder(kind: t.DataType, arrow: pa.DataType, unit: str) -> Callable[[Wire, Spans, Errors], Column]:
    """The function that decodes encoded maps to STRUCT, MAP or VARIANT. Malformed maps go into the errors."""
    if isinstance(kind, t.StructType):
        keys = [field.name.encode() for field in kind.fields]
        struct = partial(_struct, kind=kind, arrow=cast("pa.StructType", arrow), unit=unit)
        return lambda wire, spans, broken: struct(wire, spans, headers.pick(wire, spans, keys, broken))
    one_by_one = _each_alone(kind, arrow, unit)
    if not _is_map_of_texts(kind):
        return lambda wire, spans, _: one_by_one(wire, spans)

    def decode(wire: Wire, spans: Spans, broken: Errors) -> Column:
        found = headers.entries(wire, spans, broken)
        return _map_of_texts(wire, spans, found, arrow, unit) or one_by_one(wire, spans)

    return decode


def _is_map_of_texts(kind: t.DataType) -> bool:
    return isinstance(kind, t.MapType) and isinstance(kind.valueType, t.StringType) and kind.valueContainsNull


def _map_of_texts(
    wire: Wire, spans: Spans, found: headers.Entries | None, arrow: pa.DataType, unit: str
) -> Column | None:
    if found is None:
        return None
    return map_texts.texts(wire, found, spans.absent, cast("pa.MapType[Any, Any]", arrow), unit)


def _each_alone(kind: t.DataType, arrow: pa.DataType, unit: str) -> Callable[[Wire, Spans], Column]:
    """The function that decodes each map by itself."""
    convert = converter(kind, unit)

    def decode(wire: Wire, spans: Spans) -> Column:
        begin, end, absent = spans
        maps = arrays.binary(wire, begin, end, absent).to_pylist()
        return _converted(
            [
                None if item is None else (len(item), partial(_container, wire.dialect.map_of, code.MAP, "map", item))
                for item in maps
            ],
            convert,
            arrow,
        )

    return decode


def encoded_headers(batch: Batch, wanted: Property) -> Array:
    """Headers as BINARY: encoded maps, untouched."""
    return arrays.binary(batch.wire, *batch.sized(wanted))


def _struct(  # functools.partial presets its last arguments
    wire: Wire, spans: Spans, places: Sequence[Positions], *, kind: t.StructType, arrow: pa.StructType, unit: str
) -> Column:
    absent = spans.absent
    columns: list[Array] = []
    errors: Errors = {}
    for field, part, at in zip(kind.fields, arrow, places, strict=True):
        column, wrong = headers.typed(wire, at, headers.Target(field.dataType, part.type, unit))
        for row, why in wrong.items():
            errors.setdefault(row, f"{field.name}: {why}")
        require(part, column, absent, errors)
        columns.append(column)
    mask: Any = None if absent is None else from_numpy(absent)
    return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=mask), errors


def require(field: pa.Field[Any], column: Array, absent: Mask | None, errors: Errors) -> None:
    """Add the rows that lack a NOT NULL field of a STRUCT to the errors; in those of ``absent`` all of it is NULL."""
    if field.nullable or not column.null_count:
        return
    missing = to_numpy(column.is_null())
    if absent is not None:
        missing &= ~absent
    for row in np.flatnonzero(missing).tolist():
        errors.setdefault(row, f"{field.name}: absent, and NOT NULL was asked for")


_Source: TypeAlias = tuple[int, Callable[[], Typed]]
"""An encoded map or list: its bytes, and the function that decodes it."""


def _converted(sources: list[_Source | None], convert: Callable[[Typed], Any], arrow: pa.DataType) -> Column:
    parts: list[Array] = []
    values: list[Any] = []
    errors: Errors = {}
    left = CONVERTED_BYTES
    for row, source in enumerate(sources):
        value = None
        if source is not None:
            nbytes, decode = source
            if nbytes > left and values:
                parts.append(pa.array(values, arrow))
                values, left = [], CONVERTED_BYTES
            left -= nbytes
            try:
                value = convert(decode())
            except ConversionError as bad:
                errors[row] = str(bad)
            except DecodeError as bad:
                errors[row] = bad.reason
        values.append(value)
    parts.append(pa.array(values, arrow))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts), errors


def _container(read: Callable[[bytes, int], tuple[Any, int]], number: int, name: str, data: bytes) -> Typed:
    value, end = read(data, 0)
    if end != len(data):
        raise ConversionError(f"{len(data) - end} bytes after the end of the {name}")
    return Typed(number, value)


_map: Final = partial(_container, read_map_typed, code.MAP, "map")
_list: Final = partial(_container, read_list_typed, code.LIST, "list")


# ---- body ----------------------------------------------------------------------------------------------------------


_Readers: TypeAlias = dict[bytes, Callable[[bytes], Typed]]


def body_builder(kind: t.DataType, arrow: pa.DataType, unit: str, content_type: Property) -> Build:
    """The function of the column of bodies; ``content_type`` says which are maps and lists."""
    if isinstance(kind, t.BinaryType):
        return lambda batch: (batch.bodies(), {})
    if isinstance(kind, t.StringType):
        return lambda batch: arrays.text(batch.bodies())
    readers: _Readers = {b"amqp/map": _map, b"amqp/list": _list}
    if isinstance(kind, t.ArrayType):
        del readers[b"amqp/map"]
    elif not isinstance(kind, t.VariantType):
        del readers[b"amqp/list"]
    convert = converter(kind, unit)

    def build(batch: Batch) -> Column:
        types: list[bytes | None] = bytes_of(batch.wire, batch.sized(content_type), content_type).to_pylist()
        bodies: list[bytes | None] = batch.bodies().to_pylist()
        sources: list[_Source | None] = [
            None if row in batch.broken else (len(body or b""), partial(_self_describing, readers, found, body))
            for row, (found, body) in enumerate(zip(types, bodies, strict=True))
        ]
        return _converted(sources, convert, arrow)

    return build


def _self_describing(readers: _Readers, content_type: bytes | None, body: bytes | None) -> Typed:
    reader = None if content_type is None else readers.get(content_type)
    if reader is None:
        wanted = " or ".join(sorted(name.decode() for name in readers))
        found = "no content-type" if content_type is None else f"content-type {content_type!r}"
        raise ConversionError(f"{found}, where {wanted} is needed to decode the body; BINARY takes any body")
    return reader(body or b"")
