"""Signals as flags."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import FrameType


SAME_SECONDS: Final = 1.0
"""A signal that comes again so soon is the same one: timeout(1), for one, tells the process, and then its group."""


class Signals:
    """SIGINT and SIGTERM as a flag that a loop looks at; a second signal, later, ends the process at once.

    A context manager: at its end the handlers are those from before.
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
        """Take the handlers; again after a SparkContext was made, which sets its own for SIGINT."""
        for number in self._before:
            signal.signal(number, self._handle)

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number, as a shell says it; ``None`` when none came."""
        return None if self.received is None else 128 + self.received

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._at = number, time.monotonic()
        elif time.monotonic() - self._at >= SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
