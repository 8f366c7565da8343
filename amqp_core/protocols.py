"""Connect with the protocol of the options: AMQP 0-10, 0-9-1 or 0-9; or with the one that the broker speaks.

With ``protocol=auto`` a connection starts with the header of 0-10. A broker that answers with another header of AMQP
is dialled again with 0-9-1, and with 0-9 if it offers that and refuses 0-9-1. What a host speaks is remembered in this
process, and forgotten when it refuses that. Thread-safe: each step on the memory is one operation of a dict.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from amqp_core.address import AUTO_PROTOCOL, format_address
from amqp_core.errors import VersionRefused
from amqp_core.failover import connect_any
from amqp_core.protocol_header import is_other_amqp
from amqp_core.v0_10.client import DEFAULT_CALL_TIMEOUT_S
from amqp_core.v0_10.client import Client as Client010

if TYPE_CHECKING:
    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client

_log = logging.getLogger(__name__)


class _Connect(Protocol):
    def __call__(self, options: ConnectOptions, /, *, call_timeout_s: float) -> Client: ...


#: Protocols in the order in which ``auto`` tries them.
_AUTOMATIC: Final = ("0-10", "0-9-1")
#: The protocol that ``auto`` tries after them, if the broker offers it: RabbitMQ serves it, but offers others.
_ON_OFFER: Final = "0-9"


def _connect_0_9(options: ConnectOptions, /, *, call_timeout_s: float) -> Client:
    from amqp_core.v0_9.client import Client  # noqa: PLC0415 - a tenth of a second that each process of Spark would wait

    return Client.connect(options, call_timeout_s=call_timeout_s)


_CLIENTS: Final[dict[str, _Connect]] = {"0-10": Client010.connect, "0-9-1": _connect_0_9, "0-9": _connect_0_9}
_found: Final[dict[tuple[str, int], str]] = {}


def connect(options: ConnectOptions, *, call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S) -> Client:
    """Connect, log in and open the virtual host; try each host of the list once, with the protocol that it speaks.

    Args:
        options: hosts, protocol, login and TLS. With ``auto`` a host may take twice the connect timeout: once for each
            protocol.
        call_timeout_s: seconds that any later call may wait for its answer.

    Raises:
        VersionRefused: the port speaks none of the allowed protocols; the text says what it speaks.
        AuthenticationFailed, VirtualHostRefused, UsageError, ConnectionFailed, TlsError, DeadlineExceeded, ...: as
            :meth:`amqp_core.v0_10.client.Client.connect`.
    """
    if options.protocol != AUTO_PROTOCOL:
        return _CLIENTS[options.protocol](options, call_timeout_s=call_timeout_s)

    def dial(host: str, port: int) -> Client:
        return _connect_either(replace(options, hosts=((host, port),)), call_timeout_s)

    return connect_any(options.hosts, dial)


def _connect_either(options: ConnectOptions, call_timeout_s: float) -> Client:
    """Connect to the one host of ``options``: with the protocol that it spoke last, else with the first it takes."""
    address = options.hosts[0]
    before = _found.get(address)
    protocols = sorted((*_AUTOMATIC, _ON_OFFER), key=lambda protocol: protocol != before)
    refusals: list[VersionRefused] = []
    for protocol in protocols:
        offered = any(refused.offered == f"AMQP {protocol}" for refused in refusals)
        if protocol == _ON_OFFER and not offered and protocol != before:
            continue
        try:
            client = _CLIENTS[protocol](replace(options, protocol=protocol), call_timeout_s=call_timeout_s)
        except VersionRefused as refused:
            if before == protocol:
                _found.pop(address, None)
            refusals.append(refused)
            if not is_other_amqp(refused.offered):
                break
        else:
            _remember(address, protocol, refusals)
            return client
    last = refusals[-1]
    expected = f"AMQP {' or '.join(_AUTOMATIC)}"
    raise VersionRefused(last.offered, expected, last.how, last.peer) from last


def _remember(address: tuple[str, int], protocol: str, refusals: list[VersionRefused]) -> None:
    if _found.get(address) == protocol:
        return
    _found[address] = protocol
    because = f": it answered with {refusals[-1].offered} before" if refusals else ""
    _log.info("%s speaks AMQP %s%s", format_address(*address), protocol, because)


__all__ = ["DEFAULT_CALL_TIMEOUT_S", "connect"]
