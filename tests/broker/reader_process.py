"""A query without a JVM in a process of its own, which may be killed; its logs and its sink are files."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from amqp_spark import crashpoints
from tests.support.process import die_with_us, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ROOT = Path(__file__).parents[2]


class ReaderProcess:
    """The query, and what a test does with it; the program is :mod:`tests.support._reader_process`.

    Attributes:
        directory: of its files.
    """

    directory: Path
    _reader: subprocess.Popen[bytes] | None = None
    _watcher: subprocess.Popen[bytes] | None = None

    def prepare(self, options: Mapping[str, str]) -> None:
        """Make the directory, with the options of the query."""
        self.points.mkdir(parents=True)
        (self.directory / "options.json").write_text(json.dumps(options))

    @property
    def points(self) -> Path:
        """Directory of the crash points."""
        return self.directory / "points"

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return self._reader is not None and self._reader.poll() is None

    def start(self) -> None:
        """Start the process; the query goes on where its files end."""
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), crashpoints.VARIABLE: str(self.points)}
        with (self.directory / "log").open("ab") as log:
            self._reader = subprocess.Popen(
                [sys.executable, "-m", "tests.support._reader_process", str(self.directory)],
                env=environment, cwd=_ROOT, stdout=log, stderr=log,
            )  # fmt: skip
        self._watcher = die_with_us(self._reader.pid)

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        for process in (self._reader, self._watcher):
            if process is not None:
                process.kill()
                process.wait()
        self._watcher = None

    def close(self) -> None:
        """End what runs."""
        self.kill()

    def is_well(self) -> bool:
        """True; an AssertionError if the process has ended."""
        assert self.runs, f"the reader has ended:\n{self.log()[-4000:]}"
        return True

    # --- crash points

    def arm(self, point: str, *, after: int = 0) -> None:
        """Let the reader wait at a point when it comes there for the time ``after``, from 0."""
        self.release()
        (self.points / f"{point}.armed").write_text(f"wait {after}")

    def arrives(self, point: str, within_s: float = 6.0) -> bool:
        """Wait until the reader is at the armed point; False if it is not there in time (seconds)."""
        try:
            wait_until(lambda: self.is_well() and any(self.points.glob("*.reached")), point, within_s)
        except TimeoutError:
            return False
        return True

    def reach(self, point: str, *, after: int = 0, within_s: float = 6.0) -> bool:
        """Let the reader run to a point, where it waits; False if it is not there in time (seconds)."""
        self.arm(point, after=after)
        return self.arrives(point, within_s)

    def release(self) -> None:
        """Let the reader run on, past every point."""
        for path in self.points.iterdir():
            path.unlink(missing_ok=True)

    # --- what it has done

    def drained(self, is_complete: Callable[[], bool]) -> Counter[bytes]:
        """Let the query read until it is idle and the sink is complete, or has not grown for a minute; the caller finds
        what is missing then. Kill it, and return the bodies in the sink."""
        (self.directory / "complete").touch()
        before = -1
        while (stored := self.sink().total()) > before and not self._completes_in_a_minute(is_complete):
            before = stored
        time.sleep(1.0)  # what comes twice may come late: it can only be waited for
        self.kill()
        return self.sink()

    def _completes_in_a_minute(self, is_complete: Callable[[], bool]) -> bool:
        try:
            wait_until(lambda: self.is_well() and self._is_idle() and is_complete(), "all are read", 60, poll_s=0.1)
        except TimeoutError:
            return False
        return True

    def sink(self) -> Counter[bytes]:
        """Bodies in the sink."""
        found: Counter[bytes] = Counter()
        for path in (self.directory / "sink").glob("*.json"):
            found.update(base64.b64decode(each) for each in json.loads(path.read_text()))
        return found

    def log(self) -> str:
        """The log of all its processes."""
        return (self.directory / "log").read_text()

    def _is_idle(self) -> bool:
        idle = self.directory / "idle"
        return self._reader is not None and idle.exists() and idle.read_text() == str(self._reader.pid)
