"""Type codes of AMQP 0-10."""

from __future__ import annotations

from typing import Final

from amqp_core.typed_values import MAX_DEPTH, Datetime, Typed

__all__ = ["MAX_DEPTH", "Datetime", "Typed"]

MAX_ARGUMENT_MAP_BYTES: Final = 1 << 16
"""Largest map in the arguments of a received control, command or result; maps of brokers have a few hundred bytes."""

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

# Bytes of a value by type code: the high four bits determine it (0-10 section 3.2), so that unknown types are skipped,
# too. -1, -2, -4: a size of so many bytes precedes the value. -9: such a code does not exist.
_CLASS_WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128, -1, -2, -4, -9, 5, 9, -9, 0)
WIDTHS: Final[tuple[int, ...]] = tuple([_CLASS_WIDTHS[code >> 4] for code in range(256)])
"""Bytes of a value by its type code; -1, -2, -4: preceded by a size of so many bytes; -9: no such code."""
