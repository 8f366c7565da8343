"""The types that AMQP 0-9 and 0-10 share, read from bytes: functions only.

``read_x(data, pos)`` returns the value and the position after it, and raises :class:`DecodeError` for anything that is
not such a value.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import Any, Final, TypeVar

from amqp_core.errors import DecodeError
from amqp_core.typed_values import MAX_DEPTH, Datetime

_T = TypeVar("_T")
Read = Callable[[bytes, int], tuple[_T, int]]
"""A function that reads one value."""

_uint32 = Struct(">I").unpack_from


def incomplete(what: str, pos: int) -> DecodeError:
    """Error: a value that reaches beyond the data."""
    return DecodeError(f"{what} ends before it is complete", pos)


def deeper(depth: int, pos: int) -> int:
    """One level more; raise DecodeError beyond ``MAX_DEPTH``."""
    if depth >= MAX_DEPTH:
        raise DecodeError(f"values nested deeper than {MAX_DEPTH}", pos)
    return depth + 1


def read_uint8(data: bytes, pos: int) -> tuple[int, int]:
    """An unsigned byte."""
    try:
        return data[pos], pos + 1
    except IndexError:
        raise incomplete("uint8", pos) from None


def number_reader(kind: str, what: str) -> Read[Any]:
    """A function that reads numbers of a ``struct`` format."""
    struct = Struct(f">{kind}")
    unpack, width = struct.unpack_from, struct.size

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        try:
            return unpack(data, pos)[0], pos + width
        except StructError:
            raise incomplete(what, pos) from None

    return read


read_int8: Final[Read[int]] = number_reader("b", "int8")
read_uint16: Final[Read[int]] = number_reader("H", "uint16")
read_int16: Final[Read[int]] = number_reader("h", "int16")
read_uint32: Final[Read[int]] = number_reader("I", "uint32")
read_int32: Final[Read[int]] = number_reader("i", "int32")
read_uint64: Final[Read[int]] = number_reader("Q", "uint64")
read_int64: Final[Read[int]] = number_reader("q", "int64")
read_float: Final[Read[float]] = number_reader("f", "float")
read_double: Final[Read[float]] = number_reader("d", "double")


def read_boolean(data: bytes, pos: int) -> tuple[bool, int]:
    """A boolean byte: zero is false, all else true."""
    try:
        return data[pos] != 0, pos + 1
    except IndexError:
        raise incomplete("boolean", pos) from None


def read_datetime(data: bytes, pos: int) -> tuple[Datetime, int]:
    """A time as the number on the wire; its unit is the sender's (specification: seconds since 1970)."""
    number, end = read_int64(data, pos)
    return Datetime(number), end


def read_dec32(data: bytes, pos: int) -> tuple[Decimal, int]:
    """A decimal: a byte with the number of decimal places, then a signed 32-bit number."""
    places, at = read_uint8(data, pos)
    mantissa, end = read_int32(data, at)
    return Decimal(f"{mantissa}E-{places}"), end


def octets(data: bytes, pos: int, width: int, what: str) -> tuple[bytes, int]:
    """Opaque bytes of a fixed number."""
    end = pos + width
    if end > len(data):
        raise incomplete(what, pos)
    return data[pos:end], end


def read_vbin8(data: bytes, pos: int) -> tuple[bytes, int]:
    """Up to 255 opaque bytes."""
    try:
        end = pos + 1 + data[pos]
    except IndexError:
        raise incomplete("vbin8", pos) from None
    if end > len(data):
        raise incomplete("vbin8", pos)
    return data[pos + 1 : end], end


def read_vbin32(data: bytes, pos: int) -> tuple[bytes, int]:
    """Up to 2**32 - 1 opaque bytes."""
    try:
        end = pos + 4 + _uint32(data, pos)[0]
    except StructError:
        raise incomplete("vbin32", pos) from None
    if end > len(data):
        raise incomplete("vbin32", pos)
    return data[pos + 4 : end], end


def read_str8(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 bytes of UTF-8."""
    try:
        end = pos + 1 + data[pos]
        if end <= len(data):
            return data[pos + 1 : end].decode(), end
    except IndexError:
        pass
    except UnicodeDecodeError as bad:
        raise DecodeError(f"str8 is not UTF-8: {bad.reason}", pos + 1 + bad.start) from None
    raise incomplete("str8", pos)


def read_lenient_str8(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 bytes of a text for people: what is not UTF-8 is replaced.

    Brokers cut an explanation at a number of bytes, which can be within a character (qpidd: 128, RabbitMQ: 252): the
    error that it explains must not be lost with it.
    """
    value, end = read_vbin8(data, pos)
    return value.decode(errors="replace"), end
