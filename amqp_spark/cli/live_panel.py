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
    from collections.abc import Callable, Iterable

    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from rich.console import RenderableType

_REFRESH_SECONDS: Final = 0.5
_MOST_WARNINGS: Final = 20
_SIZE: Final = (80, 24)


class LivePanel:
    """A panel at the lower end of a terminal; lines appear above it and stay. Any thread may use it.

    Args:
        job: its name.
        terminal: file to write to.
        drain: called before the end, so that the last picture has the warnings that are on their way.
    """

    def __init__(self, job: str, terminal: TextIO, drain: Callable[[], None] = lambda: None) -> None:
        self._drain = drain
        self._job = job
        self._terminal = terminal
        self._started = time.monotonic()
        self._writing = threading.Lock()  # rich keeps the height of the last picture: one thread may write
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._tracks = QueueTracks()
        self._tasks: tuple[int, int] | None = None
        self._warnings: dict[str, int] = {}
        self._phase = "starting Spark"
        self._console = Console(file=terminal, force_terminal=True, markup=False, highlight=False, emoji=False)
        self._live = Live(
            console=self._console,
            get_renderable=self._drawn,
            auto_refresh=False,  # its thread and a print in another one would write at the same time
            redirect_stdout=False,  # it carries the report
            redirect_stderr=False,  # StandardError has it
        )

    def start(self) -> None:
        """Show it."""
        with self._writing:
            self._live.start(refresh=True)
            self._console.show_cursor(True)  # a process that is killed cannot show it again
        threading.Thread(target=self._refresh, name="amqp-panel", daemon=True).start()

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_SECONDS):
            with self._writing:
                if not self._ended.is_set():
                    self._live.refresh()

    def phase(self, text: str) -> None:
        """Show what the job does now."""
        with self._lock:
            self._phase = text

    def show(self, new: Iterable[StreamingQueryProgress]) -> None:
        """Take the new progress events of a query."""
        with self._lock:
            self._tracks.add(new)

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
        with self._writing:
            self._fit()
            self._console.print(Text(printable(text)), soft_wrap=True)

    def close(self) -> None:
        """End it; the last picture stays."""
        if self._live.is_started:
            self._drain()
        self.phase("ended")
        self._ended.set()
        with self._writing:
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
