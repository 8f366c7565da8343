"""The pull endpoint: executors fetch planned ranges from the reader process over a socket, and report rejects.

Protocol, all numbers big-endian. The executor connects, sends one request, reads one answer::

    request:  size u32 (of what follows, bounded) | magic "AMQPPULL" | version u8 | operation u8 | token 32 bytes
              | epoch u64 | queue u16 + UTF-8 | operation FETCH: begin u64, end u64
                                              | operation REJECT: text u16 + UTF-8, count u32, count positions u64
    answer:   status u8 | status OK and FETCH: parts, each size u32 + bytes, ended by a size of 0; a size of 2^32-1 and
                          text u16 + UTF-8 take back what was sent
                        | other status: text u16 + UTF-8

The token is random per query and compared in constant time; a request without it gets no answer. Nothing but planned
ranges is served. The bytes travel in clear: ``transfer=inline`` is for networks where that is not acceptable.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from amqp_core.address import format_address
from amqp_core.errors import AmqpError
from amqp_spark import crashpoints
from amqp_spark.errors import TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_log = logging.getLogger(__name__)

_MAGIC: Final = b"AMQPPULL"
_VERSION: Final = 2
_FETCH: Final = 1
_REJECT: Final = 2
_OK: Final = 0
_REFUSED: Final = 1
_TOKEN_BYTES: Final = 32
_HEAD: Final = struct.Struct(f">8sBB{_TOKEN_BYTES}sQH")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_RANGE: Final = struct.Struct(">QQ")
_MAX_REQUEST: Final = 1 << 20
_MAX_CONNECTIONS: Final = 256
_MAX_POSITIONS: Final = 100_000  # of one REJECT request; more are sent in several
_CONNECT_SECONDS: Final = 10.0
_READ_SECONDS: Final = 120.0
_SERVE_SECONDS: Final = 120.0  # for a request to arrive
_PART_BYTES: Final = 1 << 30
_TAKEN_BACK: Final = (1 << 32) - 1  # as the size of a part
_MAX_REASON: Final = 60_000


class Ranges(Protocol):
    """Who holds the planned ranges. Called from the threads of the endpoint."""

    def parts(self, queue: str, epoch: int, begin: int, end: int) -> Sequence[memoryview]:
        """The frames of a planned range; an AmqpSparkError says why there are none."""

    def reject(self, queue: str, epoch: int, positions: Sequence[int], text: str) -> None:
        """Positions that an executor could not turn into rows."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where executors reach the reader of their query; travels in partitions. ``repr`` hides the token."""

    host: str
    port: int
    token: bytes = field(repr=False)


class PullServer:
    """Serves planned ranges from daemon threads, one per connection, until closed.

    ``assure`` is called before a range is served and before its end is: it returns while ranges may be served, or
    raises an AmqpError.
    """

    def __init__(
        self, ranges: Ranges, *, bind: str, port: int, advertise: str, assure: Callable[[], None] | None = None
    ) -> None:
        self._ranges = ranges
        self._assure = assure or _nothing
        try:
            family = socket.getaddrinfo(bind or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._socket = socket.create_server((bind, port), family=family, backlog=128)
        except OSError as error:
            raise TransferError(
                f"the pull endpoint cannot listen on {format_address(bind, port)}: {error.strerror or error}; set "
                "transferHost and transferPort to an address of the driver, or transfer=inline"
            ) from error
        self.endpoint = Endpoint(advertise, int(self._socket.getsockname()[1]), secrets.token_bytes(_TOKEN_BYTES))
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._thread = threading.Thread(target=self._accept, name="amqp-pull", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; requests under way are finished by their threads."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the waiting accept
        self._socket.close()
        self._thread.join(5.0)

    def _accept(self) -> None:
        while True:
            try:
                connection, _peer = self._socket.accept()
            except OSError:
                return  # closed
            if not self._slots.acquire(blocking=False):
                connection.close()  # the client's error says that it may be tried again
                continue
            threading.Thread(target=self._serve, args=(connection,), name="amqp-pull-serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_SERVE_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._answer(connection)
        except (OSError, _BadRequest) as error:
            _log.debug("a pull request ended early: %s", error)
        finally:
            self._slots.release()

    def _answer(self, connection: socket.socket) -> None:
        operation, epoch, queue, rest = self._request(connection)
        try:
            if operation == _FETCH:
                begin, end = _RANGE.unpack(rest)
                self._assure()
                parts: Sequence[memoryview] = self._ranges.parts(queue, epoch, begin, end)
            else:
                text, positions = _unpack_reject(rest)
                self._ranges.reject(queue, epoch, positions, text)
                parts = ()
        except AmqpError as error:
            reason = str(error).encode()[:_MAX_REASON]
            connection.sendall(bytes((_REFUSED,)) + _U16.pack(len(reason)) + reason)
            return
        # A task reads as fast as its sink takes the rows, however slow that is. One that died or is cut off ends the
        # connection: the system goes on probing a peer that takes nothing.
        connection.settimeout(None)
        connection.sendall(bytes((_OK,)))
        for part in parts:
            for at in range(0, len(part), _PART_BYTES):
                piece = part[at : at + _PART_BYTES]
                connection.sendall(_U32.pack(len(piece)))
                crashpoints.reached(crashpoints.FETCH_MID)
                connection.sendall(piece)
        try:
            self._assure()  # this process may have been suspended meanwhile: only the end makes the bytes count
        except AmqpError as error:
            reason = str(error).encode()[:_MAX_REASON]
            connection.sendall(_U32.pack(_TAKEN_BACK) + _U16.pack(len(reason)) + reason)
            return
        connection.sendall(_U32.pack(0))

    def _request(self, connection: socket.socket) -> tuple[int, int, str, bytes]:
        (size,) = _U32.unpack(_receive(connection, 4))
        if not _HEAD.size <= size <= _MAX_REQUEST:
            raise _BadRequest(f"a size of {size} bytes")
        data = _receive(connection, size)
        magic, version, operation, token, epoch, length = _HEAD.unpack_from(data)
        if not hmac.compare_digest(token, self.endpoint.token):
            raise _BadRequest("a wrong token")
        if magic != _MAGIC or version != _VERSION or operation not in {_FETCH, _REJECT}:
            raise _BadRequest("another protocol or version")
        at = _HEAD.size + length
        rest = data[at:]
        if len(rest) < 2 or (operation == _FETCH and len(rest) != _RANGE.size):
            raise _BadRequest("a wrong length")
        try:
            return operation, epoch, data[_HEAD.size : at].decode(), rest
        except UnicodeDecodeError:
            raise _BadRequest("a queue name that is no UTF-8") from None


def fetch(endpoint: Endpoint, *, queue: str, epoch: int, begin: int, end: int) -> Iterator[bytes]:
    """On an executor: the frames of a planned range, part by part. TransferError names what failed and what to set."""
    with _ask(endpoint, _FETCH, queue, epoch, _RANGE.pack(begin, end)) as (connection, stream):
        try:
            _check_status(stream)
            while size := _U32.unpack(_read(stream, 4))[0]:
                if size == _TAKEN_BACK:
                    raise _refused(stream)
                yield _read(stream, size)
        except OSError as error:
            raise _unreachable(endpoint, error) from error
        finally:
            connection.close()


def report_rejects(endpoint: Endpoint, *, queue: str, epoch: int, positions: Sequence[int], text: str) -> None:
    """On an executor: tell the receiver which positions it shall reject. Saying it again changes nothing."""
    reason = text.encode()[:_MAX_REASON]
    reason = reason.decode(errors="ignore").encode()
    for at in range(0, len(positions), _MAX_POSITIONS):
        some = positions[at : at + _MAX_POSITIONS]
        body = _U16.pack(len(reason)) + reason + struct.pack(f">I{len(some)}Q", len(some), *some)
        with _ask(endpoint, _REJECT, queue, epoch, body) as (_connection, stream):
            try:
                _check_status(stream)
            except OSError as error:
                raise _unreachable(endpoint, error) from error


def _nothing() -> None:
    """Ranges may always be served."""


class _BadRequest(Exception):
    """What the endpoint refuses without an answer."""


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@contextlib.contextmanager
def _ask(
    endpoint: Endpoint, operation: int, queue: str, epoch: int, body: bytes
) -> Iterator[tuple[socket.socket, _Stream]]:
    name = queue.encode()
    head = _HEAD.pack(_MAGIC, _VERSION, operation, endpoint.token, epoch, len(name))
    request = head + name + body
    try:
        connection = socket.create_connection((endpoint.host, endpoint.port), _CONNECT_SECONDS)
    except OSError as error:
        raise _unreachable(endpoint, error) from error
    with connection, connection.makefile("rb", 1 << 16) as stream:
        try:
            connection.settimeout(_READ_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_U32.pack(len(request)) + request)
        except OSError as error:
            raise _unreachable(endpoint, error) from error
        yield connection, stream


def _check_status(stream: _Stream) -> None:
    status = _read(stream, 1)[0]
    if status != _OK:
        raise _refused(stream)


def _refused(stream: _Stream) -> TransferError:
    reason = _read(stream, _U16.unpack(_read(stream, 2))[0]).decode(errors="replace")
    return TransferError(f"the reader of the query did not serve the range: {reason}")


def _unreachable(endpoint: Endpoint, error: OSError) -> TransferError:
    where = format_address(endpoint.host, endpoint.port)
    return TransferError(
        f"this executor cannot fetch the batch from the reader of the query at {where}: {error.strerror or error}; "
        "options transferHost and transferPort say where executors connect, transfer=inline does without"
    )


def _read(stream: _Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise ConnectionError("the connection ended early: the reader of the query stopped, or refused the token")
    return data


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        some = connection.recv(min(size - len(data), 1 << 16))
        if not some:
            raise _BadRequest("the request ended early")
        data += some
    return bytes(data)


def _unpack_reject(data: bytes) -> tuple[str, list[int]]:
    (length,) = _U16.unpack_from(data)
    at = 2 + length
    if len(data) < at + 4:
        raise _BadRequest("a wrong length")
    (count,) = _U32.unpack_from(data, at)
    if len(data) != at + 4 + 8 * count:
        raise _BadRequest("a wrong length")
    return data[2:at].decode(errors="replace"), list(struct.unpack_from(f">{count}Q", data, at + 4))
