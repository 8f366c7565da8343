"""How long the publisher of 0-9-1 waits for scripted peers that say nothing, and how it gives them up."""

from __future__ import annotations

import threading

import pytest

from amqp_core.errors import DeadlineExceeded, NotFound, PreconditionFailed, PublishingBlocked
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method
from amqp_core.v0_9.framing import METHOD, Frame
from amqp_core.v0_9.messages import Message
from tests.core.publisher_support_0_9 import reading_until
from tests.support.fakepeer_0_9 import FakePeer, Peer
from tests.support.runs_0_9 import numbered, numbers_of


def test_a_broker_that_confirms_nothing_is_given_up() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.silent()

    def after_select(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect(call_timeout_s=0.2).publisher()
        with pytest.raises(DeadlineExceeded, match=r"channel\.open"):
            publisher.send(numbered(1))
        assert numbers_of(publisher.unfinished()) == [0]
    with FakePeer(after_select) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(3))
        with pytest.raises(DeadlineExceeded, match="the confirmation of what is published"):
            publisher.finish(timeout_s=0.2)
        assert numbers_of(publisher.unfinished()) == [0, 1, 2]


def test_a_broker_that_does_not_answer_behind_the_last_ack_is_given_up() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.ack(1)
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher()
        publisher.send(numbered(1))
        client._driver.call_timeout_s = 0.2  # the channel is open: nothing has to be answered any more
        with pytest.raises(DeadlineExceeded, match="behind the last confirm"):
            publisher.finish()


def test_a_channel_that_stays_stopped_is_given_up() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.ack(1)
        peer.flow(active=False)
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(blocked_timeout_s=0.1)
        publisher.send(numbered(1))
        reading_until(client, lambda: not publisher._channel.active, "channel.flow")
        with pytest.raises(PublishingBlocked, match=r"AMQP_PUBLISHING_BLOCKED.*channel.flow") as raised:
            publisher.send(numbered(1, 1))
        assert not raised.value.retryable, "a new connection would fill the full queue further"


def test_without_heartbeats_the_broker_is_asked_whether_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.publishing._ASK_EVERY_S", 0.02)
    asked = 0

    def count(frame: Frame) -> None:
        nonlocal asked
        if frame.type == METHOD and isinstance(decode_method(frame.payload), spec.ChannelFlow):
            asked += 1

    def script(peer: Peer) -> None:
        peer.on_frame = count  # the channel itself answers
        peer.open()
        peer.published()
        peer.until(lambda: asked > 2, "questions")
        peer.ack(1)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(1))
        publisher.finish()


def test_without_heartbeats_a_silent_broker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqp_core.publishing._ASK_EVERY_S", 0.02)
    monkeypatch.setattr("amqp_core.publishing.SILENCE_S", 0.2)

    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(1))
        with pytest.raises(DeadlineExceeded):
            publisher.finish()


def test_a_refusal_counts_although_the_connection_ends_behind_it() -> None:
    """A refusal lasts: after a loss everything would be sent again, and be refused again."""
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.refuse(404, "NOT_FOUND - no exchange 'gone' in vhost '/'")
        peer.sock.close()
        gone.set()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(1))
        assert gone.wait(30)
        with pytest.raises(NotFound, match="no exchange 'gone'"):
            publisher.send(numbered(200, 1, size=100_000))


def test_after_a_refused_confirm_select_the_next_message_is_published_and_confirmed() -> None:
    def script(peer: Peer) -> None:
        del peer.answers[spec.ConfirmSelect]
        peer.open()
        peer.expect(spec.ConfirmSelect)
        peer.refuse(406, "PRECONDITION_FAILED - not now", spec.ConfirmSelect)
        peer.answers |= {spec.ConfirmSelect: spec.ConfirmSelectOk(), spec.ChannelFlow: spec.ChannelFlowOk(active=True)}
        peer.acking = True
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        with pytest.raises(PreconditionFailed, match=r"confirm\.select"):
            client.publish(Message(b"1"), "", "q")
        client.publish(Message(b"2"), "", "q")
        client.confirm()
        publisher = client.publisher()
        publisher.send(numbered(1))
        publisher.finish()
