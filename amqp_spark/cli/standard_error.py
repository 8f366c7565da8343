"""Standard error of this process and of all that it starts, line by line, while a panel has the terminal.

The Java of Spark, its Python workers and the reader of the source write to the descriptor that they inherit: a line of
theirs in the middle of a panel would tear it. So the descriptor is a pipe as long as the panel is there, and a thread
passes each line on at once. Nothing is kept back, so that an end without warning loses no line that has been written.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES: Final = 65_536
_DRAIN_SECONDS: Final = 60.0


class StandardError:
    """A context manager that takes a descriptor, and gives it back at its end.

    Processes that were started meanwhile keep the pipe: their lines are passed on as long as this process lives.

    Args:
        descriptor: standard error, unless a test has another one.

    Attributes:
        terminal: the file behind the descriptor, as text, for the panel; closed at the end.
        on_line: gets every line without its end, in order, in a thread, until the end. A line for which it raises an
            error is written to the terminal as it is, and so are all lines while there is no such function.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self.on_line: Callable[[str], None] | None = None
        self._descriptor = descriptor
        self._mark = b"\0" + uuid.uuid4().bytes.replace(b"\n", b".") + b"\0"  # no program writes it by chance
        self._drained = threading.Event()
        self._before = os.dup(descriptor)
        self.terminal = os.fdopen(os.dup(self._before), "w", encoding="utf-8", errors="replace")
        self._reads, self._writes = os.pipe()

    def __enter__(self) -> Self:
        sys.stderr.flush()
        os.dup2(self._writes, self._descriptor)
        threading.Thread(target=self._pass_on, name="amqp-standard-error", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        sys.stderr.flush()
        os.dup2(self._before, self._descriptor)
        self.drain()  # all that this process has written is on the terminal before what follows
        self.on_line = None
        os.close(self._writes)
        self.terminal.close()

    def drain(self) -> None:
        """Wait until ``on_line`` has had all that was written before."""
        sys.stderr.flush()
        self._drained.clear()
        os.write(self._writes, self._mark + b"\n")
        self._drained.wait(_DRAIN_SECONDS)

    def _pass_on(self) -> None:
        rest = b""
        while data := os.read(self._reads, _READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(line)
        if rest:
            self._take(rest)
        os.close(self._reads)
        os.close(self._before)

    def _take(self, line: bytes) -> None:
        marked = self._mark in line
        line = line.replace(self._mark, b"")  # before it, there may be a line that has no end yet
        if line or not marked:
            self._show(line)
        if marked:
            self._drained.set()

    def _show(self, line: bytes) -> None:
        if self.on_line is not None:
            try:
                self.on_line(line.decode(errors="replace").rstrip("\r"))
            except Exception:  # noqa: BLE001, S110 - a thread that ends would block the processes that write
                pass
            else:
                return
        try:
            os.write(self._before, line + b"\n")
        except OSError:  # the terminal is gone
            return
