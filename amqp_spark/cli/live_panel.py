"""The panel of a job on the terminal: keeps its state, and has it drawn."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from amqp_spark.cli.panel import State, draw
from amqp_spark.cli.queue_tracks import QueueTracks
from amqp_spark.cli.warning_lines import printable, warning_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from rich.console import RenderableType

_REFRESHES_PER_SECOND: Final = 2
_MOST_WARNINGS: Final = 20
_SIZE: Final = (80, 24)


class LivePanel:
    """A panel at the lower end of a terminal; lines appear above it and stay. Any thread may use it.

    Args:
        job: its name.
        terminal: file to write to.
    """

    def __init__(self, job: str, terminal: TextIO) -> None:
        self._job = job
        self._terminal = terminal
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._tracks = QueueTracks()
        self._tasks: tuple[int, int] | None = None
        self._warnings: dict[str, int] = {}
        self._phase = "starting Spark"
        self._console = Console(file=terminal, force_terminal=True, markup=False, highlight=False, emoji=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._drawn,
            refresh_per_second=_REFRESHES_PER_SECOND,
            redirect_stdout=False,  # it carries the report
            redirect_stderr=False,  # StandardError has it
        )

    def start(self) -> None:
        """Show it."""
        self._live.start(refresh=True)
        self._console.show_cursor(True)  # a process that is killed cannot show it again

    def phase(self, text: str) -> None:
        """Show what the job does now."""
        with self._lock:
            self._phase = text

    def show(self, recent: Iterable[StreamingQueryProgress]) -> None:
        """Take the progress events of a query; those that were there before are passed over."""
        with self._lock:
            self._tracks.add(recent)

    def tasks(self, done: int, total: int) -> None:
        """Show the progress of an action that has no batches."""
        with self._lock:
            self._tasks = done, total

    def line(self, text: str) -> None:
        """Show a line of standard error above the panel, and as a warning in it if it is one."""
        warning = warning_of(text)
        if warning is not None:
            with self._lock:
                self._warnings[warning] = self._warnings.pop(warning, 0) + 1  # the newest last
                while len(self._warnings) > _MOST_WARNINGS:
                    del self._warnings[next(iter(self._warnings))]
        self.say(text)

    def say(self, text: str) -> None:
        """Show a line above the panel; after its end, below."""
        self._fit()
        self._console.print(Text(printable(text)), soft_wrap=True)

    def close(self) -> None:
        """End it; the last picture stays."""
        self.phase("ended")
        self._live.stop()

    def state(self) -> State:
        """What it shows now."""
        with self._lock:
            losses = ((text, 1) for text in self._tracks.losses())
            return State(
                job=self._job,
                phase=self._phase,
                seconds=time.monotonic() - self._started,
                queues=self._tracks.tracks(),
                last=self._tracks.last,
                rows=self._tracks.rows,
                batches=self._tracks.batches,
                tasks=self._tasks,
                warnings=(*losses, *self._warnings.items()),
            )

    def _drawn(self) -> RenderableType:
        self._fit()
        width, height = self._console.size
        return draw(self.state(), width=width, height=height, ascii_only=self._console.options.ascii_only)

    def _fit(self) -> None:
        """Take the size of this terminal: rich would ask standard input, output and error, which may be others."""
        try:
            columns, lines = os.get_terminal_size(self._terminal.fileno())
        except OSError:
            columns, lines = 0, 0
        self._console.width, self._console.height = (columns or _SIZE[0]), (lines or _SIZE[1])
