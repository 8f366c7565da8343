"""In which order one user of connections tries the hosts of its URL: the one that failed it comes last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amqp_core.address import format_address

if TYPE_CHECKING:
    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client
    from amqp_spark.connect import Connector


class HostOrder:
    """The order of hosts, for one thread.

    A node of a cluster may take connections and yet be of no use: it has no running replica of a stream, or it is
    frozen. So after a loss the next host is tried first, and not the first of the URL again.
    """

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}
        """Hosts that have failed; the latest is the last."""
        self._current: str | None = None
        """The host of the connection."""
        self._before: str | None = None
        """The host that was lost before that."""

    def applied(self, options: ConnectOptions) -> ConnectOptions:
        """Options with the hosts in their order."""
        places = {peer: place for place, peer in enumerate(self._failed, 1)}
        hosts = sorted(options.hosts, key=lambda host: places.get(format_address(*host), 0))
        return replace(options, hosts=tuple(hosts))

    def only_current(self, options: ConnectOptions) -> ConnectOptions:
        """Options with the host of the connection alone; all hosts if a broker has redirected to another one."""
        hosts = tuple(host for host in options.hosts if format_address(*host) == self._current)
        return replace(options, hosts=hosts or options.hosts)

    def connect(self, connector: Connector, options: ConnectOptions) -> Client:
        """Connect to the first host in the order that answers; later :meth:`lost` is about that host. It raises the
        errors of the connector."""
        client = connector(self.applied(options))
        self.use(client)
        return client

    def use(self, client: Client) -> None:
        """Record the connection that is used from now on."""
        self._current = client.peer

    def lost(self) -> None:
        """Record that the connection, if there is one, is of no use."""
        if self._current is not None:
            self._failed.pop(self._current, None)
            self._failed[self._current] = None
            self._before, self._current = self._current, None

    def moved(self) -> str:
        """End of a log message about the connection: which host was lost before; empty if none was."""
        before, self._before = self._before, None
        if before is None:
            return ""
        return f", after {before} was lost" if before != self._current else ", again"
