"""The spool of exactly-once: a directory with the bytes of planned batches; as they are accepted, no other copy exists.

One spool serves one queue of one consumer; the queues of a consumer share the directory, two consumers never do. The
state message on the broker lists the valid files: a file without an entry is rubbish, an entry without a valid file is
a loss and is reported.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from pyarrow import fs

from amqp_spark import crashpoints
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import SpoolError
from amqp_spark.spool import format as spool_format
from amqp_spark.spool.directories import CLAIM, PARTIAL, directory
from amqp_spark.spool.format import Checksum, Header, OtherVersion, Unreadable
from amqp_spark.spool.identity import Identity
from amqp_spark.spool.location import Location, version_unknown
from amqp_spark.state.names import hashed
from amqp_spark.state.records import OwnedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from amqp_spark.spool.directories import Directory, File
    from amqp_spark.spool.format import Bytes

_ENDING: Final = ".spool"
_CHECK_BYTES: Final = 4 << 20
_LOST: Final = "the accepted messages of this batch are nowhere else"


class BatchLostError(SpoolError):
    """The file of a batch is missing or damaged. Retrying does not help."""


class Written(NamedTuple):
    """Record of a file for the state message, without its range."""

    file: str
    checksum: str
    nbytes: int
    """Bytes of the transfers."""


@dataclass(frozen=True, slots=True)
class SpooledBatch:
    """A batch as read from its file."""

    header: Header
    frames: memoryview
    ends: array[int]
    """End offset of each transfer in ``frames``."""


class Spool:
    """The files of one queue of one consumer.

    Every method but :meth:`open` needs an open spool, does I/O and may be called from any thread. Every failure raises
    a SpoolError that names the directory, the cause and the remedy. ``resolve`` turns a URI into a file system and a
    path on it.
    """

    def __init__(
        self,
        location: str,
        *,
        consumer_id: str,
        queue: str,
        resolve: Callable[[str], tuple[fs.FileSystem, str]] = fs.FileSystem.from_uri,
    ) -> None:
        self.location = Location(location)
        self._identity = Identity(self.location, consumer_id)
        self._consumer_id = consumer_id
        self._queue = queue
        self._resolve = resolve
        self._prefix = f"{hashed(consumer_id, queue)}-"
        self._own = re.compile(re.escape(self._prefix) + r"[0-9]+-[0-9]+-[0-9a-f]+" + re.escape(_ENDING))
        self._directory: Directory | None = None
        self.instance = ""
        """Hexadecimal suffix of the names of written files. It identifies the state they belong to: there may be
        consumers of the same name on several brokers."""
        self.protocol = spool_format.FIRST_PROTOCOL
        """Protocol of the transfers in all files; set it before :meth:`open`."""

    def open(self) -> None:
        """Create the directory if it is missing; check that it belongs to this consumer and is writable."""
        with self.location.spool_errors("cannot be used"):
            place = self._resolved()
            place.create()
            content = self._identity.content(place)
        if content is not None:
            self._identity.check(content, self.protocol)
        with self.location.spool_errors("cannot be used"):
            self._prove_writable(place)
            if content is None:
                content = self._identity.claim(place, self.protocol)
        self._identity.check(content, self.protocol)
        self._directory = place

    def look(self) -> None:
        """Open for reading only: nothing is created or written. A directory of another consumer is refused, too."""
        with self.location.spool_errors("cannot be read"):
            place = self._resolved()
            place.names()
            content = self._identity.content(place)
        self.protocol = self._identity.check(content)
        self._directory = place

    def write(
        self, *, epoch: int, sequence: int, begin: int, parts: Sequence[memoryview], ends: Sequence[int] | np.ndarray
    ) -> Written:
        """Write a new file, whose first transfer has position ``begin``. On return it is complete and durable; after a
        SpoolError it does not exist. ``ends``: offsets in the concatenated parts; an array is processed without a
        Python loop."""
        nbytes = sum(len(part) for part in parts)
        offsets = np.ascontiguousarray(ends, dtype="<u8")
        if (int(offsets[-1]) if len(offsets) else 0) != nbytes:
            raise ValueError(f"the ends say {offsets[-1:]} bytes, the parts have {nbytes}")
        header = Header(self._consumer_id, self._queue, epoch, sequence, begin, len(offsets), nbytes, self.protocol)
        own = f"{secrets.token_hex(4)}{self.instance}"
        name = f"{self._prefix}{epoch:010d}-{sequence:012d}-{own}{_ENDING}"
        checksum = Checksum()
        pieces = spool_format.pieces(header, parts, offsets.view("u1").data, checksum)
        with self.location.spool_errors(
            f"cannot take batch {sequence} of queue {self._queue!r} ({nbytes:,} bytes)",
            "none of its messages is accepted, so the broker keeps them",
        ):
            self._place.write(name, _announced(pieces, header.file_bytes))
        return Written(name, checksum.text, nbytes)

    def read(self, file: str, checksum: str) -> SpooledBatch:
        """Read a batch, byte for byte as it was written; ``checksum`` is the one in the state message."""
        with self._opened(file) as opened:
            header = self._header(opened)
            data = opened.read_at(0, opened.size)
            _compare(_footer(opened, header), checksum)
            summed = Checksum()
            summed.add(data[: spool_format.covered(len(data))])
            _verify(summed, checksum)
        begin = header.file_bytes - spool_format.FOOT_BYTES - header.count * spool_format.END_BYTES
        ends = array("Q")
        ends.frombytes(np.frombuffer(data, dtype="<u8", count=header.count, offset=begin).astype("=u8").tobytes())
        return SpooledBatch(header, data[begin - header.nbytes : begin], ends)

    def check(self, batch: OwnedBatch, *, thorough: bool = False) -> None:
        """Check the file of an owned batch against the state message: all of it if reading is cheap or ``thorough`` is
        set; else everything but the transfers, whose checksum is computed when they are read.

        The file has the positions with which the batch was planned; those of an adopted batch differ in the state. So
        the checksum identifies the file.
        """
        with self._opened(batch.file) as opened:
            header = self._header(opened)
            if (header.count, header.nbytes) != (batch.count, batch.nbytes):
                raise Unreadable(
                    f"holds another batch: {header.sequence} of epoch {header.epoch}, with {header.count} messages of "
                    f"{header.nbytes} bytes, instead of {batch.count} of {batch.nbytes} bytes"
                )
            _compare(_footer(opened, header), batch.checksum)
            if thorough or self._place.cheap:
                summed = Checksum()
                covered = spool_format.covered(opened.size)
                for at in range(0, covered, _CHECK_BYTES):
                    summed.add(opened.read_at(at, min(_CHECK_BYTES, covered - at)))
                _verify(summed, batch.checksum)

    def batch(self, file: str) -> OwnedBatch:
        """Build the state message's entry for a file from the file alone; reads all of it."""
        with self._opened(file) as opened:
            header = self._header(opened)
            checksum = _footer(opened, header)
        batch = OwnedBatch(
            epoch=header.epoch,
            sequence=header.sequence,
            begin=header.begin,
            end=header.begin + header.count,
            nbytes=header.nbytes,
            file=file,
            checksum=checksum,
        )
        self.read(file, checksum)
        return batch

    def files(self) -> list[str]:
        """Sorted files of this queue of this consumer: the oldest of an epoch is first."""
        with self.location.spool_errors("cannot be listed"):
            return sorted(name for name in self._place.names() if self._own.fullmatch(name))

    @staticmethod
    def instance_of(file: str) -> str:
        """The ``instance`` of the spool that wrote a file."""
        return file.rpartition("-")[2].removesuffix(_ENDING)[8:]

    def delete(self, file: str) -> None:
        """Delete a file; a missing one is no error."""
        self._check_name(file)
        with self.location.spool_errors(f"cannot delete {file}", "the file is no longer needed, but its space is"):
            self._place.delete(file)

    def rubbish(self, owned: Collection[str], instance: str) -> list[str]:
        """Files that no state will ever own: those of an instance that are not owned, and incomplete ones.

        Valid as long as the lock is held. Names are random, so deleting exactly these files affects no successor, even
        if the lock was lost meanwhile. With an empty ``instance``: only incomplete files.
        """
        with self.location.spool_errors("cannot be listed"):
            return sorted(name for name in self._place.names() if self._is_rubbish(name, owned, instance))

    def _is_rubbish(self, name: str, owned: Collection[str], instance: str) -> bool:
        if self._own.fullmatch(name):
            return bool(instance) and self.instance_of(name) == instance and name not in owned
        partial = name.startswith(self._prefix) and name.endswith(PARTIAL)
        return partial or (name.startswith(self._identity.claims) and name.endswith(CLAIM))

    def is_batch(self, name: str) -> bool:
        """Whether a file of :meth:`rubbish` is a complete batch."""
        return self._own.fullmatch(name) is not None

    def delete_rubbish(self, name: str) -> None:
        """Delete a file of :meth:`rubbish`; a missing one is no error."""
        with self.location.spool_errors(f"cannot be cleaned of {name}", "the file is not needed, but its space is"):
            self._place.delete(name)

    @property
    def place(self) -> Directory:
        """The open directory, for the state that AMQP 0-9-1 keeps there (:mod:`.state_files`)."""
        return self._place

    # --- one file

    @contextlib.contextmanager
    def _opened(self, file: str) -> Iterator[File]:
        self._check_name(file)
        try:
            with (
                self.location.spool_errors(f"cannot read {file}", _LOST, but_missing=True),
                self._place.open(file) as opened,
            ):
                yield opened
        except FileNotFoundError:
            raise self._lost(file, "does not exist") from None
        except OtherVersion as error:
            raise version_unknown(self.location.shown, f"a file {file}", error, spool_format.VERSION) from None
        except Unreadable as error:
            raise self._lost(file, error) from None

    def _lost(self, file: str, reason: object) -> BatchLostError:
        return BatchLostError(SparkCondition.SPOOL_BATCH_LOST(spool=self.location.shown, file=file, reason=reason))

    def _header(self, opened: File) -> Header:
        head = opened.read_at(0, spool_format.HEAD_BYTES)
        text = opened.read_at(spool_format.HEAD_BYTES, spool_format.header_length(head))
        header = spool_format.load_header(head, text)
        if header.consumer_id != self._consumer_id:
            raise Unreadable(f"is of consumer {header.consumer_id!r}, not of {self._consumer_id!r}")
        if header.queue != self._queue:
            raise Unreadable(f"is of queue {header.queue!r}, not of {self._queue!r}")
        if header.protocol != self.protocol:
            raise Unreadable(f"has messages of AMQP {header.protocol}, not of {self.protocol}")
        return header

    def _check_name(self, file: str) -> None:
        # The name comes from the broker: it must not leave the directory, nor name a file of another consumer.
        if not self._own.fullmatch(file):
            raise SpoolError(
                SparkCondition.SPOOL_FILE_FOREIGN(
                    spool=self.location.shown, file=file[:200], consumer=self._consumer_id, queue=self._queue
                )
            )

    # --- the directory

    def _resolved(self) -> Directory:
        location = self.location
        if location.is_path:  # a path is taken literally, even with a "%" or "?" in it
            return directory(fs.LocalFileSystem(), location.text, self._prefix)
        filesystem, path = self._resolve(location.text)
        return directory(filesystem, path, self._prefix)

    def _prove_writable(self, place: Directory) -> None:
        name = f"{self._prefix}probe-{secrets.token_hex(6)}{PARTIAL}"
        place.put(name, b"can this be written?\n")
        place.delete(name)

    @property
    def _place(self) -> Directory:
        if self._directory is None:
            raise SpoolError(
                SparkCondition.SPOOL_UNUSABLE(
                    spool=self.location.shown, what="cannot be used", reason="it is not open", remedy="Open it first"
                )
            )
        return self._directory


def _announced(pieces: Iterator[Bytes], total: int) -> Iterator[Bytes]:
    """Yield the same pieces and pass a crash point half way, at the latest before the last piece."""
    size, passed = 0, False
    for piece in pieces:
        if not passed and size and (size + len(piece) >= total or size * 2 >= total):
            crashpoints.reached(crashpoints.SPOOL_PARTIAL)
            passed = True
        size += len(piece)
        yield piece


def _footer(opened: File, header: Header) -> str:
    size = opened.size
    foot = opened.read_at(max(0, size - spool_format.FOOT_BYTES), spool_format.FOOT_BYTES)
    return spool_format.check_footer(foot, header, size)


def _compare(found: str, expected: str) -> None:
    if found != expected:
        raise Unreadable(f"is not the one that was accepted: its checksum is {found}, the record's is {expected}")


def _verify(summed: Checksum, expected: str) -> None:
    if summed.text != expected:
        raise Unreadable(f"is damaged: the checksum of its contents is {summed.text} instead of {expected}")
