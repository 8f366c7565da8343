"""Connections of amqp_spark to a port that closes them without an answer: it may have a broker soon, or never."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Self

import pytest

from amqp_core import port_check
from amqp_core.address import ConnectOptions
from amqp_core.errors import ConnectionFailed, ConnectionLost, SpeaksNoAmqp
from amqp_spark import connect as connecting
from tests.support.sockets import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator


class ClosesAtHeader:
    """A port that reads the first bytes of each connection, and closes it."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def options(self) -> ConnectOptions:
        return ConnectOptions(hosts=((HOST, self.port),))

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                self.connections += 1
                peer.recv(8)


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClosesAtHeader]:
    monkeypatch.setattr(port_check, "_IDLE_S", 0.05)
    monkeypatch.setattr(port_check, "_ANSWER_S", 30.0)
    monkeypatch.setattr(connecting, "_brokers", set())
    with ClosesAtHeader() as server:
        yield server


def test_a_port_that_speaks_no_amqp_is_not_tried_again(stranger: ClosesAtHeader) -> None:
    with pytest.raises(SpeaksNoAmqp) as raised:
        connecting.connect(stranger.options())
    assert f"{HOST}:{stranger.port} closes every connection when the protocol header" in str(raised.value)
    assert "another protocol, or expects TLS" in str(raised.value)
    assert not raised.value.retryable
    assert stranger.connections == 2


def test_a_port_that_had_a_broker_is_tried_again(stranger: ClosesAtHeader) -> None:
    connecting._brokers.add(stranger.options().hosts)
    with pytest.raises(ConnectionLost, match=r"closed it without a word: it may want TLS .*another protocol") as raised:
        connecting.connect(stranger.options())
    assert raised.value.retryable
    assert stranger.connections == 1


def test_of_several_hosts_another_one_may_come_up(stranger: ClosesAtHeader) -> None:
    hosts = ((HOST, stranger.port), (HOST, stranger.port))
    with pytest.raises(ConnectionFailed) as raised:
        connecting.connect(ConnectOptions(hosts=hosts))
    assert raised.value.retryable
    assert stranger.connections == 2
