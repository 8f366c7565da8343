"""Messages over 0-10 after their transfer: settlement, browsing, transactions."""

from __future__ import annotations

import pytest

from amqp_core.broker.v0_10 import deliveries
from amqp_core.broker.v0_10.transfer_ids import ids_among
from amqp_core.sequence_numbers import wire_ranges
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command
from tests.core.broker.peer_0_10 import BROWSE, NONE, Peer, code_of, ids, waiting


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


def test_what_two_subscriptions_have_browsed_is_acquired_once(peer: Peer, other: Peer) -> None:
    """Else one transfer could settle what the other has released, and somebody else holds."""
    peer.publish(b"x")
    for destination in ("one", "two"):
        peer.subscribe(destination=destination, acquire_mode=BROWSE)
        peer.flow(destination=destination)
    found = peer.ask(spec.MessageAcquire(transfers=ids(peer)), spec.MessageAcquired)
    assert found.transfers == ids(peer, 0)
    peer.call(spec.MessageRelease(transfers=ids(peer, 0)))
    other.subscribe()
    other.flow()
    peer.call(spec.MessageAccept(transfers=ids(peer, 1)))
    other.server.lost()
    assert waiting(peer) == [b"x"]


def test_a_session_that_browses_again_and_again_remembers_what_it_was_sent_last(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client may acquire what a cancelled subscription was sent, but need not say that it does not want to."""
    monkeypatch.setattr(deliveries, "MOST_BROWSED", 50)
    for number in range(50):
        peer.publish(b"%d" % number)
    for _ in range(30):
        peer.subscribe(acquire_mode=BROWSE)
        peer.flow()
        peer.call(spec.MessageCancel(destination="d"))
    sent = [command_id for command_id, *_ in peer.transfers]
    first, last = wire_ranges([(sent[0], sent[49])]), wire_ranges([(sent[-50], sent[-1])])
    assert peer.ask(spec.MessageAcquire(transfers=first), spec.MessageAcquired).transfers == []
    assert peer.ask(spec.MessageAcquire(transfers=last), spec.MessageAcquired).transfers == last


def test_no_more_is_acquired_than_the_answer_can_name(peer: Peer, other: Peer) -> None:
    count = 8191
    for _ in range(2 * count + 4):
        peer.publish(b"")
    for each in peer, other:
        each.subscribe(acquire_mode=BROWSE)
        each.flow(None)
    sent = [command_id for command_id, *_ in peer.transfers]
    every_second = wire_ranges((command_id, command_id) for command_id, *_ in other.transfers[::2])
    for at in range(0, len(every_second), 4000):
        other.ask(spec.MessageAcquire(transfers=every_second[at : at + 4000]), spec.MessageAcquired)
    everything = spec.MessageAcquire(transfers=wire_ranges([(sent[0], sent[-1])]))
    found = peer.ask(everything, spec.MessageAcquired)
    assert found.transfers == wire_ranges((each, each) for each in sent[1 : 2 * count : 2])
    assert peer.ask(everything, spec.MessageAcquired).transfers == wire_ranges((each, each) for each in sent[-3::2])
    assert peer.error is None


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
    assert len(peer.received(spec.MessageReject)) == 1, "an unroutable message is rejected when it arrives"
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
