"""VARIANT of Spark as values of AMQP maps: the inverse of decoding.

The layout is that of the Variant Binary Encoding of Apache Parquet, version 1. Integers keep their width, float and
double are unchanged; a UUID is a uuid where the protocol has one. Decimals, dates and times become texts
(:mod:`.texts`). An object is a map, an array a list, and null void, also in an object.

The bytes of a VARIANT are untrusted: lengths and offsets are checked, and no byte is read twice.
"""

from __future__ import annotations

from itertools import pairwise
from math import isfinite
from struct import error as short
from struct import pack, unpack, unpack_from
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import numpy as np
import pyarrow as pa

from amqp_core.typed_values import MAX_DEPTH
from amqp_spark.arrow.columns.conversion import LONGEST_KEY
from amqp_spark.arrow.rows import texts
from amqp_spark.arrow.rows.row_errors import (
    Fault,
    Faults,
    Unfit,
    key_too_long,
    no_time,
    not_finite,
    not_utf8,
    text_too_long,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from amqp_spark.arrow.rows.dialect import Dialect
    from amqp_spark.arrow.rows.row_bytes import Array

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
# Primitives by their head byte (basic type 0: the number of the primitive type times 4).
_DECIMALS: Final = {8 << 2: 4, 9 << 2: 8, 10 << 2: 16}
_DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _BINARY, _TEXT, _UUID = (n << 2 for n in (11, 12, 13, 15, 16, 20))
_NAMES: Final = {17: "TIME", 18: "TIMESTAMP of nanoseconds", 19: "TIMESTAMP_NTZ of nanoseconds"}

_MALFORMED: Final = Fault("a VARIANT that is malformed", "its value and metadata are those that Spark writes")


def items(column: Array, depth: int, wire: Dialect) -> tuple[Array, Faults]:
    """Encode every VARIANT (value and metadata as STRUCT) inside of ``depth`` maps and lists: type code and bytes."""
    values, faults = _items(column, depth, wire)
    return pa.array(values, pa.binary()), faults


def bodies(column: Array, wire: Dialect) -> tuple[Array, npt.NDArray[np.uint8], Faults]:
    """Every VARIANT as a map or list without its type code, and the wire types: map, list, or 0 for neither.

    A row that is neither object nor array is null; that alone is no fault here.
    """
    values, faults = _items(column, 0, wire)
    kinds = np.array([value[0] if value is not None else 0 for value in values], np.uint8)
    kinds[(kinds != wire.map) & (kinds != wire.list)] = 0
    out = [value[1:] if value is not None and kind else None for value, kind in zip(values, kinds, strict=True)]
    return pa.array(out, pa.binary()), kinds, faults


def _items(column: Array, depth: int, wire: Dialect) -> tuple[list[bytes | None], Faults]:
    faults: Faults = {}
    values: list[bytes | None] = []
    read = _Reader(wire)
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

    def __init__(self, wire: Dialect) -> None:
        self._wire = wire
        self._constants = {
            0: bytes([wire.void]),
            **{n << 2: bytes([wire.boolean, value]) for n, value in ((1, 1), (2, 0))},
        }
        numbers = ((3, wire.tinyint, 1), (4, wire.smallint, 2), (5, wire.integer, 4), (6, wire.bigint, 8))
        fractions = ((7, wire.double, 8), (14, wire.float, 4))
        self._numbers = {n << 2: (bytes([code]), width) for n, code, width in (*numbers, *fractions)}
        self._finite = {7 << 2: ">d", 14 << 2: ">f"} if wire.is_finite else {}
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
        number = self._numbers.get(head)
        if number is not None:
            end = at + 1 + number[1]
            raw = self._part(at + 1, end)[::-1]
            form = self._finite.get(head)
            if form is not None and not isfinite(unpack(form, raw)[0]):
                raise Unfit(not_finite())
            return number[0] + raw, end
        basic = head & 3
        if basic == _SHORT_TEXT:
            return self._text(at + 1, head >> 2)
        if basic == _OBJECT:
            return self._object(at, head >> 2, depth)
        if basic == _ARRAY:
            return self._array(at, head >> 2, depth)
        constant = self._constants.get(head)
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
        if size > self._wire.longest_text:
            raise Unfit(text_too_long(size, self._wire.longest_text))
        if not raw.isascii():
            try:
                raw.decode()
            except UnicodeDecodeError:
                raise Unfit(not_utf8(size)) from None
        return self._sized(raw), begin + size

    def _sized(self, text: bytes) -> bytes:
        return bytes([self._wire.text]) + len(text).to_bytes(self._wire.text_size, "big") + text

    def _other(self, at: int, head: int) -> tuple[bytes, int]:
        """The less common primitives."""
        width = _DECIMALS.get(head)
        if width is not None:
            end = at + 2 + width
            unscaled = int.from_bytes(self._part(at + 2, end), "little", signed=True)
            scale = self._data[at + 1]
            if scale > 38:
                raise Unfit(_MALFORMED)
            return self._sized(texts.decimal_text(unscaled, scale).encode()), end
        if head == _BINARY:
            begin = at + 5
            end = begin + unpack_from("<I", self._data, at + 1)[0]
            return pack(">BI", self._wire.binary, end - begin) + self._part(begin, end), end
        if head == _DATE:
            return self._time("DATE", texts.date_text, unpack_from("<i", self._data, at + 1)[0]), at + 5
        if head == _TIMESTAMP:
            return self._time("TIMESTAMP", texts.utc_text, unpack_from("<q", self._data, at + 1)[0]), at + 9
        if head == _TIMESTAMP_NTZ:
            return self._time("TIMESTAMP_NTZ", texts.local_text, unpack_from("<q", self._data, at + 1)[0]), at + 9
        if head == _UUID:
            raw = self._part(at + 1, at + 17)
            number = self._wire.uuid
            return self._sized(str(UUID(bytes=raw)).encode()) if number is None else bytes([number]) + raw, at + 17
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
        return self._container(self._wire.map, count, out), begin + offsets[-1]

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
        return self._container(self._wire.list, count, out), begin + offsets[-1]

    def _container(self, number: int, count: int, parts: list[bytes]) -> bytes:
        raw = b"".join(parts)
        if self._wire.is_counted:
            return pack(">BII", number, 4 + len(raw), count) + raw
        return pack(">BI", number, len(raw)) + raw

    def _time(self, kind: str, text: Callable[[int], str], number: int) -> bytes:
        try:
            return self._sized(text(number).encode())
        except OverflowError:
            raise Unfit(no_time(kind)) from None

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
    if depth >= MAX_DEPTH:  # more levels than readers accept
        raise Unfit(Fault("maps and lists nested too deep", f"at most {MAX_DEPTH} levels are allowed"))
