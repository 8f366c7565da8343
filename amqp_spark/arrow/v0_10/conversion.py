"""Conversion of values: its error, and times on the wire, which are seconds or milliseconds since 1970."""

from __future__ import annotations

from typing import Final

AUTO_MILLISECONDS: Final = 10**11
"""Times above this are in milliseconds under ``timestampUnit=auto``: in seconds it would be the year 5138."""
EARLIEST_SECONDS: Final = -62_135_596_800
LATEST_SECONDS: Final = 253_402_300_799
"""The last second of the year 9999; the TIMESTAMP of SQL has the years 1 to 9999."""


class ConversionError(ValueError):
    """A value that the requested type cannot hold; the text describes the value found."""


def microseconds(number: int, unit: str) -> int:
    """Convert a time in seconds or milliseconds since 1970 (``auto``: by its size) to microseconds.

    Raises:
        ConversionError: it is outside of the years of TIMESTAMP.
    """
    milliseconds = abs(number) > AUTO_MILLISECONDS if unit == "auto" else unit == "ms"
    result = number * (1000 if milliseconds else 1_000_000)
    if not EARLIEST_SECONDS * 1_000_000 <= result < (LATEST_SECONDS + 1) * 1_000_000:
        raise ConversionError(f"{number} is no time of the years 1 to 9999")
    return result
