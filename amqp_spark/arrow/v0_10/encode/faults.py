"""Reasons why a value cannot be sent: kind, position inside its column, and limit. They never contain the value."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

Errors: TypeAlias = dict[int, str]
"""Row to reason."""

LONGEST_TEXT: Final = 0xFFFF
"""Maximum bytes of a str16."""
LONGEST_KEY: Final = 0xFF
"""Maximum bytes of a str8, the type of map keys."""


class Fault(NamedTuple):
    """A value that cannot be sent; ``where`` is its path, such as ``.legs[3].symbol`` or ``['trace']``."""

    what: str
    allowed: str
    where: str = ""

    def inside(self, part: str) -> Fault:
        """The same fault as part ``part`` of an enclosing value."""
        return self._replace(where=part + self.where)

    def __str__(self) -> str:
        """The reason, to be appended to the name of the column."""
        at = f" at {self.where.removeprefix('.')}" if self.where else ""
        return f"has {self.what}{at}; {self.allowed}"


Faults: TypeAlias = dict[int, Fault]
"""Row to the first fault of the row."""


class Unfit(Exception):
    """Raised during value-by-value encoding; each level adds its part of the path."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault

    def inside(self, part: str) -> Unfit:
        """The same error as part of an enclosing value."""
        return Unfit(self.fault.inside(part))


def text_too_long(size: Any) -> Fault:
    """Fault: text too long for a str16."""
    return Fault(f"a text of {size:,} bytes", f"a STRING inside a map or list has at most {LONGEST_TEXT:,} bytes")


def key_too_long(size: Any) -> Fault:
    """Fault: key too long for a str8."""
    return Fault(f"a key of {size:,} bytes", f"a key of a map has at most {LONGEST_KEY} bytes in UTF-8")


def not_utf8(size: Any) -> Fault:
    """Fault: text that is not UTF-8."""
    return Fault(f"a text of {size:,} bytes that are not UTF-8", "cast it to BINARY to send the bytes as they are")


def no_time(kind: str) -> Fault:
    """Fault: date or time without a text."""
    return Fault(f"a {kind} outside of the years 1 to 9999", "only these years have a text")


def reasons(faults: Faults) -> Errors:
    """The faults as texts."""
    return {row: str(fault) for row, fault in faults.items()}
