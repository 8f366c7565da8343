"""The blocking client while its peer breaks the protocol, ends the session, or goes away."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import (
    ConnectionClosed,
    ConnectionLost,
    DecodeError,
    NotFound,
    ProtocolError,
    ResourceLimitExceeded,
    SessionDetached,
    UsageError,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_control
from amqp_core.v0_10.file_stream import spec as spec_apart
from amqp_core.v0_10.file_stream._codec import encode_command as encode_apart
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, encode_assembly, encode_control_frame
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.session import SessionState
from tests.support.fakepeer import FakePeer, Peer, serve
from tests.support.process import wait_until
from tests.support.taking import again, bodies, receiving, take
from tests.support.wire import assembly

if TYPE_CHECKING:
    from collections.abc import Callable


WRAP = 1 << 32


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
        subscription = receiving(client)
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
        subscription = receiving(client)
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
        subscription = receiving(server.connect())
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


UNKNOWN: dict[str, tuple[int, bytes]] = {
    "file.deliver": (0x090B, encode_apart(spec_apart.FileDeliver(consumer_tag="t", delivery_tag=1), sync=True)),
    "file.qos-ok": (0x0902, encode_apart(spec_apart.FileQosOk())),
    "stream.deliver": (0x0A08, encode_apart(spec_apart.StreamDeliver(consumer_tag="t", queue="q"), sync=True)),
    "no class": (0x6363, bytes.fromhex("6363 0100 0000")),
    "no command": (0x0463, bytes.fromhex("0463 0101 ffff")),
}


@pytest.mark.parametrize(("code", "command"), UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("content", [False, True])
def test_a_command_that_is_not_known_is_answered_and_ends_the_session(code: int, command: bytes, content: bool) -> None:
    """It was not done, so it must not be reported as completed, whatever its sync bit asks for."""
    told: list[spec.ExecutionException] = []
    completed: list[tuple[int, int]] = []

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1")
        segments = [(COMMAND, command), (HEADER, b"header"), (BODY, b"body")]
        peer.raw(b"".join(encode_assembly(0, 1, segments if content else segments[:1], 65535)))
        told.append(peer.expect(spec.ExecutionException)[1])
        peer.expect_control(spec.SessionDetach)
        peer.serve()
        assert peer.ended is not None
        assert "501 DecodeError" in str(peer.ended.error)
        for control in peer.controls:
            if isinstance(control, spec.SessionCompleted):
                completed.extend(control.commands or [])

    with FakePeer(script) as server:
        client = server.connect()
        subscription = receiving(client)
        assert bodies(subscription, 1) == [b"1"]
        for use in (lambda: subscription.take_blocks(10.0), client.sync):
            with pytest.raises(DecodeError, match=f"unknown command 0x{code:04x}\\."):
                use()
    assert told == [
        spec.ExecutionException(
            error_code=spec.ExecutionErrorCode.NOT_IMPLEMENTED,
            command_id=1,  # the message before it was command 0
            class_code=code >> 8,
            command_code=code & 0xFF,
            description=f"unknown command 0x{code:04x}",
        )
    ]
    assert not any(low <= 1 <= high for low, high in completed)


def test_an_unknown_command_after_the_end_of_the_session_is_dropped_with_all_else() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        end = spec.ExecutionException(error_code=404, description="told so")
        gone = encode_control_frame(0, encode_control(spec.SessionDetach(name=peer.session.name)))
        peer.raw(assembly(encode_command(end)) + gone + assembly(UNKNOWN["file.deliver"][1]))
        peer.serve()

    with FakePeer(script) as server:
        subscription = receiving(server.connect())
        with pytest.raises(NotFound, match="told so"):
            subscription.take_blocks(10.0)


@pytest.mark.parametrize("others", [0, 1])
def test_a_transfer_that_is_truncated_before_its_destination_is_a_protocol_error(others: int) -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2")
        peer.raw(b"".join(encode_assembly(0, 1, [(1, b"\x04\x01")], 65535)))
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        for _ in range(others):
            client.subscribe("q")
        subscription.grant(3)
        assert bodies(subscription, 2) == [b"1", b"2"]
        with pytest.raises(DecodeError, match="truncated before its destination"):
            subscription.take_blocks(10.0)


# ---------------------------------------------------------------------------------------------------- sessions and ids
def test_an_exception_without_a_command_id() -> None:
    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"before")
        peer.exception(506, None, "queue is full")
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        subscription = receiving(client)
        assert bodies(subscription, 1) == [b"before"]
        with pytest.raises(ResourceLimitExceeded, match="The broker refused with 506: queue is full") as raised:
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
        subscription = receiving(client)
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
        known = spec.SessionKnownCompleted(commands=[(0, 1)])
        while known not in peer.controls:
            assert peer.hears(15)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        assert bodies(receiving(client), 3) == [b"1", b"2", b"3"]
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
        subscription = receiving(server.connect())
        assert bodies(subscription, 1) == [b"1"]
        while not told.is_set():
            assert subscription.take_blocks(0.1) == []


# -------------------------------------------------------------------------------------------------- waking and closing
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
        def late(flow: spec.MessageFlow) -> None:
            if flow.unit == spec.MessageCreditUnit.MESSAGE:
                peer.transfer(*[b"late"] * 100)

        peer.hooks[spec.MessageFlow] = late
        serve(peer)
        assert peer.ended is not None
        assert isinstance(peer.ended.error, ConnectionClosed)
        assert peer.ended.error.reply_code == 200
        assert any(isinstance(control, spec.SessionDetach) for control in peer.controls)

    with FakePeer(script) as server:
        client = server.connect()
        subscription = receiving(client)
        with client:
            pass
        assert client.close()
        client.wake()
        calls: list[Callable[[], object]] = [
            client.sync,
            lambda: client.publish(Message(b"x")),
            lambda: client.accept([(0, 1)]),
            lambda: subscription.grant(1),
        ]
        for use in calls:
            with pytest.raises(UsageError, match="The client is closed"):
                use()


def test_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.silent()

    monkeypatch.setattr("amqp_core.pump._CLOSE_TIMEOUT_S", 0.2)
    with FakePeer(script) as server:
        client = server.connect()
        assert not client.close()
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


def test_close_after_an_error_that_was_found_here_does_not_say_that_the_broker_has_answered() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.raw(GARBAGE[0])
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        with pytest.raises(ProtocolError):
            client.sync()
        assert client.close() is False


def test_a_call_that_is_interrupted_while_it_processes_messages_ends_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The messages behind would be numbered as those that were not processed, and these would be accepted instead."""

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"1", b"2")
        peer.serve()

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with FakePeer(script) as server:
        client = server.connect()
        subscription = receiving(client)
        with monkeypatch.context() as patched:
            patched.setattr(client._driver.session, "receive_block", interrupted)
            with pytest.raises(KeyboardInterrupt):
                subscription.take_blocks(10.0)
        with pytest.raises(ConnectionLost, match="interrupted while it processed"):
            client.accept([(0, 0)], sync=True)
