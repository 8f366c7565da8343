"""TCP and TLS with deadlines: the only module of amqp_core that uses sockets.

A :class:`Transport` never blocks outside :meth:`Transport.wait`, buffers data that the peer does not take yet, and can
be woken from another thread. It converts every ``OSError`` and ``ssl.SSLError`` to an AmqpError.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from amqp_core.address import format_address, is_utf8
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import ConnectionFailed, ConnectionLost, TlsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_core.address import ConnectOptions

READ_BYTES = 1 << 18
_WRITE_BYTES = 1 << 18
# Without heartbeats, a peer that for so many seconds sends nothing, and owes an answer, counts as lost.
SILENCE_S = 60.0
# Longest wait at a time: poll() takes no more than 24 days, and no infinite time.
_LONGEST_WAIT_S = 86400.0

# Errors of a machine without such addresses, or without a way to them (IPv6, often): they say nothing of the host.
_NO_WAY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH})
# No file descriptor is left, of this process or of the machine.
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})

monotonic = time.monotonic

# As returned by socket.getaddrinfo: family, type, protocol, canonical name, address.
_Address = tuple[Any, ...]


class _NotResolved(Exception):
    """A host name was not resolved in time."""


def tls_context(options: ConnectOptions) -> ssl.SSLContext:
    """Build the TLS context: certificates are always verified, host names unless the options disable it.

    Raises:
        TlsError: a file of certificates, or the key, cannot be read or used.
    """
    try:
        context = ssl.create_default_context(cafile=options.tls_ca_file)
        context.check_hostname = options.tls_verify_hostname
        context.verify_mode = ssl.CERT_REQUIRED
        if options.tls_cert_file:
            # a key with a passphrase is an error, not a prompt on the terminal of the process
            context.load_cert_chain(options.tls_cert_file, options.tls_key_file, password="")
    except (OSError, ValueError) as error:  # SSLError is an OSError; a path with a lone surrogate cannot be encoded
        given = [path for path in (options.tls_ca_file, options.tls_cert_file, options.tls_key_file) if path]
        files = ", ".join(path if is_utf8(path) else ascii(path) for path in given)
        raise TlsError(CoreCondition.TLS_FILES_UNUSABLE(files=files, reason=error)) from error
    return context


def lenient_context(options: ConnectOptions) -> ssl.SSLContext:
    """Build a TLS context that takes every certificate, to look at it: send nothing secret over such a connection.

    Raises:
        TlsError: a file of certificates, or the key, cannot be read or used.
    """
    context = tls_context(options)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def resolve(host: str, port: int, *, timeout: float) -> list[str]:
    """Return the addresses of a host, in the order of the resolver, within ``timeout`` seconds.

    Raises:
        ConnectionFailed: as :meth:`Transport.connect`.
    """
    with _dialling_explained(format_address(host, port), timeout):
        return list(dict.fromkeys(str(found[4][0]) for found in _resolve(host, port, monotonic() + timeout)))


class Transport:
    """A connected, non-blocking socket. Not thread-safe, except :meth:`wake`."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._sock = sock
        self.peer = peer
        self.is_tls = isinstance(sock, ssl.SSLSocket)
        self._pending: deque[tuple[memoryview, bool]] = deque()
        self.pending_bytes = 0
        """Bytes that the peer has not taken yet."""
        self.pending_own_bytes = 0
        """The part of it that was not written as ``bounded``."""
        self.sent_bytes = 0
        """Bytes that the peer's side has taken so far."""
        self.read_bytes = READ_BYTES
        """Most bytes that one :meth:`read` returns."""
        sock.setblocking(False)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._wake_in, select.POLLIN)
        self._events = select.POLLIN
        self._poll.register(sock, self._events)
        self._closed = False
        self._has_read = False

    @classmethod
    def connect(cls, host: str, port: int, *, timeout: float, context: ssl.SSLContext | None) -> Transport:
        """Connect to ``host``:``port`` within ``timeout`` seconds, with TLS when a context is given.

        Raises:
            ConnectionFailed: the host name cannot be resolved, no address of it takes the connection, or one of these
                or the TLS handshake takes too long.
            TlsError: the TLS handshake failed, or the certificate of the peer is not accepted.
            ConnectionLost: the connection broke during the TLS handshake.
        """
        where = format_address(host, port)
        deadline = monotonic() + timeout
        if context is not None:
            try:
                context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=host)
            except (ValueError, TypeError) as error:  # checked before there is a socket, which it would leave open
                reason = f"{host!r} cannot be the name in a certificate: {error}"
                raise _tls_error(where, reason, "Connect by the name in the certificate") from error
        with _dialling_explained(where, timeout):
            sock = _dial(host, port, deadline)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if context is not None:
                sock.settimeout(max(0.001, deadline - monotonic()))
                sock = context.wrap_socket(sock, server_hostname=host)
        except (OSError, ssl.SSLError) as error:
            sock.close()
            raise _explain_tls(error, where, timeout) from error
        try:
            return cls(sock, where)
        except OSError as error:  # no file descriptor is left for the wake-up
            sock.close()
            raise _refused_by_system(where, error) from error

    @property
    def peer_is_loopback(self) -> bool:
        """Whether the connected peer has a loopback address."""
        try:
            address = self._sock.getpeername()
        except OSError:
            return False
        return str(address[0]).startswith("127.") or address[0] in ("::1", "::ffff:127.0.0.1")

    @property
    def certificate(self) -> bytes | None:
        """The certificate of the peer, in DER; ``None`` without TLS."""
        return self._sock.getpeercert(binary_form=True) if isinstance(self._sock, ssl.SSLSocket) else None

    @property
    def tls_version(self) -> str | None:
        """The version of TLS, such as ``TLSv1.3``; ``None`` without TLS."""
        return self._sock.version() if isinstance(self._sock, ssl.SSLSocket) else None

    def write(self, data: bytes | memoryview, *, bounded: bool = False) -> None:
        """Send ``data``, which must not change until then; buffer the part that the peer does not take yet.

        Args:
            data: the bytes.
            bounded: the caller limits the amount itself, so that it does not count in ``pending_own_bytes``.

        Raises:
            ConnectionLost, TlsError: as :meth:`flush`.
        """
        if data:
            self._pending.append((memoryview(data), bounded))
            self.pending_bytes += len(data)
            if not bounded:
                self.pending_own_bytes += len(data)
        self.flush()

    def flush(self) -> None:
        """Send pending data, as far as the peer takes it.

        Raises:
            ConnectionLost: the connection broke.
            TlsError: with TLS, before anything was read: the peer refused the handshake or our certificate.
        """
        while self._pending:
            view, bounded = self._pending[0]
            try:
                sent = self._sock.send(view[:_WRITE_BYTES])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise self._lost("writing", error) from error
            self.pending_bytes -= sent
            self.sent_bytes += sent
            if not bounded:
                self.pending_own_bytes -= sent
            if sent == len(view):
                self._pending.popleft()
            else:
                self._pending[0] = (view[sent:], bounded)

    def read(self) -> bytes | None:
        """Return what has arrived, at most ``read_bytes``; ``None`` if nothing, ``b""`` at the end of the stream.

        Raises:
            ConnectionLost, TlsError: as :meth:`flush`.
        """
        try:
            data = self._sock.recv(self.read_bytes)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return b""
        except OSError as error:
            raise self._lost("reading", error) from error
        self._has_read = True
        return data

    def wait(self, timeout: float, *, reading: bool = True) -> bool:
        """Wait for data to read, room to write pending data, or a wake-up; return whether :meth:`wake` was called.

        Args:
            timeout: seconds, as many as may be; it may return after a day.
            reading: whether to wait for data; else arriving data is left in the socket, and only writing, waking and a
                reset are noticed.

        Raises:
            ConnectionLost, TlsError: as :meth:`flush`; without ``reading`` also because the peer reset the connection.
        """
        if reading and self.is_tls and isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            timeout = 0
        events = (select.POLLIN if reading else 0) | (select.POLLOUT if self._pending else 0)
        if events != self._events:
            self._poll.modify(self._sock, events)
            self._events = events
        woken = False
        for fd, event in self._poll.poll(min(max(0.0, timeout), _LONGEST_WAIT_S) * 1000.0):
            if fd == self._wake_in.fileno():
                woken = True
                with contextlib.suppress(BlockingIOError):
                    self._wake_in.recv(4096)
            elif event & select.POLLOUT:
                self.flush()
            elif not reading and event & (select.POLLHUP | select.POLLERR):
                raise connection_lost(self.peer, "the peer reset it")
        return woken

    def wake(self) -> None:
        """Make the running or the next :meth:`wait` return. May be called from any thread."""
        with contextlib.suppress(OSError):  # full: a wake-up is pending already; closed: no thread waits
            self._wake_out.send(b"\0")

    def reset_on_close(self, reset: bool) -> None:  # noqa: FBT001 - a switch
        """Set whether :meth:`close` also drops data that the kernel has not sent yet and resets the connection."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))

    def close(self) -> None:
        """Close the socket and drop pending data."""
        if self._closed:
            return
        self._closed = True
        self._pending.clear()
        self.pending_bytes = self.pending_own_bytes = 0
        for sock in (self._sock, self._wake_in, self._wake_out):
            with contextlib.suppress(OSError):
                sock.close()

    def _lost(self, doing: str, error: OSError) -> ConnectionFailed:
        # with TLS 1.3 the peer verifies our certificate after our handshake is over: its alert is the first data read
        if isinstance(error, ssl.SSLError) and not self._has_read:
            return _explain_tls(error, self.peer, 0)
        return connection_lost(self.peer, f"it broke while {doing}: {error.strerror or error}")


@contextlib.contextmanager
def _dialling_explained(where: str, timeout: float) -> Iterator[None]:
    """Turn what goes wrong before there is a connection into a ConnectionFailed."""
    try:
        yield
    except _NotResolved:
        raise _failed(where, f"the host name was not resolved within {timeout:g} s") from None
    except TimeoutError as error:
        raise _failed(where, f"no answer within {timeout:g} s") from error
    except socket.gaierror as error:
        raise _failed(where, f"the host name cannot be resolved: {error.strerror}") from error
    except OSError as error:
        raise _refused_by_system(where, error) from error
    except (ValueError, OverflowError) as error:  # UnicodeError is a ValueError
        raise _failed(where, f"this is not an address: {error}") from error


def _dial(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address of ``host`` that answers; each gets its share of the remaining time."""
    addresses = _resolve(host, port, deadline)
    failure: OSError | None = None
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(max(0.001, (deadline - monotonic()) / (len(addresses) - index)))
            sock.connect(address)
        except OSError as error:
            if sock is not None:
                sock.close()
            if failure is None or failure.errno in _NO_WAY or error.errno not in _NO_WAY:
                failure = error
        else:
            return sock
    raise failure or OSError("the name has no address")


def _resolve(host: str, port: int, deadline: float) -> Sequence[_Address]:
    """Resolve a host. The system's resolver has no deadline: it runs on a thread, which is abandoned after it."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    answers: queue.SimpleQueue[Sequence[_Address] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:  # UnicodeError is a ValueError
            answers.put(error)

    threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.001, deadline - monotonic()))
    except queue.Empty:
        raise _NotResolved from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _explain_tls(error: OSError, where: str, timeout: float) -> ConnectionFailed:
    """Build the error for a failed TLS handshake, with the cause and the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH
            reason = f"the certificate is for another name: {error.verify_message}"
            action = "Connect by the name in the certificate, or turn the verification of host names off"
            return _tls_error(where, reason, action)
        reason = f"the certificate is not trusted: {error.verify_message}"
        return _tls_error(where, reason, "Give the certificates of the authorities to trust (CA file)")
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _explain_alert((error.reason or str(error)).replace("_", " ").lower(), where)
    if isinstance(error, TimeoutError):
        return _failed(where, f"no TLS handshake within {timeout:g} s")
    return connection_lost(where, f"it broke during the TLS handshake: {error.strerror or error}")


def _explain_alert(reason: str, where: str) -> TlsError:
    if any(sign in reason for sign in ("wrong version", "record layer", "http request")):
        return _tls_error(where, f"the peer does not speak TLS: {reason}", "Use amqp:// for this port")
    if any(sign in reason for sign in ("certificate required", "handshake failure", "bad certificate")):
        action = "Give the client certificate that the broker requires, and its key"
        return _tls_error(where, f"the peer refused our handshake: {reason}", action)
    if any(
        sign in reason for sign in ("unknown ca", "certificate unknown", "certificate expired", "certificate revoked")
    ):
        action = "Give a client certificate that the broker trusts"
        return _tls_error(where, f"the peer refused our client certificate: {reason}", action)
    return _tls_error(where, reason, "Look into the log of the broker")


def connection_lost(peer: str, reason: str) -> ConnectionLost:
    """Build the error for a connection that ended."""
    return ConnectionLost(CoreCondition.CONNECTION_LOST(peer=peer, reason=reason))


def _refused_by_system(where: str, error: OSError) -> ConnectionFailed:
    reason = error.strerror or error
    if error.errno in _NO_FILES:
        return ConnectionFailed(CoreCondition.OPEN_FILES_EXHAUSTED(peer=where, reason=reason))
    return _failed(where, reason)


def _failed(where: str, reason: object) -> ConnectionFailed:
    return ConnectionFailed(CoreCondition.CONNECT_FAILED(peer=where, reason=reason))


def _tls_error(where: str, reason: str, action: str) -> TlsError:
    return TlsError(CoreCondition.TLS_FAILED(peer=where, reason=reason.removesuffix("."), action=action))
