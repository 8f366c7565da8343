"""What the conversions of values raise."""

from __future__ import annotations


class ConversionError(ValueError):
    """A value that the type asked for cannot hold; the text says what was found."""
