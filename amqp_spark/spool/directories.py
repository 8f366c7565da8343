"""Directories of a spool: local ones, and ones on any other file system that ``pyarrow.fs`` supports.

A file is either absent or complete, wherever a crash happens:

- local: written under a temporary name, synced, renamed, and the directory synced, by system calls: ``pyarrow.fs``
  cannot sync;
- object stores: put under the final name, which becomes visible only when the put is complete;
- others: written under a temporary name and moved.

Errors are those of the system and of Arrow; :mod:`location` turns them into SpoolError.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
from pyarrow import ArrowException, fs

from amqp_spark import crashpoints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyarrow import NativeFile

    from amqp_spark.spool.format import Bytes

PARTIAL: Final = ".part"
"""Suffix of a file that is being written."""
CLAIM: Final = ".claim"
"""Suffix of a file that announces which consumer is about to take a new directory."""
_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


class ClaimedError(Exception):
    """Another consumer is about to take the directory; the text is the name of its claim file."""


class File(Protocol):
    """A complete file, open for reading."""

    size: int

    def read_at(self, offset: int, size: int) -> memoryview:
        """Read ``size`` bytes at ``offset``; fewer only at the end of the file."""


class Directory(Protocol):
    """The directory with the files of a spool. Names are without directory."""

    cheap: bool
    """Whether reading a whole file is about as cheap as reading memory."""

    def create(self) -> None:
        """Create the directory and its parents. NotADirectoryError if the path is not a directory."""

    def names(self) -> list[str]:
        """Names of its files; FileNotFoundError if the directory does not exist."""

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        """Write a new file: complete, durable and visible on return, absent after an error."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small file under a name that no other process writes or reads meanwhile."""

    def open(self, name: str) -> contextlib.AbstractContextManager[File]:
        """Open a file for reading; FileNotFoundError if it does not exist."""

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is no error."""

    def claim(self, name: str, content: bytes, token: str) -> None:
        """Write a file unless it exists. Of several concurrent callers with different tokens, at most one succeeds: the
        others find its file, or get a ClaimedError."""


def directory(filesystem: fs.FileSystem, path: str, prefix: str) -> Directory:
    """Return the directory ``path``; temporary files get names with ``prefix``."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return LocalDirectory(Path(path), prefix)
    return ArrowDirectory(filesystem, path, prefix)


def _aside(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(6)}{PARTIAL}"


class LocalDirectory:
    """A directory on this machine, or mounted on it."""

    cheap = True

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix

    def create(self) -> None:
        """Create missing directories, and sync them: a file is only as durable as its entries in them."""
        missing = []
        at = self._path
        while not at.exists() and at != at.parent:
            missing.append(at)
            at = at.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            _sync(each.parent)
        if not self._path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def names(self) -> list[str]:
        """See :class:`Directory`."""
        with os.scandir(self._path) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        """See :class:`Directory`."""
        aside = self._path / _aside(self._prefix)
        target = self._path / name
        try:
            _write_synced(aside, pieces)
            crashpoints.reached(crashpoints.SPOOL_SYNCED)
            aside.rename(target)
            _sync(self._path)
        except BaseException:
            for path in (aside, target):
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        crashpoints.reached(crashpoints.SPOOL_RENAMED)

    def put(self, name: str, content: bytes) -> None:
        """See :class:`Directory`."""
        try:
            _write_synced(self._path / name, (content,))
        except BaseException:
            with contextlib.suppress(OSError):
                self.delete(name)
            raise

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[File]:
        """See :class:`Directory`."""
        with (self._path / name).open("rb", buffering=0) as file:
            yield _LocalFile(file.fileno())

    def delete(self, name: str) -> None:
        """See :class:`Directory`. Not synced: no state owns a file that reappears after a crash."""
        (self._path / name).unlink(missing_ok=True)

    def claim(self, name: str, content: bytes, token: str) -> None:
        """See :class:`Directory`: creating a hard link fails if the name exists."""
        aside, target = self._path / _aside(self._prefix), self._path / name
        try:
            _write_synced(aside, (content,))
            try:
                target.hardlink_to(aside)
            except FileExistsError:
                return
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._write_first(target, content)
            _sync(self._path)
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()

    def _write_first(self, target: Path, content: bytes) -> None:
        try:
            _write_synced(target, (content,))
        except FileExistsError:
            pass
        except BaseException:
            with contextlib.suppress(OSError):
                target.unlink()
            raise


class _LocalFile:
    # Read, not mapped: truncating a mapped file ends the process by SIGBUS.
    __slots__ = ("_fd", "size")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def read_at(self, offset: int, size: int) -> memoryview:
        view = np.empty(max(0, min(size, self.size - offset)), dtype="u1").data  # not zeroed, unlike a bytearray
        at = 0
        while at < len(view):
            got = os.preadv(self._fd, [view[at:]], offset + at)
            if not got:
                break
            at += got
        return view[:at]


def _write_synced(path: Path, pieces: Iterable[Bytes]) -> None:
    with path.open("xb", buffering=0) as file:
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """Sync a directory, if the file system supports it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(fd)


class ArrowDirectory:
    """A directory on any other file system."""

    cheap = False

    def __init__(self, filesystem: fs.FileSystem, path: str, prefix: str) -> None:
        self._fs = filesystem
        self._path = path.rstrip("/")
        self._prefix = prefix
        self._puts = filesystem.type_name in _OBJECT_STORES

    def create(self) -> None:
        """See :class:`Directory`."""
        found = self._fs.get_file_info(self._path)
        if found.type == fs.FileType.NotFound:
            self._fs.create_dir(self._path, recursive=True)
            found = self._fs.get_file_info(self._path)
        if found.type != fs.FileType.Directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def names(self) -> list[str]:
        """See :class:`Directory`."""
        found = self._fs.get_file_info(fs.FileSelector(self._path, recursive=False))
        return [each.base_name for each in found if each.type == fs.FileType.File]

    def write(self, name: str, pieces: Iterable[Bytes]) -> None:
        """See :class:`Directory`."""
        self._publish(name, pieces, batch=True)
        crashpoints.reached(crashpoints.SPOOL_RENAMED)

    def put(self, name: str, content: bytes) -> None:
        """See :class:`Directory`."""
        self._write(name, (content,), batch=False)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[File]:
        """See :class:`Directory`."""
        if self._fs.get_file_info(self._at(name)).type != fs.FileType.File:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with self._fs.open_input_file(self._at(name)) as stream:
            yield _ArrowFile(stream)

    def delete(self, name: str) -> None:
        """See :class:`Directory`."""
        if not self._has(name):
            return
        try:
            self._fs.delete_file(self._at(name))
        except (OSError, ArrowException):
            if self._has(name):  # else another process has deleted it
                raise

    def claim(self, name: str, content: bytes, token: str) -> None:
        """See :class:`Directory`. There is no exclusive create here, but a file is listed as soon as it is put. If two
        callers both put a claim and then list, at least one sees the other's claim; a caller that lists after the other
        has removed its claim sees its file."""
        family = f"{name}.{token}."
        mine = f"{family}{secrets.token_hex(4)}{CLAIM}"  # random: threads of one consumer keep each other's claim
        self.put(mine, content)
        try:
            claims = [each for each in self.names() if each.startswith(f"{name}.") and each.endswith(CLAIM)]
            if self._has(name):  # checked after listing the claims
                return
            for each in claims:
                if not each.startswith(family):
                    raise ClaimedError(each)
            try:
                self._publish(name, (content,), batch=False)
            except (OSError, ArrowException):
                if not self._has(name):  # else moving does not overwrite, and another thread of ours was first
                    raise
        finally:
            self._discard(mine)

    def _publish(self, name: str, pieces: Iterable[Bytes], *, batch: bool) -> None:
        """Write a file that becomes visible only when it is complete."""
        if self._puts:
            self._write(name, pieces, batch=batch)
            return
        aside = _aside(self._prefix)
        self._write(aside, pieces, batch=batch)
        try:
            self._fs.move(self._at(aside), self._at(name))
        except BaseException:
            self._discard(aside, *([name] if batch else []))
            raise

    def _has(self, name: str) -> bool:
        return bool(self._fs.get_file_info(self._at(name)).type != fs.FileType.NotFound)

    def _write(self, name: str, pieces: Iterable[Bytes], *, batch: bool) -> None:
        try:
            stream = self._fs.open_output_stream(self._at(name))
            try:
                for piece in pieces:
                    stream.write(piece)
                if batch:
                    crashpoints.reached(crashpoints.SPOOL_SYNCED)
            finally:
                stream.close()  # also after an error: else Arrow closes it later, and that put stays
        except BaseException:
            self._discard(name)
            raise

    def _discard(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(Exception):
                self.delete(name)

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"


class _ArrowFile:
    __slots__ = ("_stream", "size")

    def __init__(self, stream: NativeFile) -> None:
        self._stream = stream
        self.size = int(stream.size())

    def read_at(self, offset: int, size: int) -> memoryview:
        self._stream.seek(offset)
        # Views of Arrow buffers have signed bytes.
        return memoryview(self._stream.read_buffer(max(0, min(size, self.size - offset)))).cast("B")
