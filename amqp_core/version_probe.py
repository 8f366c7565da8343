"""Ask a port which versions of AMQP it speaks, without a login: send a protocol header, and read the answer.

The answer of a broker that serves the version is its connection.start: product, version and login mechanisms. Nothing
of the options but the addresses and the TLS files is used, and the connection is dropped then.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from amqp_core.address import check_connect_timeout
from amqp_core.connection_states import Ended, Role
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed, DeadlineExceeded, VersionRefused
from amqp_core.transport import Transport, connection_lost, monotonic
from amqp_core.v0_9.connection import Connection as Connection09
from amqp_core.v0_10.connection import Connection as Connection010

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

VERSIONS: Final = ("0-10", "0-9-1", "0-9")
"""Versions that can be asked for: those that the clients of this package speak."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a port answers to the header of a version. Immutable: any thread may use it.

    Attributes:
        version: the version that was asked for.
        served: whether the port speaks it.
        instead: what it offers instead, such as ``AMQP 0-9-1``; empty if it serves the version.
        mechanisms: its login mechanisms.
        properties: the broker's properties, such as ``product`` and ``version``.
    """

    version: str
    served: bool
    instead: str = ""
    mechanisms: tuple[str, ...] = ()
    properties: Mapping[str, object] = field(default_factory=dict)


class _Listener:
    """A login that only notes which mechanisms are offered."""

    def __init__(self) -> None:
        self.mechanisms: tuple[str, ...] | None = None

    def has_heard(self) -> bool:
        """Whether the broker has made its offer."""
        return self.mechanisms is not None

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        self.mechanisms = tuple(mechanisms)
        raise _no_login()

    def respond(self, _: bytes) -> NoReturn:
        raise _no_login()

    def succeeded(self) -> None:
        """Never reached."""

    def shown(self, text: str) -> str:
        """Nothing was sent that may not be shown."""
        return text


def _no_login() -> AuthenticationFailed:
    return AuthenticationFailed(CoreCondition.CALL_NOT_ALLOWED(reason="a question about versions is no login"))


def ask(host: str, port: int, version: str, *, timeout: float, context: ssl.SSLContext | None = None) -> Answer:
    """Ask a port for one version, within ``timeout`` seconds for the connection, and as many for the answer.

    Args:
        version: one of ``VERSIONS``.
        context: of TLS. No login is sent, so it may be one that takes every certificate.

    Raises:
        UsageError: ``timeout`` is none that :class:`amqp_core.address.ConnectOptions` allows for a connection.
        ConnectionFailed, TlsError: as :meth:`amqp_core.transport.Transport.connect`.
        ConnectionLost: it closes the connection without an answer.
        DeadlineExceeded: it does not answer.
        ProtocolError: its answer is malformed.
    """
    check_connect_timeout("timeout", timeout)
    listener = _Listener()
    connection: Connection010 | Connection09 = (
        Connection010(Role.CLIENT, login=listener)
        if version == "0-10"
        else Connection09(Role.CLIENT, version=version, login=listener)
    )
    with closing(Transport.connect(host, port, timeout=timeout, context=context)) as transport:
        transport.write(connection.data_to_send())
        try:
            _read(transport, connection, listener, timeout)
        except VersionRefused as refused:
            return Answer(version, served=False, instead=refused.offered)
    return Answer(version, True, "", listener.mechanisms or (), dict(connection.peer_properties))


def _read(transport: Transport, connection: Connection010 | Connection09, listener: _Listener, timeout: float) -> None:
    """Read until the port has shown what it speaks; else raise the error that says why it does not."""
    deadline = monotonic() + timeout
    while not listener.has_heard():
        is_late = monotonic() >= deadline
        data = transport.read()
        if data is None and not is_late:
            transport.wait(deadline - monotonic())
            continue
        events = connection.receive_eof() if data == b"" else connection.receive_data(data or b"")
        if listener.has_heard():
            return  # the connection has ended, since the listener has refused to log in
        error = next((event.error for event in events if isinstance(event, Ended)), None)
        if error is not None:
            raise error
        if data == b"":
            raise connection_lost(transport.peer, "it was closed without an answer")
        if is_late:  # nothing came, or something else without an end
            what = f"the answer to a protocol header ({timeout:g} s)"
            raise DeadlineExceeded(CoreCondition.DEADLINE_EXCEEDED(peer=transport.peer, what=what))
