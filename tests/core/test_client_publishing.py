"""Causes that hold a publisher back, and the outcomes of its messages."""

from __future__ import annotations

import threading

import pytest

from amqp_core.errors import (
    DeadlineExceeded,
    MessageRejected,
    OutcomeUnknown,
    PublisherStopped,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from tests.support.fakepeer import FakePeer, Peer
from tests.support.runs import run
from tests.support.taking import again


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
        assert client._publisher.credit.left is None
        client.close()


def test_a_publisher_that_is_stopped_for_good_has_a_deadline() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.MessageStop(destination=""))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.sync()
        client.sync()
        client._driver.call_timeout_s = 0.3
        with pytest.raises(DeadlineExceeded, match="allow publishing again"):
            client.publish(Message(b"x"))


def test_a_publisher_that_is_stopped_for_too_long_has_nothing_in_flight() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        with peer.together():  # with the completion of the first: the second must not be sent
            peer.expect(spec.MessageTransfer)
            peer.send(spec.MessageStop(destination=""))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(max_in_flight=1, blocked_timeout_s=0.3)
        with pytest.raises(PublisherStopped, match="has stopped this publisher"):
            publisher.send(run([b"1", b"2", b"3"], routing_key="q"))
        assert publisher.in_flight == 0
        assert [part.first for part in publisher.unfinished()] == [1]


def test_a_message_that_a_stopped_publisher_could_not_send_is_forgotten() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.MessageStop(destination=""))
        peer.serve()
        assert not any(isinstance(command, spec.MessageTransfer) for _, command in peer.commands)

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(blocked_timeout_s=0.2)
        client.sync()
        client.sync()
        with pytest.raises(PublisherStopped):
            client.publish(Message(b"x"))
        client.confirm()
        assert publisher.unfinished() == []
        client.close()


def test_a_publisher_whose_transfers_are_withheld_is_not_stopped() -> None:
    """Its transfers are in flight: another session would send them twice."""

    def script(peer: Peer) -> None:
        peer.completing = False
        peer.open()
        peer.expect(spec.MessageTransfer)
        peer.send(spec.MessageStop(destination=""))
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(max_in_flight=2, blocked_timeout_s=0.1)
        with pytest.raises(DeadlineExceeded):
            publisher.send(run([b"1", b"2", b"3"], routing_key="q"), timeout_s=0.5)
        assert publisher.in_flight


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
        client = server.connect()
        client.sync()
        client._driver.call_timeout_s = 0.3
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
        stored.wait(0.1)  # never set: a client that does not wait for the answer goes on meanwhile
        stored.set()
        peer.completing = True
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
