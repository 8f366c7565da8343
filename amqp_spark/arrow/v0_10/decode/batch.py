"""One batch of messages, and a function per column that makes its Arrow array."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_core.errors import DecodeError
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from amqp_core.v0_10.type_codes import Typed
from amqp_spark.arrow.conversion_error import ConversionError
from amqp_spark.arrow.v0_10.decode import arrays, headers
from amqp_spark.arrow.v0_10.decode.fields import DELIVERY, MESSAGE, PackedFields, reply_to, structs
from amqp_spark.arrow.v0_10.decode.values import converter

if TYPE_CHECKING:
    from amqp_spark.arrow.v0_10.decode.arrays import Array, Column, Errors
    from amqp_spark.arrow.v0_10.decode.fields import Mask, Positions, Spans, Wire
    from amqp_spark.arrow.v0_10.decode.located import Located


class Batch:
    """Some rows of a block; positions of their fields are computed when a column needs them."""

    def __init__(self, located: Located, rows: range, queue: str, position: int) -> None:
        self.wire = located.wire
        self.queue = queue
        self.position = position
        self.rows = len(rows)
        self.broken: Errors = {row - rows.start: why for row, why in located.broken.items() if row in rows}
        self._located = located
        self._range = rows
        self._structs: tuple[PackedFields, PackedFields] | None = None

    def _part(self, positions: Positions) -> Positions:
        return positions[self._range.start : self._range.stop]

    @property
    def delivery(self) -> PackedFields:
        """Positions of delivery-properties."""
        return self._headers()[0]

    @property
    def message(self) -> PackedFields:
        """Positions of message-properties."""
        return self._headers()[1]

    def _headers(self) -> tuple[PackedFields, PackedFields]:
        if self._structs is None:
            begin, end = self._part(self._located.head_begin), self._part(self._located.head_end)
            self._structs = structs(self.wire, begin, end, self.broken)
        return self._structs

    def transfer(self, row: int) -> bytes:
        """The frames of a message, and of any frames before it in the block."""
        return self._located.transfer(self._range.start + row)

    def bodies(self) -> Array:
        """The bodies as BINARY."""
        located = self._located
        if any(row in self._range for row in located.odd):
            return located.bodies(self._range)
        return arrays.binary(self.wire, self._part(located.body_begin), self._part(located.end), None)


Build: TypeAlias = Callable[[Batch], "Column"]

_BITS: Final = {name for name, _ in DELIVERY.bits}
_SIZED: Final = {name: width for layout in (DELIVERY, MESSAGE) for name, _, width in layout.sized}


def builder(field: t.StructField, arrow: pa.DataType, unit: str) -> Build:  # noqa: PLR0911 - a table
    """The function that makes the column of a field; the schema check has accepted the type."""
    name, kind = field.name.lower(), field.dataType
    if name in _BITS:
        return partial(_bit, name=name)
    match name:
        case "queue":
            return lambda batch: (pa.repeat(pa.scalar(batch.queue, pa.string()), batch.rows), {})
        case "position":
            return lambda batch: (pa.array(np.arange(batch.position, batch.position + batch.rows)), {})
        case "priority" | "delivery_mode":
            return partial(_octet, name=name, arrow=arrow)
        case "ttl" | "resume_ttl" | "content_length":
            return partial(_number, name=name, arrow=arrow)
        case "timestamp" | "expiration":
            if isinstance(kind, t.LongType):
                return partial(_raw_time, name=name, arrow=arrow)
            return partial(_time, name=name, arrow=arrow, unit=unit)
        case "message_id":
            return partial(_uuid, text=isinstance(kind, t.StringType))
        case "reply_to":
            return partial(_reply_to, arrow=cast("pa.StructType", arrow))
        case "application_headers":
            return _headers(kind, arrow, unit)
        case "body":
            return _body(kind, arrow, unit)
        case _:
            return partial(_sized, name=name, text=isinstance(kind, t.StringType))


# ---- properties ----------------------------------------------------------------------------------------------------


def _struct_of(batch: Batch, name: str) -> PackedFields:
    return batch.message if name == "content_length" or name in _MESSAGE_NAMES else batch.delivery


_MESSAGE_NAMES: Final = {name for name, *_ in MESSAGE.fixed + MESSAGE.sized}


def _bit(batch: Batch, name: str) -> Column:
    values, absent = batch.delivery.bit(name)
    return pa.array(values, pa.bool_(), mask=absent), {}


def _octet(batch: Batch, name: str, arrow: pa.DataType) -> Column:
    at, absent = batch.delivery.fixed(name)
    return arrays.integers(batch.wire.size(1, at), absent, arrow)


def _number(batch: Batch, name: str, arrow: pa.DataType) -> Column:
    packed = _struct_of(batch, name)
    at, absent = packed.trailing(name) if name == "resume_ttl" else packed.fixed(name)
    return arrays.unsigned(batch.wire.read(">u8", at).astype(np.uint64), absent, arrow)


def _signed(batch: Batch, name: str) -> tuple[Positions, Mask | None]:
    at, absent = batch.delivery.fixed(name)
    return batch.wire.read(">i8", at).astype(np.int64), absent


def _raw_time(batch: Batch, name: str, arrow: pa.DataType) -> Column:
    return arrays.integers(*_signed(batch, name), arrow)


def _time(batch: Batch, name: str, arrow: pa.DataType, unit: str) -> Column:
    return arrays.times(*_signed(batch, name), arrow, unit)


def _uuid(batch: Batch, *, text: bool) -> Column:
    at, absent = batch.message.fixed("message_id")
    if not text:
        return arrays.binary(batch.wire, at, at + 16, absent), {}
    octets = batch.wire.read("V16", at).view(np.uint8).reshape(batch.rows, 16)
    return arrays.uuid_text(octets, absent), {}


def _sized(batch: Batch, name: str, *, text: bool) -> Column:
    begin, end, absent = _struct_of(batch, name).sized(name)
    octets = arrays.binary(batch.wire, begin + _SIZED[name], end, absent)
    return arrays.text(octets) if text else (octets, {})


def _reply_to(batch: Batch, arrow: pa.StructType) -> Column:
    spans = batch.message.sized("reply_to")
    packed = reply_to(batch.wire, spans, batch.broken)
    columns, errors = [], {}
    for field in arrow:
        first, last, missing = packed.sized(field.name.lower())
        column, wrong = arrays.text(arrays.binary(batch.wire, first + 1, last, missing))
        columns.append(column)
        errors.update({row: f"{field.name}: {why}" for row, why in wrong.items()})
    mask = None if spans.absent is None else pa.array(spans.absent)
    return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=mask), errors


# ---- headers -------------------------------------------------------------------------------------------------------


def _headers(kind: t.DataType, arrow: pa.DataType, unit: str) -> Build:
    if isinstance(kind, t.BinaryType):
        return lambda batch: (encoded_headers(batch), {})
    decode = decoder(kind, arrow, unit)
    return lambda batch: decode(batch.wire, batch.message.sized("application_headers"), batch.broken)


def decoder(kind: t.DataType, arrow: pa.DataType, unit: str) -> Callable[[Wire, Spans, Errors], Column]:
    """The function that decodes encoded maps to STRUCT, MAP or VARIANT. Malformed maps go into the errors."""
    if isinstance(kind, t.StructType):
        return partial(_picked, kind=kind, arrow=cast("pa.StructType", arrow), unit=unit)
    convert = converter(kind, unit)
    texts = isinstance(kind, t.MapType) and isinstance(kind.valueType, t.StringType) and kind.valueContainsNull

    def decode(wire: Wire, spans: Spans, broken: Errors) -> Column:
        if texts:
            column = headers.texts(wire, spans, cast("pa.MapType[Any, Any]", arrow), unit, broken)
            if column is not None:
                return column
        begin, end, absent = spans
        maps = arrays.binary(wire, begin, end, absent).to_pylist()
        return _converted([None if item is None else partial(_map, item) for item in maps], convert, arrow)

    return decode


def encoded_headers(batch: Batch) -> Array:
    """The application headers as BINARY: encoded maps, untouched."""
    return arrays.binary(batch.wire, *batch.message.sized("application_headers"))


def _picked(  # functools.partial presets its last arguments
    wire: Wire, spans: Spans, broken: Errors, *, kind: t.StructType, arrow: pa.StructType, unit: str
) -> Column:
    absent = spans.absent
    keys = [field.name.encode() for field in kind.fields]
    places = headers.pick(wire, spans, keys, broken)
    columns: list[Array] = []
    errors: Errors = {}
    for field, part, at in zip(kind.fields, arrow, places, strict=True):
        column, wrong = headers.typed(wire, at, headers.Target(field.dataType, part.type, unit))
        for row, why in wrong.items():
            errors.setdefault(row, f"{field.name}: {why}")
        if not field.nullable and column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            if absent is not None:
                missing &= ~absent
            for row in np.flatnonzero(missing).tolist():
                errors.setdefault(row, f"{field.name}: absent, and NOT NULL was asked for")
        columns.append(column)
    mask = None if absent is None else pa.array(absent)
    return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=mask), errors


def _converted(
    sources: list[Callable[[], Typed] | None], convert: Callable[[Typed], Any], arrow: pa.DataType
) -> Column:
    values: list[Any] = []
    errors: Errors = {}
    for row, source in enumerate(sources):
        value = None
        if source is not None:
            try:
                value = convert(source())
            except ConversionError as bad:
                errors[row] = str(bad)
            except DecodeError as bad:
                errors[row] = bad.reason
        values.append(value)
    return arrays.listed(values, arrow), errors


def _map(data: bytes) -> Typed:
    value, end = read_map_typed(data, 0)
    if end != len(data):
        raise ConversionError(f"{len(data) - end} bytes after the end of the map")
    return Typed(code.MAP, value)


def _list(data: bytes) -> Typed:
    value, end = read_list_typed(data, 0)
    if end != len(data):
        raise ConversionError(f"{len(data) - end} bytes after the end of the list")
    return Typed(code.LIST, value)


# ---- body ----------------------------------------------------------------------------------------------------------


_Readers: TypeAlias = dict[bytes, Callable[[bytes], Typed]]


def _body(kind: t.DataType, arrow: pa.DataType, unit: str) -> Build:
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
        begin, end, absent = batch.message.sized("content_type")
        types: list[bytes | None] = arrays.binary(batch.wire, begin + 1, end, absent).to_pylist()
        bodies: list[bytes | None] = batch.bodies().to_pylist()
        sources: list[Callable[[], Typed] | None] = [
            None if row in batch.broken else partial(_self_describing, readers, *pair)
            for row, pair in enumerate(zip(types, bodies, strict=True))
        ]
        return _converted(sources, convert, arrow)

    return build


def _self_describing(
    readers: dict[bytes, Callable[[bytes], Typed]], content_type: bytes | None, body: bytes | None
) -> Typed:
    reader = None if content_type is None else readers.get(content_type)
    if reader is None:
        wanted = " or ".join(sorted(name.decode() for name in readers))
        found = "no content-type" if content_type is None else f"content-type {content_type!r}"
        raise ConversionError(f"{found}, where {wanted} is needed to decode the body; BINARY takes any body")
    return reader(body or b"")
