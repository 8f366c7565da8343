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
_log = logging.getLogger(__name__)


class LoginChecks:
    """Runs checks; for the event loop in which it is called."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    def run(self, check: Callable[[], bool], done: Callable[[bool], None]) -> None:
        """Run a check in a thread, and then call ``done`` in the loop.

        As many may wait as clients are about to log in. Who has waited for too long is disconnected and may come
        again: a refusal would say that the password is wrong.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="amqp login")
        future = asyncio.get_running_loop().run_in_executor(self._threads, check)

        def finish(finished: asyncio.Future[bool]) -> None:
            if finished.cancelled():
                return
            error = finished.exception()
            if error is not None:
                _log.error("a login could not be checked: %s", type(error).__name__)
            done(error is None and finished.result())

        future.add_done_callback(finish)

    def stop(self) -> None:
        """Forget what waits."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
