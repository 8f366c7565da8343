"""What the broker is told when it starts: as options of the command line, or as arguments of ``running``."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from amqp_core.address import format_address, is_utf8
from amqp_core.broker import users_file
from amqp_core.broker.logins import Logins
from amqp_core.broker.server import HOST, MOST_CONNECTIONS, Server
from amqp_core.broker.tls import server_context
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import UsageError

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

MOST_PORT: Final = 65535


class Settings(NamedTuple):
    """See ``running``. Immutable: any thread may use it."""

    port: int = 0
    store: str | Path | None = None
    host: str = HOST
    users: str | Path | None = None
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    tls_ca: str | Path | None = None
    allow_anonymous: bool = False
    memory_limit: int | None = None
    max_connections: int = MOST_CONNECTIONS

    def server(self) -> Server:
        """The broker, which does not listen yet.

        Raises:
            StoreError: the store cannot be used.
            UnusableFile: the file of users cannot be used.
            UsageError: ``host`` is no address, or ``port`` no port.
        """
        fault = host_fault(self.host)
        if fault:
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name="host", reason=fault))
        if not 0 <= self.port <= MOST_PORT:
            reason = f"{self.port} is not a port: give a number from 0 (any free port) to {MOST_PORT}"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name="port", reason=reason))
        return Server(
            logins=self.logins(),
            store=self.store,
            memory_limit=self.memory_limit,
            max_connections=self.max_connections,
        )

    def logins(self) -> Logins:
        """Who may log in.

        Raises:
            UnusableFile: the file of users cannot be used.
        """
        users = None if self.users is None else users_file.load(self.users)
        return Logins(users=users, allow_anonymous=self.allow_anonymous)

    def tls(self) -> ssl.SSLContext | None:
        """The context of TLS; None: clients connect without.

        Raises:
            UnusableFile: a file cannot be used.
            UsageError: a file is missing.
        """
        if self.tls_cert is None and self.tls_key is None and self.tls_ca is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            reason = "TLS needs a certificate and its key"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name="tls_cert or tls_key", reason=reason))
        return server_context(self.tls_cert, self.tls_key, self.tls_ca)

    def url(self, port: int, virtual_host: str = "/") -> str:
        """URL of a virtual host for a client on this machine; the empty name is the default one, which is ``/``."""
        path = quote(virtual_host, safe="")
        return f"{'amqp' if self.tls_cert is None else 'amqps'}://{format_address(_reachable(self.host), port)}/{path}"


def host_fault(host: str) -> str:
    """Why a broker cannot listen on ``host``; empty: it may be that it can. For asyncio no host is all of them."""
    if not host:
        return "no address is given, which would mean all of this machine: give one, or 0.0.0.0 for all"
    if not is_utf8(host):
        return f"{host!r} is not text in UTF-8: write it so"
    try:
        host.encode("idna")  # as getaddrinfo does, whose error is not one of the system
    except UnicodeError:
        return f"{host!r} is neither an address nor a name of a machine: give one"
    return ""


def _reachable(host: str) -> str:
    """An address of this machine where a broker can be reached that listens on ``host``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return HOST if address.version == 4 else "::1"
