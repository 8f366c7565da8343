"""Which versions of AMQP a port speaks, asked without a login."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import AmqpError, ConnectionFailed, ConnectionLost, DeadlineExceeded, ProtocolError, UsageError
from amqp_core.transport import resolve
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_control
from amqp_core.v0_10.framing import PROTOCOL_HEADER, encode_control_frame
from amqp_core.version_probe import VERSIONS, ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.broker import Broker

HOST = "127.0.0.1"


@contextmanager
def serving(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port that handles one connection."""
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with closing(connection):
                handle(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_shows_what_it_is_before_the_login(amqp_broker: Broker, version: str) -> None:
    answer = ask(HOST, amqp_broker.port, version, timeout=60)
    assert (answer.version, answer.served, answer.instead) == (version, True, "")
    assert "SCRAM-SHA-256" in answer.mechanisms
    assert answer.properties["product"] == "amqp_core broker"


@pytest.mark.parametrize("version", VERSIONS)
def test_another_version_is_named(version: str) -> None:
    def handle(connection: socket.socket) -> None:
        connection.recv(8)
        connection.sendall(b"AMQP\x00\x01\x00\x00")

    with serving(handle) as port:
        answer = ask(HOST, port, version, timeout=60)
    assert (answer.served, answer.instead, answer.mechanisms) == (False, "AMQP 1.0", ())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ConnectionLost),
        (b"AMQP\x01\x01\x00\x0a", ConnectionLost),
        (b"AMQP\x01\x01\x00\x0a\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", ProtocolError),
    ],
    ids=["nothing", "its header alone", "a frame that is too short"],
)
def test_a_connection_that_ends_says_why(data: bytes, error: type[AmqpError]) -> None:
    def handle(connection: socket.socket) -> None:
        connection.recv(8)
        connection.sendall(data)

    with serving(handle) as port, pytest.raises(error):
        ask(HOST, port, "0-10", timeout=60)


def test_a_port_that_is_silent() -> None:
    done = threading.Event()

    def handle(_: socket.socket) -> None:
        done.wait(60)

    with serving(handle) as port:
        with pytest.raises(DeadlineExceeded, match="did not answer in time"):
            ask(HOST, port, "0-9-1", timeout=0.1)
        done.set()


def test_a_timeout_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="timeout=inf is not valid: more than 0 and at most 2147483 seconds"):
        ask(HOST, 1, "0-10", timeout=float("inf"))


def test_a_port_that_sends_heartbeats_only_is_given_up() -> None:
    heartbeats = encode_control_frame(0, encode_control(spec.ConnectionHeartbeat())) * 20_000

    def handle(connection: socket.socket) -> None:
        connection.sendall(PROTOCOL_HEADER)
        until = time.monotonic() + 5
        with suppress(OSError):
            while time.monotonic() < until:
                connection.sendall(heartbeats)

    with serving(handle) as port, pytest.raises(DeadlineExceeded):
        ask(HOST, port, "0-10", timeout=0.5)


def test_addresses_of_a_name() -> None:
    assert resolve("127.0.0.1", 5672, timeout=60) == ["127.0.0.1"]
    assert set(resolve("localhost", 5672, timeout=60)) <= {"127.0.0.1", "::1"}
    with pytest.raises(ConnectionFailed, match="not an address"):
        resolve("x" * 70, 5672, timeout=60)
