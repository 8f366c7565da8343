"""The check of a port that closes connections without an answer, against scripted sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core import port_check
from tests.support.ports import free_port
from tests.support.sockets import HOST, reset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEADER = b"AMQP\0\0\x09\x01"


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """A function that serves one connection with a script, and returns the port."""
    with contextlib.ExitStack() as stack:

        def listen(script: Callable[[socket.socket], None]) -> int:
            listener = stack.enter_context(socket.create_server((HOST, 0)))

            def serve() -> None:
                with listener.accept()[0] as peer:
                    script(peer)

            thread = threading.Thread(target=serve)
            thread.start()
            stack.callback(thread.join)
            port: int = listener.getsockname()[1]
            return port

        yield listen


def close_at_the_header(peer: socket.socket) -> None:
    assert peer.recv(8) == HEADER


def close_with_data_unread(peer: socket.socket) -> None:
    assert peer.recv(2) == HEADER[:2]


def reset_at_the_header(peer: socket.socket) -> None:
    assert peer.recv(8) == HEADER
    reset(peer)


def close_at_once(peer: socket.socket) -> None:
    pass


def close_at_once_with_a_reset(peer: socket.socket) -> None:
    reset(peer)


def answer(peer: socket.socket) -> None:
    assert peer.recv(8) == HEADER
    peer.sendall(HEADER)


def greet(peer: socket.socket) -> None:
    peer.sendall(b"220 mail.example ESMTP\r\n")
    peer.recv(8)


def say_nothing(peer: socket.socket) -> None:
    peer.recv(8)
    peer.recv(8)  # until the other side closes


@pytest.mark.parametrize("script", [close_at_the_header, close_with_data_unread, reset_at_the_header])
def test_a_port_that_closes_because_of_the_header(
    listen: Callable[[Callable[[socket.socket], None]], int],
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[socket.socket], None],
) -> None:
    monkeypatch.setattr(port_check, "_IDLE_S", 0.05)
    monkeypatch.setattr(port_check, "_ANSWER_S", 30.0)
    assert port_check.closes_at_header(HOST, listen(script), timeout=10)


@pytest.mark.parametrize("script", [close_at_once, close_at_once_with_a_reset, answer, greet])
def test_a_port_that_may_have_a_broker(
    listen: Callable[[Callable[[socket.socket], None]], int],
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[socket.socket], None],
) -> None:
    if script is answer:
        monkeypatch.setattr(port_check, "_IDLE_S", 0.05)
    else:
        monkeypatch.setattr(port_check, "_IDLE_S", 30.0)
    monkeypatch.setattr(port_check, "_ANSWER_S", 30.0)
    assert not port_check.closes_at_header(HOST, listen(script), timeout=10)


def test_a_port_that_says_nothing_may_have_a_broker(
    listen: Callable[[Callable[[socket.socket], None]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_check, "_IDLE_S", 0.05)
    monkeypatch.setattr(port_check, "_ANSWER_S", 0.05)
    assert not port_check.closes_at_header(HOST, listen(say_nothing), timeout=10)


def test_a_port_without_a_listener_may_get_one() -> None:
    assert not port_check.closes_at_header(HOST, free_port(), timeout=10)
