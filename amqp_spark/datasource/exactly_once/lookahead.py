"""Plan the next batch while Spark works on the current one, so that Spark does not wait for writing and owning it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.datasource.receive_buffer import ReceiveBuffer

_log = logging.getLogger(__name__)


class Lookahead:
    """A thread that plans one batch at a time, on request (``wanted``) and when there is enough for one."""

    def __init__(self, held: ReceiveBuffer) -> None:
        self.wanted = False
        self._wishes = 0
        self._held = held
        self._lock = held.changed
        self._thread: threading.Thread | None = None
        self._full: Callable[[], bool] = bool
        self._plan: Callable[[], None] = lambda: None

    def start(
        self, full: Callable[[], bool], plan: Callable[[], None], nbytes: int, messages: int | None = None
    ) -> None:
        """Call ``plan`` once, as soon as ``full`` returns true; ``full`` is called under the lock.

        It cannot be true below both ``nbytes`` and ``messages``: wake-ups are suppressed until one is reached.
        """
        with self._lock:
            self._full, self._plan, self.wanted = full, plan, True
            self._wishes += 1
            self._held.want(nbytes, messages)
            self._lock.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="amqp-plan-ahead", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Begin no new plan."""
        with self._lock:
            self.wanted = False
            self._held.want(0)

    def join(self, timeout: float) -> None:
        """Wait for the thread to end after ``ReceiveBuffer.stopping`` was set."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._held.stopping and not (self.wanted and self._full()):
                    self._lock.wait()
                if self._held.stopping:
                    return
                self._held.want(0)
                wish = self._wishes
            try:
                self._plan()
            except AmqpError as error:
                _log.info("a batch could not be planned ahead: %s", error)  # Spark's next call retries and reports
            except Exception:  # noqa: BLE001  nothing depends on this thread
                _log.exception("planning ahead has failed and is given up")
                return
            with self._lock:
                if wish == self._wishes:  # else Spark has received this batch already and requested the next one
                    self.stop()
