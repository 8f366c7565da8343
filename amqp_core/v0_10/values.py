"""Python values of wire types that have no natural one of their own."""

from __future__ import annotations

from typing import NamedTuple


class Datetime(int):
    """A ``datetime`` of the wire: a signed 64-bit number, seconds by the specification, milliseconds from some clients."""

    __slots__ = ()


class Typed(NamedTuple):
    """A value with the wire type code it has, or shall have, inside a map, list or array.

    ``value`` of a map is ``dict[str, Typed]``, of a list or array ``list[Typed]``, of a struct32 the bytes after its
    size word; everything else is the natural Python value.
    """

    code: int
    value: object
