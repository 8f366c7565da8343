"""Messages over 0-10: publishing, credit, settlement, browsing, transactions."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_core.broker.properties import MOST_HEADER_BYTES
from amqp_core.broker.v0_10.errors import Code
from amqp_core.broker.v0_10.transfer_ids import ids_among
from amqp_core.broker.v0_10.wire import Reader
from amqp_core.errors import ConnectionClosed
from amqp_core.sequence_numbers import wire_ranges
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_header, encode_struct32
from tests.core.broker.peer_0_10 import Peer, World

NONE, EXPLICIT = spec.MessageAcceptMode.NONE, spec.MessageAcceptMode.EXPLICIT
BROWSE = spec.MessageAcquireMode.NOT_ACQUIRED


@pytest.fixture
def world() -> World:
    """A broker."""
    return World()


@pytest.fixture
def peer(world: World) -> Peer:
    """A client with the queue ``q``."""
    peer = world.connect()
    peer.attach()
    peer.call(spec.QueueDeclare(queue="q"))
    return peer


@pytest.fixture
def other(world: World, peer: Peer) -> Peer:
    """Another client, after the first."""
    other = world.connect()
    other.attach(name=b"other")
    return other


def code_of(peer: Peer) -> int | None:
    """The code of the exception, if there was one."""
    return next((each.error_code for each in peer.received(spec.ExecutionException)), None)


def ids(peer: Peer, *places: int) -> list[tuple[int, int]]:
    """Wire ranges of the received messages at these places; without any: of all."""
    transfers = [peer.transfers[place] for place in places] if places else peer.transfers
    return wire_ranges((command_id, command_id) for command_id, *_ in transfers)


def stalled(peer: Peer) -> bool:
    """Whether the broker reads nothing more of a client."""
    return peer.server.is_stalled


def waiting(peer: Peer, queue: str = "q") -> list[bytes]:
    """Bodies that wait in a queue, in order."""
    watcher = peer.world.connect()
    watcher.attach(name=b"watcher")
    watcher.subscribe(queue, accept_mode=NONE, acquire_mode=BROWSE)
    watcher.flow(1_000_000)
    watcher.protocol.close()
    watcher.pump()
    return watcher.bodies


# -------------------------------------------------------------------------------------------------------- publishing
@pytest.mark.parametrize(
    ("delivery", "accept_mode", "answer"),
    [
        ({"key": "q"}, EXPLICIT, "accept"),
        ({"key": "q"}, NONE, ""),
        ({"key": "nowhere"}, EXPLICIT, "reject 1"),
        ({"key": "nowhere"}, NONE, ""),
        ({"key": "nowhere", "discard_unroutable": True}, EXPLICIT, "accept"),
        ({"key": "q", "immediate": True}, EXPLICIT, "reject 2"),
        ({"key": "q", "immediate": True}, NONE, ""),
        ({"key": "full"}, EXPLICIT, "reject 0"),
        ({"key": "full"}, NONE, "exception 506"),
        ({"key": "q", "exchange": "missing"}, EXPLICIT, "exception 404"),
        ({"key": "q", "exchange": "missing"}, NONE, "exception 404"),
    ],
)
def test_what_becomes_of_a_transfer(peer: Peer, delivery: dict[str, Any], accept_mode: int, answer: str) -> None:
    arguments: dict[str, object] = {"qpid.max_count": 0, "qpid.policy_type": "reject"}
    peer.call(spec.QueueDeclare(queue="full", arguments=arguments))
    command_id = peer.publish(b"body", accept_mode=accept_mode, **delivery)
    found = [f"accept {each.transfers}" for each in peer.received(spec.MessageAccept)]
    found += [f"reject {each.code} {each.transfers}" for each in peer.received(spec.MessageReject)]
    found += [f"exception {each.error_code}" for each in peer.received(spec.ExecutionException)]
    if "exception" not in answer and answer:
        answer += f" [({command_id}, {command_id})]"
    assert found == [answer] * bool(answer)
    assert peer.session.is_complete(command_id) is ("exception" not in answer)
    routed = delivery == {"key": "q"}
    assert peer.world.host.queues["q"].message_count == routed


def test_an_immediate_message_that_is_awaited(peer: Peer) -> None:
    peer.subscribe()
    peer.flow(1)
    peer.publish(b"1", immediate=True)
    peer.publish(b"2", immediate=True)
    assert peer.bodies == [b"1"]
    assert [each.code for each in peer.received(spec.MessageReject)] == [spec.MessageRejectCode.IMMEDIATE]


def test_accepts_come_before_completion_and_together(peer: Peer) -> None:
    session = peer.session
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    transfer = spec.MessageTransfer(destination="", accept_mode=EXPLICIT, acquire_mode=0)
    first, *_ = [session.send(transfer, header=header) for _ in range(3)]
    session.send(spec.ExecutionSync())
    *_, last = [session.send(transfer, header=header) for _ in range(2)]
    peer.pump()
    assert [each.transfers for each in peer.received(spec.MessageAccept)] == [[(first, first + 2)], [(last - 1, last)]]


@pytest.mark.parametrize("user", [b"guest", b"", None])
def test_a_user_id_of_the_login(peer: Peer, user: bytes | None) -> None:
    peer.publish(b"1", properties=spec.MessageProperties(user_id=user))
    assert waiting(peer) == [b"1"]


def test_a_user_id_of_another_is_refused(peer: Peer) -> None:
    peer.publish(b"1", properties=spec.MessageProperties(user_id=b"carol"))
    assert code_of(peer) == 403
    assert waiting(peer) == []


@pytest.mark.parametrize(
    "header",
    [
        b"\0",
        b"\0\0\0\4\4\1\xff\xff",
        b"\0\0\0\x40\4\1\0\0",
        encode_struct32(spec.DeliveryProperties(routing_key="q")) + b"\0\0\0\4\4\3\1\0",
        encode_struct32(spec.DeliveryProperties(routing_key="q")) * 2,
        encode_struct32(spec.MessageProperties()) * 2,
    ],
)
def test_a_malformed_header_ends_the_connection_of_the_publisher(peer: Peer, header: bytes) -> None:
    transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
    peer.session.send(transfer, header=header, body=b"x", sync=True)
    peer.pump()
    assert isinstance(peer.error, ConnectionClosed)
    assert peer.error.reply_code == spec.ConnectionCloseCode.FRAMING_ERROR
    assert waiting(peer) == []


def test_a_header_may_be_as_long_as_one_of_0_9_1(peer: Peer) -> None:
    """A longer one ends its session, not the connection."""

    def properties(more: int) -> spec.MessageProperties:
        return spec.MessageProperties(application_headers={"a": bytes(60_000), "b": bytes(1_000 + more)})

    delivery = spec.DeliveryProperties(routing_key="q", delivery_mode=1)
    longest = MOST_HEADER_BYTES - len(encode_header(delivery, properties(0)))
    peer.publish(b"fits", delivery_mode=1, properties=properties(longest))
    assert code_of(peer) is None
    peer.publish(b"too long", delivery_mode=1, properties=properties(longest + 1))
    assert code_of(peer) == Code.RESOURCE_LIMIT_EXCEEDED
    assert "131065 bytes" in (peer.received(spec.ExecutionException)[0].description or "")
    assert peer.error is None
    peer.attach(1, b"another")
    assert waiting(peer) == [b"fits"]


def test_long_delivery_properties_are_not_kept() -> None:
    """A publisher would else fill the memory with headers of messages that are gone."""
    reader = Reader("guest")
    for number in range(100):
        delivery = spec.DeliveryProperties(routing_key="q", resume_id="0" * 60_000 + str(number))
        reader.read("x", encode_header(delivery, None), b"", 0.0)
        reader.read("x", encode_header(spec.DeliveryProperties(routing_key=str(number)), None), b"", 0.0)
    assert len(reader._envelopes) == 100


@pytest.mark.parametrize("fragment", [spec.FragmentProperties(first=True, last=False), spec.FragmentProperties()])
def test_fragments(peer: Peer, fragment: spec.FragmentProperties) -> None:
    whole = fragment.first and fragment.last
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None, [encode_struct32(fragment)])
    transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
    peer.session.send(transfer, header=header, body=b"x", sync=True)
    peer.pump()
    assert code_of(peer) == (None if whole else 540)


def test_a_transfer_without_header_and_body(peer: Peer) -> None:
    peer.call(spec.ExchangeBind(queue="q", exchange="amq.fanout", binding_key=""))
    peer.call(spec.MessageTransfer(destination="amq.fanout", accept_mode=NONE, acquire_mode=0))
    peer.subscribe()
    peer.flow(1)
    assert peer.transfers == [
        (peer.transfers[0][0], spec.DeliveryProperties(exchange="amq.fanout"), spec.MessageProperties(), b"")
    ]


@pytest.mark.parametrize("body", [None, b"", b"x"])
def test_a_body_segment_comes_back_as_it_was_sent(peer: Peer, body: bytes | None) -> None:
    """Also an empty one: clients tell it from none."""
    header = encode_header(spec.DeliveryProperties(routing_key="q"), None)
    peer.subscribe()
    for _ in range(2):
        peer.flow(1)
        transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
        peer.session.send(transfer, header=header, body=body, sync=True)
        peer.pump()
        peer.call(spec.MessageReject(transfers=ids(peer), code=spec.MessageRejectCode.UNSPECIFIED))
    assert peer.with_body == [body is not None] * 2
    assert peer.bodies == [body or b""] * 2


def test_properties_come_back_and_the_exchange_is_named(peer: Peer) -> None:
    peer.call(spec.ExchangeBind(queue="q", exchange="amq.topic", binding_key="a.#"))
    headers: dict[str, object] = {"a": 1, "b": ["c", None], "d": b"\0"}
    properties = spec.MessageProperties(content_type="text/plain", correlation_id=b"\xff", application_headers=headers)
    peer.publish(b"x", "a.b", "amq.topic", priority=7, delivery_mode=2, timestamp=5, properties=properties)
    peer.subscribe()
    peer.flow(1)
    _, delivery, found, body = peer.transfers[0]
    assert (found, body) == (properties, b"x")
    assert delivery == spec.DeliveryProperties(
        priority=7, delivery_mode=2, timestamp=5, exchange="amq.topic", routing_key="a.b"
    )


def test_structs_in_another_order_and_unknown_ones(peer: Peer) -> None:
    unknown = b"\0\0\0\4\4\x77\0\0"
    properties = spec.MessageProperties(content_type="a/b")
    header = unknown + encode_struct32(properties) + encode_struct32(spec.DeliveryProperties(routing_key="q"))
    transfer = spec.MessageTransfer(destination="", accept_mode=NONE, acquire_mode=0)
    peer.session.send(transfer, header=header, body=b"x")
    peer.subscribe()
    peer.flow(1)
    assert peer.transfers[0][2] == properties
    assert peer.world.host.queues["q"].unsettled_count == 1


@pytest.mark.parametrize(
    ("delivery", "lives_ms"), [({"ttl": 500}, 500), ({"expiration": 1_700_000_002}, 2000), ({"ttl": 0}, 0)]
)
def test_time_to_live(peer: Peer, delivery: dict[str, Any], lives_ms: int) -> None:
    peer.publish(b"x", **delivery)
    host, now = peer.world.host, peer.world.now
    if lives_ms:
        host.expire(now + lives_ms / 1000 - 0.01)
        assert host.queues["q"].message_count == 1
    host.expire(now + lives_ms / 1000)
    assert host.queues["q"].message_count == 0


# ------------------------------------------------------------------------------------------------------------ credit
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


# -------------------------------------------------------------------------------------------------------- settlement
def test_accept_release_reject(peer: Peer) -> None:
    peer.call(spec.QueueDeclare(queue="dead"))
    peer.call(spec.ExchangeBind(queue="dead", exchange="amq.fanout", binding_key=""))
    peer.call(spec.QueueDeclare(queue="work", alternate_exchange="amq.fanout"))
    for number in range(5):
        peer.publish(b"%d" % number, "work")
    peer.subscribe("work")
    peer.flow(5)
    peer.call(spec.MessageStop(destination="d"))
    peer.call(spec.MessageAccept(transfers=ids(peer, 0)))
    peer.call(spec.MessageReject(transfers=ids(peer, 1), code=0))
    peer.call(spec.MessageRelease(transfers=ids(peer, 2), set_redelivered=True))
    peer.call(spec.MessageRelease(transfers=ids(peer, 3)))
    assert waiting(peer, "work") == [b"2", b"3"]
    assert waiting(peer, "dead") == [b"1"]
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    assert waiting(peer, "work") == [b"2", b"3"], "only 4 was still held"
    peer.transfers.clear()
    peer.flow(5)
    assert [(body, delivery.redelivered) for _, delivery, _, body in peer.transfers] == [(b"2", True), (b"3", False)]


@pytest.mark.parametrize("end", ["detach", "lost", "exception"])
def test_what_is_held_comes_back_in_order_and_flagged(peer: Peer, other: Peer, end: str) -> None:
    for number in range(4):
        peer.publish(b"%d" % number)
    peer.subscribe()
    peer.flow(3)
    peer.call(spec.MessageAccept(transfers=ids(peer, 1)))
    if end == "detach":
        peer.session.detach()
        peer.pump()
    elif end == "lost":
        peer.server.lost()
    else:
        peer.call(spec.QueuePurge(queue="none"))
    other.subscribe()
    other.flow(9)
    assert [(body, delivery.redelivered) for _, delivery, _, body in other.transfers] == [
        (b"0", True),
        (b"2", True),
        (b"3", False),
    ]


def test_accept_mode_none_settles(peer: Peer) -> None:
    peer.publish(b"1")
    peer.subscribe(accept_mode=NONE)
    peer.flow(1)
    peer.call(spec.MessageRelease(transfers=ids(peer)))
    assert (waiting(peer), peer.world.host.queues["q"].unsettled_count) == ([], 0)


def test_browse_and_acquire(peer: Peer, other: Peer) -> None:
    for number in range(4):
        peer.publish(b"%d" % number)
    peer.subscribe(acquire_mode=BROWSE)
    peer.flow(None)
    assert len(peer.bodies) == 4
    other.subscribe()
    other.flow(1)
    peer.call(spec.MessageAccept(transfers=ids(peer, 3)))
    assert peer.world.host.queues["q"].message_count == 3, "what is not acquired is not accepted"
    found = peer.ask(spec.MessageAcquire(transfers=ids(peer, 0, 1, 2, 3)), spec.MessageAcquired)
    assert found.transfers == [(peer.transfers[1][0], peer.transfers[2][0])]
    peer.call(spec.MessageAccept(transfers=ids(peer, 0, 1)))
    peer.call(spec.MessageRelease(transfers=ids(peer, 0, 2)))
    assert waiting(peer) == [b"2", b"3"]
    other.call(spec.MessageRelease(transfers=ids(other, 0)))
    assert other.bodies == [b"0"]
    assert waiting(peer) == [b"0", b"2", b"3"]


def test_ranges_that_overlap_name_a_message_once(peer: Peer) -> None:
    for body in (b"1", b"2"):
        peer.publish(body)
    peer.subscribe(acquire_mode=BROWSE)
    peer.flow(2)
    first, second = (command_id for command_id, *_ in peer.transfers)
    found = peer.ask(spec.MessageAcquire(transfers=[(first, second), (first, first)]), spec.MessageAcquired)
    assert found.transfers == [(first, second)]
    peer.call(spec.MessageAccept(transfers=[(second, second), (first, second)]))
    assert (waiting(peer), peer.world.host.queues["q"].unsettled_count, peer.error) == ([], 0, None)


def test_many_wide_ranges_find_what_is_known_once() -> None:
    known = dict.fromkeys(range(100))
    assert ids_among(known, [(0, 1 << 30)] * 1000) == list(known)
    assert ids_among(known, [(98, 1 << 30), (1, 2), (1, 1)]) == [1, 2, 98, 99]


def test_what_is_browsed_with_accept_mode_none_is_settled_when_it_is_acquired(peer: Peer) -> None:
    for body in (b"1", b"2"):
        peer.publish(body)
    peer.subscribe(accept_mode=NONE, acquire_mode=BROWSE)
    peer.flow(2)
    first, second = ids(peer, 0), ids(peer, 1)
    assert peer.ask(spec.MessageAcquire(transfers=first), spec.MessageAcquired).transfers == first
    queue = peer.world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (1, 0)
    assert peer.ask(spec.MessageAcquire(transfers=first), spec.MessageAcquired).transfers == []
    peer.call(spec.MessageCancel(destination="d"))
    assert peer.ask(spec.MessageAcquire(transfers=second), spec.MessageAcquired).transfers == []
    assert waiting(peer) == [b"2"]


def test_a_cancelled_subscription_leaves_what_it_sent(peer: Peer) -> None:
    peer.publish(b"1")
    peer.publish(b"2")
    peer.subscribe()
    peer.flow(2)
    peer.call(spec.MessageCancel(destination="d"))
    peer.call(spec.MessageAccept(transfers=ids(peer, 0)))
    peer.call(spec.MessageRelease(transfers=ids(peer, 1)))
    assert waiting(peer) == [b"2"]
    peer.subscribe()


def test_a_deleted_queue_ends_the_sessions_that_are_subscribed(peer: Peer, other: Peer) -> None:
    other.subscribe()
    peer.subscribe()
    deleted = peer.call(spec.QueueDelete(queue="q"))
    assert code_of(other) == 408
    assert code_of(peer) == 408
    assert peer.session.is_complete(deleted), "its own command is complete before"


def test_two_subscriptions_share_a_queue(peer: Peer, other: Peer) -> None:
    for each in (peer, other):
        each.subscribe()
        each.flow(10)
    for number in range(6):
        peer.publish(b"%d" % number)
    assert (len(peer.bodies), len(other.bodies)) == (3, 3)


# ------------------------------------------------------------------------------------------------------ transactions
def test_commit(peer: Peer) -> None:
    peer.publish(b"old")
    peer.subscribe()
    peer.flow(9)
    peer.call(spec.TxSelect())
    peer.call(spec.MessageStop(destination="d"))
    peer.publish(b"new")
    peer.publish(b"lost", "nowhere")
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    queue = peer.world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (0, 1)
    assert len(peer.received(spec.MessageReject)) == 1, "what nobody takes is rejected when it arrives"
    peer.call(spec.TxCommit())
    assert (queue.message_count, queue.unsettled_count) == (1, 0)
    assert waiting(peer) == [b"new"]


def test_rollback_drops_what_was_published_and_holds_what_was_accepted(peer: Peer) -> None:
    peer.publish(b"old")
    peer.subscribe()
    peer.flow(1)
    peer.call(spec.TxSelect())
    peer.publish(b"new")
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    peer.call(spec.TxRollback())
    queue = peer.world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (0, 1), "it remains acquired"
    peer.call(spec.MessageRelease(transfers=ids(peer)))
    assert waiting(peer) == [b"old"]
    peer.publish(b"next")
    peer.call(spec.TxCommit())
    assert waiting(peer) == [b"old", b"next"]


@pytest.mark.parametrize("redelivered", [False, True])
def test_what_is_released_after_its_accept_is_free_after_a_rollback(
    peer: Peer, other: Peer, *, redelivered: bool
) -> None:
    """The messaging API of qpid-python sends these commands when it rolls back."""
    for body in (b"released", b"held"):
        peer.publish(body)
    peer.subscribe()
    peer.flow(2)
    peer.call(spec.TxSelect())
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    peer.call(spec.MessageRelease(transfers=ids(peer, 0), set_redelivered=redelivered))
    queue = peer.world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (0, 2)
    peer.call(spec.TxRollback())
    assert (queue.message_count, queue.unsettled_count) == (1, 1)
    other.subscribe()
    other.flow(1)
    ((_, delivery, _, body),) = other.transfers
    assert (body, delivery.redelivered) == (b"released", redelivered)
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    peer.call(spec.TxCommit())
    assert (queue.message_count, queue.unsettled_count) == (0, 1), "what was released is not this session's any more"


def test_a_commit_settles_what_was_released_after_its_accept(peer: Peer) -> None:
    peer.publish(b"done")
    peer.subscribe()
    peer.flow(1)
    peer.call(spec.TxSelect())
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    peer.call(spec.MessageRelease(transfers=ids(peer)))
    peer.call(spec.TxCommit())
    peer.call(spec.TxRollback())
    queue = peer.world.host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (0, 0)


@pytest.mark.parametrize("end", ["lost", "missing exchange"])
def test_an_open_transaction_ends_with_its_session(peer: Peer, end: str) -> None:
    peer.publish(b"old")
    peer.subscribe()
    peer.flow(1)
    peer.call(spec.TxSelect())
    peer.publish(b"new")
    peer.call(spec.MessageAccept(transfers=ids(peer)))
    if end == "lost":
        peer.server.lost()
    else:
        peer.publish(b"x", exchange="missing")
        assert code_of(peer) == 404
    assert waiting(peer) == [b"old"]


def test_an_exchange_that_is_gone_at_commit(peer: Peer, other: Peer) -> None:
    peer.call(spec.ExchangeDeclare(exchange="x", type="fanout"))
    peer.call(spec.ExchangeBind(queue="q", exchange="x", binding_key=""))
    peer.call(spec.TxSelect())
    peer.publish(b"1")
    peer.publish(b"2", exchange="x")
    other.call(spec.ExchangeDelete(exchange="x"))
    peer.call(spec.TxCommit())
    assert waiting(peer) == [b"1", b"2"], "they were routed when they arrived"


def test_select_twice(peer: Peer) -> None:
    peer.call(spec.TxSelect())
    peer.call(spec.TxSelect())
    assert code_of(peer) == 409


def test_accept_mode_none_and_transactions_exclude_each_other(peer: Peer, other: Peer) -> None:
    peer.subscribe(accept_mode=NONE)
    peer.call(spec.TxSelect())
    assert code_of(peer) == 530
    other.call(spec.TxSelect())
    other.subscribe(accept_mode=NONE)
    assert code_of(other) == 530


def test_the_command_of_a_delivery_says_how_it_was_subscribed(peer: Peer) -> None:
    peer.publish(b"1")
    peer.subscribe(accept_mode=NONE, acquire_mode=BROWSE)
    expected = encode_command(spec.MessageTransfer(destination="d", accept_mode=1, acquire_mode=1))
    peer.reading = False
    peer.session.send(spec.MessageFlow(destination="d", unit=0))
    peer.session.send(spec.MessageFlow(destination="d", unit=1))
    peer.pump()
    assert expected in peer.server.take_bytes()
