"""The pull endpoint: executors fetch planned ranges from the reader process over a socket, and report rejects.

Protocol, all numbers big-endian. The executor connects, sends one request, reads one answer::

    request:  size u32 (of the rest, bounded) | magic "AMQPPULL" | version u8 | operation u8 | token 32 bytes
              | epoch u64 | queue u16 + UTF-8 | operation FETCH: begin u64, end u64
                                              | operation REJECT: text u16 + UTF-8, count u32, count positions u64
    answer:   status u8 | status OK and FETCH: chunks, each size u32 + count u32 + count ends u32
                          + protocol of the broker u16 + UTF-8 + frames,
                          ended by a size of 0; a size of 2^32-1 and text u16 + UTF-8 revoke the chunks sent
                        | status WAITING: the answer follows later; sent again while it does not
                        | other status: text u16 + UTF-8

The token is random per query and compared in constant time; a request without it gets no answer. Only planned ranges
are served. The protocol runs inside TLS (:mod:`encryption`), unless the endpoint was created without it, for executors
on this machine.

A connection must send the token within a second. The number of connections that have not sent it is limited: a new one
replaces the oldest. So idle connections block no executor, and an executor whose connection was replaced tries again.

So many ranges are served at a time; further requests for one wait, however long the others take. A report of rejects
does not wait: the task that sends it may have a range half read.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from amqp_core.address import format_address
from amqp_core.error_conditions import condition_of
from amqp_core.errors import AmqpError
from amqp_spark import crashpoints
from amqp_spark.arrow.decode import Chunk
from amqp_spark.datasource import encryption
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import TransferError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

_log = logging.getLogger(__name__)

_MAGIC: Final = b"AMQPPULL"
_VERSION: Final = 5
_FETCH: Final = 1
_REJECT: Final = 2
_OK: Final = 0
_REFUSED: Final = 1
_WAITING: Final = 2
_TOKEN_BYTES: Final = 32
_HEAD: Final = struct.Struct(f">8sBB{_TOKEN_BYTES}sQH")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_RANGE: Final = struct.Struct(">QQ")
_PART: Final = struct.Struct(">II")
_MAX_REQUEST: Final = 1 << 20
_MAX_FETCHES: Final = 256  # that are served at a time; further ones wait
_BACKLOG: Final = 128
_MAX_STRANGERS: Final = 64  # that have not sent it
_MAX_POSITIONS: Final = 100_000  # of one REJECT request; more are sent in several
_CONNECT_SECONDS: Final = 10.0
_READ_SECONDS: Final = 600.0  # the reader may have to wait for a broker that commits (timeouts.LONGEST_ACCEPTS_SECONDS)
_TOKEN_SECONDS: Final = 1.0  # for the token to arrive, TLS included
_SERVE_SECONDS: Final = 120.0  # for the rest of a request to arrive
_WAITING_SECONDS: Final = 60.0  # between two signs that a request waits; less than _READ_SECONDS
_ATTEMPTS: Final = 6  # of an executor whose connection ended before an answer
_PAUSE_SECONDS: Final = 0.02  # before the second of them; doubles
_ACCEPT_PAUSE_SECONDS: Final = 0.1  # while the system has no resources for another connection
_END_BYTES: Final = 4
_TAKEN_BACK: Final = (1 << 32) - 1  # as the size of a chunk
PORT_SECONDS: Final = 3.0
"""How long to wait for a configured port that is in use: the reader of a query that just ended may still hold it."""
_PORT_PAUSE_SECONDS: Final = 0.1
_MAX_REASON: Final = 60_000
_ENDED: Final = "the connection ended early: the reader of the query stopped, or refused the token"


class Ranges(Protocol):
    """Source of the planned ranges. Called from the threads of the endpoint."""

    def chunks(self, queue: str, epoch: int, begin: int, end: int) -> Sequence[Chunk]:
        """The transfers of a planned range; raises an AmqpSparkError if they are not available."""

    def reject(self, queue: str, epoch: int, positions: Sequence[int], text: str) -> None:
        """Record positions that an executor could not turn into rows."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address at which executors reach the reader of their query; sent in partitions. ``repr`` hides the token.

    ``fingerprint`` is the one of its certificate; ``None``: no encryption, on this machine only.
    """

    host: str
    port: int
    token: bytes = field(repr=False)
    fingerprint: bytes | None = field(default=None, repr=False)


class BlockServer:
    """Serves planned ranges from daemon threads, one per connection, until closed.

    ``encrypt``: with TLS. ``assure`` is called before a range is served and again before its end is sent: it returns
    if ranges may be served, else raises an AmqpError.
    """

    def __init__(
        self,
        ranges: Ranges,
        *,
        bind: str,
        port: int,
        advertise: str,
        encrypt: bool,
        assure: Callable[[], None] = lambda: None,
    ) -> None:
        self._ranges = ranges
        self._assure = assure
        self._tls: ssl.SSLContext | None = None
        fingerprint = None
        if encrypt:
            self._tls, fingerprint = encryption.server_context()
        self._socket = _listen(bind, port)
        actual = int(self._socket.getsockname()[1])
        self.endpoint = Endpoint(advertise, actual, secrets.token_bytes(_TOKEN_BYTES), fingerprint)
        self._strangers = _Strangers(_MAX_STRANGERS)
        self._slots = threading.BoundedSemaphore(_MAX_FETCHES)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="amqp-pull", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; requests under way are finished by their threads."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the waiting accept
        self._socket.close()
        self._thread.join(5.0)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _peer = self._socket.accept()
            except OSError as error:
                if not self._closed.is_set():
                    _log.warning("the pull endpoint cannot take a connection: %s", error)
                self._closed.wait(_ACCEPT_PAUSE_SECONDS)
                continue
            guard: socket.socket | None = None
            try:
                guard = self._strangers.enter(connection)
                serve = threading.Thread(
                    target=self._serve, args=(connection, guard), name="amqp-pull-serve", daemon=True
                )
                serve.start()
            except (OSError, RuntimeError) as error:  # no more files, or threads: the executor tries again
                _log.warning("the pull endpoint cannot serve a connection: %s", error)
                if guard is not None:  # it is the same connection
                    self._strangers.leave(guard)
                connection.close()

    def _serve(self, connection: socket.socket, guard: socket.socket) -> None:
        try:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                deadline = time.monotonic() + _TOKEN_SECONDS
                if self._tls is not None:
                    connection.settimeout(_TOKEN_SECONDS)
                    connection = self._tls.wrap_socket(connection, server_side=True)
                size, head = self._head(connection, deadline)
            finally:
                self._strangers.leave(guard)
            connection.settimeout(_SERVE_SECONDS)
            body = _receive(connection, size - _HEAD.size)
            with self._slot(connection) if head[0] == _FETCH else contextlib.nullcontext():
                self._answer(connection, head, body)
        except (OSError, _BadRequest) as error:
            _log.debug("a pull request ended early: %s", error)
        finally:
            connection.close()

    @contextlib.contextmanager
    def _slot(self, connection: socket.socket) -> Iterator[None]:
        while not self._slots.acquire(timeout=_WAITING_SECONDS):
            connection.sendall(bytes((_WAITING,)))
        try:
            yield
        finally:
            self._slots.release()

    def _answer(self, connection: socket.socket, head: tuple[int, int, int], body: bytes) -> None:
        operation, epoch, queue, rest = _request(head, body)
        try:
            if operation == _FETCH:
                begin, end = _RANGE.unpack(rest)
                self._assure()
                chunks: Sequence[Chunk] = self._ranges.chunks(queue, epoch, begin, end)
            else:
                text, positions = _unpack_reject(rest)
                self._ranges.reject(queue, epoch, positions, text)
                chunks = ()
        except AmqpError as error:
            connection.sendall(bytes((_REFUSED,)) + _packed(str(error)))
            return
        # No timeout: a task reads as fast as its sink takes the rows, however slow. If the task dies or is cut off, the
        # connection ends: the system keeps probing a peer that reads nothing.
        connection.settimeout(None)
        connection.sendall(bytes((_OK,)))
        for chunk in chunks:
            part = _PART.pack(len(chunk.frames), len(chunk.ends) // _END_BYTES)
            connection.sendall(part + chunk.ends + _packed(chunk.protocol))
            crashpoints.reached(crashpoints.FETCH_MID)
            connection.sendall(chunk.frames)
        try:
            self._assure()  # the process may have been suspended meanwhile: only the end marker makes the bytes valid
        except AmqpError as error:
            connection.sendall(_U32.pack(_TAKEN_BACK) + _packed(str(error)))
            return
        connection.sendall(_U32.pack(0))

    def _head(self, connection: socket.socket, deadline: float) -> tuple[int, tuple[int, int, int]]:
        """Size of a request, and its operation, epoch and length of the queue name; the token is checked."""
        (size,) = _U32.unpack(_receive(connection, 4, deadline))
        if not _HEAD.size <= size <= _MAX_REQUEST:
            raise _BadRequest(f"a size of {size} bytes")
        magic, version, operation, token, epoch, length = _HEAD.unpack(_receive(connection, _HEAD.size, deadline))
        if not hmac.compare_digest(token, self.endpoint.token):
            raise _BadRequest("a wrong token")
        if magic != _MAGIC or version != _VERSION or operation not in {_FETCH, _REJECT}:
            raise _BadRequest("another protocol or version")
        return size, (operation, epoch, length)


class _Strangers:
    """Connections that have not sent the token yet; the oldest is closed when there are too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._guards: list[socket.socket] = []

    def enter(self, connection: socket.socket) -> socket.socket:
        """Add a connection; return the guard socket that :meth:`leave` needs."""
        guard = connection.dup()  # TLS takes over the socket: this duplicate stays valid and can end the connection
        with self._lock:
            self._guards.append(guard)
            if len(self._guards) > self._most:
                with contextlib.suppress(OSError):
                    self._guards.pop(0).shutdown(socket.SHUT_RDWR)
        return guard

    def leave(self, guard: socket.socket) -> None:
        """Remove a connection that has sent the token or has ended."""
        with self._lock:
            if guard in self._guards:
                self._guards.remove(guard)
        guard.close()


def _listen(bind: str, port: int) -> socket.socket:
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            return _listen_on(bind, port) if bind else _listen_everywhere(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port and time.monotonic() < deadline:
                time.sleep(_PORT_PAUSE_SECONDS)
                continue
            raise _not_listening(bind, port, error) from error


def _listen_on(bind: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    return socket.create_server((bind, port), family=family, backlog=_BACKLOG)


def _listen_everywhere(port: int) -> socket.socket:
    """Listen on all addresses, of IPv6 and of IPv4: executors take whichever the driver's name has for them."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port), family=socket.AF_INET, backlog=_BACKLOG)  # IPv6 is turned off here


def _not_listening(bind: str, port: int, error: OSError) -> TransferError:
    if error.errno == errno.EADDRINUSE and port:
        return TransferError(SparkCondition.TRANSFER_PORT_IN_USE(port=port))
    address, reason = format_address(bind, port), error.strerror or error
    return TransferError(SparkCondition.TRANSFER_CANNOT_LISTEN(address=address, reason=reason))


def _request(head: tuple[int, int, int], body: bytes) -> tuple[int, int, str, bytes]:
    operation, epoch, length = head
    rest = body[length:]
    if len(rest) < 2 or (operation == _FETCH and len(rest) != _RANGE.size):
        raise _BadRequest("a wrong length")
    try:
        return operation, epoch, body[:length].decode(), rest
    except UnicodeDecodeError:
        raise _BadRequest("a queue name that is not UTF-8") from None


def fetch(endpoint: Endpoint, *, queue: str, epoch: int, begin: int, end: int) -> Iterator[Chunk]:
    """On an executor: fetch a planned range, in chunks. TransferError names the cause and the options to change."""
    with _ask(endpoint, _FETCH, queue, epoch, _RANGE.pack(begin, end)) as (connection, stream):
        try:
            while size := _U32.unpack(_read(stream, 4))[0]:
                if size == _TAKEN_BACK:
                    raise _refused(stream)
                (count,) = _U32.unpack(_read(stream, 4))
                ends = _read(stream, count * _END_BYTES)
                (length,) = _U16.unpack(_read(stream, 2))
                protocol = _read(stream, length).decode()
                yield Chunk(_read(stream, size), ends, protocol)
        except OSError as error:
            raise _unreachable(endpoint, error) from error
        finally:
            connection.close()


def report_rejects(endpoint: Endpoint, *, queue: str, epoch: int, positions: Sequence[int], text: str) -> None:
    """On an executor: report positions that the receiver shall reject. Idempotent."""
    for at in range(0, len(positions), _MAX_POSITIONS):
        some = positions[at : at + _MAX_POSITIONS]
        body = _packed(text) + struct.pack(f">I{len(some)}Q", len(some), *some)
        with _ask(endpoint, _REJECT, queue, epoch, body):
            pass  # it has answered


def _packed(text: str) -> bytes:
    """A text with its size; what is too long is cut."""
    data = text.encode()[:_MAX_REASON].decode(errors="ignore").encode()
    return _U16.pack(len(data)) + data


class _BadRequest(Exception):
    """A request that the endpoint refuses without an answer."""


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@contextlib.contextmanager
def _ask(
    endpoint: Endpoint, operation: int, queue: str, epoch: int, body: bytes
) -> Iterator[tuple[socket.socket, _Stream]]:
    """Send a request and read the answer up to its status, which is OK."""
    name = queue.encode()
    request = _HEAD.pack(_MAGIC, _VERSION, operation, endpoint.token, epoch, len(name)) + name + body
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            connection = socket.create_connection((endpoint.host, endpoint.port), _CONNECT_SECONDS)
        except OSError as error:
            raise _unreachable(endpoint, error) from error
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            try:
                connection.settimeout(_READ_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if endpoint.fingerprint is not None:
                    connection = stack.enter_context(encryption.connect(connection, endpoint.fingerprint))
                stream = stack.enter_context(connection.makefile("rb", 1 << 16))
                connection.sendall(_U32.pack(len(request)) + request)
                _check_status(stream)
            except encryption.ForeignPeer as error:
                raise _foreign(endpoint) from error
            except OSError as error:
                if attempt == _ATTEMPTS or isinstance(error, TimeoutError):
                    shown = ConnectionError(_ENDED) if isinstance(error, ConnectionError) else error
                    raise _unreachable(endpoint, shown) from error
            else:
                yield connection, stream
                return
        time.sleep(_PAUSE_SECONDS * 2**attempt)  # connections without a token had replaced this one


def _check_status(stream: _Stream) -> None:
    while (status := _read(stream, 1)[0]) == _WAITING:
        pass
    if status != _OK:
        raise _refused(stream)


def _foreign(endpoint: Endpoint) -> TransferError:
    address = format_address(endpoint.host, endpoint.port)
    return TransferError(SparkCondition.TRANSFER_FOREIGN_PEER(address=address))


def _refused(stream: _Stream) -> TransferError:
    text = _read(stream, _U16.unpack(_read(stream, 2))[0]).decode(errors="replace")
    if condition_of(text) is not None:  # it says everything itself
        return TransferError(text)
    return TransferError(SparkCondition.TRANSFER_REFUSED(reason=text.removesuffix(".")))


def _unreachable(endpoint: Endpoint, error: OSError) -> TransferError:
    address = format_address(endpoint.host, endpoint.port)
    return TransferError(SparkCondition.TRANSFER_FAILED(address=address, reason=error.strerror or error))


def _read(stream: _Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise ConnectionError(_ENDED)
    return data


def _receive(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _BadRequest("no token in time")
            connection.settimeout(left)
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
