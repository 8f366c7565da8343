"""The pull endpoint: exact bytes, several at once, encrypted, and nothing for those who do not know the token."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from amqp_spark.arrow.decode import Chunk
from amqp_spark.datasource import block_server, encryption
from amqp_spark.datasource.block_server import BlockServer, Endpoint, fetch, report_rejects
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OffsetError, TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


TLS_ALERT = 0x15


def chunk(frames: bytes, *ends: int) -> Chunk:
    return Chunk.of(memoryview(frames), ends)


class Held:
    """Position n is a chunk of two transfers, together 1000 bytes of value n; positions above 99 are not held."""

    def __init__(self) -> None:
        self.rejected: list[tuple[str, int, list[int], str]] = []

    def chunks(self, queue: str, epoch: int, begin: int, end: int) -> Sequence[Chunk]:
        if end > 100 or (queue, epoch) != ("qu€ue", 7):
            reason = f"positions {begin} to {end} are not held"
            raise OffsetError(SparkCondition.BATCH_NOT_HELD(queue=queue, reason=reason))
        return [chunk(bytes([position]) * 1000, position, 1000) for position in range(begin, end)]

    def reject(self, queue: str, epoch: int, positions: Sequence[int], text: str) -> None:
        self.rejected.append((queue, epoch, list(positions), text))


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture(params=[False, True], ids=["clear", "encrypted"])
def server(held: Held, request: pytest.FixtureRequest) -> Iterator[BlockServer]:
    server = BlockServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1", encrypt=request.param)
    yield server
    server.close()


def get(endpoint: Endpoint, begin: int, end: int) -> list[bytes | memoryview]:
    return [chunk.frames for chunk in fetched(endpoint, begin, end)]


def fetched(endpoint: Endpoint, begin: int, end: int) -> list[Chunk]:
    return list(fetch(endpoint, queue="qu€ue", epoch=7, begin=begin, end=end))


def test_a_range_arrives_exactly_part_by_part(server: BlockServer) -> None:
    assert get(server.endpoint, 5, 8) == [b"\5" * 1000, b"\6" * 1000, b"\7" * 1000]
    assert get(server.endpoint, 5, 5) == []


def test_the_ends_of_the_transfers_come_along(server: BlockServer) -> None:
    assert [chunk.ends for chunk in fetched(server.endpoint, 5, 7)] == [
        struct.pack(">II", 5, 1000),
        struct.pack(">II", 6, 1000),
    ]


def test_several_executors_at_once(server: BlockServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: b"".join(get(server.endpoint, n, n + 50)), range(40)))
    assert results == [b"".join(bytes([p]) * 1000 for p in range(n, n + 50)) for n in range(40)]


def test_an_abandoned_fetch_does_not_disturb_others(server: BlockServer) -> None:
    first = fetch(server.endpoint, queue="qu€ue", epoch=7, begin=0, end=100)
    assert next(first).frames == b"\0" * 1000
    assert isinstance(first, Generator)
    first.close()
    assert len(get(server.endpoint, 0, 100)) == 100


def test_a_task_may_take_its_time(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_server, "_SERVE_SECONDS", 0.05)
    large = bytes(64 << 20)  # more than the buffers of a connection hold
    monkeypatch.setattr(held, "chunks", lambda *_: [chunk(large[:1000], 1000), chunk(large, len(large))])
    before = threading.enumerate()  # some may end only now
    server = BlockServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1", encrypt=True)
    try:
        reading = fetch(server.endpoint, queue="q", epoch=7, begin=0, end=2)
        assert len(next(reading).frames) == 1000
        (serving,) = [each for each in threading.enumerate() if each.name == "amqp-pull-serve" and each not in before]
        serving.join(0.3)  # a slow sink: the server does not give up meanwhile
        assert sum(len(chunk.frames) for chunk in reading) == len(large)
    finally:
        server.close()


def test_a_fetch_waits_while_others_take_their_time(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears of it, so that it does not give up."""
    monkeypatch.setattr(block_server, "_MAX_FETCHES", 1)
    monkeypatch.setattr(block_server, "_WAITING_SECONDS", 0.01)
    large = bytes(64 << 20)
    monkeypatch.setattr(held, "chunks", lambda *_: [chunk(large[:1000], 1000), chunk(large, len(large))])
    server = BlockServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1", encrypt=True)
    try:
        slow = fetch(server.endpoint, queue="q", epoch=7, begin=0, end=2)
        next(slow)
        report_rejects(server.endpoint, queue="q", epoch=7, positions=[1], text="while its range is half read")
        assert len(held.rejected) == 1
        assert isinstance(slow, Generator)
        give_up, signs, read = slow.close, [], block_server._read

        def watched(stream: block_server._Stream, size: int) -> bytes:
            data = read(stream, size)
            if size == 1 and data[0] == block_server._WAITING:
                signs.append(data)
                if len(signs) == 3:
                    give_up()
            return data

        monkeypatch.setattr(block_server, "_read", watched)
        assert len(next(fetch(server.endpoint, queue="q", epoch=7, begin=0, end=2)).frames) == 1000
        assert len(signs) >= 3
    finally:
        server.close()


def test_what_is_not_held_says_why(server: BlockServer) -> None:
    said = r"^\[AMQP_BATCH_NOT_HELD\] .*positions 90 to 101 are not held.* Use the checkpoint"
    with pytest.raises(TransferError, match=said):
        get(server.endpoint, 90, 101)


def test_rejects_are_reported(server: BlockServer, held: Held) -> None:
    report_rejects(server.endpoint, queue="q", epoch=7, positions=[1, 2**40], text="warum? ü")
    assert held.rejected == [("q", 7, [1, 2**40], "warum? ü")]


def test_many_rejects_go_in_several_requests(server: BlockServer, held: Held) -> None:
    report_rejects(server.endpoint, queue="q", epoch=7, positions=range(250_000), text="x" * 100_000)
    assert [position for _, _, positions, _ in held.rejected for position in positions] == list(range(250_000))


def test_a_wrong_token_gets_nothing(server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_server, "_PAUSE_SECONDS", 0.0)
    with pytest.raises(TransferError, match="refused the token"):
        get(replace(server.endpoint, token=b"x" * 32), 0, 1)
    assert len(get(server.endpoint, 0, 1)) == 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">I", 0),
        struct.pack(">I", 2**32 - 1) + b"x" * 100,
        struct.pack(">I", 60) + b"x" * 60,
        b"AMQP\x01\x01\x00\x0a",
    ],
)
def test_garbage_is_hung_up_on(server: BlockServer, request_bytes: bytes) -> None:
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 10) as connection:
        answer = b""
        try:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(100)
        except OSError:  # hung up with bytes unread
            pass
        assert answer == b"" or (server.endpoint.fingerprint and answer[0] == TLS_ALERT)
    assert len(get(server.endpoint, 0, 1)) == 1


def test_an_endpoint_on_every_address(held: Held) -> None:
    server = BlockServer(held, bind="", port=0, advertise="127.0.0.1", encrypt=True)
    try:
        assert len(get(server.endpoint, 0, 3)) == 3
    finally:
        server.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_endpoint_on_every_address_has_those_of_both_families(held: Held, address: str) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server = BlockServer(held, bind="", port=0, advertise=address, encrypt=True)
    try:
        assert len(get(server.endpoint, 0, 3)) == 3
    finally:
        server.close()


def test_an_endpoint_on_every_address_of_a_machine_where_ipv6_is_turned_off(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.create_server

    def refuse_ipv6(address: tuple[str, int], *, family: int, **named: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, family=family, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("amqp_spark.datasource.block_server.socket.create_server", refuse_ipv6)
    server = BlockServer(held, bind="", port=0, advertise="127.0.0.1", encrypt=True)
    try:
        assert len(get(server.endpoint, 0, 3)) == 3
    finally:
        server.close()


def test_the_token_is_not_shown(server: BlockServer) -> None:
    assert "token" not in repr(server.endpoint)
    assert "fingerprint" not in repr(server.endpoint)


def test_an_endpoint_that_cannot_be_reached_names_the_options(server: BlockServer) -> None:
    server.close()
    with pytest.raises(TransferError, match=r"127\.0\.0\.1:\d+.*transferHost and transferPort"):
        get(server.endpoint, 0, 1)


def test_a_port_that_is_taken_names_the_option_its_value_and_what_to_do(
    server: BlockServer, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_server, "PORT_SECONDS", 0.0)
    port = server.endpoint.port
    with pytest.raises(
        TransferError, match=f"Option transferPort is {port}, which another program .*Give each query its own port"
    ):
        BlockServer(held, bind="127.0.0.1", port=port, advertise="127.0.0.1", encrypt=False)
    assert len(get(server.endpoint, 0, 1)) == 1


def test_a_port_that_the_query_before_still_has_is_waited_for(
    server: BlockServer, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_server, "PORT_SECONDS", 600.0)
    port = server.endpoint.port
    monkeypatch.setattr("amqp_spark.datasource.block_server.time.sleep", lambda _: server.close())
    second = BlockServer(held, bind="127.0.0.1", port=port, advertise="127.0.0.1", encrypt=False)
    assert len(get(second.endpoint, 0, 1)) == 1
    second.close()


# --- encryption


class Tap:
    """A relay to an endpoint that keeps what passes, in both directions."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.seen = bytearray()
        self._target = (endpoint.host, endpoint.port)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = replace(endpoint, port=self._socket.getsockname()[1])
        self._connections: list[socket.socket] = []
        self._relays: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _peer = self._socket.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._connections += near, far
            for pair in ((near, far), (far, near)):
                self._relays.append(threading.Thread(target=self._relay, args=pair, daemon=True))
                self._relays[-1].start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
        for each in (source, target):  # wakes the other direction, too
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop, and return when everything that passed is in ``seen``."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._socket.close()
        for each in self._relays:
            each.join()
        for connection in self._connections:
            connection.close()


@pytest.fixture
def encrypted(held: Held) -> Iterator[BlockServer]:
    server = BlockServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1", encrypt=True)
    yield server
    server.close()


@pytest.fixture
def clear(held: Held) -> Iterator[BlockServer]:
    server = BlockServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1", encrypt=False)
    yield server
    server.close()


def seen_on_the_way(server: BlockServer) -> bytes:
    tap = Tap(server.endpoint)
    assert get(tap.endpoint, 5, 7) == [b"\5" * 1000, b"\6" * 1000]
    report_rejects(tap.endpoint, queue="q", epoch=7, positions=[1], text="this is wrong")
    tap.close()
    return bytes(tap.seen)


def test_neither_messages_nor_reasons_nor_the_token_can_be_read_on_the_way(
    encrypted: BlockServer, clear: BlockServer
) -> None:
    secrets = (b"\5" * 20, b"this is wrong", "qu€ue".encode())
    seen = seen_on_the_way(encrypted)
    assert not any(secret in seen for secret in (*secrets, encrypted.endpoint.token))
    seen = seen_on_the_way(clear)  # the tap does see what is in clear
    assert all(secret in seen for secret in (*secrets, clear.endpoint.token))


def test_another_program_that_answers_with_tls_gets_nothing(encrypted: BlockServer, held: Held) -> None:
    other = BlockServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1", encrypt=True)
    try:
        tap = replace(encrypted.endpoint, port=other.endpoint.port)
        with pytest.raises(TransferError, match="not the reader of the query, since it has another certificate"):
            get(tap, 0, 1)
    finally:
        other.close()


def test_another_program_that_answers_in_clear_gets_nothing(
    encrypted: BlockServer, clear: BlockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_server, "_PAUSE_SECONDS", 0.0)
    tap = Tap(clear.endpoint)
    with pytest.raises(TransferError, match="cannot fetch a batch"):
        get(replace(encrypted.endpoint, port=tap.endpoint.port), 0, 1)
    tap.close()
    assert encrypted.endpoint.token not in bytes(tap.seen)


def test_an_endpoint_that_encrypts_says_nothing_in_clear(
    encrypted: BlockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_server, "_PAUSE_SECONDS", 0.0)
    with pytest.raises(TransferError, match="cannot fetch a batch"):
        get(replace(encrypted.endpoint, fingerprint=None), 0, 1)


def test_the_key_is_not_left_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    encryption.server_context()
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_that_makes_certificates_the_error_names_it(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(TransferError, match=r"'cryptography'.*on the driver.*transfer=inline"):
        BlockServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1", encrypt=True)


# --- connections that do not show the token


def idle(server: BlockServer) -> socket.socket:
    return socket.create_connection((server.endpoint.host, server.endpoint.port), 10)


def test_idle_connections_keep_no_client_out(server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_server, "_TOKEN_SECONDS", 600.0)  # they have to go because others come
    connections = [idle(server) for _ in range(300)]
    assert len(get(server.endpoint, 0, 3)) == 3
    assert connections[0].recv(1) == b""  # the oldest had to go
    for connection in connections:
        connection.close()


def test_a_connection_without_token_is_ended_soon(server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_server, "_TOKEN_SECONDS", 0.05)
    silent, slow = idle(server), idle(server)
    slow.sendall(b"\0")
    for connection in (silent, slow):
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:  # hung up with a byte unread
            pass
        connection.close()


def test_a_connection_that_has_shown_the_token_stays_however_many_others_come(
    held: Held, server: BlockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = bytes(64 << 20)  # more than the buffers of a connection hold
    monkeypatch.setattr(held, "chunks", lambda *_: [chunk(large[:1000], 1000), chunk(large, len(large))])
    reading = fetch(server.endpoint, queue="q", epoch=7, begin=0, end=2)
    assert len(next(reading).frames) == 1000
    others = [idle(server) for _ in range(100)]
    assert sum(len(chunk.frames) for chunk in reading) == len(large)
    for other in others:
        other.close()


def test_an_executor_tries_again_when_no_thread_could_serve_it(
    server: BlockServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = threading.Thread.start, [1]

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == "amqp-pull-serve" and failures:
            failures.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    assert len(get(server.endpoint, 0, 3)) == 3
    assert not failures
    assert server._strangers._guards == []


def test_an_executor_that_lost_its_place_tries_again(server: BlockServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_server, "_PAUSE_SECONDS", 0.0)
    refused = 3
    enter = server._strangers.enter

    def enter_or_not(connection: socket.socket) -> socket.socket:
        nonlocal refused
        refused -= 1
        if refused >= 0:
            raise OSError(errno.EMFILE, "too many open files")
        return enter(connection)

    monkeypatch.setattr(server._strangers, "enter", enter_or_not)
    assert len(get(server.endpoint, 0, 3)) == 3
