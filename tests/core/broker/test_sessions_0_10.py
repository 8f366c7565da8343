"""Connections and sessions of the 0-10 adapter: login, names, ids, completion, errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import AuthenticationFailed, ConnectionClosed, VirtualHostRefused
from amqp_core.sequence_numbers import wire_ranges
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_header
from amqp_core.v0_10.framing import PROTOCOL_HEADER
from amqp_core.v0_10.session import Session, SessionState

if TYPE_CHECKING:
    from tests.core.broker.peer_0_10 import Peer, World


@pytest.fixture
def peer(world: World) -> Peer:
    """A client with a session on channel 0."""
    peer = world.connect()
    peer.attach()
    return peer


def exception_of(peer: Peer) -> tuple[int, int | None]:
    """Code and command id of the one exception."""
    (exception,) = peer.received(spec.ExecutionException)
    assert peer.received(spec.SessionDetach), "the session is detached after an exception"
    return exception.error_code or 0, exception.command_id


# ------------------------------------------------------------------------------------------------------- connection
@pytest.mark.parametrize(("virtual_host", "name"), [("", "/"), ("/", "/"), ("other", "other"), ("/other", "other")])
def test_a_virtual_host_is_opened(world: World, virtual_host: str, name: str) -> None:
    peer = world.connect(virtual_host=virtual_host)
    assert peer.opened
    assert peer.server.virtual_host.name == name
    assert peer.protocol.peer_properties["product"] == "amqp_core broker"
    assert peer.protocol.heartbeat_s == 7, "the client's wish, which is less than the broker's"


def test_an_unknown_virtual_host(world: World) -> None:
    peer = world.connect(virtual_host="none" * 60)
    assert not peer.opened
    assert isinstance(peer.error, VirtualHostRefused)
    assert "402" in str(peer.error)
    assert not peer.server.is_open


@pytest.mark.parametrize(("name", "password"), [("guest", "wrong"), ("nobody", "guest"), ("", "")])
def test_a_wrong_login(world: World, name: str, password: str) -> None:
    peer = world.connect(name, password)
    assert isinstance(peer.error, AuthenticationFailed)
    assert peer.server.is_over


def test_the_end_of_the_broker(peer: Peer) -> None:
    peer.server.shut_down()
    peer.pump()
    assert isinstance(peer.error, ConnectionClosed)
    assert peer.error.reply_code == spec.ConnectionCloseCode.CONNECTION_FORCED


def test_a_close_by_the_client(peer: Peer) -> None:
    peer.protocol.close()
    peer.pump()
    assert peer.ended is not None
    assert peer.error is None
    assert peer.server.is_over
    assert not peer.server.is_open


@pytest.mark.parametrize("garbage", [b"\xff" * 40, PROTOCOL_HEADER * 3, bytes(12)])
def test_garbage_ends_the_connection(peer: Peer, garbage: bytes) -> None:
    peer.server.receive(garbage)
    peer.pump()
    assert isinstance(peer.error, ConnectionClosed)
    assert peer.error.reply_code == spec.ConnectionCloseCode.FRAMING_ERROR
    assert peer.server.is_over


def test_heartbeats(peer: Peer) -> None:
    assert peer.server.tick(100.0) is not None
    peer.server.take_bytes()
    assert peer.server.tick(113.0) is not None
    assert peer.server.take_bytes(), "a heartbeat"
    assert peer.server.is_open
    peer.server.tick(114.5)
    assert not peer.server.is_open, "silent for two heartbeats"


@pytest.mark.parametrize("end", [spec.SessionDetach(name=b"s"), spec.ConnectionClose(reply_code=200, reply_text="")])
def test_what_was_published_is_accepted_before_the_close_that_came_with_it_is_answered(
    world: World, peer: Peer, end: spec.Control
) -> None:
    peer.call(spec.QueueDeclare(queue="q"))
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    transfer = spec.MessageTransfer(destination="", accept_mode=0, acquire_mode=0)
    sent = [peer.session.send(transfer, header=header, body=b"") for _ in range(3)]
    peer.protocol.send_control(0, end)
    peer.pump()
    assert [each.transfers for each in peer.received(spec.MessageAccept)] == [wire_ranges([(sent[0], sent[-1])])]
    assert world.host.queues["q"].message_count == 3


@pytest.mark.parametrize("end", ["exception", "stolen"])
def test_what_was_published_is_accepted_before_a_session_ends(world: World, peer: Peer, end: str) -> None:
    """By an exception of its client, and by another session of its connection that takes its name."""
    peer.call(spec.QueueDeclare(queue="q"))
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    transfer = spec.MessageTransfer(destination="", accept_mode=0, acquire_mode=0)
    sent = peer.session.send(transfer, header=header, body=b"")
    if end == "exception":
        peer.session.send(spec.ExecutionException(error_code=spec.ExecutionErrorCode.INTERNAL_ERROR))
    else:
        peer.sessions[1] = Session(peer.protocol, 1, b"s")
        peer.sessions[1].attach(force=True)
    peer.pump()
    assert [each.transfers for each in peer.received(spec.MessageAccept)] == [wire_ranges([(sent, sent)])]
    assert world.host.queues["q"].message_count == 1


# ---------------------------------------------------------------------------------------------------------- sessions
def test_attach_and_detach(peer: Peer) -> None:
    peer.session.detach()
    peer.pump()
    assert [detached.code for detached in peer.received(spec.SessionDetached)] == [spec.SessionDetachCode.NORMAL]
    assert peer.attach().state is SessionState.ATTACHED, "name and channel are free again"


def test_a_name_is_unique_per_login(world: World, peer: Peer) -> None:
    second = world.connect()
    second.attach()
    assert [detached.code for detached in second.received(spec.SessionDetached)] == [
        spec.SessionDetachCode.SESSION_BUSY
    ]
    third = world.connect("carol", "secret")
    third.attach()
    assert third.session.state is SessionState.ATTACHED
    peer.server.lost()
    assert world.connect().attach().state is SessionState.ATTACHED


def test_a_name_is_taken_over_by_force(world: World, peer: Peer) -> None:
    peer.call(spec.QueueDeclare(queue="own", exclusive=True, auto_delete=True))
    second = world.connect()
    second.attach(force=True)
    peer.pump()
    assert second.session.state is SessionState.ATTACHED
    assert peer.session.state is SessionState.DETACHED
    assert "own" not in world.host.queues


def test_a_channel_is_taken(peer: Peer) -> None:
    peer.protocol.send_control(0, spec.SessionAttach(name=b"other"))
    peer.pump()
    assert [each.code for each in peer.received(spec.SessionDetached)] == [spec.SessionDetachCode.TRANSPORT_BUSY]


def test_a_channel_without_a_session(peer: Peer) -> None:
    peer.protocol.send_assembly(9, [(1, encode_command(spec.ExecutionSync()))])
    peer.pump()
    (detached,) = peer.received(spec.SessionDetached)
    assert detached.code == spec.SessionDetachCode.NOT_ATTACHED
    assert peer.session.state is SessionState.ATTACHED
    peer.protocol.send_control(9, spec.SessionDetached(name=b"", code=3))
    peer.pump()
    assert len(peer.received(spec.SessionDetached)) == 1, "that is not answered"
    peer.protocol.send_control(9, spec.SessionDetach(name=b"x"))
    peer.pump()
    assert len(peer.received(spec.SessionDetached)) == 2


def test_a_channel_above_the_limit(peer: Peer) -> None:
    peer.attach(256, b"far")
    assert isinstance(peer.error, ConnectionClosed)
    assert peer.error.reply_code == spec.ConnectionCloseCode.FRAMING_ERROR


def test_no_state_outlives_a_session(peer: Peer) -> None:
    peer.session.request_timeout(60)
    peer.pump()
    assert [each.timeout for each in peer.received(spec.SessionTimeout)] == [0]


def test_completion_on_request_only(peer: Peer) -> None:
    session = peer.session
    first = session.send(spec.QueueDeclare(queue="q"))
    peer.pump()
    assert not session.is_complete(first)
    session.flush(completed=True)
    peer.pump()
    assert session.is_complete(first)
    second = session.send(spec.QueuePurge(queue="q"))
    third = session.send(spec.ExecutionSync())
    peer.pump()
    assert session.is_complete(second)
    assert session.is_complete(third)
    peer.session.flush(expected=True, confirmed=True)
    peer.pump()
    assert [each.commands for each in peer.received(spec.SessionExpected)] == [[(3, 3)]]
    assert [each.commands for each in peer.received(spec.SessionConfirmed)] == [[]], "all is known to be complete"


def test_known_completed_shrinks_the_reports(peer: Peer) -> None:
    peer.call(spec.ExecutionSync())
    peer.protocol.send_control(0, spec.SessionKnownCompleted(commands=[(0, 0)]))
    peer.call(spec.ExecutionSync())
    assert [each.commands for each in peer.received(spec.SessionCompleted)] == [[(0, 0)], [(1, 1)]]


def test_ids_that_wrap(peer: Peer) -> None:
    session = peer.attach(3, b"wrap")
    session.next_id = session.first_id = (1 << 32) - 1
    peer.protocol.send_control(3, spec.SessionCommandPoint(command_id=(1 << 32) - 1, command_offset=0))
    for _ in range(3):
        assert session.is_complete(peer.call(spec.ExecutionSync(), channel=3))


def test_impossible_ids_end_the_connection(peer: Peer) -> None:
    peer.call(spec.ExecutionSync())
    peer.protocol.send_control(0, spec.SessionCommandPoint(command_id=77, command_offset=0))
    peer.pump()
    assert isinstance(peer.error, ConnectionClosed)
    assert peer.error.reply_code == spec.ConnectionCloseCode.FRAMING_ERROR


def test_two_sessions_of_one_connection(peer: Peer) -> None:
    peer.attach(1, b"second")
    peer.call(spec.QueueDeclare(queue="q"), channel=1)
    peer.call(spec.QueuePurge(queue="missing"))
    assert exception_of(peer) == (404, 0)
    assert peer.sessions[1].is_complete(peer.call(spec.QueuePurge(queue="q"), channel=1)), "the other one goes on"


# ------------------------------------------------------------------------------------------------------------ errors
def test_an_error_ends_the_session(peer: Peer) -> None:
    session = peer.session
    session.send(spec.QueueDeclare(queue="before"))
    session.send(spec.QueuePurge(queue="missing"))
    session.send(spec.QueueDeclare(queue="after"))
    peer.pump()
    assert exception_of(peer) == (404, 1)
    (exception,) = peer.received(spec.ExecutionException)
    assert (exception.class_code, exception.command_code) == (8, 3)
    assert "'missing'" in (exception.description or "")
    assert set(peer.world.host.queues) == {"before"}
    assert peer.attach(0, b"again").state is SessionState.ATTACHED


@pytest.mark.parametrize(("code", "expected"), [(0x0901, 540), (0x0A01, 540), (0x0499, 503), (0x1101, 503)])
def test_unknown_commands(peer: Peer, code: int, expected: int) -> None:
    peer.protocol.send_assembly(0, [(1, code.to_bytes(2) + b"\x01\x01\x00\x00")])
    peer.pump()
    assert exception_of(peer)[0] == expected
    assert peer.error is None, "the connection goes on"


def test_a_long_text_fits(peer: Peer) -> None:
    peer.call(spec.QueuePurge(queue="ä" * 127))
    assert exception_of(peer)[0] == 404


def test_an_exception_of_the_client_ends_its_session_and_costs_no_publisher(world: World, peer: Peer) -> None:
    peer.call(spec.QueueDeclare(queue="q"))
    peer.subscribe()
    peer.flow()
    peer.session.send(spec.ExecutionException(error_code=spec.ExecutionErrorCode.INTERNAL_ERROR))
    publisher = world.connect()
    publisher.attach(name=b"other")
    publisher.publish(b"1")  # the session must not be asked to deliver it
    assert publisher.error is None
    assert publisher.received(spec.MessageAccept)
    assert peer.received(spec.SessionDetach)
    assert peer.error is None
    queue = world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count, queue.consumer_count) == (1, 0, 0)


@pytest.mark.parametrize("asked", [True, False])
def test_known_completed_is_sent_only_if_asked_for(peer: Peer, *, asked: bool) -> None:
    """The Python client of Qpid fails if it is told unasked."""
    peer.protocol.send_control(0, spec.SessionCompleted(commands=[(0, 0)], timely_reply=asked))
    peer.pump()
    assert len(peer.received(spec.SessionKnownCompleted)) == asked
