"""The choice of the protocol by the answer of the broker, what is remembered of it, and ports that speak none."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core import amqp_0_9_1, protocols
from amqp_core.address import ConnectOptions
from amqp_core.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    LimitReached,
    UsageError,
    VersionRefused,
)
from amqp_core.v0_9.client import Client as Client09
from amqp_core.v0_10.client import Client as Client010
from tests.support.fakepeer import HOST, FakePeer, Peer, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Client

BROKER_J = "AMQP 0-10"
RABBITMQ = "AMQP 1.0 with SASL"
RABBITMQ_3 = "AMQP 0-9-1"
EITHER = "does not speak AMQP 0-10 or 0-9-1; it "


class Hosts:
    """Hosts that answer each header as real brokers do, and the connections that were tried to them."""

    def __init__(self, **speaks: str | Exception) -> None:
        self.speaks = speaks
        self.tried: list[tuple[str, str]] = []

    def connector(self, protocol: str) -> Callable[..., Client]:
        def connect(options: ConnectOptions, *, call_timeout_s: float) -> Client:
            assert options.protocol == protocol
            assert call_timeout_s == 60.0
            ((host, port),) = options.hosts
            self.tried.append((host, protocol))
            answer = self.speaks[host]
            if isinstance(answer, Exception):
                raise answer
            if protocol not in {BROKER_J: ("0-10",), "AMQP 0-9": ("0-9",)}.get(answer, ("0-9-1", "0-9")):
                raise VersionRefused(answer, f"AMQP {protocol}", "offers", f"{host}:{port}")
            return cast("Client", f"{protocol} at {host}")

        return connect

    def connect(self, *hosts: str, protocol: str = "auto") -> str:
        self.tried.clear()
        options = ConnectOptions(hosts=tuple((host, 1) for host in hosts), protocol=protocol)
        return cast("str", protocols.connect(options))


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hosts]:
    def at(**speaks: Any) -> Hosts:
        hosts = Hosts(**speaks)
        monkeypatch.setattr(protocols, "_CLIENTS", {name: hosts.connector(name) for name in ("0-10", "0-9-1", "0-9")})
        return hosts

    monkeypatch.setattr(protocols, "_found", {})
    return at


@pytest.mark.parametrize("answer", [RABBITMQ, RABBITMQ_3, "AMQP with the header bytes 00 00 09 02"])
def test_a_broker_that_answers_with_another_header_is_dialled_with_0_9_1(
    at: Callable[..., Hosts], caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    caplog.set_level(logging.INFO, "amqp_core.protocols")
    hosts = at(rabbit=answer)
    assert hosts.connect("rabbit") == "0-9-1 at rabbit"
    assert hosts.tried == [("rabbit", "0-10"), ("rabbit", "0-9-1")]
    assert hosts.connect("rabbit") == "0-9-1 at rabbit"
    assert hosts.tried == [("rabbit", "0-9-1")]  # remembered
    assert caplog.messages == [f"rabbit:1 speaks AMQP 0-9-1: it answered with {answer} before"]


def test_a_broker_that_offers_0_9_alone_is_dialled_with_it(at: Callable[..., Hosts]) -> None:
    hosts = at(old="AMQP 0-9")
    assert hosts.connect("old") == "0-9 at old"
    assert hosts.tried == [("old", "0-10"), ("old", "0-9-1"), ("old", "0-9")]
    assert hosts.connect("old") == "0-9 at old"
    assert hosts.tried == [("old", "0-9")]
    hosts.speaks["old"] = RABBITMQ
    assert hosts.connect("old") == "0-9 at old", "RabbitMQ serves it, too"


def test_a_broker_of_0_10_is_dialled_once(at: Callable[..., Hosts], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqp_core.protocols")
    hosts = at(qpid=BROKER_J)
    for _ in range(2):
        assert hosts.connect("qpid") == "0-10 at qpid"
        assert hosts.tried == [("qpid", "0-10")]
    assert caplog.messages == ["qpid:1 speaks AMQP 0-10"]


def test_what_is_remembered_is_forgotten_when_it_is_refused(at: Callable[..., Hosts]) -> None:
    hosts = at(host=RABBITMQ)
    hosts.connect("host")
    hosts.speaks["host"] = BROKER_J
    assert hosts.connect("host") == "0-10 at host"
    assert hosts.tried == [("host", "0-9-1"), ("host", "0-10")]
    hosts.speaks["host"] = "HTTP"
    with pytest.raises(VersionRefused):
        hosts.connect("host")
    assert hosts.tried == [("host", "0-10")]
    hosts.speaks["host"] = RABBITMQ
    hosts.connect("host")
    assert hosts.tried == [("host", "0-10"), ("host", "0-9-1")]


def test_other_failures_are_no_reason_to_forget(at: Callable[..., Hosts]) -> None:
    hosts = at(host=RABBITMQ)
    hosts.connect("host")
    hosts.speaks["host"] = ConnectionLost("reset")
    with pytest.raises(ConnectionLost):
        hosts.connect("host")
    hosts.speaks["host"] = RABBITMQ
    hosts.connect("host")
    assert hosts.tried == [("host", "0-9-1")]


def test_each_host_of_a_list_is_tried_with_its_own_protocol(at: Callable[..., Hosts]) -> None:
    hosts = at(gone=ConnectionLost("reset"), qpid=BROKER_J, rabbit=RABBITMQ)
    assert hosts.connect("gone", "rabbit", "qpid") == "0-9-1 at rabbit"
    assert hosts.connect("gone", "qpid", "rabbit") == "0-10 at qpid"
    assert hosts.connect("rabbit") == "0-9-1 at rabbit"
    assert hosts.tried == [("rabbit", "0-9-1")]


def test_another_host_may_have_room_for_a_connection(at: Callable[..., Hosts]) -> None:
    hosts = at(full=LimitReached(530, "node connection limit (9) is reached"), rabbit=RABBITMQ)
    assert hosts.connect("full", "rabbit") == "0-9-1 at rabbit"
    with pytest.raises(LimitReached):
        hosts.connect("full")


def test_a_refused_login_is_not_tried_elsewhere(at: Callable[..., Hosts]) -> None:
    hosts = at(one=AuthenticationFailed("no"), two=BROKER_J)
    with pytest.raises(AuthenticationFailed):
        hosts.connect("one", "two")
    assert hosts.tried == [("one", "0-10")]


@pytest.mark.parametrize("protocol", ["0-10", "0-9-1", "0-9"])
def test_a_given_protocol_is_the_only_one(at: Callable[..., Hosts], protocol: str) -> None:
    hosts = at(rabbit=RABBITMQ)
    if protocol == "0-10":
        with pytest.raises(VersionRefused, match=r"rabbit:1 does not speak AMQP 0-10; it offers AMQP 1\.0 with SASL"):
            hosts.connect("rabbit", protocol=protocol)
    else:
        assert hosts.connect("rabbit", protocol=protocol) == f"{protocol} at rabbit"
    assert hosts.tried == [("rabbit", protocol)]


@pytest.mark.parametrize("stranger", ["HTTP", "SSH", "TLS (it answered with a TLS alert): use amqps://"])
def test_a_port_that_speaks_no_amqp_is_named(at: Callable[..., Hosts], stranger: str) -> None:
    hosts = at(host=stranger)
    with pytest.raises(VersionRefused) as raised:
        hosts.connect("host")
    assert f"host:1 {EITHER}offers {stranger}" in str(raised.value)
    assert hosts.tried == [("host", "0-10")]
    assert not raised.value.retryable


def test_a_broker_of_1_0_alone_is_named(at: Callable[..., Hosts], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(options: ConnectOptions, **_: object) -> Client:
        raise VersionRefused("AMQP 1.0", f"AMQP {options.protocol}", "offers", "artemis:1")

    hosts = at()
    monkeypatch.setattr(protocols, "_CLIENTS", {"0-10": refuse, "0-9-1": refuse})
    with pytest.raises(VersionRefused) as raised:
        hosts.connect("artemis")
    assert f"artemis:1 {EITHER}offers AMQP 1.0." in str(raised.value)


def test_a_list_of_strangers_names_the_first(at: Callable[..., Hosts]) -> None:
    hosts = at(one="HTTP", two="SSH", gone=ConnectionLost("reset"))
    with pytest.raises(VersionRefused, match=r"one:1 .* HTTP"):
        hosts.connect("one", "two")
    with pytest.raises(ConnectionFailed, match=r"one:1 .* HTTP; .*reset"):
        hosts.connect("one", "gone")


def test_protocols_are_checked() -> None:
    with pytest.raises(UsageError, match=r"protocol=1\.0 is not valid: auto, 0-10, 0-9-1, 0-9 are allowed"):
        ConnectOptions(hosts=(("host", 1),), protocol="1.0")


# ------------------------------------------------------------------------------------------------------ over a socket
def options_of(server: FakePeer) -> ConnectOptions:
    return ConnectOptions(hosts=((HOST, server.port),), connect_timeout=10.0, heartbeat=0)


def test_a_peer_of_0_10() -> None:
    with FakePeer(serve) as server:
        for protocol in ("auto", "0-10"):
            with protocols.connect(replace(options_of(server), protocol=protocol)) as client:
                assert client.protocol == "0-10"
        assert server.connections == 2


@pytest.mark.parametrize(
    ("connect", "answer", "advice"),
    [
        (Client010.connect, b"AMQP\0\0\x09\x01", "AMQP 0-10, or speak AMQP 0-9-1 (RabbitMQ) with {client_0_9}"),
        (Client010.connect, b"AMQP\x03\x01\0\0", "AMQP 0-10, or speak AMQP 0-9-1 (RabbitMQ) with {client_0_9}"),
        (Client010.connect, b"AMQP\0\x01\0\0", "AMQP 0-10."),
        (Client09.connect, b"AMQP\x01\x01\0\x0a", "AMQP 0-9-1, or speak AMQP 0-10 with amqp_core.Client"),
        (Client09.connect, b"AMQP\x03\x01\0\0", "AMQP 0-9-1."),
    ],
)
def test_the_client_of_one_protocol_names_that_of_the_other_if_it_may_help(
    connect: Callable[[ConnectOptions], Client], answer: bytes, advice: str
) -> None:
    def script(peer: Peer) -> None:
        peer.read_raw(8)
        peer.raw(answer)

    with FakePeer(script) as server, pytest.raises(VersionRefused) as raised:
        connect(options_of(server))
    named = f"{amqp_0_9_1.__name__}.{amqp_0_9_1.Client.__name__}"
    assert f"Give the port for {advice.format(client_0_9=named)}" in str(raised.value)
    assert ("protocol=auto" in str(raised.value)) is (not advice.endswith("."))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", f"{EITHER}offers HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", f"{EITHER}offers TLS .*use amqps://"),
        (b"hello", f"{EITHER}answered with something that is not AMQP"),
        (b"AMQP\x01", f"{EITHER}answered with an incomplete AMQP header"),
    ],
)
def test_a_peer_that_is_something_else(answer: bytes, text: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_raw(8)
        peer.raw(answer)

    with FakePeer(script) as server:
        with pytest.raises(VersionRefused, match=rf"127\.0\.0\.1:\d+ {text}"):
            protocols.connect(options_of(server))
        assert server.connections == 1
