"""Limits: length of a queue, time to live, priorities, a single active consumer, and their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_9 import spec as spec_0_9
from amqp_core.v0_10 import spec
from tests.conformance.peer import TAKEN, Fate, outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.conformance.conftest import Connect
    from tests.conformance.peer import Peer
    from tests.conformance.peer_0_9 import Peer09
    from tests.conformance.peer_0_10 import Peer010
    from tests.conformance.targets import Target


def priorities(target: Target) -> Mapping[str, object]:
    """The argument for ten priorities: Broker-J's, which clients of 0-10 use, or RabbitMQ's."""
    qpid = target.broker == "broker-j" or target.protocol == "0-10"
    return {"x-qpid-priorities": 10} if qpid else {"x-max-priority": 9}


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def served(peer: Peer, queue: str, target: Target, arguments: Mapping[str, object]) -> bool:
    """Declare a queue, and whether the broker knows its arguments; Broker-J has other ones in 0-9-1."""

    def declare() -> None:
        peer.declare_queue(queue, arguments=arguments)
        peer.sync()

    return target.serves(f"declare: {', '.join(arguments)}", declare)


def test_the_oldest_messages_make_room(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """x-max-length: drop-head is what happens without x-overflow."""
    if served(peer_0_9, name("q"), target, {"x-max-length": 3}):
        peer_0_9.publish_all(name("q"), numbered(1, 5))
        assert peer_0_9.bodies(name("q")) == numbered(3, 5)


def test_a_limit_in_bytes(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """x-max-length-bytes counts bodies."""
    if served(peer_0_9, name("q"), target, {"x-max-length-bytes": 10}):
        peer_0_9.publish_all(name("q"), [b"a" * 4, b"b" * 4, b"c" * 4])
        assert peer_0_9.bodies(name("q")) == [b"b" * 4, b"c" * 4]


def test_what_is_held_does_not_count(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    if served(peer_0_9, name("q"), target, {"x-max-length": 2}):
        peer_0_9.publish_all(name("q"), numbered(1, 2))
        held = peer_0_9.get(name("q"), most=1)[name("q")]
        peer_0_9.publish_all(name("q"), numbered(3, 3))
        peer_0_9.accept(*held)
        assert peer_0_9.bodies(name("q")) == numbered(2, 3)


def test_a_full_queue_refuses(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """x-overflow reject-publish: nack to a publisher with confirms."""
    if served(peer_0_9, name("q"), target, {"x-max-length": 2, "x-overflow": "reject-publish"}):
        fates = []
        for body in numbered(1, 4):
            peer_0_9.publish("", name("q"), body)
            fates += peer_0_9.fates()
        assert fates == [TAKEN, TAKEN, Fate("refused"), Fate("refused")]
        assert peer_0_9.bodies(name("q")) == numbered(1, 2)


def test_what_is_dropped_is_a_dead_letter(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    arguments = {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("grave")}
    peer_0_9.declare_queue(name("grave"))
    if served(peer_0_9, name("q"), target, arguments):
        peer_0_9.publish_all(name("q"), numbered(1, 3))
        dead = peer_0_9.take(name("grave"), 2)
        assert [(each.body, each.headers["x-first-death-reason"]) for each in dead] == [
            (b"1", "maxlen"),
            (b"2", "maxlen"),
        ]
        assert peer_0_9.bodies(name("q")) == [b"3"]


def test_messages_expire(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """x-message-ttl: seen by the dead letters, not by waiting."""
    arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("grave")}
    peer_0_9.declare_queue(name("grave"))
    if served(peer_0_9, name("q"), target, arguments):
        peer_0_9.publish_all(name("q"), numbered(1, 2))
        dead = peer_0_9.take(name("grave"), 2)
        assert [(each.body, each.headers["x-first-death-reason"]) for each in dead] == [
            (b"1", "expired"),
            (b"2", "expired"),
        ]
        assert peer_0_9.bodies(name("q")) == []


def test_a_ttl_of_zero_passes_messages_to_consumers_alone(
    peer_0_9: Peer09, name: Callable[[str], str], target: Target
) -> None:
    """x-message-ttl 0: a message is gone unless a consumer takes it at once."""
    if served(peer_0_9, name("q"), target, {"x-message-ttl": 0}):
        peer_0_9.publish_all(name("q"), [b"gone"])
        assert peer_0_9.bodies(name("q")) == []
        peer_0_9.consume(name("q"), "c")
        peer_0_9.publish_all(name("q"), [b"taken"])
        assert [each.body for each in peer_0_9.wait_for(1)] == [b"taken"]


def test_one_message_expires(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    """expiration (0-9-1) or ttl (0-10) of a message. It leaves the queue when it is at its head."""
    peer.declare_queue(name("q"))
    peer.publish("", name("q"), b"short", ttl_ms=1)
    peer.publish("", name("q"), b"long", ttl_ms=600_000)
    peer.publish("", name("q"), b"endless")
    peer.sync()
    held = peer.get(name("q"))[name("q")]
    while any(each.body == b"short" for each in held):  # it was taken before its time
        peer.release(*held)
        held = peer.get(name("q"))[name("q")]
    assert [each.body for each in held] == target.expects("expiration: of one message", [b"long", b"endless"])


def test_expiration_is_a_time_to_live(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    peer_0_9.declare_queue(name("q"))
    peer_0_9.publish("", name("q"), b"0", ttl_ms=600_000)
    peer_0_9.sync()
    assert peer_0_9.bodies(name("q")) == target.expects("expiration: in ms from now", [b"0"])


def test_a_queue_expires_that_nobody_uses(connect_0_9: Connect, name: Callable[[str], str], target: Target) -> None:
    """x-expires: a consumer keeps it; without one it goes, which its exchange shows (the message comes back)."""
    peer: Peer09 = connect_0_9()

    def publish(queue: str) -> Fate:
        peer.publish("", queue, b"", mandatory=True)
        (fate,) = peer.fates()
        return fate

    if served(peer, name("q"), target, {"x-expires": 300}):
        peer.consume(name("q"), "c")
        peer.declare_queue(name("unused"), arguments={"x-expires": 300})
        while publish(name("unused")).word != "returned":  # while it goes, RabbitMQ may refuse a message
            pass
        assert publish(name("q")) == TAKEN
        peer.cancel("c")
        while publish(name("q")).word != "returned":
            pass


def test_priorities(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    """Higher ones first, in each the order in which they came."""
    peer.declare_queue(name("q"), arguments=priorities(target))
    for number, priority in enumerate((1, 5, None, 9, 5, 1, 0)):
        peer.publish("", name("q"), b"%d" % number, priority=priority)
    peer.sync()
    # Without one: 0 in 0-9-1 (RabbitMQ), 4 in 0-10 (section delivery-properties, priority).
    words = "3142056" if target.protocol == "0-10" else "3140526"
    specified = [each.encode() for each in words]
    assert peer.bodies(name("q")) == target.expects("priorities", specified)


@pytest.mark.parametrize(("levels", "order"), [(2, b"957430"), (5, b"975430"), (6, b"975430"), (9, b"975430")])
def test_few_levels_of_priority(peer_0_10: Peer010, name: Callable[[str], str], levels: int, order: bytes) -> None:
    """Broker-J's ``x-qpid-priorities``: the levels are around 4, the priority of a message that names none."""
    peer_0_10.declare_queue(name("q"), arguments={"x-qpid-priorities": levels})
    for priority in (4, 9, 3, 5, 7, 0):
        peer_0_10.publish("", name("q"), b"%d" % priority, priority=priority)
    peer_0_10.sync()
    assert b"".join(peer_0_10.bodies(name("q"))) == order


def test_priorities_above_the_highest(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """They count as the highest."""
    if served(peer_0_9, name("q"), target, {"x-max-priority": 5}):
        for number, priority in enumerate((5, 200, 4)):
            peer_0_9.publish("", name("q"), b"%d" % number, priority=priority)
        peer_0_9.sync()
        assert peer_0_9.bodies(name("q")) == numbered(0, 2)


def test_what_comes_back_keeps_its_priority(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    peer.declare_queue(name("q"), arguments=priorities(target))
    for number, priority in enumerate((7, 7, 7)):
        peer.publish("", name("q"), b"%d" % number, priority=priority)
    peer.sync()
    held = peer.get(name("q"), most=2)[name("q")]
    peer.publish("", name("q"), b"3", priority=8)
    peer.release(*held)
    peer.sync()
    assert peer.bodies(name("q")) == [b"3", b"0", b"1", b"2"]


def test_a_single_active_consumer(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """The first consumer gets all, the next one after it was cancelled."""
    peer_0_9.declare_queue(name("q"), arguments={"x-single-active-consumer": True})
    peer_0_9.consume(name("q"), "c1")
    peer_0_9.consume(name("q"), "c2")
    peer_0_9.publish_all(name("q"), numbered(1, 3))
    first = peer_0_9.wait_for(3)
    assert {each.consumer for each in first} == {"c1"}
    peer_0_9.accept(*first)
    peer_0_9.cancel("c1")
    peer_0_9.sync()
    peer_0_9.publish_all(name("q"), numbered(4, 5))
    assert [(each.consumer, each.body) for each in peer_0_9.wait_for(2)] == [("c2", b"4"), ("c2", b"5")]


def test_a_get_from_a_queue_with_a_single_active_consumer(
    peer_0_9: Peer09, name: Callable[[str], str], target: Target
) -> None:
    peer_0_9.declare_queue(name("q"), arguments={"x-single-active-consumer": True})
    peer_0_9.publish_all(name("q"), [b"0"])
    found = outcome(lambda: peer_0_9.get(name("q"), most=1))
    assert found == target.expects("get: a single active consumer", "ok")


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    peer: Peer, name: Callable[[str], str], target: Target
) -> None:
    peer.declare_queue(name("q"), auto_delete=True)
    peer.declare_queue(name("q"), auto_delete=True, passive=True)
    for consumer in ("c1", "c2"):
        peer.consume(name("q"), consumer)
    peer.cancel("c1")
    peer.declare_queue(name("q"), auto_delete=True, passive=True)
    peer.sync()
    peer.cancel("c2")
    scope = "session" if target.protocol == "0-10" else "channel"

    def look() -> None:
        while True:  # RabbitMQ deletes it in its own time
            peer.declare_queue(name("q"), auto_delete=True, passive=True)
            peer.sync()

    assert outcome(look) == (scope, 404)
    peer.after_error()


def test_an_exclusive_queue_goes_with_its_owner(connect: Connect, name: Callable[[str], str], target: Target) -> None:
    """0-9-1: with the connection. 0-10: with the session, if it is auto-delete, too."""
    owner = connect()
    owner.declare_queue(name("q"), exclusive=True, auto_delete=target.protocol == "0-10")
    owner.sync()
    owner.close()
    found: object = None
    while found != ("session" if target.protocol == "0-10" else "channel", 404):  # brokers clear up in their own time
        other = connect()
        other.declare_queue(name("q"), passive=True)
        found = outcome(other.sync)
        other.drop()


# ---------------------------------------------------------------------------------------------------------- 0-10


@pytest.mark.parametrize("explicit", [True, False])
def test_a_full_queue_of_0_10(peer_0_10: Peer010, name: Callable[[str], str], target: Target, explicit: bool) -> None:
    """qpid.max_count with the policy reject: message.reject, or with accept-mode none the end of the session."""
    peer_0_10.declare_queue(name("q"), arguments={"qpid.max_count": 2, "qpid.policy_type": "reject"})
    sent = [
        peer_0_10.transfer(
            "", spec.DeliveryProperties(routing_key=name("q")), None, body, accept_mode=0 if explicit else 1
        )
        for body in numbered(1, 3)
    ]
    found = outcome(peer_0_10.sync)
    if explicit:
        code = target.expects("a full queue: code of message.reject", 0)
        assert (found, peer_0_10.rejected) == ("ok", {sent[-1]: code})
    else:
        assert found == ("session", 506)
        peer_0_10.after_error()
    assert peer_0_10.bodies(name("q")) == numbered(1, 2)


def test_a_ring(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    """qpid.max_count with the policy ring: the oldest messages make room."""
    peer_0_10.declare_queue(name("q"), arguments={"qpid.max_count": 2, "qpid.policy_type": "ring"})
    peer_0_10.publish_all(name("q"), numbered(1, 5))
    assert peer_0_10.bodies(name("q")) == numbered(4, 5)


def test_a_maximum_of_deliveries(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    """x-qpid-maximum-delivery-count: what is released as often goes to the alternate exchange."""
    peer_0_10.declare_exchange(name("dead"), "fanout")
    peer_0_10.declare_queue(name("grave"))
    peer_0_10.bind(name("grave"), name("dead"))
    peer_0_10.declare_queue(name("q"), alternate=name("dead"), arguments={"x-qpid-maximum-delivery-count": 2})
    peer_0_10.publish_all(name("q"), [b"0"])
    deliveries = 0
    while held := peer_0_10.get(name("q"))[name("q")]:
        deliveries += 1
        peer_0_10.release(*held)
        peer_0_10.sync()
    assert deliveries == 2
    assert peer_0_10.bodies(name("grave")) == [b"0"]


def test_a_server_named_queue(peer_0_9: Peer09) -> None:
    """queue.declare without a name: the broker makes one, which begins with amq. on RabbitMQ, and makes it current."""
    answer = peer_0_9.ask(spec_0_9.QueueDeclare(exclusive=True), spec_0_9.QueueDeclareOk)
    assert answer.queue
    peer_0_9.publish("", answer.queue, b"0")
    peer_0_9.sync()
    get = peer_0_9.call(spec_0_9.BasicGet(queue="", no_ack=True))
    assert isinstance(get, spec_0_9.BasicGetOk)
