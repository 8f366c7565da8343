"""The types that AMQP 0-9 and 0-10 share, written to bytes: functions only.

``write_x(value, name)`` raises :class:`EncodeError` with ``name`` when the value is not one of that type. Numbers are
shown in the error; texts and bytes are not, they may be secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import Any, Final, Protocol, TypeVar

from amqp_core.errors import EncodeError
from amqp_core.typed_values import MAX_DEPTH

_T_contra = TypeVar("_T_contra", contravariant=True)

MOST_SHORT: Final = 255
"""Bytes of a short string."""

_U8 = Struct(">B").pack
_U32 = Struct(">I").pack


class Write(Protocol[_T_contra]):
    """A function that writes one value; ``name`` is for the error."""

    def __call__(self, value: _T_contra, name: str = ...) -> bytes:
        """The bytes of the value."""


def misfit(name: str, value: object, want: str) -> EncodeError:
    """Error: a value that is not what is wanted."""
    if isinstance(value, int | float | Decimal):
        # An int of thousands of digits cannot even be printed.
        shown = str(value) if not isinstance(value, int) or value.bit_length() < 256 else "an enormous int"
    elif isinstance(value, str | bytes):
        shown = f"{type(value).__name__} of length {len(value)}"
    else:
        shown = f"a value of type {type(value).__name__}"
    return EncodeError(f"{name}: {shown} is not {want}")


def deeper(depth: int, name: str) -> int:
    """One level more; raise EncodeError beyond ``MAX_DEPTH``."""
    if depth >= MAX_DEPTH:
        raise EncodeError(f"{name}: values nested deeper than {MAX_DEPTH}")
    return depth + 1


def sequence(value: object, name: str) -> Sequence[Any]:
    """The value, if it is a sequence other than text or bytes."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise misfit(name, value, "a sequence")
    return value


def opaque(value: object, name: str) -> bytes:
    """The value as bytes, if it is binary."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise misfit(name, value, "bytes")


def encoded(value: object, encoding: str, name: str, errors: str = "strict") -> bytes:
    """A text in an encoding; ``errors`` as in :meth:`str.encode`."""
    if not isinstance(value, str):
        raise misfit(name, value, "a text")
    try:
        return value.encode(encoding, errors)
    except UnicodeEncodeError as bad:
        raise EncodeError(f"{name}: character {bad.start} of the text has no {encoding} form") from None


def number_writer(kind: str, what: str, allowed: str) -> Write[Any]:
    """A function that writes numbers in a ``struct`` format; a float is rounded to a single."""
    pack = Struct(f">{kind}").pack

    def write(value: Any, name: str = what) -> bytes:
        try:
            return pack(value)
        except (StructError, OverflowError):
            raise misfit(name, value, allowed) from None

    return write


write_uint8: Final[Write[int]] = number_writer("B", "uint8", "a uint8 (0 to 255)")
write_int8: Final[Write[int]] = number_writer("b", "int8", "an int8 (-128 to 127)")
write_uint16: Final[Write[int]] = number_writer("H", "uint16", "a uint16 (0 to 65535)")
write_int16: Final[Write[int]] = number_writer("h", "int16", "an int16 (-32768 to 32767)")
write_uint32: Final[Write[int]] = number_writer("I", "uint32", "a uint32 (0 to 2**32 - 1)")
write_int32: Final[Write[int]] = number_writer("i", "int32", "an int32 (-2**31 to 2**31 - 1)")
write_uint64: Final[Write[int]] = number_writer("Q", "uint64", "a uint64 (0 to 2**64 - 1)")
write_int64: Final[Write[int]] = number_writer("q", "int64", "an int64 (-2**63 to 2**63 - 1)")
write_float: Final[Write[float]] = number_writer("f", "float", "a float")
write_double: Final[Write[float]] = number_writer("d", "double", "a double")
write_datetime: Final[Write[int]] = number_writer("q", "datetime", "an int64 (-2**63 to 2**63 - 1)")
"""A time as a number; the specification counts seconds since 1970."""


def write_boolean(value: bool, name: str = "boolean") -> bytes:  # noqa: FBT001 - it is the value
    """A boolean byte, 1 or 0."""
    if value is True:
        return b"\x01"
    if value is False:
        return b"\x00"
    raise misfit(name, value, "a boolean")


def write_void(value: None = None, name: str = "void") -> bytes:
    """Nothing: no bytes."""
    if value is not None:
        raise misfit(name, value, "None")
    return b""


def write_dec32(value: Decimal, name: str = "dec32") -> bytes:
    """A decimal: number of decimal places, then a signed 32-bit number; exact or refused."""
    places, mantissa = decimal_parts(value, 10, name)
    return places + write_int32(mantissa, name)


def decimal_parts(value: object, digits: int, name: str) -> tuple[bytes, int]:
    """The octet with the number of decimal places, and the number without the point; exact or refused."""
    if not isinstance(value, Decimal) or not value.is_finite():
        raise misfit(name, value, "a finite decimal")
    sign, figures, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # it is a letter for infinities and NaN only
    zero = not any(figures)
    if (len(figures) + max(exponent, 0) > digits and not zero) or exponent < -255:
        raise misfit(name, value, f"a decimal of at most {digits} digits and 255 places")
    mantissa = 0 if zero else int("".join(map(str, figures))) * 10 ** max(exponent, 0)
    return _U8(max(-exponent, 0)), -mantissa if sign else mantissa


def write_vbin8(value: bytes, name: str = "vbin8") -> bytes:
    """Up to 255 opaque bytes."""
    out = opaque(value, name)
    if len(out) > 0xFF:
        raise misfit(name, out, "at most 255 bytes")
    return _U8(len(out)) + out


def write_vbin32(value: bytes, name: str = "vbin32") -> bytes:
    """Up to 2**32 - 1 opaque bytes."""
    out = opaque(value, name)
    if len(out) > 0xFFFFFFFF:
        raise misfit(name, out, "at most 2**32 - 1 bytes")
    return _U32(len(out)) + out


def write_str8(value: str, name: str = "str8") -> bytes:
    """Up to 255 bytes of UTF-8."""
    return write_vbin8(encoded(value, "utf-8", name), name)


def cut_short(text: str) -> str:
    """Cut a text to what a short string holds: ``MOST_SHORT`` bytes of UTF-8 (str8 of 0-10, shortstr of 0-9-1).

    A lone surrogate, which stands for an octet that is not UTF-8, is shown as ``\\udcff``.
    """
    return text.encode(errors="backslashreplace")[:MOST_SHORT].decode(errors="ignore")
