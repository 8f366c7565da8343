"""A terminal of its own for what a test runs, and the screen as its user sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyte

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal:
    """A pseudo terminal that keeps up to 10,000 lines which have left its screen.

    Attributes:
        descriptor: for what writes to it.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self._reads, self.descriptor = pty.openpty()
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._lock = threading.Lock()
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._raw = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._reads, 65_536)
            except OSError:  # EIO: all that write have closed it
                return
            with self._lock:
                self._raw += data
                self._stream.feed(data)

    @property
    def raw(self) -> bytes:
        """All that was written."""
        with self._lock:
            return self._raw

    def shown(self) -> list[str]:
        """The lines above the screen and those of the screen, without spaces at their ends."""
        with self._lock:
            width = range(self._screen.columns)
            above = ["".join(line[column].data for column in width) for line in self._screen.history.top]
            return [line.rstrip() for line in [*above, *self._screen.display]]

    def end(self) -> None:
        """Close it for writing here, and wait for what was written."""
        os.close(self.descriptor)
        self._thread.join(60)
        os.close(self._reads)


@contextmanager
def terminal(columns: int = 100, lines: int = 30) -> Iterator[Terminal]:
    """A terminal while the context lasts; its screen can be read afterwards."""
    made = Terminal(columns, lines)
    try:
        yield made
    finally:
        made.end()


@contextmanager
def standard_error_on(shown: Terminal) -> Iterator[None]:
    """Descriptor 2 and ``sys.stderr`` on a terminal."""
    kept, before = os.dup(2), sys.stderr
    os.dup2(shown.descriptor, 2)
    try:
        with open(2, "w", encoding="utf-8", closefd=False) as sys.stderr:
            yield
    finally:
        sys.stderr = before
        os.dup2(kept, 2)
        os.close(kept)
