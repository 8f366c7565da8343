"""Which part of each log a batch has. Pure functions."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_RANGE = 5_000
"""A range of fewer messages is not cut."""


class LogRange(NamedTuple):
    """The messages ``[begin, end)`` of a log."""

    log: str
    begin: int
    end: int

    @property
    def messages(self) -> int:
        """Number of messages."""
        return self.end - self.begin


def shares(waiting: Mapping[str, int], most: int, turn: int) -> dict[str, int]:
    """Share at most ``most`` messages among the logs for which some wait, in proportion to their numbers.

    Each gets one at least, while there are enough; ``turn`` changes from batch to batch and decides who is first.
    """
    logs = [log for log, count in waiting.items() if count]
    if sum(waiting.values()) <= most:
        return {log: waiting[log] for log in logs}
    first = turn % len(logs)
    found = dict.fromkeys((logs[first:] + logs[:first])[:most], 1)
    left, total = most - len(found), sum(waiting[log] - 1 for log in found)
    return {log: 1 + (waiting[log] - 1) * left // max(1, total) for log in found}


def cut(range_: LogRange, pieces: int) -> list[LogRange]:
    """Cut a range into at most so many about equal ones."""
    pieces = max(1, min(pieces, range_.messages // LEAST_RANGE))
    bounds = [range_.begin + range_.messages * piece // pieces for piece in range(pieces + 1)]
    return [LogRange(range_.log, *each) for each in pairwise(bounds)]
