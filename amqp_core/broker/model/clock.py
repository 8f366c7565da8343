"""The time of a virtual host: it goes on with the calls that bring a time."""

from __future__ import annotations


class LatestTime:
    """Latest ``now`` of any call: the time of calls that have none of their own. It never goes back."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, now: float | None) -> float:
        """Take note of ``now`` (None: unknown) and return the latest time."""
        if now is not None and now > self.now:
            self.now = now
        return self.now
