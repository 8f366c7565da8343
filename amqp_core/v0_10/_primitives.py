"""Every type of the AMQP 0-10 specification, read from and written to bytes: functions only.

``read_x(data, pos)`` returns the value and the position after it, and raises :class:`DecodeError` for anything that is
not such a value: nothing else leaves, and neither time nor memory grows beyond the size of ``data`` whatever counts
and sizes it claims. ``write_x(value, name)`` raises :class:`EncodeError` with ``name``; texts and bytes are never
shown in it, they may be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import Any, Final
from uuid import UUID

from amqp_core.errors import DecodeError, EncodeError
from amqp_core.v0_10.values import Datetime, Typed

MAX_DEPTH: Final = 16
"""Most levels of map, list and array inside each other; deeper input is refused."""

BIN8: Final = 0x00
INT8: Final = 0x01
UINT8: Final = 0x02
CHAR: Final = 0x04
BOOLEAN: Final = 0x08
BIN16: Final = 0x10
INT16: Final = 0x11
UINT16: Final = 0x12
BIN32: Final = 0x20
INT32: Final = 0x21
UINT32: Final = 0x22
FLOAT: Final = 0x23
CHAR_UTF32: Final = 0x27
BIN64: Final = 0x30
INT64: Final = 0x31
UINT64: Final = 0x32
DOUBLE: Final = 0x33
DATETIME: Final = 0x38
BIN128: Final = 0x40
UUID_: Final = 0x48
BIN256: Final = 0x50
BIN512: Final = 0x60
BIN1024: Final = 0x70
VBIN8: Final = 0x80
STR8_LATIN: Final = 0x84
STR8: Final = 0x85
STR8_UTF16: Final = 0x86
VBIN16: Final = 0x90
STR16_LATIN: Final = 0x94
STR16: Final = 0x95
STR16_UTF16: Final = 0x96
VBIN32: Final = 0xA0
MAP: Final = 0xA8
LIST: Final = 0xA9
ARRAY: Final = 0xAA
STRUCT32: Final = 0xAB
BIN40: Final = 0xC0
DEC32: Final = 0xC8
BIN72: Final = 0xD0
DEC64: Final = 0xD8
VOID: Final = 0xF0
BIT: Final = 0xF1

_LATIN: Final = "iso8859-15"

_I8 = Struct(">b")
_U16 = Struct(">H")
_I16 = Struct(">h")
_U32 = Struct(">I")
_I32 = Struct(">i")
_U64 = Struct(">Q")
_I64 = Struct(">q")
_F32 = Struct(">f")
_F64 = Struct(">d")
_PAIR32 = Struct(">II")
_PAIR64 = Struct(">QQ")

_uint16 = _U16.unpack_from
_uint32 = _U32.unpack_from
_uint64 = _U64.unpack_from


def _short(what: str, pos: int) -> DecodeError:
    return DecodeError(f"{what} ends before it is complete", pos)


def _misfit(name: str, value: object, want: str) -> EncodeError:
    # Numbers are shown; texts and bytes may be secrets, so only their kind and length are.
    if isinstance(value, int | float | Decimal):
        shown = str(value) if not isinstance(value, int) or value.bit_length() < 256 else "an enormous int"
    elif isinstance(value, str | bytes):
        shown = f"{type(value).__name__} of length {len(value)}"
    else:
        shown = type(value).__name__
    return EncodeError(f"{name}: {shown} is not {want}")


# --- fixed width -----------------------------------------------------------------------------------------------------


def read_uint8(data: bytes, pos: int) -> tuple[int, int]:
    """An unsigned octet."""
    try:
        return data[pos], pos + 1
    except IndexError:
        raise _short("uint8", pos) from None


def read_int8(data: bytes, pos: int) -> tuple[int, int]:
    """A signed octet."""
    try:
        value = data[pos]
    except IndexError:
        raise _short("int8", pos) from None
    return value - 256 if value > 127 else value, pos + 1


def read_uint16(data: bytes, pos: int) -> tuple[int, int]:
    """An unsigned 16-bit number."""
    try:
        return _uint16(data, pos)[0], pos + 2
    except StructError:
        raise _short("uint16", pos) from None


def read_int16(data: bytes, pos: int) -> tuple[int, int]:
    """A signed 16-bit number."""
    try:
        return _I16.unpack_from(data, pos)[0], pos + 2
    except StructError:
        raise _short("int16", pos) from None


def read_uint32(data: bytes, pos: int) -> tuple[int, int]:
    """An unsigned 32-bit number."""
    try:
        return _uint32(data, pos)[0], pos + 4
    except StructError:
        raise _short("uint32", pos) from None


def read_int32(data: bytes, pos: int) -> tuple[int, int]:
    """A signed 32-bit number."""
    try:
        return _I32.unpack_from(data, pos)[0], pos + 4
    except StructError:
        raise _short("int32", pos) from None


def read_uint64(data: bytes, pos: int) -> tuple[int, int]:
    """An unsigned 64-bit number."""
    try:
        return _uint64(data, pos)[0], pos + 8
    except StructError:
        raise _short("uint64", pos) from None


def read_int64(data: bytes, pos: int) -> tuple[int, int]:
    """A signed 64-bit number."""
    try:
        return _I64.unpack_from(data, pos)[0], pos + 8
    except StructError:
        raise _short("int64", pos) from None


def read_float(data: bytes, pos: int) -> tuple[float, int]:
    """An IEEE 754 single."""
    try:
        return _F32.unpack_from(data, pos)[0], pos + 4
    except StructError:
        raise _short("float", pos) from None


def read_double(data: bytes, pos: int) -> tuple[float, int]:
    """An IEEE 754 double."""
    try:
        return _F64.unpack_from(data, pos)[0], pos + 8
    except StructError:
        raise _short("double", pos) from None


def read_boolean(data: bytes, pos: int) -> tuple[bool, int]:
    """A boolean octet: zero is false, all else true."""
    try:
        return data[pos] != 0, pos + 1
    except IndexError:
        raise _short("boolean", pos) from None


def read_char(data: bytes, pos: int) -> tuple[str, int]:
    """One ISO 8859-15 character."""
    value, end = _fixed(data, pos, 1, "char")
    return value.decode(_LATIN), end


def read_char_utf32(data: bytes, pos: int) -> tuple[str, int]:
    """One Unicode character in four octets; surrogates and numbers beyond Unicode are refused."""
    number, end = read_uint32(data, pos)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise DecodeError(f"char-utf32 0x{number:x} is not a character", pos)
    return chr(number), end


def read_sequence_no(data: bytes, pos: int) -> tuple[int, int]:
    """A 32-bit serial number (RFC 1982)."""
    return read_uint32(data, pos)


def read_datetime(data: bytes, pos: int) -> tuple[Datetime, int]:
    """A time as the number on the wire; its unit is the sender's (specification: seconds since 1970)."""
    number, end = read_int64(data, pos)
    return Datetime(number), end


def read_uuid(data: bytes, pos: int) -> tuple[UUID, int]:
    """A UUID of 16 octets."""
    value, end = _fixed(data, pos, 16, "uuid")
    return UUID(bytes=value), end


def read_dec32(data: bytes, pos: int) -> tuple[Decimal, int]:
    """A decimal: an octet with the number of decimal places, then a signed 32-bit number."""
    places, at = read_uint8(data, pos)
    mantissa, end = read_int32(data, at)
    return Decimal(f"{mantissa}E-{places}"), end


def read_dec64(data: bytes, pos: int) -> tuple[Decimal, int]:
    """A decimal: an octet with the number of decimal places, then a signed 64-bit number."""
    places, at = read_uint8(data, pos)
    mantissa, end = read_int64(data, at)
    return Decimal(f"{mantissa}E-{places}"), end


def read_void(data: bytes, pos: int) -> tuple[None, int]:
    """Nothing: no octets."""
    return None, pos


def read_bit(data: bytes, pos: int) -> tuple[bool, int]:
    """A presence indicator: no octets, true where it is met."""
    return True, pos


def _fixed(data: bytes, pos: int, width: int, what: str) -> tuple[bytes, int]:
    end = pos + width
    if end > len(data):
        raise _short(what, pos)
    return data[pos:end], end


def read_bin8(data: bytes, pos: int) -> tuple[bytes, int]:
    """One opaque octet."""
    return _fixed(data, pos, 1, "bin8")


def read_bin16(data: bytes, pos: int) -> tuple[bytes, int]:
    """Two opaque octets."""
    return _fixed(data, pos, 2, "bin16")


def read_bin32(data: bytes, pos: int) -> tuple[bytes, int]:
    """Four opaque octets."""
    return _fixed(data, pos, 4, "bin32")


def read_bin40(data: bytes, pos: int) -> tuple[bytes, int]:
    """Five opaque octets."""
    return _fixed(data, pos, 5, "bin40")


def read_bin64(data: bytes, pos: int) -> tuple[bytes, int]:
    """Eight opaque octets."""
    return _fixed(data, pos, 8, "bin64")


def read_bin72(data: bytes, pos: int) -> tuple[bytes, int]:
    """Nine opaque octets."""
    return _fixed(data, pos, 9, "bin72")


def read_bin128(data: bytes, pos: int) -> tuple[bytes, int]:
    """16 opaque octets."""
    return _fixed(data, pos, 16, "bin128")


def read_bin256(data: bytes, pos: int) -> tuple[bytes, int]:
    """32 opaque octets."""
    return _fixed(data, pos, 32, "bin256")


def read_bin512(data: bytes, pos: int) -> tuple[bytes, int]:
    """64 opaque octets."""
    return _fixed(data, pos, 64, "bin512")


def read_bin1024(data: bytes, pos: int) -> tuple[bytes, int]:
    """128 opaque octets."""
    return _fixed(data, pos, 128, "bin1024")


# --- variable width --------------------------------------------------------------------------------------------------


def read_vbin8(data: bytes, pos: int) -> tuple[bytes, int]:
    """Up to 255 opaque octets."""
    try:
        end = pos + 1 + data[pos]
    except IndexError:
        raise _short("vbin8", pos) from None
    if end > len(data):
        raise _short("vbin8", pos)
    return data[pos + 1 : end], end


def read_vbin16(data: bytes, pos: int) -> tuple[bytes, int]:
    """Up to 65535 opaque octets."""
    try:
        end = pos + 2 + _uint16(data, pos)[0]
    except StructError:
        raise _short("vbin16", pos) from None
    if end > len(data):
        raise _short("vbin16", pos)
    return data[pos + 2 : end], end


def read_vbin32(data: bytes, pos: int) -> tuple[bytes, int]:
    """Up to 2**32 - 1 opaque octets."""
    try:
        end = pos + 4 + _uint32(data, pos)[0]
    except StructError:
        raise _short("vbin32", pos) from None
    if end > len(data):
        raise _short("vbin32", pos)
    return data[pos + 4 : end], end


def read_str8(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 octets of UTF-8."""
    try:
        end = pos + 1 + data[pos]
        if end <= len(data):
            return data[pos + 1 : end].decode(), end
    except IndexError:
        pass
    except UnicodeDecodeError as bad:
        raise DecodeError(f"str8 is not UTF-8: {bad.reason}", pos + 1 + bad.start) from None
    raise _short("str8", pos)


def read_str16(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 65535 octets of UTF-8."""
    try:
        end = pos + 2 + _uint16(data, pos)[0]
        if end <= len(data):
            return data[pos + 2 : end].decode(), end
    except StructError:
        pass
    except UnicodeDecodeError as bad:
        raise DecodeError(f"str16 is not UTF-8: {bad.reason}", pos + 2 + bad.start) from None
    raise _short("str16", pos)


def read_str8_latin(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 ISO 8859-15 characters."""
    value, end = read_vbin8(data, pos)
    return value.decode(_LATIN), end


def read_str16_latin(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 65535 ISO 8859-15 characters."""
    value, end = read_vbin16(data, pos)
    return value.decode(_LATIN), end


def read_str8_utf16(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 255 octets of UTF-16: big-endian, or as a byte order mark says."""
    value, end = read_vbin8(data, pos)
    return _utf16(value, pos + 1), end


def read_str16_utf16(data: bytes, pos: int) -> tuple[str, int]:
    """Up to 65535 octets of UTF-16: big-endian, or as a byte order mark says."""
    value, end = read_vbin16(data, pos)
    return _utf16(value, pos + 2), end


def _utf16(value: bytes, pos: int) -> str:
    try:
        if value[:2] == b"\xff\xfe":
            return value[2:].decode("utf-16-le")
        return value[2:].decode("utf-16-be") if value[:2] == b"\xfe\xff" else value.decode("utf-16-be")
    except UnicodeDecodeError as bad:
        raise DecodeError(f"not UTF-16: {bad.reason}", pos + bad.start) from None


def read_sequence_set(data: bytes, pos: int) -> tuple[list[tuple[int, int]], int]:
    """Ranges of serial numbers, both bounds included, as sent; a range must not run backwards (RFC 1982)."""
    value, end = read_vbin16(data, pos)
    if len(value) % 8:
        raise DecodeError(f"sequence-set of {len(value)} bytes is not whole ranges of 8", pos)
    ranges: list[tuple[int, int]] = list(_PAIR32.iter_unpack(value))
    for lower, upper in ranges:
        if (upper - lower) & 0xFFFFFFFF >= 0x80000000:
            raise DecodeError(f"sequence-set range {lower}..{upper} runs backwards", pos)
    return ranges, end


def read_byte_ranges(data: bytes, pos: int) -> tuple[list[tuple[int, int]], int]:
    """Ranges of byte offsets, both bounds included; a range must not run backwards."""
    value, end = read_vbin16(data, pos)
    if len(value) % 16:
        raise DecodeError(f"byte-ranges of {len(value)} bytes are not whole ranges of 16", pos)
    ranges: list[tuple[int, int]] = list(_PAIR64.iter_unpack(value))
    for lower, upper in ranges:
        if upper < lower:
            raise DecodeError(f"byte range {lower}..{upper} runs backwards", pos)
    return ranges, end


def read_struct32(data: bytes, pos: int) -> tuple[bytes, int]:
    """A coded struct as bytes: class code, struct code, packing flags and fields, without the size word."""
    value, end = read_vbin32(data, pos)
    if 0 < len(value) < 2:
        raise DecodeError("struct32 of 1 byte has no room for its code", pos)
    return value, end
