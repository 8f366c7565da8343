"""AvailableNow without credit: count a queue once more while its messages arrive, on another connection and thread.

On the connection that receives, the answer would come after all messages that are under way. And the thread that
receives must go on to read and to send heartbeats, however long another connection takes. If that one fails, whatever
the reason, this says nothing about the session that receives: it is tried again later.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Client, QueueInfo

    Counted = Callable[[Client, QueueInfo | None], Callable[[], None]]
    """Takes a client and its answer, and returns what is to be done with it on the thread that receives."""

_log = logging.getLogger(__name__)


class SecondCount:
    """Counts one queue, on request."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._thread: threading.Thread | None = None
        self._found: Callable[[], None] | None = None
        self.failures = 0
        """How often no answer was to be had, one time after the other."""

    def begin(self, connect: Callable[[], Client], counted: Counted) -> None:
        """Count on another thread, unless it counts already."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._count, args=(connect, counted), name=f"amqp-count-{self._queue}", daemon=True
            )
            self._thread.start()

    def take(self) -> None:
        """Do what there is to be done with an answer that has come since the last call."""
        found, self._found = self._found, None
        if found is not None:
            found()

    def _count(self, connect: Callable[[], Client], counted: Counted) -> None:
        try:
            with connect() as client:
                self._found = counted(client, client.query_queue(self._queue))
            self.failures = 0
        except AmqpError as error:
            self.failures += 1
            _log.info("queue %r: its messages are counted again later: %s", self._queue, error)
        except Exception as error:  # noqa: BLE001  every error must reach the query
            self._found = partial(_raise, error)


def _raise(error: Exception) -> NoReturn:
    raise error
