"""Tells what the demonstration does, line by line, and ends it where a signal asks for that."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from amqp_core.standard_output import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_spark.cli import Signals


class Reporter:
    """Prints the lines of the demonstration.

    Args:
        signals: looked at by :meth:`check`. PySpark cannot be interrupted everywhere: it would leave processes behind.
    """

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Print one line."""
        say(text)

    def detail(self, text: str) -> None:
        """Print one line about the step that runs."""
        self.say(f"    {text}")

    @contextmanager
    def step(self, number: int, title: str) -> Iterator[None]:
        """Say what begins, and in the end how long it took."""
        self.check()
        started = time.monotonic()
        self.say(f"{number}/6 {title}")
        yield
        self.detail(f"({time.monotonic() - started:.1f} s)")

    def check(self) -> None:
        """Raise :class:`amqp_spark.cli.Stopped` if a signal has come."""
        self._signals.check()

    def keep_signals(self) -> None:
        """Take the signals back from PySpark, which handles SIGINT itself from the start of a SparkContext on."""
        self._signals.install()

    @property
    def elapsed(self) -> str:
        """Seconds since the beginning."""
        return f"{time.monotonic() - self._started:.1f} s"
