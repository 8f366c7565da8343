"""How real brokers answer the protocol headers of each version of AMQP: what ``protocol=auto`` goes by."""

from __future__ import annotations

import socket
from typing import Final

import pytest

from amqp_core.protocol_header import describe_stranger, is_other_amqp

pytestmark = pytest.mark.broker

HEADERS: Final = {
    "0-10": b"AMQP\x01\x01\x00\x0a",
    "0-9-1": b"AMQP\x00\x00\x09\x01",
    "0-9": b"AMQP\x01\x01\x00\x09",
    "0-8": b"AMQP\x01\x01\x08\x00",
    "none": b"GET / HT",
}
SERVED: Final = "connection.start"
START: Final = b"\0\x0a\0\x0a"
"""Class and method of connection.start in 0-8 and 0-9 (0-9-1 section 1.4.2.1)."""


def answer(port: int, header: bytes) -> str:
    """``connection.start`` if the version is served, else what the answer is taken for."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(header)
        data = sock.recv(11)
        while len(data) < (8 if data.startswith(b"AMQP") else 11):
            data += sock.recv(11)
    served = data.startswith(HEADERS["0-10"]) if header == HEADERS["0-10"] else data[7:11] == START
    return SERVED if served else describe_stranger(data)


@pytest.fixture(params=["RabbitMQ 4", "Broker-J", pytest.param("RabbitMQ 3.10", marks=pytest.mark.thorough)])
def server(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Name and port of a broker."""
    fixture = {"RabbitMQ 4": "rabbitmq", "Broker-J": "brokerj_0_9", "RabbitMQ 3.10": "rabbitmq310"}[request.param]
    return request.param, request.getfixturevalue(fixture).port


@pytest.mark.parametrize("version", ["0-9-1", "0-9"])
def test_every_broker_serves_both_headers_of_0_9(server: tuple[str, int], version: str) -> None:
    assert answer(server[1], HEADERS[version]) == SERVED


@pytest.mark.parametrize(
    ("version", "answers"),
    [
        ("0-10", {"RabbitMQ 4": "AMQP 1.0 with SASL", "RabbitMQ 3.10": "AMQP 0-9-1", "Broker-J": SERVED}),
        ("0-8", {"RabbitMQ 4": "AMQP 1.0 with SASL", "RabbitMQ 3.10": SERVED, "Broker-J": SERVED}),
        ("none", {"RabbitMQ 4": "AMQP 1.0 with SASL", "RabbitMQ 3.10": "AMQP 0-9-1", "Broker-J": "AMQP 0-10"}),
    ],
)
def test_what_is_not_served_is_answered_with_the_header_of_a_version_of_amqp(
    server: tuple[str, int], version: str, answers: dict[str, str]
) -> None:
    """So ``auto`` goes on with 0-9-1 after 0-10: the header that comes need not name it."""
    name, port = server
    found = answer(port, HEADERS[version])
    assert found == answers[name]
    assert found == SERVED or is_other_amqp(found)
