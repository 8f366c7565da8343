"""Positions in logs, as options give them: ``startingOffsets`` and ``endingOffsets``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TypeAlias

from amqp_spark.options.kinds import Kind


class Edge(Enum):
    """An end of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Since:
    """The first messages that were stored at this time or later, in seconds since 1970."""

    seconds: int


Position: TypeAlias = Edge | int | Since
"""An end, an offset, or a time."""


@dataclass(frozen=True, slots=True)
class LogPositions:
    """One position for every log, or for some of them by name."""

    every: Position | None = None
    by_name: tuple[tuple[str, Position], ...] = ()


def position_of(positions: LogPositions | None, log: str, default: Position) -> Position:
    """The position that an option gives for a log; ``default``: where it gives none."""
    if positions is None:
        return default
    return dict(positions.by_name).get(log, default if positions.every is None else positions.every)


def log_positions() -> Kind[LogPositions]:
    """``earliest``, ``latest``, an offset, a time, or a JSON object with one of them for each stream."""
    allowed = (
        "earliest, latest, an offset of at least 0, a time such as 2026-11-24T09:30:00Z, or a JSON object with one of "
        'them for each stream ({"ticks": 1200, "quotes": -1}; -2 is earliest, -1 latest)'
    )

    def parse(value: str) -> LogPositions:
        text = value.strip()
        try:
            if not text.startswith("{"):
                return LogPositions(_position(text))
            found = json.loads(text)
            pairs = tuple((str(name), _position(each)) for name, each in found.items())
        except (ValueError, TypeError, RecursionError):
            raise ValueError(allowed) from None
        if not pairs:
            raise ValueError(allowed)
        return LogPositions(by_name=pairs)

    return Kind("positions", allowed, parse)


def _position(value: object) -> Position:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(value)
    text = str(value).strip()
    if text.lower() in ("earliest", "-2"):
        return Edge.EARLIEST
    if text.lower() in ("latest", "-1"):
        return Edge.LATEST
    if text.isdecimal():
        number = int(text)
        if number >= 1 << 63:
            raise ValueError(value)
        return number
    when = datetime.fromisoformat(text)
    seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return Since(max(0, int(seconds)))  # the wire has no time before 1970, and no stream either
