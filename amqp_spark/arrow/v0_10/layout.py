"""Form of the table of properties, which ``properties.py`` has for each struct of the header."""

from __future__ import annotations

from typing import NamedTuple


class Property(NamedTuple):
    """A field of a struct of the header, as a column of the source and of the sink."""

    name: str
    wire: str
    """The wire type after all domains; of a struct its name."""
    width: int
    """Bytes of a value; negative: bytes of the size that precedes it."""
    flag: int
    """Its packing flag, in both bytes of the flags read as one number."""
    choices: tuple[int, int] | None
    """Least and greatest value that the specification names."""
    meaning: str
    written: str
    """Its meaning for the sink; empty: a publisher cannot set it."""


class Layout(NamedTuple):
    """A struct of the header and its fields in wire order."""

    name: str
    code: int
    fields: tuple[Property, ...]
