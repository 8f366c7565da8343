"""Form of the tables of properties, which ``properties.py`` of each protocol has."""

from __future__ import annotations

from typing import NamedTuple


class Property(NamedTuple):
    """A property of a message, as a column of the source and of the sink."""

    name: str
    """The name of its column."""
    wire: str
    """The wire type after all domains; of a struct its name."""
    width: int
    """Bytes of a value; negative: bytes of the size that precedes it."""
    flag: int
    """Its packing flag (0-10) or property flag (0-9-1), in both bytes of the flags read as one number."""
    choices: tuple[int, int] | None
    """Least and greatest value that the specification names."""
    meaning: str
    """Its meaning for the source."""
    written: str
    """Its meaning for the sink; empty: a publisher cannot set it."""


class Layout(NamedTuple):
    """A struct of the header (0-10) and its fields in wire order."""

    name: str
    code: int
    fields: tuple[Property, ...]
