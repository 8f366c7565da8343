"""The fault proxy does to connections what it is asked to: without that, no test of a fault proves anything."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.triggers import after, frames, operation, pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE_TRANSFER = 0x0401
MESSAGE_ACCEPT = 0x0402


def frame(kind: int, payload: bytes, *, flags: int = 0x0F) -> bytes:
    return bytes((flags, kind)) + (12 + len(payload)).to_bytes(2) + bytes((0, 1, 0, 0, 0, 0, 0, 0)) + payload


PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x0a"
TRANSFER = frame(1, MESSAGE_TRANSFER.to_bytes(2) + b"\x01\x00" + b"transfer")
BODY = frame(3, MESSAGE_ACCEPT.to_bytes(2) + b" a body that begins like message.accept")
ACCEPT = frame(1, MESSAGE_ACCEPT.to_bytes(2) + b"\x01\x00" + b"accept")


class Network:
    """A proxy in front of a listening socket, and what connects through it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        self.proxy = FaultProxy(self.listener.getsockname())
        self.sockets = [self.listener]

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """A client and what the broker accepted for it."""
        client = socket.create_connection(self.proxy.address, 10)
        broker, _ = self.listener.accept()
        broker.settimeout(10)
        self.sockets += [client, broker]
        return client, broker

    def has_read(self, lane: str, count: int) -> bool:
        """Whether the proxy has read ``count`` bytes of a direction of the first connection."""
        connections = self.proxy.connections
        return bool(connections) and len(getattr(connections[0], lane).stream) >= count

    def close(self) -> None:
        for end in self.sockets:
            end.close()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    with network.proxy:
        yield network
    network.close()


def receive(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        assert more, f"ended after {data!r}"
        data += more
    return data


def receive_all(end: socket.socket) -> bytes:
    """Everything up to an orderly end."""
    data = b""
    while more := end.recv(65536):
        data += more
    return data


def test_bytes_pass_in_both_directions_and_are_recorded(network: Network) -> None:
    client, broker = network.connect()
    client.sendall(b"question")
    assert receive(broker, 8) == b"question"
    broker.sendall(b"answer")
    assert receive(client, 6) == b"answer"
    (connection,) = network.proxy.connections
    assert (connection.from_client, connection.from_broker) == (b"question", b"answer")


def test_many_bytes_pass_unchanged(network: Network) -> None:
    client, broker = network.connect()
    data = bytes(range(256)) * 40_000

    def send() -> None:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    assert receive_all(broker) == data
    sender.join()


def test_an_end_of_one_direction_leaves_the_other_open(network: Network) -> None:
    client, broker = network.connect()
    client.shutdown(socket.SHUT_WR)
    assert receive_all(broker) == b""
    broker.sendall(b"still here")
    assert receive(client, 10) == b"still here"
    broker.close()
    assert receive_all(client) == b""
    wait_until(lambda: network.proxy.open_connections == 0, "the connection to be closed")


def test_a_cut_by_fin_lets_exactly_the_bytes_before_it_pass(network: Network) -> None:
    fault = network.proxy.to_client.cut(after(5))
    client, broker = network.connect()
    broker.sendall(b"0123456789")
    assert receive_all(client) == b"01234"
    assert receive_all(broker) == b""
    fault.wait()


def test_a_cut_by_reset_is_seen_as_a_reset_by_both_sides(network: Network) -> None:
    network.proxy.to_client.cut(after(5), how="reset")
    client, broker = network.connect()
    broker.sendall(b"0123456789")
    with pytest.raises(ConnectionResetError):
        receive_all(client)
    with pytest.raises(ConnectionResetError):
        receive_all(broker)


def test_a_fault_strikes_once_unless_told_otherwise(network: Network) -> None:
    network.proxy.to_broker.cut(after(1))
    first, _ = network.connect()
    first.sendall(b"x")
    assert receive_all(first) == b""
    second, broker = network.connect()
    second.sendall(b"x")
    assert receive(broker, 1) == b"x"

    network.proxy.to_broker.cut(after(2), times=None)
    for _ in range(2):
        client, _ = network.connect()
        client.sendall(b"xy")
        assert receive_all(client) == b""


def test_a_fault_without_a_trigger_strikes_a_silent_connection(network: Network) -> None:
    client, _broker = network.connect()
    network.proxy.wait_for_connections(1)
    network.proxy.to_client.cut()
    assert receive_all(client) == b""


def test_a_half_closed_direction_ends_and_the_other_goes_on(network: Network) -> None:
    network.proxy.to_client.half_close(after(3))
    client, broker = network.connect()
    broker.sendall(b"abcdef")
    assert receive_all(client) == b"abc"
    client.sendall(b"heard")
    assert receive(broker, 5) == b"heard"


def test_a_stall_keeps_everything_back_until_resume(network: Network) -> None:
    stall = network.proxy.to_client.stall(after(3))
    client, broker = network.connect()
    broker.sendall(b"abcdef")
    stall.wait()
    assert receive(client, 3) == b"abc"
    client.sendall(b"the other direction flows")
    assert receive(broker, 25)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(10)
    network.proxy.resume()
    assert receive(client, 3) == b"def"


def test_split_sends_pieces(network: Network) -> None:
    network.proxy.to_client.split(size=1)
    client, broker = network.connect()
    broker.sendall(bytes(range(200)))
    assert receive(client, 200) == bytes(range(200))
    wait_until(lambda: network.proxy.connections[0].to_client.sends == 200, "the last byte to be counted")


def test_coalesce_sends_together_what_came_in_pieces(network: Network) -> None:
    network.proxy.to_client.coalesce(quiet_s=0.2)
    client, broker = network.connect()
    broker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for value in range(20):
        broker.sendall(bytes((value,)))
        wait_until(partial(network.has_read, "to_client", value + 1), "the byte to reach the proxy")
    assert receive(client, 20) == bytes(range(20))
    assert network.proxy.connections[0].to_client.sends < 20


def test_coalesced_bytes_are_not_lost_at_the_end(network: Network) -> None:
    network.proxy.to_client.coalesce(quiet_s=3600)
    client, broker = network.connect()
    broker.sendall(b"last words")
    broker.shutdown(socket.SHUT_WR)
    assert receive_all(client) == b"last words"


def test_delayed_bytes_arrive_in_order(network: Network) -> None:
    network.proxy.to_client.delay(0.05)
    client, broker = network.connect()
    for value in range(5):
        broker.sendall(bytes((value,)))
    broker.shutdown(socket.SHUT_WR)
    assert receive_all(client) == bytes(range(5))


def test_injected_bytes_stand_where_they_were_asked_for(network: Network) -> None:
    network.proxy.to_broker.inject(b"<garbage>", after(2))
    client, broker = network.connect()
    client.sendall(b"abcd")
    assert receive(broker, 13) == b"ab<garbage>cd"
    assert network.proxy.connections[0].from_client == b"abcd"


def test_inject_and_drop_replace(network: Network) -> None:
    network.proxy.to_broker.inject(b"XY", pattern(b"cd"))
    network.proxy.to_broker.drop(2, pattern(b"cd"))
    client, broker = network.connect()
    client.sendall(b"abc")
    assert receive(broker, 2) == b"ab"
    client.sendall(b"def")
    client.shutdown(socket.SHUT_WR)
    # "c" was on its way before anybody could know that "d" follows
    assert receive_all(broker) == b"cXYf"


def test_frames_are_found_in_a_stream() -> None:
    stream = PROTOCOL_HEADER + TRANSFER + BODY + ACCEPT
    assert [found.code for found in frames(stream)] == [MESSAGE_TRANSFER, None, MESSAGE_ACCEPT]
    assert [found.code for found in frames(stream[:-1])] == [MESSAGE_TRANSFER, None]
    assert [stream[found.start : found.end] for found in frames(stream)] == [TRANSFER, BODY, ACCEPT]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_operation_is_found_however_the_stream_is_split(network: Network, size: int) -> None:
    network.proxy.to_broker.cut(operation(MESSAGE_ACCEPT))
    client, broker = network.connect()
    stream = PROTOCOL_HEADER + TRANSFER + BODY + ACCEPT
    for start in range(0, len(stream), size):
        client.sendall(stream[start : start + size])
        if start + size < len(stream):
            wait_until(partial(network.has_read, "to_broker", start + size), "the bytes to reach the proxy")
    received = receive_all(broker)
    # A frame is known when it is complete; nothing of what follows it may pass, and all that precedes it does.
    assert received.startswith(PROTOCOL_HEADER + TRANSFER + BODY)
    assert len(received) < len(stream)


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ({}, PROTOCOL_HEADER + TRANSFER + BODY),
        ({"past": True}, PROTOCOL_HEADER + TRANSFER + BODY + ACCEPT),
        ({"inside": 3}, PROTOCOL_HEADER + TRANSFER + BODY + ACCEPT[:3]),
        ({"nth": 2}, PROTOCOL_HEADER + TRANSFER + BODY + ACCEPT + TRANSFER),
    ],
)
def test_where_an_operation_strikes(network: Network, arguments: dict[str, int], passed: bytes) -> None:
    network.proxy.to_broker.cut(operation(MESSAGE_ACCEPT, **arguments))  # type: ignore[arg-type]
    client, broker = network.connect()
    client.sendall(PROTOCOL_HEADER + TRANSFER + BODY + ACCEPT + TRANSFER + ACCEPT)
    assert receive_all(broker) == passed


def test_refuse_and_listen_again(network: Network) -> None:
    client, broker = network.connect()
    network.proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(network.proxy.address, 10)
    client.sendall(b"open ones go on")
    assert receive(broker, 15)
    network.proxy.listen_again()
    network.connect()


def test_a_target_that_is_gone_resets_the_client(network: Network, free_port: int) -> None:
    network.proxy.retarget(("127.0.0.1", free_port))
    with socket.socket() as client:
        client.settimeout(10)
        client.connect_ex(network.proxy.address)  # the reset may already be there
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.sendall(b"x" * 10_000_000)


def test_cut_all_ends_every_connection(network: Network) -> None:
    clients = [network.connect()[0] for _ in range(3)]
    network.proxy.wait_for_connections(3)
    network.proxy.cut_all("fin")
    assert [receive_all(client) for client in clients] == [b"", b"", b""]


def test_an_error_in_a_trigger_reaches_the_test() -> None:
    def broken(stream: bytes) -> int | None:
        if stream:
            raise ZeroDivisionError
        return None

    network = Network()
    proxy = network.proxy.__enter__()
    proxy.to_broker.cut(broken)
    client, _ = network.connect()
    client.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ZeroDivisionError):
        proxy.close()
    network.close()


def test_a_proxy_that_records_nothing_refuses_triggers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = FaultProxy(listener.getsockname(), record=False)
        with proxy, pytest.raises(ValueError, match="records"):
            proxy.to_broker.cut(after(1))
