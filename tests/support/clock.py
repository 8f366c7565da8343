"""Time that a test sets."""

from __future__ import annotations


class Clock:
    """A clock in seconds; it stands still until a test changes ``now``."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
