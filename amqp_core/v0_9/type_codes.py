"""Type letters of fields in tables and arrays, as numbers (0-9-1 section 4.2.5.5, and what brokers made of it)."""

from __future__ import annotations

from typing import Final

BOOLEAN: Final = ord("t")
INT8: Final = ord("b")
UINT8: Final = ord("B")
INT16: Final = ord("s")
"""0-9-1 has a short string here; RabbitMQ, Broker-J and their clients have this."""
INT16_U: Final = ord("U")
"""That of 0-9-1, which RabbitMQ refuses: only read."""
UINT16: Final = ord("u")
INT32: Final = ord("I")
UINT32: Final = ord("i")
INT64: Final = ord("l")
"""0-9-1 has an unsigned one here; everything else has this."""
INT64_L: Final = ord("L")
"""That of 0-9-1, which RabbitMQ sends on as ``l`` and Broker-J refuses: only read."""
FLOAT: Final = ord("f")
DOUBLE: Final = ord("d")
DECIMAL: Final = ord("D")
LONG_STRING: Final = ord("S")
BINARY: Final = ord("x")
ARRAY: Final = ord("A")
TIMESTAMP: Final = ord("T")
TABLE: Final = ord("F")
VOID: Final = ord("V")
ASCII_STRING: Final = ord("c")
"""Of old Qpid clients, as the next two: only read."""
WIDE_STRING: Final = ord("C")
ASCII_CHAR: Final = ord("k")

_WIDTHS: Final = {
    **dict.fromkeys((BOOLEAN, INT8, UINT8, ASCII_CHAR), 1),
    **dict.fromkeys((INT16, INT16_U, UINT16), 2),
    **dict.fromkeys((INT32, UINT32, FLOAT), 4),
    DECIMAL: 5,
    **dict.fromkeys((INT64, INT64_L, DOUBLE, TIMESTAMP), 8),
    **dict.fromkeys((LONG_STRING, BINARY, ARRAY, TABLE, ASCII_STRING, WIDE_STRING), -4),
    VOID: 0,
}
WIDTHS: Final[tuple[int, ...]] = tuple([_WIDTHS.get(code, -9) for code in range(256)])
"""Bytes of a value by its type code; -4: preceded by a size of four bytes; -9: no such code."""
