"""How maps, lists and the values in them are encoded: those of 0-10, and the tables and arrays of 0-9-1.

In both a container is its size in 4 bytes and its contents, an entry of a map is a key of at most 255 bytes, preceded
by its size in one byte, a type code of one byte and the value. Numbers have the same form. Decoding to columns knows
the type codes of 0-10 only: a dialect says which of them stands for each code.
"""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from amqp_core.errors import DecodeError
from amqp_core.typed_values import Typed
from amqp_core.v0_9 import type_codes as letter
from amqp_core.v0_9._read import read_array_typed, read_table_typed
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_list_typed, read_map_typed
from amqp_spark.arrow.columns.conversion import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


class Dialect(NamedTuple):
    """The encoding of one protocol."""

    is_counted: bool
    """Whether the number of entries or items precedes the contents of maps and lists."""
    map: int
    array: int | None
    """The type code of containers whose items all have one type; None: there are none."""
    containers: tuple[int, ...]
    widths: npt.NDArray[np.int64]
    """Bytes of a value by its type code; -1, -2, -4: preceded by a size of so many bytes; -9: no such code."""
    kinds: tuple[int, ...]
    """The type code of 0-10 with the same form, by type code."""
    value_of: Callable[[bytes], Typed]
    """Decodes a type code and the value behind it; the result has type codes of 0-10."""
    map_of: Callable[[bytes, int], tuple[dict[str, Typed], int]]
    """Decodes the map at a position and returns its end; the values have type codes of 0-10."""

    def value_at(self, data: bytes, at: int, after: int) -> Typed:
        """The value whose type code is at ``at`` and whose bytes end at ``after``.

        Raises:
            ConversionError: it is malformed.
        """
        try:
            return self.value_of(data[at:after])
        except DecodeError as bad:
            raise ConversionError(bad.reason) from None

    def end_of(self, data: bytes, number: int, at: int) -> int:
        """End position of a value of type ``number`` whose bytes begin at ``at``; -1 if there is no such type."""
        width = int(self.widths[number])
        if width >= 0:
            return at + width
        return -1 if width == -9 else at - width + int.from_bytes(data[at : at - width], "big")

    def is_whole(self, data: bytes, code_at: int, after: int) -> bool:
        """Whether a value from its type code up to ``after`` is well-formed inside; always true if it is no container.

        A container may have size 0 and no count, as Broker-J writes null containers.
        """
        left = [(data[code_at], code_at + 1, after)]
        while left:
            number, at, until = left.pop()
            at += 4
            if number not in self.containers or at == until:
                continue
            inside = (self._counted_items if self.is_counted else self._items)(data, number, at, until)
            if inside is None:
                return False
            left += inside
        return True

    def _counted_items(self, data: bytes, number: int, at: int, until: int) -> list[tuple[int, int, int]] | None:
        """The containers among the items of a container: type, begin, end. ``None`` if the items do not fill it."""
        item = -1
        if number == self.array and at < until:
            item, at = data[at], at + 1
        count, at = int.from_bytes(data[at : at + 4], "big"), at + 4
        if at > until:
            return None
        if item >= 0 and self.widths[item] == 0:  # items without bytes
            return [] if at == until else None
        found = []
        for _ in range(count):
            if number == self.map and at < until:
                at += 1 + data[at]
            if at >= until:
                return None
            if number != self.array:
                item, at = data[at], at + 1
            end = self.end_of(data, item, at)
            if not 0 <= end <= until:
                return None
            if item in self.containers:
                found.append((item, at, end))
            at = end
        return found if at == until else None

    def _items(self, data: bytes, number: int, at: int, until: int) -> list[tuple[int, int, int]] | None:
        """The same where no count precedes them."""
        found = []
        while at < until:
            if number == self.map:
                at += 1 + data[at]
            if at >= until:
                return None
            item, at = data[at], at + 1
            end = self.end_of(data, item, at)
            if not 0 <= end <= until:
                return None
            if item in self.containers:
                found.append((item, at, end))
            at = end
        return found


# ---- 0-10 ----------------------------------------------------------------------------------------------------------


def _value_0_10(item: bytes) -> Typed:
    values, _ = read_list_typed(pack(">II", 4 + len(item), 1) + item, 0)
    return values[0]


AMQP_0_10: Final = Dialect(
    is_counted=True,
    map=code.MAP,
    array=code.ARRAY,
    containers=(code.MAP, code.LIST, code.ARRAY),
    widths=np.array(code.WIDTHS, np.int64),
    kinds=tuple(range(256)),
    value_of=_value_0_10,
    map_of=read_map_typed,
)
"""Map, list and array of 0-10 (section 3.3)."""


# ---- 0-9-1 ---------------------------------------------------------------------------------------------------------

# Texts and bytes have one form; what is no text is told apart by its value.
_KINDS: Final = {
    letter.BOOLEAN: code.BOOLEAN,
    letter.INT8: code.INT8,
    letter.UINT8: code.UINT8,
    letter.INT16: code.INT16,
    letter.INT16_U: code.INT16,
    letter.UINT16: code.UINT16,
    letter.INT32: code.INT32,
    letter.UINT32: code.UINT32,
    letter.INT64: code.INT64,
    letter.INT64_L: code.INT64,
    letter.FLOAT: code.FLOAT,
    letter.DOUBLE: code.DOUBLE,
    letter.DECIMAL: code.DEC32,
    letter.LONG_STRING: code.VBIN32,
    letter.ASCII_STRING: code.VBIN32,
    letter.WIDE_STRING: code.VBIN32,
    letter.BINARY: code.VBIN32,
    letter.ASCII_CHAR: code.CHAR,
    letter.TIMESTAMP: code.DATETIME,
    letter.ARRAY: code.LIST,
    letter.TABLE: code.MAP,
    letter.VOID: code.VOID,
}


_CHARS: Final = frozenset(bytes(range(256)).decode("iso8859-15"))
"""The characters of type char of 0-10. Those of 0-9-1 are others: eight of them, such as ¤, are not among these."""


def _of_0_10(typed: Typed) -> Typed:
    """The same value with the type codes of 0-10, nested ones included."""
    value: Any = typed.value
    if isinstance(value, dict):
        return Typed(code.MAP, {key: _of_0_10(item) for key, item in value.items()})
    if isinstance(value, list):
        return Typed(code.LIST, [_of_0_10(item) for item in value])
    kind = _KINDS[typed.code]
    if kind == code.CHAR and value not in _CHARS:
        kind = code.CHAR_UTF32
    return Typed(code.STR16 if kind == code.VBIN32 and isinstance(value, str) else kind, value)


def _value_0_9(item: bytes) -> Typed:
    values, _ = read_array_typed(pack(">I", len(item)) + item, 0)
    return _of_0_10(values[0])


def _map_0_9(data: bytes, pos: int) -> tuple[dict[str, Typed], int]:
    table, end = read_table_typed(data, pos)
    return {key: _of_0_10(item) for key, item in table.items()}, end


LETTERS: Final = {chr(number): code_of for number, code_of in _KINDS.items()}
"""Type letters of 0-9-1, and the type code of 0-10 with the same form."""
AMQP_0_9: Final = Dialect(
    is_counted=False,
    map=letter.TABLE,
    array=None,
    containers=(letter.TABLE, letter.ARRAY),
    widths=np.array(letter.WIDTHS, np.int64),
    kinds=tuple([_KINDS.get(number, -1) for number in range(256)]),
    value_of=_value_0_9,
    map_of=_map_0_9,
)
"""Table and array of 0-9-1 (section 4.2.5.5), and the letters that brokers and clients made of it."""


def is_table(data: bytes) -> bool:
    """Whether encoded headers, with their size, are a table of 0-9-1 and no map of 0-10; false if they are empty.

    Behind the size a map has the number of its entries in four bytes, the first of them 0, and a table the size of the
    first key. If that key is empty, its size is 0 and a type letter follows: as a number of entries that would be four
    million at least, each of two bytes or more.
    """
    if len(data) <= 4 or data[4]:
        return len(data) > 4
    return len(data) > 5 and data[5] in _KINDS and int.from_bytes(data[4:8]) > (len(data) - 8) // 2


def is_encoded(data: bytes, dialect: Dialect) -> bool:
    """Whether bytes are a whole map or table of a dialect."""
    try:
        _, end = dialect.map_of(data, 0)
    except DecodeError:
        return False
    return end == len(data)
