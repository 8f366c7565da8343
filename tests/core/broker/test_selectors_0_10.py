"""Selectors over 0-10: the arguments of a subscription, and the names of properties."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from amqp_core.broker.model.messages import Message
from amqp_core.broker.model.queues import Queue
from amqp_core.broker.model.walks import MOST_SELECTORS
from amqp_core.broker.selection.messages import selector
from amqp_core.broker.v0_9.wire import WIRE as WIRE_0_9
from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_9._codec import encode_header as encode_header_0_9
from amqp_core.v0_10 import spec
from tests.core.broker.peer_0_10 import Peer, World, code_of

ID = UUID("0123456789abcdef0123456789abcdef")


@pytest.fixture
def peer() -> Peer:
    """A client with the queue ``q``."""
    peer = World().connect()
    peer.attach()
    peer.call(spec.QueueDeclare(queue="q"))
    return peer


def selected(peer: Peer, **arguments: Any) -> list[bytes]:
    """What a browsing subscription gets."""
    before = len(peer.bodies)
    names = {name.replace("_", "-"): value for name, value in arguments.items()}
    peer.subscribe(accept_mode=spec.MessageAcceptMode.NONE, acquire_mode=1, arguments=names)
    peer.flow()
    peer.call(spec.MessageCancel(destination="d"))
    return peer.bodies[before:]


def publish(peer: Peer, body: bytes, *, message: dict[str, Any] | None = None, **delivery: Any) -> None:
    peer.publish(body, properties=spec.MessageProperties(**(message or {})), **delivery)


def test_either_argument_selects_and_an_empty_one_nothing(peer: Peer) -> None:
    for number in range(3):
        publish(peer, b"%d" % number, message={"application_headers": {"n": number}})
    assert selected(peer, x_filter_jms_selector="n > 0") == [b"1", b"2"]
    assert selected(peer, x_apache_selector=b"n = 0") == [b"0"]
    assert selected(peer, x_filter_jms_selector="n > 0", x_apache_selector="n > 0") == [b"1", b"2"]
    for nothing in ("", " "):
        assert selected(peer, x_filter_jms_selector=nothing) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("wrong", ["n >", "'a'", 5, "(" * 20_000])
def test_what_is_no_selector_is_refused(peer: Peer, wrong: object) -> None:
    peer.subscribe(arguments={"x-apache-selector": wrong})
    (error,) = peer.received(spec.ExecutionException)
    assert error.error_code == 542
    assert "x-apache-selector" in (error.description or "")


def test_it_acquires_what_matches(peer: Peer) -> None:
    for number in range(4):
        publish(peer, b"%d" % number, message={"application_headers": {"odd": bool(number % 2)}})
    peer.subscribe(arguments={"x-filter-jms-selector": "odd"})
    peer.flow(1)
    assert peer.bodies == [b"1"]
    peer.flow(5)
    assert peer.bodies == [b"1", b"3"]
    queue = peer.world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (2, 2)


def test_immediate_asks_whether_it_is_selected(peer: Peer) -> None:
    peer.subscribe(arguments={"x-filter-jms-selector": "wanted"})
    peer.flow()
    publish(peer, b"stays")
    publish(peer, b"other", immediate=True)
    publish(peer, b"mine", immediate=True, message={"application_headers": {"wanted": True}})
    assert peer.bodies == [b"mine"]
    assert [each.code for each in peer.received(spec.MessageReject)] == [spec.MessageRejectCode.IMMEDIATE]
    assert peer.world.host.queues["q"].message_count == 1


def test_immediate_asks_the_single_active_consumer_alone(peer: Peer) -> None:
    peer.call(spec.QueueDeclare(queue="single", arguments={"x-single-active-consumer": True}))
    for destination in ("active", "next"):
        peer.subscribe("single", destination)
    peer.flow(1, destination="next")
    publish(peer, b"no", key="single", immediate=True)
    peer.flow(1, destination="active")
    publish(peer, b"yes", key="single", immediate=True)
    assert peer.bodies == [b"yes"]
    assert [each.code for each in peer.received(spec.MessageReject)] == [spec.MessageRejectCode.IMMEDIATE]


def test_the_feature_is_told(peer: Peer) -> None:
    assert peer.protocol.peer_properties["qpid.features"] == ["qpid.jms-selector"]


@pytest.mark.parametrize(
    "text",
    [
        *(f"JMSMessageID = 'ID:{ID}'", f"amqp.message_id = '{ID}'", "JMSCorrelationID = 'c'", "amqp.priority = 7"),
        *("JMSPriority = 7", "JMSTimestamp = 1700000000000", "JMSDeliveryMode = 'PERSISTENT'", "amqp.durable"),
        *("JMSType = 't'", "amqp.subject = 's'", "bytes = 'ä'", "uuid LIKE '0123%'", "deep IS NULL", "binary IS NULL"),
        *("JMSOther IS NULL", "amqp.other IS NULL", '"a-b" = 1.5', "whole = 5"),
    ],
)
def test_names(peer: Peer, text: str) -> None:
    headers = {
        "x-jms-type": "t",
        "qpid.subject": "s",
        "bytes": "ä".encode(),
        "binary": b"\xff",
        "uuid": ID,
        "deep": {"a": 1},
        "a-b": 1.5,
        "whole": 5,
    }
    properties = {"message_id": ID, "correlation_id": b"c", "application_headers": headers}
    publish(peer, b"x", message=properties, priority=7, timestamp=1_700_000_000, delivery_mode=2)
    publish(peer, b"none")
    found = selected(peer, x_filter_jms_selector=text)
    assert found == ([b"x", b"none"] if "IS NULL" in text else [b"x"])


def test_names_of_what_is_not_there(peer: Peer) -> None:
    publish(peer, b"x")
    for name in ("JMSMessageID", "JMSCorrelationID", "JMSTimestamp", "JMSType", "amqp.subject", "amqp.message_id"):
        assert selected(peer, x_filter_jms_selector=f"{name} IS NULL") == [b"x"]
    assert selected(peer, x_filter_jms_selector="JMSPriority = 4 AND JMSDeliveryMode = 'NON_PERSISTENT'") == [b"x"]


@pytest.mark.parametrize(
    "text",
    [
        *("JMSMessageID = 'ID:mine'", "JMSType = 't'", "JMSPriority = 4", "JMSTimestamp = 1700000000000"),
        *("price = 1.25", "name = 'n'", "JMSCorrelationID = 'c'", "JMSDeliveryMode = 'NON_PERSISTENT'"),
    ],
)
def test_messages_of_0_9_1(text: str) -> None:
    properties = spec_0_9.BasicProperties(
        message_id="mine",
        type="t",
        timestamp=1_700_000_000,
        correlation_id="c",
        headers={"price": Decimal("1.25"), "name": "n"},
    )
    wanted = selector(text)
    assert wanted is not None
    assert wanted(Message(WIRE_0_9, "", "q", encode_header_0_9(properties, 0), b""))
    other = spec_0_9.BasicProperties(priority=1, delivery_mode=2)
    assert not wanted(Message(WIRE_0_9, "", "q", encode_header_0_9(other, 0), b"", persistent=True))


@pytest.mark.parametrize("destination", ["selects", "all"])
def test_a_flush_ends_when_all_is_looked_at_also_in_many_turns(peer: Peer, destination: str) -> None:
    """Not only for whoever selects: what it has not looked at waits for it, and others for that."""
    for number in range(5_000):
        publish(peer, b"%d" % number, message={"application_headers": {"n": number}}, accept_mode=1)
    peer.subscribe(destination="selects", arguments={"x-filter-jms-selector": "n >= 4999"})
    peer.subscribe(destination="all")
    for each in ("selects", destination):
        for unit in (spec.MessageCreditUnit.BYTE, spec.MessageCreditUnit.MESSAGE):
            peer.session.send(spec.MessageFlow(destination=each, unit=unit, value=None))
    peer.session.send(spec.MessageFlush(destination=destination), sync=True)
    assert not peer.server.is_stalled
    peer.pump()
    assert not peer.server.is_stalled
    assert sorted(peer.bodies) == ([b"4999"] if destination == "selects" else sorted(b"%d" % n for n in range(5_000)))
    before = len(peer.bodies)
    publish(peer, b"later", message={"application_headers": {"n": 5_000}})
    assert (peer.bodies[before:] == []) is (destination == "selects"), "a flush takes the credit back"


def test_a_queue_refuses_one_selector_too_many(peer: Peer) -> None:
    other = peer.world.connect()
    other.attach(name=b"other")
    selects = {"x-filter-jms-selector": "n > 0"}
    for number in range(MOST_SELECTORS):
        peer.subscribe(destination=f"{number}", arguments=selects)
    other.subscribe(destination="without")
    assert code_of(other) is None
    other.subscribe(arguments=selects)
    assert code_of(other) == spec.ExecutionErrorCode.RESOURCE_LIMIT_EXCEEDED
    peer.call(spec.MessageCancel(destination="0"))
    other.attach(name=b"again")
    other.subscribe(arguments=selects)
    assert len(other.received(spec.ExecutionException)) == 1


def test_a_queue_is_asked_once_for_all_subscriptions_of_a_session_that_has_read(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at all its consumers each time: with a thousand of them nobody else was served for seconds."""
    for number in range(5):
        peer.subscribe(destination=f"{number}", arguments={"x-filter-jms-selector": f"n = {number}"})
        peer.flow(2, destination=f"{number}")
    peer.server.paused = True
    for number in range(5):
        publish(peer, b"%d" % number, message={"application_headers": {"n": number}})
    asked = []
    ready = Queue.ready

    def noted(queue: Queue, now: float | None = None) -> None:
        asked.append(queue.name)
        ready(queue, now)

    monkeypatch.setattr(Queue, "ready", noted)
    peer.server.paused = False
    peer.server.written()
    peer.pump()
    assert (sorted(peer.bodies), asked) == ([b"0", b"1", b"2", b"3", b"4"], ["q"])
