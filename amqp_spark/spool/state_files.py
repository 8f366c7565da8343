"""The state of exactly-once as files of the spool, for brokers without transactions: the newest file is the state.

A file is never changed. Its name has the epoch and a serial number: of two files the later one counts. Each process
raises the epoch, and creates the first file of an epoch only if no other process has: so a process that was suspended,
and has lost its lock, cannot hide what its successor writes. That file stays until the next epoch begins. Where a file
cannot be created exclusively, the file after it decides. A process that writes looks for a later epoch afterwards, so
that one whose lock no longer counts ends before it acknowledges anything.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pyarrow import ArrowException

from amqp_spark.spool.directories import CLAIM
from amqp_spark.state.names import hashed

if TYPE_CHECKING:
    from amqp_spark.spool.spool import Spool

_ENDING: Final = ".json"
_READS: Final = 20
"""Attempts to read the newest file: a process that lives replaces it with each batch."""
_EMPTY_LOOKS: Final = 20
_EMPTY_SECONDS: Final = 0.1


class StateFile(NamedTuple):
    """A file: its place in the order of all, and its content."""

    epoch: int
    serial: int
    content: bytes


class StateOutdatedError(Exception):
    """The state has changed since it was read."""


class StateFiles:
    """The files of one state, by its ``name``, in an open spool. Every failure raises a SpoolError."""

    def __init__(self, spool: Spool, name: str) -> None:
        self._spool = spool
        self._name = name
        self._pattern = re.compile(re.escape(name) + r"\.([0-9]{10,})-([0-9]{8,})" + re.escape(_ENDING))
        self.at: tuple[int, int] | None = None
        """Place of the file that :meth:`latest` has found, or that was written since."""
        self._claims = re.compile(self._pattern.pattern + r"\..+" + re.escape(CLAIM))

    def latest(self) -> StateFile | None:
        """Read the newest file; ``None`` if there is none.

        Empty files are skipped. Some stores (``abfs``) create a file before they have its content. A process that was
        killed in between has not acknowledged anything that this file should record.
        """
        found = self._filled(below=None)
        self.at = None if found is None else (found.epoch, found.serial)
        return found

    def _filled(self, *, below: tuple[int, int] | None) -> StateFile | None:
        found = self._latest(below=below)
        while found is not None and not found.content:
            found = self._latest(below=(found.epoch, found.serial))
        return found

    def _latest(self, *, below: tuple[int, int] | None) -> StateFile | None:
        with self._spool.location.spool_errors("cannot be read"):
            newest = self._newest(below)
            for _ in range(_READS):
                if newest is None:
                    return None
                try:
                    return self._read(newest)
                except (OSError, ArrowException):
                    before, newest = newest, self._newest(below)
                    if newest == before:
                        raise
            return None if newest is None else self._read(newest)

    def begin(self, epoch: int, content: bytes) -> bool:
        """Write the first file of an epoch; return whether it is ours, and the newest. Then older ones are deleted,
        and what processes have left that were killed in here.

        A file that stays empty is replaced: its writer was killed, as :meth:`latest` says.

        Raises:
            StateOutdatedError: since :meth:`latest` another process has written a file, whose lock no longer counts. It
                could not know of this epoch, so that it may have deleted batches that ``content`` owns.
        """
        self._check_newest(epoch)
        with self._spool.location.spool_errors("cannot be written"):
            if self._claim(epoch, content) == b"":
                self._spool.place.delete(self._file(epoch, 0))
                self._claim(epoch, content)
            places = self._places()
            if self._read((epoch, 0)).content != content or max(places) > (epoch, 0):
                return False
            try:  # what is written from now on does not count: its writer finds this epoch
                self._check_newest(epoch)
            except StateOutdatedError:
                self._spool.place.delete(self._file(epoch, 0))
                raise
            for place in places:
                if place < (epoch, 0):
                    self._delete(self._file(*place))
            for name in self._spool.place.names():
                if self._claims.fullmatch(name):
                    self._delete(name)
        self.at = epoch, 0
        return True

    def write(self, epoch: int, serial: int, content: bytes) -> int:
        """Write the next file of an epoch, which this process has begun; return the latest epoch that any process has
        begun. Then the file before is deleted, except for the first one: as long as that is there, no other process
        can begin this epoch."""
        with self._spool.location.spool_errors("cannot be written", "the broker keeps messages that are not accepted"):
            self._spool.place.write(self._file(epoch, serial), (content,))
            self.at = epoch, serial
            latest = max(self._places(), default=self.at)
        if serial > 1:
            self._delete(self._file(epoch, serial - 1))
        return max(epoch, latest[0])

    def _check_newest(self, epoch: int) -> None:
        found = self._filled(below=(epoch, 0))
        if found is not None and (found.epoch, found.serial) != self.at:
            raise StateOutdatedError

    def _claim(self, epoch: int, content: bytes) -> bytes:
        """Create the first file of an epoch unless it exists; return what it has, once it is not empty."""
        self._spool.place.claim(self._file(epoch, 0), content, hashed(self._name))
        for _ in range(_EMPTY_LOOKS):
            if found := self._read((epoch, 0)).content:
                return found
            time.sleep(_EMPTY_SECONDS)  # being written, in a store that shows incomplete files
        return b""

    def _newest(self, below: tuple[int, int] | None) -> tuple[int, int] | None:
        """The place of the newest file, or of the newest before another one. A listing that runs while files are
        replaced may lack the latest ones, but not the first one of an epoch."""
        places = self._places()
        if places and max(places)[1] == 0:
            places += self._places()
        return max((place for place in places if below is None or place < below), default=None)

    def _read(self, place: tuple[int, int]) -> StateFile:
        with self._spool.place.open(self._file(*place)) as opened:
            return StateFile(*place, bytes(opened.read_at(0, opened.size)))

    def _places(self) -> list[tuple[int, int]]:
        found = (self._pattern.fullmatch(name) for name in self._spool.place.names())
        return [(int(each[1]), int(each[2])) for each in found if each is not None]

    def _file(self, epoch: int, serial: int) -> str:
        return f"{self._name}.{epoch:010d}-{serial:08d}{_ENDING}"

    def _delete(self, name: str) -> None:
        with contextlib.suppress(Exception):  # an old file is ignored, and deleted when the next epoch begins
            self._spool.place.delete(name)
