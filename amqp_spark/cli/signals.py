"""Signals as flags."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import FrameType


SAME_SECONDS: Final = 1.0
"""A signal repeated within this time counts as the same: timeout(1), for one, signals the process, then its group."""


class Signals:
    """SIGINT and SIGTERM as a flag for a loop; a second signal, later, ends the process at once.

    A context manager that restores the previous handlers at its end.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._at = 0.0
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers; repeat it after a SparkContext was made, which sets its own for SIGINT."""
        for number in self._before:
            signal.signal(number, self._handle)

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number, as in a shell; ``None`` without a signal."""
        return None if self.received is None else 128 + self.received

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._at = number, time.monotonic()
        elif time.monotonic() - self._at >= SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
