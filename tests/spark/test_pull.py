"""The pull endpoint: exact bytes, several at once, and nothing for those who do not know the token."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from amqp_spark.datasource import pull
from amqp_spark.datasource.pull import Endpoint, PullServer, fetch, report_rejects
from amqp_spark.errors import OffsetError, TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Held:
    """Position n is 1000 bytes of value n; positions above 99 are not held."""

    def __init__(self) -> None:
        self.rejected: list[tuple[str, int, list[int], str]] = []

    def parts(self, queue: str, epoch: int, begin: int, end: int) -> Sequence[memoryview]:
        if end > 100 or (queue, epoch) != ("qu€ue", 7):
            raise OffsetError(f"queue {queue!r}: positions {begin} to {end} are not held")
        return [memoryview(bytes([position]) * 1000) for position in range(begin, end)]

    def reject(self, queue: str, epoch: int, positions: Sequence[int], text: str) -> None:
        self.rejected.append((queue, epoch, list(positions), text))


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def server(held: Held) -> Iterator[PullServer]:
    server = PullServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1")
    yield server
    server.close()


def get(endpoint: Endpoint, begin: int, end: int) -> list[bytes]:
    return list(fetch(endpoint, queue="qu€ue", epoch=7, begin=begin, end=end))


def test_a_range_arrives_exactly_part_by_part(server: PullServer) -> None:
    assert get(server.endpoint, 5, 8) == [b"\5" * 1000, b"\6" * 1000, b"\7" * 1000]
    assert get(server.endpoint, 5, 5) == []


def test_several_executors_at_once(server: PullServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: b"".join(get(server.endpoint, n, n + 50)), range(40)))
    assert results == [b"".join(bytes([p]) * 1000 for p in range(n, n + 50)) for n in range(40)]


def test_an_abandoned_fetch_does_not_disturb_others(server: PullServer) -> None:
    first = fetch(server.endpoint, queue="qu€ue", epoch=7, begin=0, end=100)
    assert next(first) == b"\0" * 1000
    assert isinstance(first, Generator)
    first.close()
    assert len(get(server.endpoint, 0, 100)) == 100


def test_a_task_may_take_its_time(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "_SERVE_SECONDS", 0.05)
    large = memoryview(bytes(64 << 20))  # more than the buffers of a connection hold
    monkeypatch.setattr(held, "parts", lambda *_: [large[:1000], large])
    server = PullServer(held, bind="127.0.0.1", port=0, advertise="127.0.0.1")
    try:
        reading = fetch(server.endpoint, queue="q", epoch=7, begin=0, end=2)
        assert len(next(reading)) == 1000
        (serving,) = [thread for thread in threading.enumerate() if thread.name == "amqp-pull-serve"]
        serving.join(0.3)  # a slow sink: the server does not give up meanwhile
        assert sum(map(len, reading)) == len(large)
    finally:
        server.close()


def test_what_is_not_held_says_why(server: PullServer) -> None:
    with pytest.raises(TransferError, match="positions 90 to 101 are not held"):
        get(server.endpoint, 90, 101)


def test_rejects_are_reported(server: PullServer, held: Held) -> None:
    report_rejects(server.endpoint, queue="q", epoch=7, positions=[1, 2**40], text="warum? ü")
    assert held.rejected == [("q", 7, [1, 2**40], "warum? ü")]


def test_many_rejects_go_in_several_requests(server: PullServer, held: Held) -> None:
    report_rejects(server.endpoint, queue="q", epoch=7, positions=range(250_000), text="x" * 100_000)
    assert [position for _, _, positions, _ in held.rejected for position in positions] == list(range(250_000))


def test_a_wrong_token_gets_nothing(server: PullServer) -> None:
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
def test_garbage_is_hung_up_on(server: PullServer, request_bytes: bytes) -> None:
    with socket.create_connection((server.endpoint.host, server.endpoint.port), 10) as connection:
        answer = b""
        try:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(100)
        except OSError:  # hung up with bytes unread
            pass
        assert answer == b""
    assert len(get(server.endpoint, 0, 1)) == 1


def test_an_endpoint_on_every_address(held: Held) -> None:
    server = PullServer(held, bind="", port=0, advertise="127.0.0.1")
    try:
        assert len(get(server.endpoint, 0, 3)) == 3
    finally:
        server.close()


def test_the_token_is_not_shown(server: PullServer) -> None:
    assert "token" not in repr(server.endpoint)


def test_an_endpoint_that_cannot_be_reached_names_the_options(server: PullServer) -> None:
    server.close()
    with pytest.raises(TransferError, match=r"127\.0\.0\.1:\d+.*transferHost and transferPort"):
        get(server.endpoint, 0, 1)


def test_a_port_that_is_taken_names_the_options(server: PullServer, held: Held) -> None:
    with pytest.raises(TransferError, match="transferPort"):
        PullServer(held, bind="127.0.0.1", port=server.endpoint.port, advertise="127.0.0.1")
