"""Error of value conversions."""

from __future__ import annotations


class ConversionError(ValueError):
    """A value that the requested type cannot hold; the text describes the value found."""
