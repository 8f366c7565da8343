"""Publishers and connection.blocked of RabbitMQ: waited for, and given up after a while."""

from __future__ import annotations

import logging
import math
import threading
from functools import partial

import pytest

from amqp_core.errors import ConfirmsMissing, OutcomeUnknown, PublishingBlocked
from amqp_core.v0_9 import spec
from amqp_core.v0_9.framing import HEADER, Frame
from amqp_core.v0_9.messages import Message
from tests.core.publisher_support_0_9 import BLOCKED, reading_until
from tests.support.fakepeer_0_9 import FakePeer, Peer
from tests.support.runs_0_9 import numbered, numbers_of


def test_a_blocked_connection_is_waited_for_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqp_core")

    def script(peer: Peer) -> None:
        peer.open()
        for _ in range(2):
            peer.published(2)
            peer.send(BLOCKED, channel=0)
            go_on.wait(10)
            go_on.clear()
            peer.send(spec.ConnectionUnblocked(), channel=0)
            peer.ack(len(peer.messages), multiple=True)
        peer.serve()

    go_on = threading.Event()
    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(blocked_timeout_s=60)
        for first in (0, 2):
            publisher.send(numbered(2, first))
            reading_until(client, lambda: client._driver.endpoint.blocked is not None, "connection.blocked")
            timer = threading.Timer(0.1, go_on.set)
            timer.start()
            publisher.finish()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "has blocked its publishers (low on memory): 2 message(s) are not confirmed" in warnings[0]
    assert "waiting for at most 60 s" in warnings[0]
    assert sum("accepts messages again" in text for text in caplog.messages) == 2


def test_a_warning_names_no_time_where_none_limits_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.send(BLOCKED, channel=0)
        peer.send(spec.ConnectionUnblocked(), channel=0)
        peer.ack(2, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher()
        publisher.send(numbered(2))
        publisher.finish()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.endswith("are not confirmed; waiting until it has memory and disk again")


def test_a_broker_that_blocks_the_connection_behind_the_last_ack_need_not_answer() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.ack(2, multiple=True)
        peer.send(BLOCKED, channel=0)
        peer.silent()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(blocked_timeout_s=60.0)
        publisher.send(numbered(2))
        publisher.finish()
        assert publisher.completed == publisher.sent


@pytest.mark.parametrize("waiting", ["send", "finish"])
def test_a_connection_that_stays_blocked_is_given_up(waiting: str) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.send(BLOCKED, channel=0)
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(blocked_timeout_s=0.2)
        publisher.send(numbered(2))
        reading_until(client, lambda: client._driver.endpoint.blocked is not None, "connection.blocked")
        wait = publisher.finish if waiting == "finish" else partial(publisher.send, numbered(2, 2))
        with pytest.raises(PublishingBlocked, match=r"AMQP_PUBLISHING_BLOCKED.*low on memory") as raised:
            wait()
        assert not raised.value.retryable
        left = [0, 1, 2, 3] if waiting == "send" else [0, 1]
        assert numbers_of(publisher.unfinished()) == left


def test_confirm_of_a_blocked_connection_leaves_the_outcome_unknown() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.send(BLOCKED, channel=0)
        peer.silent()

    with FakePeer(script) as server:
        client = server.connect()
        client.publish(Message(b"body", routing_key="q"))
        reading_until(client, lambda: client._driver.endpoint.blocked is not None, "connection.blocked")
        client._driver.call_timeout_s = 0.2
        with pytest.raises(OutcomeUnknown, match="blocked its publishers"):
            client.confirm()


def test_a_message_that_a_blocked_broker_kept_out_was_not_sent_and_others_go_on() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.send(BLOCKED, channel=0)
        go_on.wait(10)
        peer.send(spec.ConnectionUnblocked(), channel=0)
        peer.published()
        peer.ack(2, multiple=True)
        peer.serve()
        seen.extend(message.content.body for message in peer.messages)

    go_on = threading.Event()
    with FakePeer(script) as server:
        client = server.connect()
        assert client.publish(Message(b"a", routing_key="q")) == 1
        reading_until(client, lambda: client._driver.endpoint.blocked is not None, "connection.blocked")
        client._driver.call_timeout_s = 0.2
        with pytest.raises(PublishingBlocked, match="low on memory"):
            client.publish(Message(b"b", routing_key="q"))
        client._driver.call_timeout_s = 30
        go_on.set()
        assert client.publish(Message(b"c", routing_key="q")) == 2
        client.confirm()
        client.close()
    assert seen == [b"a", b"c"]


def test_a_message_that_was_written_before_the_broker_blocked_the_connection_counts_as_sent() -> None:
    """Although the broker does not read on: it may have it, so that it must not be published again."""
    bodies: list[int] = []

    def script(peer: Peer) -> None:
        headers: list[Frame] = []
        peer.on_frame = lambda frame: headers.append(frame) if frame.type == HEADER else None
        peer.open()
        peer.until(lambda: bool(headers), "the header of the message")
        peer.send(BLOCKED, channel=0)
        go_on.wait(10)
        peer.send(spec.ConnectionUnblocked(), channel=0)
        peer.published()
        peer.ack(1)
        peer.serve()
        bodies.extend(len(message.content.body) for message in peer.messages)

    go_on = threading.Event()
    with FakePeer(script) as server:
        client = server.connect()
        client.publisher(blocked_timeout_s=0.2)
        assert client.publish(Message(bytes(24 << 20), routing_key="q")) == 1
        assert client._driver.endpoint.blocked == "low on memory"
        go_on.set()
        reading_until(client, lambda: client._driver.endpoint.blocked is None, "connection.unblocked")
        client.confirm()
        client.close()
    assert bodies == [24 << 20]


# ----------------------------------------------------------------------------------- no confirms, and no word about it
@pytest.mark.parametrize("waiting", ["send", "finish"])
def test_a_broker_that_confirms_nothing_and_does_not_say_why_is_given_up(waiting: str) -> None:
    """A quorum queue without a majority, or a proxy that passes on no connection.blocked."""

    def script(peer: Peer) -> None:
        peer.open()
        peer.published(2)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        publisher = client.publisher(max_in_flight=2, blocked_timeout_s=0.2)
        publisher.send(numbered(2))
        wait = publisher.finish if waiting == "finish" else partial(publisher.send, numbered(2, 2))
        with pytest.raises(ConfirmsMissing, match=r"AMQP_CONFIRMS_MISSING.*confirmed none of 2 message") as raised:
            wait(timeout_s=30)
        assert isinstance(raised.value, PublishingBlocked)
        assert not raised.value.retryable
        assert numbers_of(publisher.unfinished()) == ([0, 1, 2, 3] if waiting == "send" else [0, 1])


class Clock:
    """A time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("amqp_core.v0_9.publisher.monotonic", lambda: self.now)


def test_a_slow_broker_that_confirms_now_and_then_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from the latest confirm, however many messages are left."""

    def script(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        for answer in (peer.ack, peer.nack):
            go_on.wait(10)
            go_on.clear()
            answer(1 if answer == peer.ack else 2)
        peer.serve()

    go_on = threading.Event()
    with FakePeer(script) as server:
        client = server.connect(heartbeat=600)
        publisher = client.publisher(blocked_timeout_s=60)
        clock = Clock(monkeypatch)
        assert publisher._give_up_at(1000.0, math.inf) == math.inf, "nothing is in flight"
        publisher.send(numbered(3))
        assert publisher._give_up_at(1000.0, math.inf) == 1060
        clock.now = 1050
        assert publisher._give_up_at(1000.0, math.inf) == 1060
        assert publisher._give_up_at(1045.0, math.inf) == 1105, "of a wait that began later"
        assert publisher._give_up_at(1000.0, 1055.0) == 1055, "its own deadline"
        go_on.set()
        reading_until(client, lambda: publisher.in_flight == 2, "an ack")
        assert publisher._give_up_at(1000.0, math.inf) == 1110
        clock.now = 1100
        go_on.set()
        reading_until(client, lambda: publisher.in_flight == 1, "a nack")
        assert publisher._give_up_at(1000.0, math.inf) == 1160
        publisher.blocked("low on disk")
        clock.now = 1150
        assert publisher._give_up_at(1000.0, math.inf) == 1160, "the time of the block"
        publisher.blocked(None)
        assert publisher._give_up_at(1000.0, math.inf) == 1210, "it confirms nothing while it blocks"


def test_a_message_that_takes_long_to_be_read_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect(heartbeat=600)
        publisher = client.publisher(blocked_timeout_s=60)
        publisher.send(numbered(1))
        clock, transport = Clock(monkeypatch), client._driver.transport
        transport.pending_bytes = 5
        assert publisher._give_up_at(1000.0, math.inf) == 1060
        clock.now = 1050
        transport.sent_bytes += 1
        assert publisher._give_up_at(1000.0, math.inf) == 1110
        transport.pending_bytes = 0
        assert publisher._give_up_at(1000.0, math.inf) == 1110
        clock.now = 1100
        transport.sent_bytes += 8  # a heartbeat
        assert publisher._give_up_at(1000.0, math.inf) == 1110


def test_the_warning_says_what_may_be_the_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("amqp_core.publishing._WARN_EVERY_S", 0.0)

    def script(peer: Peer) -> None:
        peer.open()
        peer.published()
        peer.serve()

    with FakePeer(script) as server:
        publisher = server.connect().publisher(blocked_timeout_s=0.2)
        publisher.send(numbered(1))
        with pytest.raises(ConfirmsMissing):
            publisher.finish(timeout_s=30)
    assert "a queue may have lost the majority of its nodes, or a proxy hide that the broker is low" in caplog.text
    assert "given up after 0.2 s without a confirm" in caplog.text
