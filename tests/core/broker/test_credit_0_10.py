"""Credit over 0-10: units, windows, flush and stop, and clients that do not read."""

from __future__ import annotations

import pytest

from amqp_core.broker.model.messages import Message
from amqp_core.broker.v0_9.wire import WIRE as WIRE_0_9
from amqp_core.broker.v0_10.subscription import SessionSubscription
from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_9._codec import encode_header as encode_header_0_9
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_header
from tests.core.broker.peer_0_10 import EXPLICIT, NONE, Peer, code_of, ids, stalled


def test_there_is_no_credit_at_first_and_both_units_are_needed(peer: Peer) -> None:
    for body in (b"1", b"2", b"3"):
        peer.publish(body)
    peer.subscribe()
    assert not peer.bodies
    peer.call(spec.MessageFlow(destination="d", unit=spec.MessageCreditUnit.MESSAGE, value=2))
    assert not peer.bodies
    peer.call(spec.MessageFlow(destination="d", unit=spec.MessageCreditUnit.BYTE, value=0xFFFFFFFF))
    assert peer.bodies == [b"1", b"2"]


def test_credit_of_bytes_counts_header_and_body(peer: Peer) -> None:
    size = len(encode_header(spec.DeliveryProperties(exchange="", routing_key="q"), None)) + 100
    for _ in range(4):
        peer.publish(bytes(100))
    peer.subscribe()
    peer.flow(None, 2 * size + size - 1)
    assert len(peer.bodies) == 2, "no part of a message is sent"
    peer.call(spec.MessageFlow(destination="d", unit=spec.MessageCreditUnit.BYTE, value=1))
    assert len(peer.bodies) == 3
    peer.call(spec.MessageFlow(destination="d", unit=spec.MessageCreditUnit.BYTE, value=size - 1))
    assert len(peer.bodies) == 3


@pytest.mark.parametrize("mode", [spec.MessageFlowMode.WINDOW, spec.MessageFlowMode.CREDIT, None])
def test_a_window_is_filled_up_by_completion_only(peer: Peer, mode: int | None) -> None:
    for number in range(10):
        peer.publish(b"%d" % number)
    peer.subscribe()
    if mode is not None:
        peer.call(spec.MessageSetFlowMode(destination="d", flow_mode=mode))
    peer.flow(3)
    assert len(peer.bodies) == 3
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    assert len(peer.bodies) == 3
    first, last = ids(peer)[0][0], ids(peer)[-1][0]
    peer.protocol.send_control(0, spec.SessionCompleted(commands=[(first, first)]))
    peer.pump()
    assert len(peer.bodies) == (3 if mode == spec.MessageFlowMode.CREDIT else 4)
    peer.protocol.send_control(0, spec.SessionCompleted(commands=[(first, last)]))
    peer.pump()
    assert len(peer.bodies) == (3 if mode == spec.MessageFlowMode.CREDIT else 6), "a repeated one counts once"


def test_a_window_does_not_grow_with_headers_that_are_longer_for_their_consumer(peer: Peer) -> None:
    """A header of 0-9-1 is written as one of 0-10: it may take more than what was left of the credit."""
    header = encode_header_0_9(spec_0_9.BasicProperties(), 20)
    queue = peer.world.host.queues["q"]
    for _ in range(500):
        queue.put(Message(WIRE_0_9, "", "q", header, bytes(20)), peer.world.now)
    peer.subscribe()
    peer.flow(None, 1000)
    most = len(peer.bodies)
    while len(peer.bodies) < 500:
        before = len(peer.bodies)
        peer.session.tell_completed()
        peer.pump()
        assert len(peer.bodies) - before <= most
    peer.session.tell_completed()
    peer.pump()
    [subscription] = [each.receiver for each in queue.consumers]
    assert isinstance(subscription, SessionSubscription)
    assert subscription.nbytes == 1000


def test_credit_without_end_takes_no_memory_where_nothing_is_completed(peer: Peer) -> None:
    """Clients of Qpid with credit without end, whose mode is a window unless they say otherwise, may never do so."""
    peer.subscribe(accept_mode=NONE)
    peer.flow()
    for number in range(20):
        peer.publish(b"%d" % number)
    assert len(peer.bodies) == 20
    assert not peer.server._sessions[0]._deliveries._window
    peer.call(spec.MessageStop(destination="d"))
    peer.flow(1)
    peer.publish(b"a")
    peer.publish(b"b")
    assert peer.bodies[20:] == [b"a"]
    peer.protocol.send_control(0, spec.SessionCompleted(commands=ids(peer)))
    peer.pump()
    assert peer.bodies[20:] == [b"a", b"b"]


def test_flush_sends_what_there_is_and_ends_the_credit(peer: Peer) -> None:
    peer.publish(b"1")
    peer.subscribe()
    peer.flow(5)
    peer.call(spec.MessageFlush(destination="d"))
    peer.publish(b"2")
    assert peer.bodies == [b"1"]
    peer.flow(5)
    assert peer.bodies == [b"1", b"2"]


def test_stop_ends_the_credit(peer: Peer) -> None:
    peer.subscribe()
    peer.flow(None)
    peer.call(spec.MessageStop(destination="d"))
    peer.publish(b"1")
    assert not peer.bodies


def test_what_was_sent_before_a_stop_gives_no_credit_back(peer: Peer) -> None:
    """The JMS client stops its subscription, completes what it has, and releases it in its order: nothing may come."""
    for body in (b"1", b"2", b"3"):
        peer.publish(body)
    peer.subscribe()
    peer.flow(2)
    peer.call(spec.MessageStop(destination="d"))
    peer.protocol.send_control(0, spec.SessionCompleted(commands=ids(peer)))
    peer.pump()
    assert peer.bodies == [b"1", b"2"]
    peer.flow(1)
    assert peer.bodies == [b"1", b"2", b"3"]
    peer.publish(b"4")
    assert len(peer.bodies) == 3
    peer.protocol.send_control(0, spec.SessionCompleted(commands=ids(peer)))
    peer.pump()
    assert peer.bodies == [b"1", b"2", b"3", b"4"]


def test_a_mode_is_not_changed_while_there_is_credit(peer: Peer) -> None:
    peer.subscribe()
    peer.flow(1)
    peer.call(spec.MessageSetFlowMode(destination="d", flow_mode=spec.MessageFlowMode.CREDIT))
    assert code_of(peer) == 406


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (spec.MessageFlow(destination="none", unit=0, value=1), 404),
        (spec.MessageFlow(destination="d", unit=7, value=1), 542),
        (spec.MessageSetFlowMode(destination="none", flow_mode=0), 404),
        (spec.MessageSetFlowMode(destination="d", flow_mode=7), 542),
        (spec.MessageFlush(destination="none"), 404),
        (spec.MessageStop(), 404),
        (spec.MessageCancel(destination="none"), 404),
        (spec.MessageSubscribe(queue="q", destination="d", accept_mode=0, acquire_mode=0), 530),
        (spec.MessageSubscribe(queue="none", destination="e", accept_mode=0, acquire_mode=0), 404),
        (spec.MessageSubscribe(queue="q", accept_mode=0, acquire_mode=0), 542),
        (spec.MessageSubscribe(queue="", destination="e", accept_mode=0, acquire_mode=0), 542),
        (spec.MessageSubscribe(queue="q", destination="e", accept_mode=0, acquire_mode=0, exclusive=True), 405),
        (
            spec.MessageSubscribe(
                queue="q",
                destination="e",
                accept_mode=0,
                acquire_mode=0,
                arguments={"x-filter-jms-selector": "price >"},
            ),
            542,
        ),
        (spec.MessageResume(destination="none", resume_id="r"), 404),
        (spec.TxCommit(), 409),
        (spec.TxRollback(), 409),
    ],
    ids=lambda value: str(value)[:90],
)
def test_errors(peer: Peer, command: spec.Command, code: int) -> None:
    peer.subscribe()
    peer.call(command)
    assert code_of(peer) == code
    assert not peer.world.host.queues["q"].consumers


def test_nothing_is_ever_resumed(peer: Peer) -> None:
    found = peer.ask(spec.MessageResume(resume_id="r"), spec.MessageResumeResult)
    assert found.offset == 0


def test_a_client_that_does_not_read_gets_no_more_and_flush_waits_for_it(peer: Peer, other: Peer) -> None:
    bodies = [bytes([number]) * 100_000 for number in range(30)]
    for body in bodies:
        other.publish(body)
    peer.subscribe(accept_mode=NONE)
    peer.flow(None)
    peer.call(spec.MessageStop(destination="d"))
    seen = len(peer.bodies)
    for body in bodies:
        other.publish(body)
    peer.reading = False
    peer.flow(None)
    flush = peer.session.send(spec.MessageFlush(destination="d"), sync=True)
    after = peer.session.send(spec.QueueDeclare(queue="after"), sync=True)
    peer.pump()
    assert stalled(peer)
    assert "after" not in peer.world.host.queues, "what follows waits, too"
    assert peer.world.host.queues["q"].message_count > 15
    peer.reading = True
    peer.pump()
    assert not stalled(peer)
    assert peer.session.is_complete(flush)
    assert peer.session.is_complete(after)
    assert peer.bodies == bodies + bodies
    assert seen == len(bodies)
    other.publish(b"later")
    assert peer.bodies[-1] != b"later"


def test_what_is_published_behind_a_flush_that_waits_is_accepted(peer: Peer, other: Peer) -> None:
    for number in range(30):
        other.publish(bytes([number]) * 100_000)
    peer.call(spec.QueueDeclare(queue="other"))
    peer.subscribe(accept_mode=NONE)
    peer.reading = False
    peer.flow(None)
    peer.session.send(spec.MessageFlush(destination="d"))
    header = encode_header(spec.DeliveryProperties(routing_key="other"), None)
    command_id = peer.session.send(
        spec.MessageTransfer(destination="", accept_mode=EXPLICIT, acquire_mode=0), header=header, body=b"1"
    )
    peer.pump()
    assert stalled(peer)
    peer.reading = True
    peer.pump()
    assert [each.transfers for each in peer.received(spec.MessageAccept)] == [[(command_id, command_id)]]


@pytest.mark.parametrize("closes", [True, False])
def test_the_end_of_a_session_comes_after_what_waits_behind_a_flush(peer: Peer, other: Peer, *, closes: bool) -> None:
    for number in range(30):
        other.publish(bytes([number]) * 100_000)
    peer.call(spec.QueueDeclare(queue="other"))
    peer.subscribe()
    peer.reading = False
    peer.flow(None)
    first = peer.server._sessions[0].state.next_id - 1
    peer.session.send(spec.MessageFlush(destination="d"))
    header = encode_header(spec.DeliveryProperties(routing_key="other"), None)
    peer.session.send(spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0), header=header, body=b"1")
    peer.session.send(spec.MessageAccept(transfers=[(first, first)]))
    if closes:
        peer.protocol.close()
    else:
        peer.session.detach()
    peer.pump()
    assert not stalled(peer)
    assert peer.server.is_over is closes
    assert peer.world.host.queues["other"].message_count == 1
    queue = peer.world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count, queue.consumer_count) == (29, 0, 0)
