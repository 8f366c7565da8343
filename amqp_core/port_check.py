"""Find out whether a port that closes a connection without an answer may have a broker that is only starting.

A proxy without a server behind it closes a connection whatever the client does. A server of another protocol, or of
TLS, waits for the client to begin, and closes the connection because of what it then reads.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from amqp_core.errors import AmqpError, ConnectionLost
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.transport import Transport, monotonic

#: Proxies try their servers for a while: HAProxy closes after 3 s by default, and its first pause is 1 s.
_IDLE_S: Final = 1.5
#: A close that the header has caused follows within a round trip.
_ANSWER_S: Final = 0.5
#: Every broker answers it: with connection.start, or with the header of a version that it serves.
_HEADER: Final = HEADERS_0_9["0-9-1"]


def closes_at_header(host: str, port: int, *, timeout: float) -> bool:
    """Whether a port takes a connection, waits while nothing is sent, and closes it when a protocol header arrives.

    Takes up to two seconds, and the time to connect, at most ``timeout`` seconds. A port that cannot be reached does
    not close at the header.
    """
    try:
        transport = Transport.connect(host, port, timeout=timeout, context=None)
    except AmqpError:
        return False
    with closing(transport):
        if _heard(transport, _IDLE_S) is not None:
            return False
        try:
            transport.write(_HEADER)
        except AmqpError:
            return False
        return _heard(transport, _ANSWER_S) == b""


def _heard(transport: Transport, seconds: float) -> bytes | None:
    """What arrives within that time; ``b""``: the end of the connection; ``None``: nothing."""
    deadline = monotonic() + seconds
    try:
        while (data := transport.read()) is None and (left := deadline - monotonic()) > 0:
            transport.wait(left)
    except ConnectionLost:
        return b""
    return data
