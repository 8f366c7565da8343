"""Python classes for wire types without a natural Python type, for all versions of AMQP."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_DEPTH: Final = 16
"""Most nested levels of map or table, list and array; deeper input is refused."""


class Datetime(int):
    """A wire ``datetime``: a signed number, seconds by the specification, milliseconds from some clients.

    Immutable: any thread may use it.
    """

    __slots__ = ()


class Typed(NamedTuple):
    """A value with its wire type code inside a map or table, list or array, received or to be sent.

    Any thread may use it, as long as a ``dict`` or ``list`` in it does not change (0-10 section 3; 0-9-1 section
    4.2.5.5). The codes are those of the protocol: the numbers of 0-10, the letters of 0-9-1 (``ord("S")``).

    ``value`` of a map is ``dict[str, Typed]``, of a list or array ``list[Typed]``, of a struct32 the bytes after its
    size word; everything else is the natural Python value.
    """

    code: int
    value: object
