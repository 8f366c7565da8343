"""Columns of messages of 0-9 and 0-9-1: a function per column that makes its Arrow array.

A delivery begins with its method frame, so that where one begins is where the one before ends.
"""

from __future__ import annotations

import re
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from amqp_core.v0_9.framing import FRAME_HEADER
from amqp_spark.arrow.columns import arrays, headers
from amqp_spark.arrow.columns import batch as batches
from amqp_spark.arrow.columns.batch import body_builder, bytes_of, general, headers_builder, property_builder, require
from amqp_spark.arrow.columns.conversion import AUTO_MILLISECONDS
from amqp_spark.arrow.columns.fields import FieldPlan, PackedFields
from amqp_spark.arrow.layout import Layout
from amqp_spark.arrow.v0_9.decode.located import CONTENT_FLAGS, CONTENT_PROPERTIES, CONTENT_SIZE
from amqp_spark.arrow.v0_9.properties import PROPERTIES
from amqp_spark.arrow.without_pandas import from_numpy, to_numpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.arrow.columns.arrays import Array, Column
    from amqp_spark.arrow.columns.batch import Build
    from amqp_spark.arrow.columns.located import Located
    from amqp_spark.arrow.columns.wire import Mask, Positions
    from amqp_spark.arrow.layout import Property

_PROPERTIES: Final = {each.name: each for each in PROPERTIES}
_PLAN: Final = FieldPlan(Layout("content header", 60, PROPERTIES))
_HEADERS: Final = _PROPERTIES["application_headers"]
_DELIVERY_COUNT: Final = b"x-delivery-count"
_OFFSET: Final = b"x-stream-offset"
_NUMBER: Final = re.compile(r"\d+", re.ASCII)
_LARGEST: Final = 2**63 - 1


class Method(NamedTuple):
    """Positions of the fields of basic.deliver."""

    redelivered: Positions
    exchange: Positions
    exchange_end: Positions
    key: Positions
    key_end: Positions
    absent: Mask | None


def _fields_of_method(batch: batches.Batch) -> Method:
    """Find them in the general way; a malformed method goes into ``broken``."""
    wire = batch.wire
    lost = np.zeros(batch.rows, np.bool_)
    lost[list(batch.broken)] = True
    payload = batch.begin + FRAME_HEADER
    end = payload + wire.size(4, payload - 4)
    consumer = payload + 4
    redelivered = consumer + 1 + wire.size(1, consumer) + 8
    exchange = redelivered + 2
    exchange_end = exchange + wire.size(1, exchange - 1)
    key = exchange_end + 1
    key_end = key + wire.size(1, exchange_end)
    wrong = (key_end != end) & ~lost
    for row in np.flatnonzero(wrong).tolist():
        batch.broken.setdefault(row, "basic.deliver: it does not end with its last field")
    lost |= wrong
    return Method(redelivered, exchange, exchange_end, key, key_end, lost if lost.any() else None)


class Batch(batches.Batch):
    """Some rows of a block; positions of their fields are computed when a column needs them."""

    def __init__(self, located: Located, rows: range, queue: str, position: int) -> None:
        super().__init__(located, rows, queue, position)
        self._fields: PackedFields | None = None

    def fields_of(self, wanted: Property) -> PackedFields:
        """Positions of the properties."""
        if self._fields is None:
            self._fields = PackedFields(self.wire, _PLAN, self.rows, self.broken)
            begin, end = self.head_begin, self.head_end
            rows = np.flatnonzero(begin < end)
            if len(rows) < self.rows:
                begin, end = begin[rows], end[rows]
            flags = self.wire.size(2, begin + CONTENT_FLAGS)
            self._fields.place(rows, begin + CONTENT_PROPERTIES, flags, end)
        return self._fields

    @property
    def first(self) -> Positions:
        """Where the bytes begin that decide where the fields are: the method has some of them."""
        return self.begin

    @cached_property
    def method(self) -> Method:
        """Positions of the fields of basic.deliver."""
        return Method(*cast("Any", self.find(("method",), _fields_of_method)))

    def encoded_headers(self) -> Array:
        """Headers as BINARY: encoded tables, untouched."""
        return batches.encoded_headers(self, _HEADERS)


# ---- the method ----------------------------------------------------------------------------------------------------


def _method_of(batch: batches.Batch) -> Method:
    assert isinstance(batch, Batch)
    return batch.method


def _redelivered(batch: batches.Batch) -> Column:
    method = _method_of(batch)
    return from_numpy(batch.wire.size(1, method.redelivered) & 1 != 0, method.absent), {}


def _exchange(batch: batches.Batch, *, text: bool) -> Column:
    method = _method_of(batch)
    raw = arrays.binary(batch.wire, method.exchange, method.exchange_end, method.absent)
    return arrays.text(raw) if text else (raw, {})


def _routing_key(batch: batches.Batch, *, text: bool) -> Column:
    method = _method_of(batch)
    raw = arrays.binary(batch.wire, method.key, method.key_end, method.absent)
    return arrays.text(raw) if text else (raw, {})


# ---- the content header --------------------------------------------------------------------------------------------


def _reply_to(batch: batches.Batch, arrow: pa.StructType) -> Column:
    """The text of reply-to is a routing key of the default exchange."""
    wanted = _PROPERTIES["reply_to"]
    spans = batch.sized(wanted)
    columns: list[Array] = []
    errors: dict[int, str] = {}
    for field in arrow:
        if field.name.lower() == "routing_key":
            column, wrong = arrays.text(bytes_of(batch.wire, spans, wanted))
            errors |= {row: f"{field.name}: {why}" for row, why in wrong.items()}
        else:
            column, _ = arrays.nulls(batch.rows, field.type)
        require(field, column, spans.absent, errors)
        columns.append(column)
    mask: Any = None if spans.absent is None else from_numpy(spans.absent)
    return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=mask), errors


def _expirations(batch: batches.Batch) -> tuple[Positions, Mask]:
    """The numbers that the texts of expiration hold, and the rows without one."""
    wanted = _PROPERTIES["ttl"]
    raw = bytes_of(batch.wire, batch.sized(wanted), wanted)
    if raw.null_count == batch.rows:
        return np.zeros(batch.rows, np.int64), np.ones(batch.rows, np.bool_)
    texts: list[bytes | None] = raw.to_pylist()
    values = {text: _milliseconds(text) for text in set(texts)}
    numbers = [values[text] for text in texts]
    absent = np.array([number is None for number in numbers], np.bool_)
    return np.array([number or 0 for number in numbers], np.int64), absent


def _milliseconds(text: bytes | None) -> int | None:
    """The number of a text; ``None`` if it is none, or not one of 64 bits."""
    digits = "" if text is None else text.decode("latin-1")
    number = int(digits) if _NUMBER.fullmatch(digits) else None
    return None if number is None or number > _LARGEST else number


def _ttl(batch: batches.Batch, arrow: pa.DataType) -> Column:
    """Milliseconds; more than 3 years are the time at which the message expires, as Broker-J has it."""
    numbers, absent = _expirations(batch)
    return arrays.integers(numbers, absent | (numbers > AUTO_MILLISECONDS), arrow)


def _expiration(batch: batches.Batch, arrow: pa.DataType, *, as_sent: bool) -> Column:
    numbers, absent = _expirations(batch)
    absent |= numbers <= AUTO_MILLISECONDS
    return arrays.integers(numbers, absent, arrow) if as_sent else arrays.times(numbers, absent, arrow, "ms")


def _content_length(batch: batches.Batch, arrow: pa.DataType) -> Column:
    begin, end = batch.head_begin, batch.head_end
    numbers = batch.wire.read(">u8", begin + CONTENT_SIZE).astype(np.uint64)
    absent = begin >= end
    return arrays.unsigned(numbers, absent if absent.any() else None, arrow)


def _header(batch: batches.Batch, name: bytes, target: headers.Target) -> Column:
    """A header that the broker sets; NULL where it is absent, or no value that fits."""
    (at,) = batch.header_values(_HEADERS, [name])
    column, _ = headers.typed(batch.wire, at, target)
    return column, {}


def _stream(batch: batches.Batch) -> Column:
    offsets, _ = _header(batch, _OFFSET, headers.Target(t.LongType(), pa.int64(), "auto"))
    return arrays.repeated(batch.queue, batch.rows, to_numpy(offsets.is_null())), {}


def builder(field: t.StructField, arrow: pa.DataType, unit: str) -> Build:
    """The function that makes the column of a field; the schema check has accepted the type."""
    name, kind = field.name.lower(), field.dataType
    build = general(name)
    if build is not None:
        return build
    if name == "body":
        return body_builder(kind, arrow, unit, _PROPERTIES["content_type"])
    if name == "application_headers":
        return headers_builder(_HEADERS, kind, arrow, unit)
    if name in _OWN:
        return _OWN[name](kind, arrow, unit)
    wanted = _PROPERTIES.get(name)
    if wanted is None:  # 0-10 has it, 0-9-1 does not
        return lambda batch: arrays.nulls(batch.rows, arrow)
    return property_builder(wanted, kind, arrow, unit)


def _is_text(kind: t.DataType) -> bool:
    return isinstance(kind, t.StringType)


_OWN: Final[dict[str, Callable[[t.DataType, pa.DataType, str], Build]]] = {
    "redelivered": lambda _kind, _arrow, _unit: _redelivered,
    "exchange": lambda kind, _arrow, _unit: partial(_exchange, text=_is_text(kind)),
    "routing_key": lambda kind, _arrow, _unit: partial(_routing_key, text=_is_text(kind)),
    "reply_to": lambda _kind, arrow, _unit: partial(_reply_to, arrow=cast("pa.StructType", arrow)),
    "ttl": lambda _kind, arrow, _unit: partial(_ttl, arrow=arrow),
    "expiration": lambda kind, arrow, _unit: partial(_expiration, arrow=arrow, as_sent=isinstance(kind, t.LongType)),
    "content_length": lambda _kind, arrow, _unit: partial(_content_length, arrow=arrow),
    "delivery_count": lambda kind, arrow, unit: partial(
        _header, name=_DELIVERY_COUNT, target=headers.Target(kind, arrow, unit)
    ),
    "offset": lambda kind, arrow, unit: partial(_header, name=_OFFSET, target=headers.Target(kind, arrow, unit)),
    "stream": lambda _kind, _arrow, _unit: _stream,
}
"""Columns that are not one property as it was sent."""
