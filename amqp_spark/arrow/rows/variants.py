"""VARIANT of Spark as values of AMQP maps: the inverse of :mod:`amqp_spark.arrow.v0_10.decode.variant`.

The layout is that of the Variant Binary Encoding of Apache Parquet, version 1. Integers keep their width (int8, int16,
int32, int64), float and double are unchanged, texts are str16, bytes vbin32, a UUID is a uuid. Decimals, dates and
times become texts (:mod:`.texts`). An object is a map, an array a list, and null void, also in an object.

The bytes of a VARIANT are untrusted: lengths and offsets are checked, and no byte is read twice.
"""

from __future__ import annotations

from itertools import pairwise
from struct import error as short
from struct import pack, unpack_from
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from amqp_core.v0_10 import type_codes as code
from amqp_spark.arrow.rows import texts
from amqp_spark.arrow.rows.row_errors import (
    LONGEST_TEXT,
    Fault,
    Faults,
    Unfit,
    key_too_long,
    no_time,
    not_utf8,
    text_too_long,
)
from amqp_spark.arrow.v0_10.conversion import LONGEST_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from amqp_spark.arrow.rows.row_bytes import Array

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_VOID: Final = bytes([code.VOID])
_STR16: Final = bytes([code.STR16])

# Primitives by their head byte (basic type 0: the number of the primitive type times 4).
_CONSTANTS: Final = {0: _VOID, 1 << 2: bytes([code.BOOLEAN, 1]), 2 << 2: bytes([code.BOOLEAN, 0])}
_NUMBERS: Final = {
    3 << 2: (bytes([code.INT8]), 1),
    4 << 2: (bytes([code.INT16]), 2),
    5 << 2: (bytes([code.INT32]), 4),
    6 << 2: (bytes([code.INT64]), 8),
    7 << 2: (bytes([code.DOUBLE]), 8),
    14 << 2: (bytes([code.FLOAT]), 4),
}
_DECIMALS: Final = {8 << 2: 4, 9 << 2: 8, 10 << 2: 16}
_DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _BINARY, _TEXT, _UUID = (n << 2 for n in (11, 12, 13, 15, 16, 20))
_NAMES: Final = {17: "TIME", 18: "TIMESTAMP of nanoseconds", 19: "TIMESTAMP_NTZ of nanoseconds"}

_MALFORMED: Final = Fault("a VARIANT that is malformed", "its value and metadata are those that Spark writes")


def items(column: Array, depth: int) -> tuple[Array, Faults]:
    """Encode every VARIANT (value and metadata as STRUCT) inside of ``depth`` maps and lists: type code and bytes."""
    values, faults = _items(column, depth)
    return pa.array(values, pa.binary()), faults


def bodies(column: Array) -> tuple[Array, npt.NDArray[np.uint8], Faults]:
    """Every VARIANT as a map or list without its type code, and the wire types: MAP, LIST, or 0 for neither.

    A row that is neither object nor array is null; that alone is no fault here.
    """
    values, faults = _items(column, 0)
    kinds = np.array([value[0] if value is not None else 0 for value in values], np.uint8)
    kinds[(kinds != code.MAP) & (kinds != code.LIST)] = 0
    out = [value[1:] if value is not None and kind else None for value, kind in zip(values, kinds, strict=True)]
    return pa.array(out, pa.binary()), kinds, faults


def _items(column: Array, depth: int) -> tuple[list[bytes | None], Faults]:
    faults: Faults = {}
    values: list[bytes | None] = []
    read = _Reader()
    for row, (value, metadata) in enumerate(_pairs(column)):
        item = None
        if value is not None and metadata is not None:
            try:
                item = read.item(value, metadata, depth)
            except Unfit as bad:
                faults[row] = bad.fault
        values.append(item)
    return values, faults


def _pairs(column: Array) -> zip[tuple[bytes | None, bytes | None]]:
    parts = cast("Any", column).flatten()
    names = [field.name for field in cast("Any", column.type)]
    value, metadata = (parts[names.index(name)].to_pylist() for name in ("value", "metadata"))
    return zip(value, metadata, strict=True)


class _Reader:
    """Reads VARIANTs; rows mostly share their metadata, so keys are encoded once."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[bytes]] = {}
        self._keys: list[bytes] = []
        self._data = b""

    def item(self, value: bytes, metadata: bytes, depth: int) -> bytes:
        """The value as type code and bytes.

        Raises:
            Unfit: there is no wire value for it, or it is malformed.
        """
        keys = self._known.get(metadata)
        if keys is None:
            keys = self._known[metadata] = _keys(metadata)
        self._keys, self._data = keys, value
        try:
            item, end = self._item(0, depth)
        except (short, IndexError):  # truncated
            raise Unfit(_MALFORMED) from None
        if end != len(value):
            raise Unfit(_MALFORMED)
        return item

    def _item(self, at: int, depth: int) -> tuple[bytes, int]:  # noqa: PLR0911 - one line per kind
        """The value that begins at a byte, and its end."""
        head = self._data[at]
        number = _NUMBERS.get(head)
        if number is not None:
            end = at + 1 + number[1]
            return number[0] + self._part(at + 1, end)[::-1], end
        basic = head & 3
        if basic == _SHORT_TEXT:
            return self._text(at + 1, head >> 2)
        if basic == _OBJECT:
            return self._object(at, head >> 2, depth)
        if basic == _ARRAY:
            return self._array(at, head >> 2, depth)
        constant = _CONSTANTS.get(head)
        if constant is not None:
            return constant, at + 1
        if head == _TEXT:
            return self._text(at + 5, unpack_from("<I", self._data, at + 1)[0])
        return self._other(at, head)

    def _part(self, begin: int, end: int) -> bytes:
        part = self._data[begin:end]
        if len(part) != end - begin:
            raise Unfit(_MALFORMED)
        return part

    def _text(self, begin: int, size: int) -> tuple[bytes, int]:
        raw = self._part(begin, begin + size)
        if size > LONGEST_TEXT:
            raise Unfit(text_too_long(size))
        if not raw.isascii():
            try:
                raw.decode()
            except UnicodeDecodeError:
                raise Unfit(not_utf8(size)) from None
        return _STR16 + size.to_bytes(2, "big") + raw, begin + size

    def _other(self, at: int, head: int) -> tuple[bytes, int]:
        """The less common primitives."""
        width = _DECIMALS.get(head)
        if width is not None:
            end = at + 2 + width
            unscaled = int.from_bytes(self._part(at + 2, end), "little", signed=True)
            scale = self._data[at + 1]
            if scale > 38:
                raise Unfit(_MALFORMED)
            return _str16(texts.decimal_text(unscaled, scale)), end
        if head == _BINARY:
            begin = at + 5
            end = begin + unpack_from("<I", self._data, at + 1)[0]
            return pack(">BI", code.VBIN32, end - begin) + self._part(begin, end), end
        if head == _DATE:
            return _time("DATE", texts.date_text, unpack_from("<i", self._data, at + 1)[0]), at + 5
        if head == _TIMESTAMP:
            return _time("TIMESTAMP", texts.utc_text, unpack_from("<q", self._data, at + 1)[0]), at + 9
        if head == _TIMESTAMP_NTZ:
            return _time("TIMESTAMP_NTZ", texts.local_text, unpack_from("<q", self._data, at + 1)[0]), at + 9
        if head == _UUID:
            return bytes([code.UUID_]) + self._part(at + 1, at + 17), at + 17
        name = _NAMES.get(head >> 2)
        if name is None:
            raise Unfit(_MALFORMED)
        raise Unfit(Fault(f"a {name} in a VARIANT", "it has no wire type; cast it to TIMESTAMP or STRING"))

    def _object(self, at: int, head: int, depth: int) -> tuple[bytes, int]:
        _deeper(depth)
        begin = at + (5 if head & 16 else 2)
        count = int.from_bytes(self._part(at + 1, begin), "little")
        id_width, width = (head >> 2 & 3) + 1, (head & 3) + 1
        ids = self._integers(begin, count, id_width)
        offsets = self._integers(begin + count * id_width, count + 1, width)
        begin += count * id_width + (count + 1) * width
        self._within(begin + offsets[-1], len(self._data))
        if len(set(ids)) != count:
            raise Unfit(_MALFORMED)
        out: list[bytes] = []
        used = 0
        for number, offset in zip(ids, offsets, strict=False):
            key = self._keys[number]
            if len(key) > LONGEST_KEY + 1:
                raise Unfit(key_too_long(len(key) - 1))
            out.append(key)
            try:
                item, end = self._item(begin + offset, depth + 1)
            except Unfit as bad:
                raise bad.inside(f".{key[1:].decode()}") from None
            out.append(item)
            used += end - begin - offset
            self._within(used, offsets[-1])
        return _container(code.MAP, count, out), begin + offsets[-1]

    def _array(self, at: int, head: int, depth: int) -> tuple[bytes, int]:
        _deeper(depth)
        begin = at + (5 if head & 4 else 2)
        count = int.from_bytes(self._part(at + 1, begin), "little")
        width = (head & 3) + 1
        offsets = self._integers(begin, count + 1, width)
        begin += (count + 1) * width
        self._within(begin + offsets[-1], len(self._data))
        out: list[bytes] = []
        used = 0
        for index in range(count):
            try:
                item, end = self._item(begin + offsets[index], depth + 1)
            except Unfit as bad:
                raise bad.inside(f"[{index}]") from None
            out.append(item)
            used += end - begin - offsets[index]
            self._within(used, offsets[-1])
        return _container(code.LIST, count, out), begin + offsets[-1]

    def _within(self, used: int, most: int) -> None:
        """Check that the values in a container do not overlap: shared bytes would cause unbounded work."""
        if used > most:
            raise Unfit(_MALFORMED)

    def _integers(self, begin: int, count: int, width: int) -> list[int]:
        part = self._part(begin, begin + count * width)
        if width == 1:
            return list(part)
        return [int.from_bytes(part[at : at + width], "little") for at in range(0, len(part), width)]


def _keys(metadata: bytes) -> list[bytes]:
    """The field names of objects as str8; their user checks the size of a name that is too long."""
    try:
        head = metadata[0]
        width = (head >> 6) + 1
        numbers = range(1, 1 + width * (int.from_bytes(metadata[1 : 1 + width], "little") + 2), width)
        if head & 15 != 1 or len(metadata) < numbers.stop:
            raise Unfit(_MALFORMED)
        offsets = [int.from_bytes(metadata[at : at + width], "little") for at in numbers[1:]]
        texts_of = metadata[numbers.stop :]
        if offsets != sorted(offsets) or offsets[-1] > len(texts_of):
            raise Unfit(_MALFORMED)
        names = [texts_of[begin:end] for begin, end in pairwise(offsets)]
        for name in names:
            name.decode()
    except (IndexError, UnicodeDecodeError):
        raise Unfit(_MALFORMED) from None
    return [bytes([min(len(name), LONGEST_KEY)]) + name for name in names]


def _deeper(depth: int) -> None:
    if depth >= code.MAX_DEPTH:  # more levels than readers accept
        raise Unfit(Fault("maps and lists nested too deep", f"at most {code.MAX_DEPTH} levels are allowed"))


def _container(number: int, count: int, parts: list[bytes]) -> bytes:
    raw = b"".join(parts)
    return pack(">BII", number, 4 + len(raw), count) + raw


def _str16(text: str) -> bytes:
    return _STR16 + len(text).to_bytes(2, "big") + text.encode()


def _time(kind: str, text: Callable[[int], str], number: int) -> bytes:
    try:
        return _str16(text(number))
    except OverflowError:
        raise Unfit(no_time(kind)) from None
