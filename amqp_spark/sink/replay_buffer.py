"""Keeps the runs of a task so that they can be sent again: in memory, and on disk above a limit."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, cast

from amqp_core.transfer_ledger import Transfers
from amqp_spark.sink.origins import origin_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_spark.sink.origins import Origin

_log = logging.getLogger("amqp_spark.sink")

MOST_BYTES: Final = 32 << 20
"""Maximum bytes of frames kept in memory: as many as may be in flight without transactions."""


class _OnDisk(NamedTuple):
    """A run whose frames come next in the file."""

    nbytes: int
    ends: Sequence[int]
    origin: Origin


class ReplayBuffer:
    """All runs of a task in order; or none (not ``is_whole``), if they are too large and must not be written to
    disk."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.is_whole = True
        self._runs: list[Transfers] = []
        self._on_disk: list[_OnDisk] = []
        self._file: BinaryIO | None = None

    def add(self, transfers: Transfers, *, may_spill: bool) -> None:
        """Keep one more run. ``may_spill``: frames above the memory limit go into an unnamed file in a local directory
        of Spark. If not, or if the directory has no room, nothing is kept from then on."""
        self.nbytes += transfers.frames.nbytes
        if not self.is_whole:
            return
        if self.nbytes <= MOST_BYTES:
            self._runs.append(transfers)
        elif not may_spill or not self._spilled(transfers):
            self.is_whole = False
            self._runs.clear()
            self.close()

    def runs(self) -> Iterator[Transfers]:
        """All added runs in order; call it only if :attr:`is_whole`."""
        assert self.is_whole
        yield from self._runs
        if self._file is not None:
            self._file.seek(0)
            for run in self._on_disk:
                yield Transfers(self._file.read(run.nbytes), run.ends, run.origin)

    def close(self) -> None:
        """Delete the data on disk."""
        self._on_disk.clear()
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # of a full disk: it writes what is left once more
                file.close()

    def _spilled(self, transfers: Transfers) -> bool:
        try:
            if self._file is None:
                self._file = _unnamed_file()
            self._file.write(transfers.frames)
            self._file.flush()
        except OSError as error:
            _log.warning(
                "the rows of a task cannot be kept on disk (%s); Spark runs the task again if a queue is full", error
            )
            return False
        origin = origin_of(transfers).alone()  # the broker is not one that rejects
        self._on_disk.append(_OnDisk(transfers.frames.nbytes, transfers.ends, origin))
        return True


def _unnamed_file() -> BinaryIO:
    """Open a file in the first directory that Spark gives its executors, else in the system's temporary directory."""
    place = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip()
    return cast("BinaryIO", tempfile.TemporaryFile(dir=place if place and Path(place).is_dir() else None))
