"""Reports between processes of one user on one machine: from the processes of a query to those that watch it.

The process in which Spark commits a batch of the sink has no way to its driver, and accumulators do not reach a data
source. So each process that watches queries binds a UNIX datagram socket in one directory of the user, and a report
goes to all sockets there. It names its query, and a process that does not watch this query ignores it. Only the user
has access to the directory, so other users can neither read reports nor send any. Sending does not wait: a report that
cannot be delivered is lost.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 8192
_SUFFIX: Final = ".sock"
_numbers = itertools.count()


class ReportsUnavailable(OSError):
    """This process cannot receive reports; the text says why."""


def _directory(*, make: bool = False) -> Path | None:
    """The directory of the sockets; None: there is none, or the system has no such sockets.

    Raises:
        ReportsUnavailable: the directory is another user's, or open to others.
    """
    if not hasattr(os, "getuid") or not hasattr(socket, "AF_UNIX"):
        return None
    user = os.getuid()
    path = Path(tempfile.gettempdir(), f"amqp-spark-{user}")
    if make:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise ReportsUnavailable(
            errno.EPERM, "it has to be a directory of this user with mode 0700; remove it", str(path)
        )
    return path


def _made_directory() -> Path:
    directory = _directory(make=True)
    if directory is None:
        raise ReportsUnavailable(errno.ENOTSUP, "this system has no UNIX sockets")
    _clean(directory)
    return directory


def _clean(directory: Path) -> None:
    """Remove sockets that processes have left which ended without closing them."""
    for path in directory.glob(f"*{_SUFFIX}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # gone by now
                continue


def send(report: Mapping[str, object]) -> None:
    """Send a report to all processes that watch, without waiting. It raises nothing; more than 8 KiB are not sent."""
    try:
        directory = _directory()
        sockets = [] if directory is None else sorted(directory.glob(f"*{_SUFFIX}"))
        if not sockets:
            return
        data = json.dumps(report).encode()
        if len(data) > MOST_BYTES:
            _log.debug("a report of %d bytes is dropped", len(data))
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for each in sockets:
                _send_to(sender, each, data)
    except (OSError, ValueError, TypeError) as error:
        _log.debug("a report could not be sent: %s", error)


def _send_to(sender: socket.socket, path: Path, data: bytes) -> None:
    try:
        sender.sendto(data, str(path))
    except ConnectionRefusedError:  # left by a process that was killed
        with contextlib.suppress(OSError):
            path.unlink()
    except OSError as error:  # its buffer is full, or it has just ended
        _log.debug("a report could not be sent to %s: %s", path, error)


class Inbox:
    """Receives reports; close it. Any thread may use it.

    Raises:
        ReportsUnavailable: the system has no UNIX sockets, or the directory cannot be used.
    """

    def __init__(self) -> None:
        try:
            self._path = _made_directory() / f"{os.getpid()}-{next(_numbers)}{_SUFFIX}"
            self._path.unlink(missing_ok=True)  # of an earlier process with this number
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._socket.setblocking(False)
                self._socket.bind(str(self._path))
            except BaseException:
                self._socket.close()
                raise
        except ReportsUnavailable:
            raise
        except OSError as error:  # also: the path of the directory for temporary files is too long
            raise ReportsUnavailable(*error.args) from error

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._socket.fileno() < 0

    def fileno(self) -> int:
        """The socket, to wait for with ``select``."""
        return self._socket.fileno()

    def take(self) -> Iterator[dict[str, Any]]:
        """The reports that are here; what is none is passed over."""
        while True:
            try:
                data = self._socket.recv(MOST_BYTES)
            except (BlockingIOError, OSError):  # nothing more, or closed
                return
            try:
                report = json.loads(data)
            except (ValueError, RecursionError):  # the second one of deep nesting
                continue
            if isinstance(report, dict):
                yield report

    def close(self) -> None:
        """Remove the socket."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
