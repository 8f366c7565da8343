"""Why a value cannot be sent: what it is, where it is inside its column, and what is allowed. Never the value."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

Errors: TypeAlias = dict[int, str]
"""Row to reason."""

LONGEST_TEXT: Final = 0xFFFF
"""Most bytes of a str16."""
LONGEST_KEY: Final = 0xFF
"""Most bytes of a str8, which keys of maps are."""


class Fault(NamedTuple):
    """A value that cannot be sent; ``where`` is its path, such as ``.legs[3].symbol`` or ``['trace']``."""

    what: str
    allowed: str
    where: str = ""

    def inside(self, part: str) -> Fault:
        """The same fault, seen from what holds the value as its ``part``."""
        return self._replace(where=part + self.where)

    def __str__(self) -> str:
        """The reason; it reads on after the name of the column."""
        at = f" at {self.where.removeprefix('.')}" if self.where else ""
        return f"has {self.what}{at}; {self.allowed}"


Faults: TypeAlias = dict[int, Fault]
"""Row to the first fault of the row."""


class Unfit(Exception):
    """Raised where values are taken one by one; the fault gains its path on the way out."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault

    def inside(self, part: str) -> Unfit:
        """The same, seen from what holds the value."""
        return Unfit(self.fault.inside(part))


def text_too_long(size: Any) -> Fault:
    """A text that no str16 holds."""
    return Fault(f"a text of {size:,} bytes", f"a STRING inside a map or list has at most {LONGEST_TEXT:,} bytes")


def key_too_long(size: Any) -> Fault:
    """A key that no str8 holds."""
    return Fault(f"a key of {size:,} bytes", f"a key of a map has at most {LONGEST_KEY} bytes in UTF-8")


def not_utf8(size: Any) -> Fault:
    """Bytes in a text that are none."""
    return Fault(f"a text of {size:,} bytes that are not UTF-8", "cast it to BINARY to send the bytes as they are")


def no_time(kind: str) -> Fault:
    """A date or time without a text."""
    return Fault(f"a {kind} outside of the years 1 to 9999", "only these years have a text")


def reasons(faults: Faults) -> Errors:
    """The faults as texts."""
    return {row: str(fault) for row, fault in faults.items()}
