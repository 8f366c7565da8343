"""Delete spool files on a separate thread: the receiving thread must not wait for a slow store."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from amqp_spark import crashpoints
from amqp_spark.errors import SpoolError

if TYPE_CHECKING:
    from amqp_spark.spool.spool import Spool

_log = logging.getLogger(__name__)


class SpoolCleaner:
    """Deletes files that are no longer needed from an open spool. Files left over are deleted at the next start: no
    state owns them."""

    def __init__(self, spool: Spool, shown: str) -> None:
        self._spool = spool
        self._shown = shown
        self._changed = threading.Condition()
        self._files: deque[str] = deque()
        """Files to delete; the first one is being deleted."""
        self._thread: threading.Thread | None = None

    def delete(self, file: str) -> None:
        """Schedule the deletion of a file; return at once."""
        with self._changed:
            self._files.append(file)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="amqp-spool-delete", daemon=True)
            self._thread.start()

    def wait(self, timeout: float) -> None:
        """Return when all files are deleted, or after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._files, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._files)
                file = self._files[0]
            try:
                self._spool.delete(file)
            except SpoolError as error:
                _log.warning("%s: a file that is no longer needed stays: %s", self._shown, error)
            except Exception:  # noqa: BLE001  go on with the next file: no other thread deletes it
                _log.exception("%s: a file that is no longer needed stays", self._shown)
            crashpoints.reached(crashpoints.SPOOL_DELETED)
            with self._changed:
                self._files.popleft()
                self._changed.notify_all()
