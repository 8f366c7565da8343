"""Encoded headers of one protocol as those of another: maps of 0-10, tables of 0-9-1 (and 0-9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import pyarrow as pa

from amqp_core.errors import DecodeError, EncodeError
from amqp_core.typed_values import Typed
from amqp_core.v0_9 import type_codes as letter
from amqp_core.v0_9._write import write_table
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._write import write_map
from amqp_spark.arrow.columns.dialect import AMQP_0_9, AMQP_0_10, LETTERS, is_table
from amqp_spark.arrow.v0_9.encode.tables import KEPT

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Array

_LETTERS: Final = {
    **{number: ord(text) for text, number in LETTERS.items() if ord(text) in KEPT},
    code.UINT64: letter.INT64,
    code.DEC64: letter.DECIMAL,
}
"""Type code of 0-10 -> type letter of 0-9-1. Texts and bytes are missing: the Python type of a value decides there."""


def convert_maps(column: Array, protocol: str) -> tuple[Array, dict[int, str]]:
    """Encoded headers (BINARY) in the form of a protocol, and the rows that cannot be converted with the reasons.

    Each value keeps its type, or the next one that holds it: 0-9-1 has one type for texts, one for bytes and one for
    lists, no unsigned one of 64 bits, and no uuid, which becomes its text. What has the form already is not changed.
    """
    errors: dict[int, str] = {}
    values: list[bytes | None] = []
    items: list[bytes | None] = cast("Any", column).to_pylist()
    for row, item in enumerate(items):
        try:
            values.append(None if item is None else _converted(item, protocol))
        except (DecodeError, EncodeError) as bad:
            errors[row] = bad.reason
            values.append(None)
    return pa.array(values, pa.binary()), errors


def _converted(data: bytes, protocol: str) -> bytes:
    from_table, to_map = is_table(data), protocol == "0-10"
    if len(data) > 4 and from_table != to_map:
        return data
    headers, end = (AMQP_0_9 if from_table else AMQP_0_10).map_of(data, 0)
    if end != len(data):
        raise DecodeError(f"{len(data)} bytes that do not begin with their number less 4")
    try:
        return write_map(headers) if to_map else write_table({key: _of_0_9(item) for key, item in headers.items()})
    except EncodeError:
        for key, item in headers.items():  # again one by one: which one is it?
            _ = write_map({key: item}, repr(key)) if to_map else write_table({key: _of_0_9(item)}, repr(key))
        raise


def _of_0_9(typed: Typed) -> Typed:
    """A value of 0-10 with the letter of its type, nested ones included."""
    value: Any = typed.value
    if isinstance(value, dict):
        return Typed(letter.TABLE, {key: _of_0_9(item) for key, item in value.items()})
    if isinstance(value, list):
        return Typed(letter.ARRAY, [_of_0_9(item) for item in value])
    if isinstance(value, UUID | str):
        return Typed(letter.LONG_STRING, str(value))
    known = letter.BINARY if isinstance(value, bytes) and typed.code != code.STRUCT32 else _LETTERS.get(typed.code)
    if known is None:
        raise EncodeError(f"a value of type 0x{typed.code:02x}, for which 0-9-1 has no type")
    return Typed(known, value)
