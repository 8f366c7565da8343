"""Kills a child process when its parent has ended, for whatever reason.

Run as a program with two process ids, parent and child, and a directory to remove after such a kill. A kernel
signal on the parent's death would be simpler, but it is tied to the *thread* that started the child, and exists on
Linux only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time


def watch(parent: int, child: int) -> bool:
    """Wait for the end of ``child``; return whether it was killed here because ``parent`` ended before it."""
    if not hasattr(os, "pidfd_open"):
        return _poll(parent, child)
    try:
        child_fd = os.pidfd_open(child)
    except ProcessLookupError:
        return False
    try:
        parent_fd = os.pidfd_open(parent)
    except ProcessLookupError:
        ended: list[int] = []
    else:
        ended = select.select([parent_fd, child_fd], [], [])[0]
    if child_fd in ended:
        return False
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child_fd, signal.SIGKILL)
    select.select([child_fd], [], [])
    return True


def _poll(parent: int, child: int) -> bool:
    while _alive(child):
        if not _alive(parent):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            return True
        time.sleep(0.5)
    return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    if watch(int(sys.argv[1]), int(sys.argv[2])):
        for directory in sys.argv[3:]:
            shutil.rmtree(directory, ignore_errors=True)
