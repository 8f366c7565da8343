"""The server stops: it waits for clients that read what it has written, and for no others."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from amqp_core.broker import peer as peer_module
from amqp_core.broker import server as server_module
from amqp_core.broker.model.messages import Message
from amqp_core.broker.peer import Peer
from amqp_core.broker.server import WIRES, Server
from amqp_core.broker.store.database import StoreError
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header
from tests.core.broker.peer_0_9 import FRAME_MAX, method

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 32 << 20
"""More than the buffers of two sockets hold."""


def hello(heartbeat: int) -> bytes:
    """What a client says that consumes from q."""
    return b"".join(
        (
            HEADERS_0_9["0-9-1"],
            method(0, spec.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
            method(0, spec.ConnectionTuneOk(2047, FRAME_MAX, heartbeat)),
            method(0, spec.ConnectionOpen("/")),
            method(1, spec.ChannelOpen()),
            method(1, spec.BasicConsume(queue="q", no_ack=True)),
        )
    )


HELLO = hello(60)


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.settimeout(30)
        yield made


async def delivered(server: Server, client: socket.socket, hello: bytes = HELLO) -> None:
    """Let a client connect and subscribe, and write it a message that it does not read."""
    port = await server.start()
    host = server.hosts["/"]
    host.declare_queue("q", owner=None)
    header = encode_header(spec.BasicProperties(), SIZE)
    host.publish(Message(WIRES["0-9"], "", "q", header, bytes(SIZE)), now=server.now())
    client.connect(("127.0.0.1", port))
    client.sendall(hello)
    while host.queues["q"].message_count or not server.memory.transit:
        await asyncio.sleep(0)


def read_all(client: socket.socket) -> int:
    """Bytes until the broker closes the connection; a reset of it is its end, too."""
    count = 0
    try:
        while data := client.recv(1 << 20):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


def test_a_client_that_does_not_read_is_cut_off(client: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each version of Python: ``Server.wait_closed`` of asyncio waits for clients since 3.12 only."""
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 0.01)

    async def run() -> None:
        server = Server()
        await delivered(server, client)
        await server.stop()
        assert not server._peers

    asyncio.run(run())
    assert read_all(client) < SIZE


def test_a_client_that_reads_gets_all_that_was_written(client: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 30.0)

    async def run() -> int:
        server = Server()
        await delivered(server, client)
        read, _ = await asyncio.gather(asyncio.to_thread(read_all, client), server.stop())
        assert not server._peers
        return read

    assert asyncio.run(run()) > SIZE


@pytest.mark.parametrize("last", [method(0, spec.ConnectionClose(200, "", 0, 0)), b"garbage"])
def test_a_client_that_ends_and_does_not_read_is_forgotten(
    client: socket.socket, monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    """Also without heartbeats, which would find that nobody is there."""
    monkeypatch.setattr(peer_module, "LINGER_SECONDS", 0.01)
    monkeypatch.setattr(peer_module, "MOST_UNREAD_BYTES", 2 * SIZE)  # else the end waits in the socket

    async def run() -> None:
        server = Server()
        await delivered(server, client, hello(0))
        client.sendall(last)
        async with asyncio.timeout(10):
            while server._peers:
                await asyncio.sleep(0.01)
        assert server.memory.transit == 0
        await server.stop()

    asyncio.run(run())


def test_who_connects_while_it_stops_is_cut_off(client: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CLOSE_SECONDS", 3600.0)
    monkeypatch.setattr(peer_module, "LOGIN_SECONDS", 3600.0)

    async def run() -> None:
        server = Server()
        await delivered(server, client)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as other:
            other.settimeout(30)
            other.connect(listening.getsockname())
            late, _ = listening.accept()  # as one that was accepted before and is made known only now
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Peer(server), late)
            assert await asyncio.to_thread(read_all, other) == 0
        await asyncio.to_thread(read_all, client)
        await stopping
        assert not server._peers

    asyncio.run(run())


def test_who_connects_after_a_failure_of_the_store_is_told_nothing(client: socket.socket, tmp_path: Path) -> None:
    """What it publishes would be confirmed, although it is not on the disk."""

    async def run() -> None:
        server = Server(store=tmp_path / "broker.db")
        port = await server.start()
        server._fail(StoreError("the disk is full"))
        client.connect(("127.0.0.1", port))
        client.sendall(HELLO)
        assert await asyncio.to_thread(read_all, client) == 0
        await server.stop()

    asyncio.run(run())
