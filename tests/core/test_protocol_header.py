"""Protocol headers: naming peers that speak something else."""

from __future__ import annotations

import pytest

from amqp_core.protocol_header import describe_stranger, is_stranger
from amqp_core.v0_10.framing import PROTOCOL_HEADER

STRANGERS = {
    b"AMQP\0\0\x09\x01": "AMQP 0-9-1",
    b"AMQP\x01\x01\x00\x09": "AMQP 0-9",
    b"AMQP\x01\x01\x08\x00": "AMQP 0-8",
    b"AMQP\0\x01\0\0": "AMQP 1.0",
    b"AMQP\x03\x01\0\0": "AMQP 1.0 with SASL",
    b"AMQP\x07\x07\x07\x07": "AMQP with the header bytes 07 07 07 07",
    b"HTTP/1.1 400 Bad Request\r\n": "HTTP",
    b"\x15\x03\x03\0\x02\x02\x46": "TLS (it answered with a TLS alert): use amqps://",
    b"SSH-2.0-OpenSSH_9.2\r\n": "SSH",
    b"220 smtp.example.org ESMTP\r\n": "something that is not AMQP (it begins with b'220 smtp')",
}


@pytest.mark.parametrize("data", STRANGERS)
def test_a_stranger_is_described_however_its_bytes_are_split(data: bytes) -> None:
    for length in range(len(data) + 1):
        if is_stranger(data[:length], PROTOCOL_HEADER) is not None:
            assert is_stranger(data[:length], PROTOCOL_HEADER)
            assert describe_stranger(data[:length]) == STRANGERS[data]
    assert is_stranger(data, PROTOCOL_HEADER)


def test_our_own_header_is_no_stranger() -> None:
    for length in range(8):
        assert is_stranger(PROTOCOL_HEADER[:length], PROTOCOL_HEADER) is None
    assert is_stranger(PROTOCOL_HEADER + b"more", PROTOCOL_HEADER) is False
    assert describe_stranger(b"AMQP\x01") == "an incomplete AMQP header"
