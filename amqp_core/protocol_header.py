"""Protocol headers of the versions of AMQP, and recognition of a peer that speaks another protocol. No I/O."""

from __future__ import annotations

from typing import Final

HEADERS_0_9: Final = {"0-9-1": b"AMQP\x00\x00\x09\x01", "0-9": b"AMQP\x01\x01\x00\x09"}
"""The headers of AMQP 0-9-1 and 0-9, by version (section 4.2.2 of each)."""
_TLS_ALERT: Final = b"\x15\x03"
_HEADERS: Final = {
    b"\x01\x01\x00\x0a": "AMQP 0-10",
    b"\x01\x01\x00\x09": "AMQP 0-9",
    b"\x01\x01\x08\x00": "AMQP 0-8",
    b"\x00\x00\x09\x01": "AMQP 0-9-1",
    b"\x00\x01\x00\x00": "AMQP 1.0",
    b"\x02\x01\x00\x00": "AMQP 1.0 over TLS",
    b"\x03\x01\x00\x00": "AMQP 1.0 with SASL",
}


def is_other_amqp(offered: str) -> bool:
    """Whether a description by :func:`describe_stranger` is a whole header of AMQP: the peer may speak a version of it.

    A broker answers a header that it does not serve with one that it serves, but not always with each: RabbitMQ 4
    answers that of 0-10 with that of 1.0, although it serves 0-9-1, too.
    """
    return offered.startswith("AMQP ")


def is_stranger(data: bytes, header: bytes) -> bool | None:
    """Whether a peer whose first bytes are ``data`` does not send ``header``; ``None`` while that is not certain.

    The answer, and that of :func:`describe_stranger`, depend on the bytes alone, not on how they were split.
    """
    if data.startswith(_TLS_ALERT):
        return True  # no data follows an alert, which is shorter than a protocol header
    return None if len(data) < len(header) else not data.startswith(header)


def describe_stranger(data: bytes) -> str:
    """Describe the protocol of a peer that did not send the expected header, by its first (eight) bytes."""
    if data[:4] == b"AMQP":
        if len(data) < 8:
            return "an incomplete AMQP header"
        return _HEADERS.get(data[4:8], f"AMQP with the header bytes {data[4:8].hex(' ')}")
    if data.startswith(_TLS_ALERT):
        return "TLS (it answered with a TLS alert): use amqps://"
    if data[:5] == b"HTTP/":
        return "HTTP"
    if data[:4] == b"SSH-":
        return "SSH"
    return f"something that is not AMQP (it begins with {data[:8]!r})"
