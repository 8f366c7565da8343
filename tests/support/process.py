"""Child processes that do not outlive the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WATCH = Path(__file__).with_name("_watch.py")


def die_with_us(pid: int, work_dir: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a watcher that kills the process ``pid`` and removes ``work_dir`` when this process ends for any reason.

    Nothing is removed if the child ends first.

    Returns:
        The watcher, which ends when the child does; wait for it to leave no zombie.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_WATCH), str(os.getpid()), str(pid), *([str(work_dir)] if work_dir else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # this process handles Ctrl-C of the terminal
    )


@contextmanager
def ends_with_the_test(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process if the test fails meanwhile: ``Popen`` as a context would wait for it for ever."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 30.0, poll_s: float = 0.02) -> None:
    """Wait until ``condition()`` is true.

    Args:
        condition: called every ``poll_s`` seconds; may raise to end the wait.
        what: description of the condition, for the error.
        timeout_s: the deadline; it only bounds a failure and measures nothing.
        poll_s: seconds between two calls.

    Raises:
        TimeoutError: the deadline has passed.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(poll_s)
