"""Which lines on standard error are warnings for the user of a job, and which are not."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ (?P<level>[A-Z]+) (?P<name>[\w.]+): (?P<text>.*)")
"""What :mod:`amqp_spark.sink.statistics` makes of a line of the sink."""
_SPARKS: Final = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?P<level>[A-Z]+) (?P<name>[\w.$]+): (?P<text>.*)")
_LEVELS: Final = frozenset({"WARN", "WARNING", "ERROR", "FATAL", "CRITICAL"})
_LOSSES: Final = re.compile(r", [1-9][\d,]* retries\b|[\d,]+ (sent again|discarded as unroutable)")
"""What makes the line about a batch of the sink a warning."""
_NO_WARNINGS: Final = (
    " ", "\t", "Traceback", "Caused by", "During handling", "The above exception",  # belong to the line before
    "Using Spark's default log4j", "Setting default log level", "To adjust logging level",  # Spark and Java, at start
    "WARNING: Using incubator modules", "WARNING: package sun.security.action", "Picked up ",
)  # fmt: skip
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text without sequences that would move the cursor or change colours, and without other control characters."""
    return _CONTROL.sub("", text.replace("\t", "    "))


def warning_of(line: str) -> str | None:
    """The warning that a line says, without time and logger; ``None``: it is no warning.

    A line in no known form is one: the process of the reader logs its warnings as bare text.
    """
    match = _OURS.fullmatch(line) or _SPARKS.fullmatch(line)
    if match is not None:
        return match["text"] if match["level"] in _LEVELS or _LOSSES.search(match["text"]) else None
    return line.strip() if line.strip() and not line.startswith(_NO_WARNINGS) else None
