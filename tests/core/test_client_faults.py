"""The blocking client against a peer that does what no real broker can be made to do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    MessageRejected,
    OutcomeUnknown,
    ProtocolError,
    ResourceLimitExceeded,
    SessionDetached,
    TransactionFailed,
    UsageError,
    VersionRefused,
    VirtualHostRefused,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command
from amqp_core.v0_10.client import _redirected_to
from amqp_core.v0_10.connection import Redirected
from amqp_core.v0_10.frames import PROTOCOL_HEADER, encode_assembly
from amqp_core.v0_10.messages import Message, messages_of
from amqp_core.v0_10.session import SessionState
from tests.support.fakepeer import HOST, QPIDD, FakePeer, Peer
from tests.support.ports import free_port
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription

WRAP = 1 << 32


def serve(peer: Peer) -> None:
    peer.open()
    peer.serve()


def bodies(subscription: Subscription, count: int) -> list[bytes]:
    """Take so many messages as blocks; return their bodies."""
    found: list[bytes] = []
    while len(found) < count:
        blocks = subscription.take_blocks(10.0)
        assert blocks, f"only {len(found)} of {count} came"
        found += [message.body for block in blocks for message in messages_of(block)]
    return found


def take(subscription: Subscription, count: int) -> list[Message]:
    """Take so many messages as objects, in as many rounds as it takes."""
    found: list[Message] = []
    while len(found) < count:
        more = subscription.take(count - len(found))
        assert more, f"only {len(found)} of {count} came"
        found += more
    return found


def again(call: Callable[[], object]) -> None:
    """Call until it raises."""
    while True:
        call()


# --------------------------------------------------------------------------------------------------------- connecting
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
        with pytest.raises(ConnectionFailed, match="more than 3 redirects"):
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
    assert _redirected_to(Redirected(text, ()), 9) == expected


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
    with FakePeer(script) as server, pytest.raises(DeadlineExceeded, match="connectTimeout"):
        server.connect(connect_timeout=0.3)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"", ConnectionLost, "closed the connection without a word"),
        (b"AMQP\0\0\x09\x01", VersionRefused, "it offers AMQP 0-9-1"),
        (b"AMQP\x03\x01\0\0", VersionRefused, "it offers AMQP 1.0 with SASL"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", VersionRefused, "it offers HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", VersionRefused, "use amqps://"),
        (b"AMQP\x01", VersionRefused, "an incomplete AMQP header"),
        (b"hello", VersionRefused, r"begins with b'hello'"),
        (PROTOCOL_HEADER + b"\x0f\x00\x00\x05" + bytes(30), DecodeError, "5 bytes is smaller than its header"),
        (PROTOCOL_HEADER, ConnectionLost, "closed the connection without a word"),
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
        nobody = free_port()
        client = good.connect(hosts=((HOST, nobody), (HOST, bad.port), (HOST, good.port)))
        assert client.peer == f"{HOST}:{good.port}"
        assert bad.connections == 1
        with pytest.raises(ConnectionFailed) as raised:
            good.connect(hosts=((HOST, nobody), (HOST, bad.port)))
        assert f"cannot connect to {HOST}:{nobody}" in str(raised.value)
        assert f"{HOST}:{bad.port} closed the connection without a word" in str(raised.value)


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


# -------------------------------------------------------------------------------------------------------------- login
class ScramServer:
    """The server's side of SCRAM-SHA-256, with the faults of somebody who does not know the password."""

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
                return f"r={nonce}more,s=c2FsdA==,i={'9' * 6000}".encode()
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


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("", ""),
        ("skip", "without proving that it knows the password"),
        ("forge", "signature is wrong"),
        ("iterations", "asks for 1 iterations"),
        ("digits", "asks for 9{20} iterations"),
        ("nonce", "nonce does not continue ours"),
        ("error", "refused SCRAM-SHA-256: other-error"),
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


# ------------------------------------------------------------------------------------------------------- while it lasts
def test_a_call_that_is_never_answered_has_a_deadline() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.3)
        with pytest.raises(DeadlineExceeded, match=r"waited for the answer to queue\.query"):
            client.query_queue("q")
        with pytest.raises(DeadlineExceeded):
            client.sync()
        client.close()
        with pytest.raises(DeadlineExceeded):
            client.sync()


def test_a_silent_peer_is_noticed_after_two_heartbeats() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.silent()

    with FakePeer(script, heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        subscription = client.subscribe("q")
        assert bodies(subscription, 1) == [b"before"]
        with pytest.raises(ConnectionLost, match="silent for two heartbeat intervals"):
            again(lambda: subscription.take_blocks(10.0))


def test_heartbeats_that_waited_while_nobody_looked_count() -> None:
    go_on, sent = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        go_on.wait(10)
        for _ in range(5):
            peer.control(spec.ConnectionHeartbeat())
        sent.set()
        peer.serve()

    with FakePeer(script, heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        client.sync()
        driver = client._driver
        driver._next_tick = 0.0
        driver._round(0.0, reading=False)  # from here on nothing has been received
        go_on.set()
        assert sent.wait(10)
        last = driver.connection._last_tick
        assert last is not None
        driver.connection._last_tick = driver.connection._last_received = last - 100.0  # we were away for so long
        driver._next_tick = 0.0
        client.sync()


def test_heartbeats_go_out_while_reading_is_paused() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2")
        seen = len(peer.connection.data_to_send())
        assert seen == 0
        peer.sock.settimeout(10)
        data = b""
        while data.count(b"\x01\x0a\0\0") < 2:
            part = peer.sock.recv(1000)
            assert part, "closed"
            data += part
        peer.serve()

    with FakePeer(script, heartbeat=1) as server:
        client = server.connect(heartbeat=1)
        subscription = client.subscribe("q")
        client.pause_reading(True)
        assert subscription.take_blocks(2.6) == []
        client.pause_reading(False)
        assert bodies(subscription, 2) == [b"1", b"2"]
        client.sync()


@pytest.mark.parametrize("reading", [True, False])
def test_a_reset_is_noticed_after_what_came_before(reading: bool) -> None:
    sent = threading.Event()

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(*[b"%d" % i for i in range(1000)])
        peer.reset()
        sent.set()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        client.pause_reading(not reading)
        assert sent.wait(10)
        found: list[bytes] = []
        with pytest.raises(ConnectionLost):
            again(lambda: found.extend(bodies(subscription, 1)))
        assert found == [b"%d" % i for i in range(len(found))]


@pytest.mark.parametrize("how", ["take", "publish", "call"])
def test_why_the_broker_closed_is_known_however_it_is_noticed(how: str) -> None:
    sent = threading.Event()

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2")
        peer.control(spec.ConnectionClose(reply_code=320, reply_text="shutting down"))
        peer.reset()
        sent.set()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        assert sent.wait(10)
        if how != "take":
            with pytest.raises(ConnectionClosed, match="320 shutting down"):
                again((lambda: client.publish(Message(b"x"))) if how == "publish" else client.sync)
        assert bodies(subscription, 2) == [b"1", b"2"]
        with pytest.raises(ConnectionClosed, match="320 shutting down"):
            subscription.take_blocks(10.0)


GARBAGE = [
    b"\xff" * 40,
    b"\0" * 40,
    b"HTTP/1.1 500 oh no\r\n\r\n",
    encode_assembly(0, 1, [(1, b"\x63\x63\x01\x00\0\0")], 65535)[0] + b"\x63\x63\x01\x00\0\0",
    b"\x0f\x00\x00\x0e\x00\x00\x00\x00\x00\x00\x00\x00\x02\x63",
    b"\x0b\x01\x00\x0e\x00\x01\x00\x00\x00\x00\x00\x00\x04\x01" * 2,
    b"\x0f\x01\x00\x10\x00\x01\x00\x07\x00\x00\x00\x00\x03\x01\x00\x00",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("pieces", [False, True])
def test_garbage_in_the_stream_loses_nothing_before_it(garbage: bytes, pieces: bool) -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2", b"3")
        for i in range(0, len(garbage), 1 if pieces else len(garbage)):
            peer.raw(garbage[i : i + 1] if pieces else garbage)
        peer.silent()

    with FakePeer(script) as server:
        subscription = server.connect().subscribe("q")
        assert bodies(subscription, 3) == [b"1", b"2", b"3"]
        with pytest.raises(ProtocolError):
            subscription.take_blocks(10.0)


def test_the_client_tells_a_peer_that_breaks_the_protocol_why_it_goes() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.control(spec.SessionCommandPoint(command_id=7, command_offset=7))
        peer.serve()
        assert peer.ended is not None
        assert "501 ProtocolError" in str(peer.ended.error)

    with FakePeer(script) as server:
        client = server.connect()
        with pytest.raises(ProtocolError, match="command-point inside a command"):
            client.sync()


def test_a_truncated_transfer_with_two_subscriptions_is_a_protocol_error() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        stump = encode_assembly(0, 1, [(1, b"\x04\x01")], 65535)
        peer.raw(b"".join(stump))
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        one, two = client.subscribe("q"), client.subscribe("q")
        assert (one.destination, two.destination) == ("s1", "s2")

        def answer_and_stump() -> None:
            client.sync()  # may see it already: the stump can arrive in the same read as the answer
            one.take_blocks(10.0)

        with pytest.raises(DecodeError, match="truncated before its destination"):
            answer_and_stump()


# --------------------------------------------------------------------------------------------------- sessions and ids
def test_an_exception_without_a_command_id() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.exception(506, None, "queue is full")
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        assert bodies(subscription, 1) == [b"before"]
        with pytest.raises(ResourceLimitExceeded, match="the broker refused with 506: queue is full") as raised:
            subscription.take_blocks(10.0)
        assert raised.value.command_id is None
        with pytest.raises(ResourceLimitExceeded):
            client.publish(Message(b"x"))
        client.close()
        with pytest.raises(ResourceLimitExceeded):
            client.sync()


def test_an_exception_without_a_detach_ends_the_session_all_the_same() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.ExecutionException(error_code=506, description="full"))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        with pytest.raises(ResourceLimitExceeded):
            client.sync()
        client.close()
        with pytest.raises(ResourceLimitExceeded):
            client.sync()


def test_an_exception_is_the_reason_whatever_ends_the_connection_then() -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.ExecutionException(error_code=506, description="full"))

    with FakePeer(script) as server:
        client = server.connect()
        with pytest.raises(ResourceLimitExceeded):
            client.sync()
        client._driver._round(10.0, reading=True)
        with pytest.raises(ResourceLimitExceeded):
            client.sync()


def test_what_comes_after_the_detach_is_passed_over() -> None:
    def script(peer: Peer) -> None:
        def detach(control: spec.Control) -> None:
            if isinstance(control, spec.SessionDetach):
                peer.session.state = SessionState.ATTACHED
                peer.connection.send_control(0, spec.SessionDetached(name=control.name, code=0))
                peer.session.send(spec.ExecutionSync())
                peer.session.send(spec.MessageTransfer(destination="s1", accept_mode=0, acquire_mode=0))

        peer.open()
        peer.session.receive_control = detach  # type: ignore[method-assign]
        peer.serve()
        assert peer.ended is not None
        assert isinstance(peer.ended.error, ConnectionClosed)
        assert peer.ended.error.reply_code == 200

    with FakePeer(script) as server:
        server.connect().close()


@pytest.mark.parametrize("control", [spec.SessionDetach(name=b"x"), spec.SessionDetached(name=b"x", code=3)])
def test_a_session_that_the_broker_ends(control: spec.Control) -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.control(control)
        peer.raw(b"".join(encode_assembly(0, 1, [(1, encode_command(spec.ExecutionSync()))], 65535)))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        assert bodies(subscription, 1) == [b"before"]
        with pytest.raises(SessionDetached):
            subscription.take_blocks(10.0)


def test_ids_run_over_the_wrap() -> None:
    """The broker numbers its commands from 2**32 - 5: what is accepted goes over the wrap."""
    accepted: list[list[tuple[int, int]]] = []

    def script(peer: Peer) -> None:
        peer.answers[spec.QueueQuery] = lambda query: spec.QueueQueryResult(queue=query.queue)
        peer.open()
        peer.expect(spec.MessageFlow)
        peer.transfer(*[b"%d" % i for i in range(10)])
        _, accept = peer.expect(spec.MessageAccept)
        accepted.append(accept.transfers or [])
        peer.serve()

    with FakePeer(script, first_id=WRAP - 5) as server:
        client = server.connect()
        for _ in range(3):
            info = client.query_queue("q")
            assert info is not None
            assert info.queue == "q"
        subscription = client.subscribe("q")
        subscription.grant(100)
        messages = take(subscription, 10)
        assert len(messages) == 10
        ids = [message.command_id for message in messages]
        assert ids == list(range(WRAP - 2, WRAP + 8))
        client.accept([(WRAP - 2, WRAP + 7)], sync=True)
        client.close()
    assert accepted == [[(0xFFFFFFFE, 7)]]


def test_flush_and_timely_reply_of_the_broker_are_answered() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2", b"3")
        peer.control(spec.SessionFlush(expected=True, confirmed=True, completed=True))
        completed = peer.expect_control(spec.SessionCompleted)
        assert completed == spec.SessionCompleted(commands=[(0, 2)], timely_reply=False)
        assert peer.expect_control(spec.SessionExpected) == spec.SessionExpected(commands=[(3, 3)])
        assert peer.expect_control(spec.SessionConfirmed) == spec.SessionConfirmed(commands=[(0, 2)])
        peer.expect(spec.ExecutionSync)
        peer.control(spec.SessionCompleted(commands=[(0, 1)], timely_reply=True))
        assert peer.expect_control(spec.SessionKnownCompleted) == spec.SessionKnownCompleted(commands=[(0, 1)])
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        assert bodies(client.subscribe("q"), 3) == [b"1", b"2", b"3"]
        client.sync()
        client.sync()
        client.sync()


def test_an_idle_receiver_tells_what_it_has_received() -> None:
    told = threading.Event()

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1")
        assert peer.expect_control(spec.SessionCompleted) == spec.SessionCompleted(commands=[(0, 0)])
        told.set()
        peer.serve()

    with FakePeer(script) as server:
        subscription = server.connect().subscribe("q")
        assert bodies(subscription, 1) == [b"1"]
        while not told.is_set():
            assert subscription.take_blocks(0.1) == []


# ------------------------------------------------------------------------------------------------------------- credit
def test_large_credit_reaches_the_broker_in_parts() -> None:
    outstanding: list[int] = []

    def script(peer: Peer) -> None:
        peer.open()
        credit = sent = 0
        bytes_granted = False
        while sent < 40_000:
            _, flow = peer.expect(spec.MessageFlow)
            value = flow.value or 0
            if flow.unit == spec.MessageCreditUnit.BYTE:
                assert value == 0xFFFFFFFF
                bytes_granted = True
                continue
            credit += value
            outstanding.append(credit)
            assert bytes_granted
            part = min(credit, 40_000 - sent)
            peer.transfer(*[b""] * part)
            credit -= part
            sent += part
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        subscription.grant(10_000)
        assert subscription.credit == 10_000
        subscription.grant(30_000)
        assert subscription.credit <= 40_000
        count = 0
        while count < 40_000:
            blocks = subscription.take_blocks(10.0)
            assert blocks
            count += sum(block.count for block in blocks)
        assert subscription.credit == 0
        assert max(outstanding) <= 16_384
        assert len(outstanding) <= 2 + 40_000 // 8192, "credit goes out in large parts"
        assert client._driver.session.received_next == 40_000


def test_flush_asks_again_while_more_is_granted_than_was_given() -> None:
    flushes: list[int] = []

    def script(peer: Peer) -> None:
        left, credit = 40_000, 0

        def flow(command: spec.MessageFlow) -> None:
            nonlocal credit
            if command.unit == spec.MessageCreditUnit.MESSAGE:
                credit += command.value or 0

        def flush(_: spec.MessageFlush) -> None:
            nonlocal left, credit
            part = min(left, credit)
            peer.transfer(*[b""] * part)
            left, credit = left - part, 0
            flushes.append(part)

        peer.hooks = {spec.MessageFlow: flow, spec.MessageFlush: flush}
        serve(peer)

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        subscription.grant(100_000)
        subscription.flush()
        assert subscription.credit == 0
        assert sum(block.count for block in subscription.take_blocks(0)) == 40_000
        assert flushes == [16_384, 16_384, 40_000 - 2 * 16_384]
        subscription.grant(10)
        subscription.flush()
        assert subscription.take_blocks(0) == []
        subscription.flush()
        assert flushes[3:] == [0, 0]


def test_each_subscription_gets_its_own_messages() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        for destination, body in (("s1", b"a"), ("s2", b"b"), ("gone", b"c"), ("s2", b"d"), ("s1", b"e")):
            peer.transfer(body, destination=destination)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        one, two = client.subscribe("q"), client.subscribe("q")
        client.sync()
        found_two = take(two, 2)
        assert [(message.body, message.command_id) for message in found_two] == [(b"b", 1), (b"d", 3)]
        found_one = take(one, 2)
        assert [(message.body, message.command_id) for message in found_one] == [(b"a", 0), (b"e", 4)]


def test_destinations_are_not_used_again() -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        one, two = client.subscribe("q"), client.subscribe("q")
        one.cancel()
        three = client.subscribe("q")
        assert [s.destination for s in (one, two, three)] == ["s1", "s2", "s3"]


def test_many_ranges_are_split_to_what_fits_a_frame() -> None:
    seen: list[spec.Command] = []

    def script(peer: Peer) -> None:
        serve(peer)
        seen.extend(command for _, command in peer.commands)

    ranges = [(i, i) for i in range(0, 40_000, 2)]
    with FakePeer(script) as server:
        client = server.connect()
        client.accept(ranges, sync=True)
        client.reject(ranges, code=1, text="no", sync=True)
        client.release(ranges, set_redelivered=True)
        client.accept([])
        client.accept([], sync=True)
        client.close()
    for kind in (spec.MessageAccept, spec.MessageReject, spec.MessageRelease):
        commands = [command for command in seen if isinstance(command, kind)]
        assert len(commands) == 3
        assert [one for command in commands for one in command.transfers or []] == ranges
        assert max(len(encode_command(command)) for command in commands) < 65_500


# --------------------------------------------------------------------------------------------------------- publishing
def test_producer_flow_control_is_obeyed() -> None:
    stopped, published = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.send(spec.MessageSetFlowMode(destination="", flow_mode=0))
        peer.send(spec.MessageStop(destination=""))
        peer.expect(spec.ExecutionSync)
        stopped.set()
        peer.send(spec.MessageFlow(destination="", unit=0, value=3))
        for _ in range(3):
            peer.expect(spec.MessageTransfer)
        published.set()
        # byte credit means nothing; 2**31 - 1 messages stand for no limit
        peer.send(spec.MessageFlow(destination="", unit=1, value=0xFFFFFFFF))
        peer.send(spec.MessageFlow(destination="", unit=0, value=0x7FFFFFFF))
        peer.serve()
        assert sum(isinstance(command, spec.MessageTransfer) for _, command in peer.commands) == 50

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        assert stopped.wait(10)
        for number in range(50):
            client.publish(Message(b"%d" % number), routing_key="q")
            if number == 3:
                assert published.is_set()  # the fourth waited for what the third made the broker say
        client.confirm()
        assert client._publish_credit is None
        client.close()


def test_a_publisher_that_is_stopped_for_good_has_a_deadline() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.MessageStop(destination=""))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.3)
        client.sync()
        client.sync()
        with pytest.raises(DeadlineExceeded, match="allow publishing again"):
            client.publish(Message(b"x"))


def test_a_publisher_who_never_waits_notices_that_it_was_stopped() -> None:
    go_on, stopped = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        go_on.wait(10)
        peer.send(spec.MessageStop(destination=""))
        stopped.set()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.3)
        client.sync()
        go_on.set()
        assert stopped.wait(10)
        ids: list[int] = []
        with pytest.raises(DeadlineExceeded, match="allow publishing again"):
            again(lambda: ids.append(client.publish(Message(b"x"))))
        assert len(ids) < 100


def test_what_is_rejected_is_reported_by_confirm_once() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.serve()

    def rejecting(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        ids = [peer.expect(spec.MessageTransfer)[0] for _ in range(5)]
        peer.send(spec.MessageReject(transfers=[(ids[1], ids[2])], code=1, text="Unroutable"))
        peer.send(spec.MessageReject(transfers=[(ids[2], ids[2]), (ids[4], ids[4])], code=1, text="Unroutable"))
        peer.completing = True
        peer.expect(spec.ExecutionSync)
        peer.control(spec.SessionCompleted(commands=[(0, peer.session.received_next - 1)]))
        script(peer)

    with FakePeer(rejecting) as server:
        client = server.connect()
        for _ in range(5):
            client.publish(Message(b"x"))
        with pytest.raises(MessageRejected, match="rejected 3 published message") as raised:
            client.confirm()
        assert (raised.value.count, raised.value.code, raised.value.text) == (3, 1, "Unroutable")
        client.confirm()
        client.publish(Message(b"x"))
        client.confirm()


def test_confirm_waits_for_the_messages_and_not_for_the_sync_alone() -> None:
    stored = threading.Event()

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        first, _ = peer.expect(spec.MessageTransfer)
        sync, _ = peer.expect(spec.ExecutionSync)
        peer.control(spec.SessionCompleted(commands=[(first, first), (sync, sync)]))
        stored.wait(0.1)  # nobody sets it: a client that does not wait gets the time to go on
        stored.set()
        peer.control(spec.SessionCompleted(commands=[(first + 1, first + 1)]))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.publish(Message(b"x"))
        client.publish(Message(b"y"))
        client.confirm()
        assert stored.is_set()


@pytest.mark.parametrize("fault", ["reset", "close", "garbage", "silence", "detach"])
def test_an_end_before_completion_leaves_the_outcome_unknown(fault: str) -> None:
    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.MessageTransfer)
        if fault == "reset":
            peer.reset()
        elif fault == "close":
            peer.control(spec.ConnectionClose(reply_code=320, reply_text="forced"))
        elif fault == "garbage":
            peer.raw(b"x" * 50)
        elif fault == "detach":
            peer.control(spec.SessionDetached(name=b"", code=0))
        if fault != "reset":
            peer.silent()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.5)
        client.publish(Message(b"x"))
        with pytest.raises(OutcomeUnknown, match=r"1 published message\(s\) were not confirmed"):
            client.confirm()
        with pytest.raises(OutcomeUnknown):
            client.confirm()


def test_a_peer_that_does_not_read_holds_the_publisher_back() -> None:
    done = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        done.wait(10)
        peer.serve()
        assert sum(isinstance(command, spec.MessageTransfer) for _, command in peer.commands) == 100

    with FakePeer(script) as server:
        client = server.connect()
        body = bytes(1 << 18)
        timer = threading.Timer(0.2, done.set)
        timer.start()
        for _ in range(100):
            client.publish(Message(body))
            assert client._driver.transport.pending_bytes <= 1 << 20
        assert done.is_set()
        client.confirm()
        client.close()
        timer.join()


def test_a_peer_that_never_reads_is_given_up() -> None:
    done = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        done.wait(10)
        peer.silent()

    body = bytes(1 << 18)
    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=0.3)
        with pytest.raises(DeadlineExceeded, match="read what is published"):
            again(lambda: client.publish(Message(body)))
        with pytest.raises(OutcomeUnknown):
            client.confirm()
        done.set()


# ----------------------------------------------------------------------------------------------- one broker or another
def test_qpidd_gets_what_qpidd_reads() -> None:
    seen: list[spec.Command] = []

    def script(peer: Peer) -> None:
        serve(peer)
        seen.extend(command for _, command in peer.commands)

    with FakePeer(script, server_properties=QPIDD) as server:
        client = server.connect()
        assert client.is_qpidd
        client.subscribe("q", selector="a = 1", arguments={"x": 1})
        client.publish(Message(b"x"))
        client.confirm()
        client.close()
    subscribe = next(command for command in seen if isinstance(command, spec.MessageSubscribe))
    assert subscribe.arguments == {"x": 1, "x-apache-selector": "a = 1"}
    transfer = next(command for command in seen if isinstance(command, spec.MessageTransfer))
    assert transfer.accept_mode == spec.MessageAcceptMode.NONE


@pytest.mark.parametrize("properties", [{}, {"qpid.features": ["qpid.jms-selector"]}, {"qpid.features": "odd"}])
def test_a_selector_is_given_so_that_the_broker_reads_it(properties: dict[str, object]) -> None:
    seen: list[spec.Command] = []

    def script(peer: Peer) -> None:
        serve(peer)
        seen.extend(command for _, command in peer.commands)

    with FakePeer(script, server_properties=properties) as server:
        client = server.connect()
        assert not client.is_qpidd
        client.subscribe("q", selector="a = 1")
        client.close()
    (subscribe,) = (command for command in seen if isinstance(command, spec.MessageSubscribe))
    assert subscribe.arguments is not None
    assert subscribe.arguments["x-filter-jms-selector"] == "a = 1"


RECOVER = bytes.fromhex("0302 0100 0300 0000 0001")


@pytest.mark.parametrize(
    ("image", "xids"),
    [
        ("0000 000d 0603 0100 0000 0005 ab 0000 0000", []),
        ("0000 0008 0603 0100 0000 0000", []),
        ("0000 0004 0603 0000", []),
        (
            "0000 0020 0603 0100 0000 0018 ab 0000 0001 0000 000f 0604 0700 0000 0007 03 616263 02 6465",
            [spec.Xid(7, b"abc", b"de")],
        ),
    ],
)
def test_both_brokers_images_of_dtx_recover(image: str, xids: list[spec.Xid]) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.DtxRecover)
        result = bytes.fromhex("0302 0100 0300") + command_id.to_bytes(4) + bytes.fromhex(image)
        peer.raw(b"".join(encode_assembly(0, 1, [(1, result)], 65535)))
        peer.serve()

    with FakePeer(script) as server:
        assert server.connect().transactions.recover() == xids


def test_xa_status_other_than_ok_is_an_error() -> None:
    statuses = iter([*range(9), 99])

    def script(peer: Peer) -> None:
        peer.answers[spec.DtxCommit] = lambda _: spec.XaResult(status=next(statuses))
        peer.answers[spec.DtxPrepare] = lambda _: spec.QueueQueryResult()
        peer.answers[spec.DtxGetTimeout] = lambda _: spec.QueueQueryResult()
        serve(peer)

    xid = spec.Xid(1, b"g", b"b")
    with FakePeer(script) as server:
        transactions = server.connect().transactions
        transactions.commit_branch(xid)
        for status in (1, 2, 3, 4, 5, 6, 7, 8, 99):
            with pytest.raises(TransactionFailed, match=f"dtx.commit ended with .* .{status}.") as raised:
                transactions.commit_branch(xid)
            assert raised.value.status == status
        with pytest.raises(ProtocolError, match="without an xa-status"):
            transactions.prepare(xid)
        with pytest.raises(ProtocolError, match="without a timeout"):
            transactions.get_timeout(xid)


@pytest.mark.parametrize(
    ("failing", "status", "expected"),
    [
        ("nothing", 0, ["start", "end", "prepare"]),
        ("block", 0, ["start", "end", "rollback"]),
        ("end", 1, ["start", "end", "rollback"]),
        ("end", 2, ["start", "end", "rollback"]),
        ("prepare", 1, ["start", "end", "prepare", "rollback"]),
        ("prepare", 2, ["start", "end", "prepare"]),
    ],
)
def test_how_a_branch_that_fails_is_given_up(failing: str, status: int, expected: list[str]) -> None:
    calls: list[str] = []

    def script(peer: Peer) -> None:
        for cls in (spec.DtxStart, spec.DtxEnd, spec.DtxPrepare, spec.DtxRollback):
            peer.answers[cls] = answer
        serve(peer)

    def answer(command: spec.DtxStart | spec.DtxEnd | spec.DtxPrepare | spec.DtxRollback) -> spec.XaResult:
        name = command.NAME.removeprefix("dtx.")
        calls.append(name)
        if isinstance(command, spec.DtxEnd):
            assert command.fail == (failing == "block")
        return spec.XaResult(status=status if name == failing else 0)

    def use(client: Client) -> None:
        with client.transactions.branch(spec.Xid(1, b"g", b"b")):
            if failing == "block":
                raise ZeroDivisionError

    with FakePeer(script) as server:
        client = server.connect()
        if failing == "nothing":
            use(client)
        else:
            with pytest.raises(ZeroDivisionError if failing == "block" else TransactionFailed):
                use(client)
        client.close()
    assert calls == expected


def test_an_empty_queue_query_result_is_no_queue() -> None:
    def script(peer: Peer) -> None:
        peer.answers[spec.QueueQuery] = lambda _: spec.QueueQueryResult()
        peer.answers[spec.ExchangeQuery] = lambda _: spec.ExchangeQueryResult(not_found=True)
        serve(peer)

    with FakePeer(script) as server:
        client = server.connect()
        assert client.query_queue("q") is None
        assert client.query_exchange("x") is None


# ------------------------------------------------------------------------------------------------- waking and closing
def test_wake_ends_a_wait_that_runs_and_one_that_comes() -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        client.wake()
        assert subscription.take_blocks(60.0) == []
        client.wake()
        client.sync()  # takes the wake-up in, and must not swallow it
        assert subscription.take_blocks(60.0) == []
        client.wake()
        for _ in range(64):
            client.publish(Message(b"x"))  # looks at the socket now and then
        assert subscription.take_blocks(60.0) == []
        timer = threading.Timer(0.1, client.wake)
        timer.start()
        assert subscription.take_blocks(60.0) == []
        timer.join()
        assert subscription.take_blocks(0.01) == []


def test_any_thread_may_wake_at_any_time() -> None:
    done = threading.Event()

    def wake() -> None:
        while not done.is_set():
            client.wake()

    with FakePeer(serve) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        threads = [threading.Thread(target=wake) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(200):
                client.publish(Message(b"%d" % number))
                client.sync()
                assert subscription.take_blocks(60.0) == []
            client.confirm()
            client.close()
        finally:
            done.set()
            for thread in threads:
                thread.join(10)


def test_close_is_orderly_and_for_good() -> None:
    def script(peer: Peer) -> None:
        peer.hooks[spec.MessageSetFlowMode] = lambda _: peer.transfer(*[b"late"] * 100)
        serve(peer)
        assert peer.ended is not None
        assert isinstance(peer.ended.error, ConnectionClosed)
        assert peer.ended.error.reply_code == 200
        assert any(isinstance(control, spec.SessionDetach) for control in peer.controls)

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        with client:
            pass
        client.close()
        client.wake()
        calls: list[Callable[[], object]] = [
            client.sync,
            lambda: client.publish(Message(b"x")),
            lambda: client.accept([(0, 1)]),
            lambda: subscription.grant(1),
        ]
        for use in calls:
            with pytest.raises(UsageError, match="the client is closed"):
                use()


def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.silent()

    monkeypatch.setattr("amqp_core.v0_10.driver._CLOSE_TIMEOUT_S", 0.2)
    with FakePeer(script) as server:
        client = server.connect()
        client.close()
        with pytest.raises(UsageError):
            client.sync()


def test_abort_is_a_crash() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.serve()
        assert peer.ended is None
        assert not any(isinstance(control, spec.SessionDetach) for control in peer.controls)
        gone.set()

    with FakePeer(script) as server:
        client = server.connect()
        client.abort()
        wait_until(gone.is_set, "the server to notice")
        with pytest.raises(UsageError):
            client.sync()


def test_what_does_not_fit_the_wire_leaves_the_session_usable() -> None:
    with FakePeer(serve) as server:
        client = server.connect()
        with pytest.raises(ValueError, match="routing"):
            client.publish(Message(b"x"), routing_key="k" * 256)
        client.publish(Message(b"x"), routing_key="k")
        client.confirm()
