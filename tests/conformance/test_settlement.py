"""What becomes of messages that a consumer does not accept: dead letters, the alternate exchange, browsing (0-10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_10 import spec
from tests.conformance.peer import outcome
from tests.conformance.peer_0_10 import EXPLICIT, NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.conftest import Connect
    from tests.conformance.peer import Peer
    from tests.conformance.peer_0_9 import Peer09
    from tests.conformance.peer_0_10 import Peer010
    from tests.conformance.targets import Target


def ids(*numbers: int) -> list[tuple[int, int]]:
    return [(number, number) for number in numbers]


def filled(peer: Peer, queue: str, count: int) -> None:
    peer.declare_queue(queue)
    peer.publish_all(queue, [b"%d" % number for number in range(count)])


def dead_lettering(peer: Peer, name: Callable[[str], str], count: int, target: Target) -> tuple[str, str] | None:
    """A queue with messages, and the queue of those that it rejects; None if the broker has no such thing."""
    peer.declare_exchange(name("dead"), "fanout")
    peer.declare_queue(name("grave"))
    peer.bind(name("grave"), name("dead"))
    peer.sync()

    def declare() -> None:
        peer.declare_queue(name("q"), alternate=name("dead"))
        peer.sync()

    if not target.serves("declare: x-dead-letter-exchange", declare):
        return None
    peer.publish_all(name("q"), [b"%d" % number for number in range(count)])
    return name("q"), name("grave")


def test_what_is_rejected_goes_to_the_dead_letters(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    made = dead_lettering(peer, name, 4, target)
    if made is None:
        return
    queue, grave = made
    held = peer.get(queue)[queue]
    peer.reject(held[2], held[0])
    peer.accept(held[1])
    peer.sync()
    dead = peer.take(grave, 2)
    assert sorted(each.body for each in dead) == [b"0", b"2"]
    assert [each.redelivered for each in dead] == target.expects("dead letter: flagged as redelivered", [False, False])
    # 0-10 section delivery-properties, exchange: the one that the message was published to.
    assert {each.exchange for each in dead} == {"" if target.protocol == "0-10" else name("dead")}
    assert {each.key for each in dead} == {queue}
    peer.reopen()
    assert peer.bodies(queue) == [b"3"]


def test_what_is_rejected_is_gone_without_dead_letters(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    filled(peer, name("q"), 2)
    held = peer.get(name("q"))[name("q")]
    peer.reject(held[0])
    peer.sync()
    peer.reopen()
    assert peer.bodies(name("q")) == target.expects("reject: without dead letters", [b"1"])


def test_dead_letters_say_where_they_died(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    made = dead_lettering(peer_0_9, name, 1, target)
    if made is None:
        return
    queue, grave = made
    peer_0_9.reject(*peer_0_9.get(queue)[queue])
    peer_0_9.sync()
    (dead,) = peer_0_9.take(grave, 1)
    deaths = dead.headers["x-death"]
    assert isinstance(deaths, list)
    assert len(deaths) == 1
    found = {key: deaths[0][key] for key in ("count", "reason", "queue", "exchange", "routing-keys")}
    assert found == {"count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}
    for which in ("first", "last"):
        places = [dead.headers[f"x-{which}-death-{part}"] for part in ("queue", "reason", "exchange")]
        assert places == [queue, "rejected", ""]


def test_a_dead_letter_routing_key(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    peer_0_9.declare_queue(name("grave"))
    peer_0_9.sync()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("grave")}

    def declare() -> None:
        peer_0_9.declare_queue(name("q"), arguments=arguments)
        peer_0_9.sync()

    if not target.serves("declare: x-dead-letter-routing-key", declare):
        return
    peer_0_9.publish_all(name("q"), [b"0"])
    peer_0_9.reject(*peer_0_9.get(name("q"))[name("q")])
    peer_0_9.sync()
    (dead,) = peer_0_9.take(name("grave"), 1)
    assert (dead.body, dead.exchange, dead.key) == (b"0", "", name("grave"))


def test_nack_of_many(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    filled(peer_0_9, name("q"), 4)
    held = peer_0_9.get(name("q"))[name("q")]
    peer_0_9.send(spec_0_9.BasicAck(held[0].number))
    peer_0_9.send(spec_0_9.BasicNack(held[2].number, multiple=True, requeue=True))
    peer_0_9.sync()
    assert peer_0_9.bodies(name("q")) == target.expects("nack: multiple", [b"1", b"2"])


@pytest.mark.parametrize("requeue", [False, True])
def test_nack_of_one(peer_0_9: Peer09, name: Callable[[str], str], target: Target, requeue: bool) -> None:
    filled(peer_0_9, name("q"), 2)
    held = peer_0_9.get(name("q"))[name("q")]
    peer_0_9.send(spec_0_9.BasicNack(held[0].number, requeue=requeue))
    peer_0_9.send(spec_0_9.BasicAck(held[1].number))
    peer_0_9.sync()
    peer_0_9.reopen()
    assert peer_0_9.bodies(name("q")) == target.expects(f"nack: requeue={requeue}", [b"0"] if requeue else [])


@pytest.mark.parametrize("method", ["ack", "nack"])
@pytest.mark.parametrize("tag", ["unknown", "settled"])
def test_a_tag_that_is_not_held_settles_nothing_before_it(
    peer_0_9: Peer09, name: Callable[[str], str], target: Target, method: str, tag: str
) -> None:
    filled(peer_0_9, name("q"), 3)
    held = peer_0_9.get(name("q"))[name("q")]
    wrong = held[2].number + (90 if tag == "unknown" else 0)
    if tag == "settled":
        peer_0_9.send(spec_0_9.BasicAck(held[2].number))
    settle = spec_0_9.BasicAck if method == "ack" else spec_0_9.BasicNack
    peer_0_9.send(settle(delivery_tag=wrong, multiple=True))
    expected = target.expects("multiple: a tag that is not held", ("channel", 406))
    assert outcome(peer_0_9.sync) == expected
    if expected != "ok":
        peer_0_9.after_error()
        assert peer_0_9.bodies(name("q")) == [b"0", b"1", b"2"][: 3 if tag == "unknown" else 2]


def test_ack_of_all(peer_0_9: Peer09, name: Callable[[str], str]) -> None:
    """Tag 0 with multiple: all that are held."""
    filled(peer_0_9, name("q"), 3)
    peer_0_9.get(name("q"))
    peer_0_9.send(spec_0_9.BasicAck(0, multiple=True))
    peer_0_9.sync()
    peer_0_9.reopen()
    assert peer_0_9.bodies(name("q")) == []


# ---------------------------------------------------------------------------------------------------------- 0-10


def test_released_without_the_flag(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    """message.release without set-redelivered: the message was not seen by anybody."""
    filled(peer_0_10, name("q"), 3)
    held = peer_0_10.get(name("q"))[name("q")]
    peer_0_10.send(spec.MessageRelease(transfers=ids(held[0].number, held[2].number)))
    peer_0_10.sync()
    found = peer_0_10.get(name("q"))[name("q")]
    assert [(each.body, each.redelivered) for each in found] == [(b"0", False), (b"2", False)]


def test_settling_twice_does_nothing(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    """message.accept, release and reject of ids that are settled, or never were: no error (section message.accept)."""
    filled(peer_0_10, name("q"), 2)
    held = peer_0_10.get(name("q"))[name("q")]
    peer_0_10.accept(held[0])
    peer_0_10.accept(held[0])
    peer_0_10.release(held[0])
    peer_0_10.reject(held[0])
    peer_0_10.sync()
    assert peer_0_10.bodies(name("q")) == []


def test_browsing_leaves_messages(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 3)
    for destination in ("b1", "b2"):
        peer_0_10.subscribe(name("q"), destination, accept_mode=NONE, acquire_mode=1)
        peer_0_10.flow(destination)
        assert peer_0_10.flush(destination) == [b"0", b"1", b"2"]
    assert peer_0_10.bodies(name("q")) == [b"0", b"1", b"2"]


def test_a_browser_sees_each_message_once(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 2)
    peer_0_10.subscribe(name("q"), "b", accept_mode=NONE, acquire_mode=1)
    peer_0_10.flow("b")
    assert peer_0_10.flush("b") == [b"0", b"1"]
    peer_0_10.publish_all(name("q"), [b"2"])
    peer_0_10.flow("b")
    assert peer_0_10.flush("b") == [b"2"]


def test_acquire(connect_0_10: Connect, name: Callable[[str], str]) -> None:
    """message.acquire tells which messages are ours now; those that another consumer holds are not."""
    peer: Peer010 = connect_0_10()
    other: Peer010 = connect_0_10()
    filled(peer, name("q"), 4)
    peer.subscribe(name("q"), "b", acquire_mode=1)
    peer.flow("b")
    peer.flush("b")
    browsed = list(peer.deliveries)
    assert [each.body for each in browsed] == [b"0", b"1", b"2", b"3"]
    (taken,) = other.get(name("q"), most=1)[name("q")]
    assert taken.body == b"0"
    wanted = [each.number for each in browsed[:3]]
    result = peer.ask(spec.MessageAcquire(transfers=[(wanted[0], wanted[-1])]), spec.MessageAcquired)
    acquired = [number for low, high in result.transfers or () for number in range(low, high + 1)]
    assert acquired == wanted[1:]
    peer.send(spec.MessageAccept(transfers=ids(wanted[1])))
    peer.send(spec.MessageRelease(transfers=ids(wanted[2])))
    peer.sync()
    assert other.bodies(name("q")) == [b"2", b"3"]


def test_accept_mode_none_settles_when_it_is_sent(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 2)
    peer_0_10.subscribe(name("q"), "d", accept_mode=NONE)
    peer_0_10.flow("d")
    assert len(peer_0_10.flush("d")) == 2
    peer_0_10.reopen()
    assert peer_0_10.bodies(name("q")) == []


def test_each_published_message_is_accepted(peer_0_10: Peer010, name: Callable[[str], str], target: Target) -> None:
    """accept-mode explicit: the broker accepts what it has taken (section message.transfer)."""
    peer_0_10.declare_queue(name("q"))
    sent = [peer_0_10.transfer("", spec.DeliveryProperties(routing_key=name("q")), None, b"") for _ in range(3)]
    peer_0_10.sync()
    assert sorted(peer_0_10.accepted) == target.expects("transfer: accept-mode explicit", sent)


@pytest.mark.parametrize("discard", [False, True])
def test_unroutable(peer_0_10: Peer010, target: Target, discard: bool) -> None:
    """Rejected with code 1, unless the publisher has said that it may be discarded."""
    delivery = spec.DeliveryProperties(routing_key="nowhere", discard_unroutable=discard)
    number = peer_0_10.transfer("amq.direct", delivery, None, b"")
    peer_0_10.sync()
    assert peer_0_10.rejected == ({} if discard else {number: spec.MessageRejectCode.UNROUTABLE})


@pytest.mark.parametrize(
    ("accept_mode", "discard", "specified"),
    [(NONE, False, "alternate"), (NONE, True, "gone"), (EXPLICIT, False, "rejected"), (EXPLICIT, True, "gone")],
)
def test_what_an_exchange_with_an_alternate_cannot_route(
    peer_0_10: Peer010, name: Callable[[str], str], target: Target, accept_mode: int, discard: bool, specified: str
) -> None:
    """0-10 section exchange.declare, alternate-exchange."""
    peer_0_10.declare_exchange(name("rest"), "fanout")
    peer_0_10.declare_exchange(name("x"), "direct", alternate=name("rest"))
    peer_0_10.declare_queue(name("q"))
    peer_0_10.bind(name("q"), name("rest"))
    delivery = spec.DeliveryProperties(routing_key="k", discard_unroutable=discard)
    peer_0_10.transfer(name("x"), delivery, None, b"", accept_mode=accept_mode)
    peer_0_10.sync()
    found = "alternate" if peer_0_10.bodies(name("q")) else "rejected" if peer_0_10.rejected else "gone"
    words = f"accept-mode {'none' if accept_mode == NONE else 'explicit'}{', discard-unroutable' if discard else ''}"
    assert found == target.expects(f"alternate exchange: {words}", specified)


def test_immediate(peer_0_10: Peer010, name: Callable[[str], str], target: Target) -> None:
    """delivery-properties.immediate: rejected with code 2 if nobody takes it at once."""
    peer_0_10.declare_queue(name("q"))
    number = peer_0_10.transfer("", spec.DeliveryProperties(routing_key=name("q"), immediate=True), None, b"0")
    peer_0_10.sync()
    found = (peer_0_10.rejected, peer_0_10.bodies(name("q")))
    assert found == target.expects("transfer: immediate", ({number: spec.MessageRejectCode.IMMEDIATE}, []))


def test_deleting_a_queue_sends_its_messages_to_the_alternate_exchange(
    peer_0_10: Peer010, name: Callable[[str], str], target: Target
) -> None:
    """0-10 section queue.delete."""
    made = dead_lettering(peer_0_10, name, 3, target)
    assert made is not None
    queue, grave = made
    peer_0_10.delete_queue(queue)
    peer_0_10.sync()
    assert peer_0_10.bodies(grave) == target.expects("queue.delete: alternate exchange", [b"0", b"1", b"2"])


@pytest.mark.parametrize("then", ["release", "reject", "end"])
def test_what_is_held_when_its_queue_is_deleted_goes_to_the_alternate_exchange(
    connect_0_10: Connect, name: Callable[[str], str], target: Target, then: str
) -> None:
    """0-10 section queue.declare, alternate-exchange: rejected or orphaned messages must be routed."""
    peer, other = connect_0_10(), connect_0_10()
    made = dead_lettering(peer, name, 2, target)
    assert made is not None
    queue, grave = made
    (held,) = other.get(queue, most=1)[queue]
    peer.delete_queue(queue)
    peer.sync()
    if then == "release":
        other.release(held)
    elif then == "reject":
        other.reject(held)
    other.sync()
    other.reopen()
    found = sorted(each.body for each in peer.take(grave, 2))
    assert found == [b"0", b"1"]


def test_the_end_of_an_auto_delete_queue_leaves_orphans(connect_0_10: Connect, name: Callable[[str], str]) -> None:
    peer, other = connect_0_10(), connect_0_10()
    peer.declare_exchange(name("dead"), "fanout")
    peer.declare_queue(name("grave"))
    peer.bind(name("grave"), name("dead"))
    peer.declare_queue(name("q"), alternate=name("dead"), auto_delete=True)
    peer.publish_all(name("q"), [b"0", b"1", b"2"])
    other.subscribe(name("q"), "d")
    other.flow("d", messages=1)
    other.wait_for(1)
    other.reopen()
    assert sorted(each.body for each in peer.take(name("grave"), 3)) == [b"0", b"1", b"2"]
