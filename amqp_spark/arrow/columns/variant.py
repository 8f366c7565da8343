"""Encode values of AMQP maps as Spark's VARIANT: two binaries, ``value`` and ``metadata``.

The layout is that of the Variant Binary Encoding of Apache Parquet, version 1, as Spark 4 reads it. Wire types keep
their kind: signed integers their width, unsigned ones the next width that holds them (uint64 beyond BIGINT: a
decimal), float and double, decimals, texts, bytes, times (TIMESTAMP). A uuid becomes its text, because pyspark knows
no uuid in a variant; a struct32 becomes bytes.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import accumulate
from struct import pack
from typing import TYPE_CHECKING, Final, cast
from uuid import UUID

from amqp_core.v0_10 import type_codes as code
from amqp_spark.arrow.columns.conversion import ConversionError, microseconds

if TYPE_CHECKING:
    from amqp_core.v0_10.type_codes import Typed

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_NULL, _TRUE, _FALSE, _INT1, _INT2, _INT4, _INT8, _DOUBLE, _DECIMAL4, _DECIMAL8, _DECIMAL16 = range(11)
_TIMESTAMP, _FLOAT, _BINARY, _TEXT = 12, 14, 15, 16

LARGEST: Final = (1 << 24) - 1
"""Maximum bytes of a value or of its metadata: every Spark with VARIANT accepts this size."""

_INTEGERS: Final = {
    code.INT8: (_INT1, "<b"),
    code.INT16: (_INT2, "<h"),
    code.INT32: (_INT4, "<i"),
    code.INT64: (_INT8, "<q"),
    code.UINT8: (_INT2, "<h"),
    code.UINT16: (_INT4, "<i"),
    code.UINT32: (_INT8, "<q"),
    code.UINT64: (_INT8, "<q"),
}


def encode(typed: Typed, unit: str) -> dict[str, bytes]:
    """A value as ``{"value": ..., "metadata": ...}``; ``unit`` is that of a datetime.

    Raises:
        ConversionError: a decimal of more than 38 digits, a time outside of TIMESTAMP, more than 16 MiB.
    """
    ids: dict[str, int] = {}
    value = _value(typed, unit, ids)
    metadata = _metadata(ids)
    size = max(len(value), len(metadata))
    if size > LARGEST:
        raise ConversionError(f"{size} bytes as VARIANT are more than {LARGEST}")
    return {"value": value, "metadata": metadata}


def _head(kind: int) -> bytes:
    return bytes([kind << 2 | _PRIMITIVE])


def _value(typed: Typed, unit: str, ids: dict[str, int]) -> bytes:  # noqa: C901, PLR0912 - one branch per type
    value = typed.value
    integer = _INTEGERS.get(typed.code)
    if integer is not None:
        number = cast("int", value)
        if number >= 1 << 63:
            return _decimal(Decimal(number))
        return _head(integer[0]) + pack(integer[1], number)
    if typed.code == code.DATETIME:
        return _head(_TIMESTAMP) + pack("<q", microseconds(cast("int", value), unit))
    if typed.code == code.FLOAT:
        return _head(_FLOAT) + pack("<f", value)
    match value:
        case None:
            result = _head(_NULL)
        case bool():
            result = _head(_TRUE if value else _FALSE)
        case float():
            result = _head(_DOUBLE) + pack("<d", value)
        case str():
            result = _text(value)
        case bytes():
            result = _head(_BINARY) + pack("<I", len(value)) + value
        case Decimal():
            result = _decimal(value)
        case UUID():
            result = _text(str(value))
        case dict():
            result = _object(value, unit, ids)
        case list():
            result = _array([_value(item, unit, ids) for item in value])
        case _:
            raise ConversionError(f"type code 0x{typed.code:02x} has no VARIANT")
    return result


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) < 64:
        return bytes([len(raw) << 2 | _SHORT_TEXT]) + raw
    return _head(_TEXT) + pack("<I", len(raw)) + raw


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # the wire has neither infinity nor NaN in its decimals
    scale = -exponent
    unscaled = int("".join(map(str, digits)))
    precision = max(len(str(unscaled)), scale)
    if precision > 38:
        raise ConversionError(f"a decimal with {scale} places has no VARIANT: 38 digits are the most")
    kind, width = (_DECIMAL4, 4) if precision <= 9 else (_DECIMAL8, 8) if precision <= 18 else (_DECIMAL16, 16)
    return _head(kind) + bytes([scale]) + (-unscaled if sign else unscaled).to_bytes(width, "little", signed=True)


def _width(number: int) -> int:
    return 1 if number < 1 << 8 else 2 if number < 1 << 16 else 3 if number < 1 << 24 else 4


def _numbers(numbers: list[int], width: int) -> bytes:
    return b"".join([n.to_bytes(width, "little") for n in numbers])


def _offsets(items: list[bytes]) -> list[int]:
    return list(accumulate(map(len, items), initial=0))


def _as_spark_compares(name: str) -> bytes:
    """Spark looks up the fields of a large object by halves, and compares names as Java does: by their UTF-16."""
    return name.encode("utf-16-be")


def _object(fields: dict[str, Typed], unit: str, ids: dict[str, int]) -> bytes:
    names = sorted(fields, key=_as_spark_compares)
    numbers = [ids.setdefault(name, len(ids)) for name in names]
    items = [_value(fields[name], unit, ids) for name in names]
    offsets = _offsets(items)
    id_width, offset_width, large = _width(max(numbers, default=0)), _width(offsets[-1]), len(names) > 0xFF
    head = large << 6 | (id_width - 1) << 4 | (offset_width - 1) << 2 | _OBJECT
    count = len(names).to_bytes(4 if large else 1, "little")
    return b"".join((bytes([head]), count, _numbers(numbers, id_width), _numbers(offsets, offset_width), *items))


def _array(items: list[bytes]) -> bytes:
    offsets = _offsets(items)
    offset_width, large = _width(offsets[-1]), len(items) > 0xFF
    head = large << 4 | (offset_width - 1) << 2 | _ARRAY
    count = len(items).to_bytes(4 if large else 1, "little")
    return b"".join((bytes([head]), count, _numbers(offsets, offset_width), *items))


def _metadata(ids: dict[str, int]) -> bytes:
    names = [name.encode() for name in ids]
    offsets = _offsets(names)
    width = _width(max(offsets[-1], len(names)))
    head, count = bytes([(width - 1) << 6 | 1]), len(names).to_bytes(width, "little")
    return b"".join((head, count, _numbers(offsets, width), *names))
