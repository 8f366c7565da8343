"""Checks of passwords that take long, on purpose: in threads, so that the clients that are connected do not wait."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS: Final = 2
"""At once; each takes 16 MiB and a core."""
MOST_WAITING: Final = 100
"""At once, with those that run; 50 ms each, they are done before a client's time for its login is over."""

_log = logging.getLogger(__name__)


class LoginChecks:
    """Runs checks; for the event loop in which it is called."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._waiting = 0

    def run(self, check: Callable[[], bool], done: Callable[[bool], None]) -> bool:
        """Run a check in a thread, and then call ``done`` in the loop; return whether there is room for it."""
        if self._waiting >= MOST_WAITING:
            return False
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="amqp login")
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, check)

        def finish(finished: asyncio.Future[bool]) -> None:
            self._waiting -= 1
            if finished.cancelled():
                return
            error = finished.exception()
            if error is not None:
                _log.error("a login could not be checked: %s", type(error).__name__)
            done(error is None and finished.result())

        future.add_done_callback(finish)
        return True

    def stop(self) -> None:
        """Forget what waits."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
