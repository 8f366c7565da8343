"""Connecting and logging in to peers that do what no real broker can be made to do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.address import MAX_CONNECT_TIMEOUT_S
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    ProtocolError,
    SessionDetached,
    UsageError,
    VersionRefused,
    VirtualHostRefused,
)
from amqp_core.failover import redirected_to
from amqp_core.transport import Transport
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_control
from amqp_core.v0_10.framing import PROTOCOL_HEADER, encode_control_frame
from tests.support.fakepeer import HOST, FakePeer, Peer, serve
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# ---------------------------------------------------------------------------------------------------------- connecting
def test_redirects_are_followed() -> None:
    def redirect(peer: Peer) -> None:
        peer.redirect_to = f"amqp:tcp:{HOST}:{second.port},amqp:tcp:other:1"
        peer.serve()

    with FakePeer(serve) as second, FakePeer(redirect) as first:
        client = first.connect()
        assert client.peer == f"{HOST}:{second.port}"
        client.sync()


def test_redirects_in_a_circle_end() -> None:
    def redirect(peer: Peer) -> None:
        peer.redirect_to = f"{HOST}:{server.port}"
        peer.serve()

    with FakePeer(redirect) as server:
        with pytest.raises(ConnectionFailed, match="redirected to one another more than 3 times"):
            server.connect()
        assert server.connections == 4


def test_a_redirect_to_nowhere() -> None:
    def redirect(peer: Peer) -> None:
        peer.redirect_to = ""
        peer.serve()

    with FakePeer(redirect) as server, pytest.raises(ProtocolError, match=r"connection\.redirect names no host"):
        server.connect()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amqp:tcp:other:5673", ("other", 5673)),
        ("tcp:other:5673,tcp:third:1", ("other", 5673)),
        ("amqp://other", ("other", 9)),
        ("amqps:[::1]:5671", ("::1", 5671)),
        ("[::1]", ("::1", 9)),
        ("::1", ("::1", 9)),
        ("other:0", ("other:0", 9)),
        ("other:99999", ("other:99999", 9)),
        (" ssl:10.0.0.1:80 ", ("10.0.0.1", 80)),
    ],
)
def test_where_a_redirect_leads(text: str, expected: tuple[str, int]) -> None:
    assert redirected_to(text, 9) == expected


def say_nothing(peer: Peer) -> None:
    peer.silent()


def only_the_header(peer: Peer) -> None:
    peer.raw(PROTOCOL_HEADER)
    peer.silent()


def half_a_header(peer: Peer) -> None:
    peer.raw(PROTOCOL_HEADER[:5])
    peer.silent()


def only_start(peer: Peer) -> None:
    peer.raw(PROTOCOL_HEADER)
    peer.control(spec.ConnectionStart(mechanisms=["ANONYMOUS"], locales=["en_US"]))
    peer.silent()


def never_attached(peer: Peer) -> None:
    peer.session.receive_control = lambda _: None  # type: ignore[method-assign, assignment]
    peer.serve()


@pytest.mark.parametrize("script", [say_nothing, only_the_header, half_a_header, only_start, never_attached])
def test_a_peer_that_falls_silent_while_we_connect(script: Callable[[Peer], None]) -> None:
    with FakePeer(script) as server, pytest.raises(DeadlineExceeded, match="connect timeout"):
        server.connect(connect_timeout=0.3)


def test_the_longest_timeouts_are_waited_for() -> None:
    with FakePeer(serve) as server:
        server.connect(connect_timeout=MAX_CONNECT_TIMEOUT_S, call_timeout_s=math.inf).sync()


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_a_call_timeout_that_is_no_positive_number_is_refused(seconds: float) -> None:
    with FakePeer(Peer.silent) as server, pytest.raises(UsageError, match=f"call_timeout_s={seconds} is not valid"):
        server.connect(call_timeout_s=seconds)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"", ConnectionLost, "closed it without a word"),
        (b"AMQP\0\0\x09\x01", VersionRefused, "it offers AMQP 0-9-1"),
        (b"AMQP\x03\x01\0\0", VersionRefused, "it offers AMQP 1.0 with SASL"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", VersionRefused, "it offers HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", VersionRefused, "use amqps://"),
        (b"AMQP\x01", VersionRefused, "an incomplete AMQP header"),
        (b"hello", VersionRefused, r"begins with b'hello'"),
        (PROTOCOL_HEADER + b"\x0f\x00\x00\x05" + bytes(30), DecodeError, "5 bytes is smaller than its header"),
        (PROTOCOL_HEADER, ConnectionLost, "closed it without a word"),
    ],
)
def test_a_peer_that_is_something_else(answer: bytes, error: type[AmqpError], text: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_raw(8)
        peer.raw(answer)

    with FakePeer(script) as server:
        with pytest.raises(error, match=text) as raised:
            server.connect()
        assert type(raised.value) is error


OPEN_OK = spec.ConnectionOpenOk()
WRONG_ORDER: list[tuple[Sequence[spec.Control], str]] = [
    ([spec.ConnectionTune()], r"connection\.tune is not allowed while start is awaited"),
    ([spec.SessionAttached(name=b"x")], r"session\.attached arrived before the connection was open"),
    ([spec.ConnectionStart(mechanisms=["ANONYMOUS"]), OPEN_OK], r"connection\.open-ok is not allowed while secure"),
    (
        [spec.ConnectionStart(mechanisms=["ANONYMOUS"]), spec.ConnectionTune(), OPEN_OK, OPEN_OK],
        r"connection\.open-ok is not allowed while open is awaited",
    ),
    (
        [spec.ConnectionStart(mechanisms=["ANONYMOUS"]), spec.ConnectionTune(), OPEN_OK, spec.SessionFlush()],
        r"session\.flush arrived before the session was attached",
    ),
    ([spec.ConnectionStart(mechanisms=["ANONYMOUS"]), spec.ConnectionStartOk()], r"connection\.start-ok is not"),
    ([spec.ConnectionOpen()], r"connection\.open is not allowed"),
]


@pytest.mark.parametrize(("controls", "text"), WRONG_ORDER)
def test_a_peer_that_mixes_up_the_order(controls: Sequence[spec.Control], text: str) -> None:
    def script(peer: Peer) -> None:
        peer.raw(PROTOCOL_HEADER)
        for control in controls:
            peer.control(control)
        peer.silent()

    with FakePeer(script) as server, pytest.raises(ProtocolError, match=text):
        server.connect()


def test_every_host_of_the_list_is_tried_once() -> None:
    def refuse(peer: Peer) -> None:
        peer.read_raw(8)

    with FakePeer(serve) as good, FakePeer(refuse) as bad:
        closed_port = free_port()
        client = good.connect(hosts=((HOST, closed_port), (HOST, bad.port), (HOST, good.port)))
        assert client.peer == f"{HOST}:{good.port}"
        assert bad.connections == 1
        with pytest.raises(ConnectionFailed) as raised:
            good.connect(hosts=((HOST, closed_port), (HOST, bad.port)))
        assert f"Connecting to {HOST}:{closed_port} failed" in str(raised.value)
        assert f"{HOST}:{bad.port} ended: the peer closed it without a word" in str(raised.value)


def test_hosts_that_cannot_help_say_so_with_their_own_error() -> None:
    def stranger(peer: Peer) -> None:
        peer.read_raw(8)
        peer.raw(b"HTTP/1.1 400")

    with FakePeer(stranger) as one, FakePeer(stranger) as two, pytest.raises(VersionRefused, match="HTTP"):
        one.connect(hosts=((HOST, one.port), (HOST, two.port)))


@pytest.mark.parametrize(("code", "error"), [(402, VirtualHostRefused), (530, VirtualHostRefused)])
def test_a_virtual_host_that_is_refused_ends_the_walk(code: int, error: type[AmqpError]) -> None:
    def script(peer: Peer) -> None:
        peer.raw(PROTOCOL_HEADER)
        peer.control(spec.ConnectionStart(mechanisms=["ANONYMOUS"]))
        peer.control(spec.ConnectionTune())
        peer.control(spec.ConnectionClose(reply_code=code, reply_text="told so"))
        peer.silent()

    with FakePeer(script) as server, FakePeer(serve) as other:
        with pytest.raises(error, match=f"{code} told so"):
            server.connect(virtual_host="vh", hosts=((HOST, server.port), (HOST, other.port)))
        assert other.connections == 0


def test_a_session_name_that_is_busy() -> None:
    def script(peer: Peer) -> None:
        def busy(control: spec.Control) -> None:
            if isinstance(control, spec.SessionAttach):
                peer.control(spec.SessionDetached(name=control.name, code=1))

        peer.session.receive_control = busy  # type: ignore[method-assign]
        peer.serve()

    with FakePeer(script) as server, pytest.raises(SessionDetached, match="code 1"):
        server.connect()


# --------------------------------------------------------------------------------------------------------------- login
class ScramServer:
    """The server's side of SCRAM-SHA-256, with the faults of a peer that does not know the password."""

    def __init__(self, password: bytes = b"secret", *, fault: str = "") -> None:
        self.password = password
        self.fault = fault
        self.first = ""
        self.server_first = ""
        self.signature = b""

    def __call__(self, mechanism: str, response: bytes | None) -> bytes | None:
        assert mechanism == "SCRAM-SHA-256"
        text = (response or b"").decode()
        if not self.first:
            self.first = text.removeprefix("n,,")
            nonce = self.first.partition("r=")[2]
            iterations = 1 if self.fault == "iterations" else 4096
            if self.fault == "digits":
                return f"r={nonce}more,s=c2FsdA==,i={'9' * 3000}".encode()
            nonce = "another" if self.fault == "nonce" else nonce + "more"
            self.server_first = f"r={nonce},s={base64.b64encode(b'salt').decode()},i={iterations}"
            return self.server_first.encode()
        if not self.signature:
            return self._final(text)
        assert text == ""
        return None

    def _final(self, text: str) -> bytes | None:
        without_proof, _, proof = text.rpartition(",p=")
        salted = hashlib.pbkdf2_hmac("sha256", self.password, b"salt", 4096)
        message = f"{self.first},{self.server_first},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        expected = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
        signed = bytes(a ^ b for a, b in zip(base64.b64decode(proof), client_key, strict=True))
        if self.fault == "skip":
            return None
        if signed != expected and self.fault != "forge":
            raise AuthenticationFailed("wrong password")
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        if self.fault == "error":
            return b"e=other-error"
        return b"v=" + base64.b64encode(bytes(32) if self.fault == "forge" else self.signature)


@pytest.mark.parametrize("offered", ["CRAM-MD5", "PLAIN"])
def test_scram_is_not_downgraded_by_an_offer_of_less(offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS and not on this machine: what the peer offers may be another's words in its place."""
    asked: list[str] = []

    def authenticate(mechanism: str, _: bytes | None) -> None:
        asked.append(mechanism)

    monkeypatch.setattr(Transport, "peer_is_loopback", False)
    with FakePeer(lambda peer: peer.serve(), mechanisms=[offered], authenticate=authenticate) as server:
        with pytest.raises(AuthenticationFailed, match=rf"{offered} would .*: use TLS \(amqps://\), or list {offered}"):
            server.connect(username="u", password="secret")
        assert asked == []


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("", ""),
        ("skip", "without a proof that the server knows the password"),
        ("forge", "signature is wrong"),
        ("iterations", "asks for 1 iterations"),
        ("digits", "asks for 9{20} iterations"),
        ("nonce", "the nonce of the server does not continue ours"),
        ("error", r"refused the login \(SCRAM-SHA-256\): other-error"),
    ],
)
def test_a_scram_server_must_prove_itself(fault: str, text: str) -> None:
    login: dict[str, Any] = {"username": "user", "password": "secret"}
    with FakePeer(
        lambda peer: peer.serve(), mechanisms=["SCRAM-SHA-256"], authenticate=ScramServer(fault=fault)
    ) as server:
        if not fault:
            server.connect(**login).sync()
            return
        with pytest.raises(AuthenticationFailed, match=text) as raised:
            server.connect(**login)
        assert "secret" not in str(raised.value)


def test_a_wrong_password_is_refused_without_being_repeated() -> None:
    with FakePeer(lambda peer: peer.serve(), mechanisms=["SCRAM-SHA-256"], authenticate=ScramServer()) as server:
        with pytest.raises(AuthenticationFailed, match=r"refused the login \(SCRAM-SHA-256\): 320") as raised:
            server.connect(username="user", password="opensesame")
        assert "opensesame" not in str(raised.value)


def test_no_mechanism_suits() -> None:
    with (
        FakePeer(lambda peer: peer.serve(), mechanisms=["GSSAPI"]) as server,
        pytest.raises(AuthenticationFailed, match="the broker offers GSSAPI"),
    ):
        server.connect()


def test_a_broker_that_attaches_the_session_breaks_the_protocol_and_the_next_host_is_tried() -> None:
    def attaching(peer: Peer) -> None:
        def output() -> bytes:
            data = peer.connection.data_to_send()
            return data + attach if data and peer._opened else data

        attach = encode_control_frame(0, encode_control(spec.SessionAttach(name=b"theirs")))
        peer._output = output
        peer.serve()

    with FakePeer(attaching) as first, FakePeer(serve) as second:
        with pytest.raises(ProtocolError, match=r"session\.attach arrived"):
            first.connect()
        second.connect(hosts=((HOST, first.port), (HOST, second.port))).sync()
