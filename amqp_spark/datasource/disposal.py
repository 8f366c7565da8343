"""Deleting files of a spool on a thread of its own: the thread that receives must not wait for a slow store."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from amqp_spark import crashpoints
from amqp_spark.errors import SpoolError

if TYPE_CHECKING:
    from amqp_spark.datasource.spool import Spool

_log = logging.getLogger(__name__)


class Disposal:
    """Deletes what is no longer needed. What it does not come to is deleted by the next start, which owns it no more.

    Parameters:
        spool: open when the first file is given.
        shown: whose files, for warnings.
    """

    def __init__(self, spool: Spool, shown: str) -> None:
        self._spool = spool
        self._shown = shown
        self._files: SimpleQueue[str | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def delete(self, file: str) -> None:
        """Have a file deleted soon; returns at once."""
        self._files.put(file)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="amqp-spool-delete", daemon=True)
            self._thread.start()

    def close(self, timeout: float) -> None:
        """Wait, for so many seconds at most, until everything was deleted; nothing is taken any more."""
        if self._thread is not None:
            self._files.put(None)
            self._thread.join(timeout)

    def _run(self) -> None:
        while (file := self._files.get()) is not None:
            try:
                self._spool.delete(file)
            except SpoolError as error:
                _log.warning("%s: a file that is no longer needed stays: %s", self._shown, error)
            crashpoints.reached(crashpoints.SPOOL_DELETED)
