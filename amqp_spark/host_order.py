"""In which order one user of connections tries the hosts of its URL: the one that failed it comes last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amqp_core.address import format_address

if TYPE_CHECKING:
    from amqp_core.address import ConnectOptions


class HostOrder:
    """The order of hosts, for one thread.

    A node of a cluster may take connections and yet be of no use: it has no running replica of a stream, or it is
    frozen. So after a loss the next host is tried first, and not the first of the URL again.
    """

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}
        """Hosts that have failed; the latest is the last."""
        self._lost: str | None = None

    def applied(self, options: ConnectOptions) -> ConnectOptions:
        """Options with the hosts in their order."""
        places = {peer: place for place, peer in enumerate(self._failed, 1)}
        hosts = sorted(options.hosts, key=lambda host: places.get(format_address(*host), 0))
        return replace(options, hosts=tuple(hosts))

    def lost(self, peer: str) -> None:
        """Record that a connection to a host has failed."""
        self._failed.pop(peer, None)
        self._failed[peer] = None
        self._lost = peer

    def moved(self, peer: str) -> str:
        """End of a log message about a new connection: which host was lost before; empty if none was."""
        before, self._lost = self._lost, None
        if before is None:
            return ""
        return f", after {before} was lost" if before != peer else ", again"
