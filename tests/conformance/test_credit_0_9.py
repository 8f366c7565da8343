"""Credit in 0-9-1: basic.qos, no-ack, basic.get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.v0_9 import spec
from tests.conformance.peer import outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.conftest import Connect
    from tests.conformance.peer_0_9 import Peer09
    from tests.conformance.targets import Target


def filled(peer: Peer09, queue: str, count: int) -> None:
    peer.declare_queue(queue)
    peer.publish_all(queue, [b"%d" % number for number in range(count)])


def got(peer: Peer09, consumer: str = "c") -> list[bytes]:
    """What a consumer has got, once it is cancelled: so nothing is under way any more."""
    peer.cancel(consumer)
    peer.sync()
    peer.sync()  # RabbitMQ: the channel hears of a cancellation and of deliveries from two processes
    return [each.body for each in peer.deliveries if each.consumer == consumer]


def test_a_consumer_gets_as_many_as_its_prefetch(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    queue = name("q")
    filled(peer_0_9, queue, 10)
    peer_0_9.consume(queue, "c", credit=3)
    first = peer_0_9.wait_for(3)
    assert peer_0_9.ready_messages(queue) == target.expects("queue.declare: does not count what is held", 7)
    peer_0_9.accept(*first[:2])
    peer_0_9.wait_for(2)
    assert got(peer_0_9) == [b"0", b"1", b"2", b"3", b"4"]


def test_one_ack_for_many_gives_all_of_it_back(peer_0_9: Peer09, name: Callable[[str], str]) -> None:
    queue = name("q")
    filled(peer_0_9, queue, 10)
    peer_0_9.consume(queue, "c", credit=4)
    first = peer_0_9.wait_for(4)
    peer_0_9.send(spec.BasicAck(first[2].number, multiple=True))
    peer_0_9.wait_for(3)
    assert len(got(peer_0_9)) == 7


def test_no_limit(peer_0_9: Peer09, name: Callable[[str], str]) -> None:
    filled(peer_0_9, name("q"), 300)
    peer_0_9.consume(name("q"), "c")
    assert len(peer_0_9.wait_for(300)) == 300


def test_without_acks_a_prefetch_does_not_matter(peer_0_9: Peer09, name: Callable[[str], str]) -> None:
    filled(peer_0_9, name("q"), 20)
    peer_0_9.consume(name("q"), "c", credit=2, accept=False)
    assert len(peer_0_9.wait_for(20)) == 20
    peer_0_9.reopen()
    assert peer_0_9.bodies(name("q")) == []


def test_each_consumer_has_its_own_prefetch(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """basic.qos with global unset is for each new consumer of the channel (RabbitMQ's reading of it)."""
    for queue in ("q1", "q2"):
        filled(peer_0_9, name(queue), 10)
    peer_0_9.consume(name("q1"), "c1", credit=2)
    peer_0_9.consume(name("q2"), "c2", credit=3)
    both = target.expects("qos: of each consumer", (2, 3))
    peer_0_9.wait_for(sum(both))
    assert (len(got(peer_0_9, "c1")), len(got(peer_0_9, "c2"))) == both


def test_a_prefetch_of_the_channel(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """basic.qos with global set is for all consumers of the channel together."""
    for queue in ("q1", "q2"):
        filled(peer_0_9, name(queue), 10)
    peer_0_9.send(spec.BasicQos(prefetch_count=5, global_=True))
    for number in ("1", "2"):
        peer_0_9.send(spec.BasicConsume(queue=name(f"q{number}"), consumer_tag=f"c{number}"))
    most = target.expects("qos: global", 5)
    held = peer_0_9.wait_for(most)
    peer_0_9.accept(*held[:2])
    peer_0_9.wait_for(2)
    assert len(got(peer_0_9, "c1")) + len(got(peer_0_9, "c2")) == most + 2


def test_a_get_needs_no_credit(peer_0_9: Peer09, name: Callable[[str], str]) -> None:
    filled(peer_0_9, name("q"), 5)
    peer_0_9.send(spec.BasicQos(prefetch_count=1))
    found = peer_0_9.get(name("q"), most=7)[name("q")]
    assert [each.body for each in found] == [b"%d" % number for number in range(5)]


def test_a_get_says_how_many_are_left(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    filled(peer_0_9, name("q"), 3)
    found = peer_0_9.get(name("q"), most=3, accept=True)[name("q")]
    assert [each.left for each in found] == target.expects("get: messages that are left", [2, 1, 0])


def test_a_window_in_bytes(peer_0_9: Peer09, target: Target) -> None:
    """prefetch-size: RabbitMQ refuses it, and so does the embedded broker, which has its extensions."""
    action = lambda: peer_0_9.call(spec.BasicQos(prefetch_size=1000))  # noqa: E731
    assert outcome(action) == target.expects("qos: prefetch-size", ("connection", 540))


def test_flow_off_stops_deliveries(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    peer_0_9.declare_queue(name("q"))
    peer_0_9.consume(name("q"), "c")
    if not target.serves("channel.flow: off", lambda: peer_0_9.call(spec.ChannelFlow(active=False))):
        return
    peer_0_9.publish_all(name("q"), [b"0"])
    peer_0_9.sync()
    assert peer_0_9.deliveries == []
    peer_0_9.call(spec.ChannelFlow(active=True))
    assert [each.body for each in peer_0_9.wait_for(1)] == [b"0"]


def test_a_nacked_message_comes_again_to_the_same_consumer(peer_0_9: Peer09, name: Callable[[str], str]) -> None:
    filled(peer_0_9, name("q"), 3)
    peer_0_9.consume(name("q"), "c", credit=1)
    (first,) = peer_0_9.wait_for(1)
    peer_0_9.release(first)
    (again,) = peer_0_9.wait_for(1)
    assert (again.body, again.redelivered) == (first.body, True)
    assert again.number > first.number


def test_recover(peer_0_9: Peer09, name: Callable[[str], str]) -> None:
    """basic.recover: all unacknowledged messages of the channel come again."""
    filled(peer_0_9, name("q"), 3)
    peer_0_9.consume(name("q"), "c")
    first = peer_0_9.wait_for(3)
    peer_0_9.accept(first[1])
    peer_0_9.call(spec.BasicRecover(requeue=True))
    again = peer_0_9.wait_for(2)
    assert [(each.body, each.redelivered) for each in again] == [(b"0", True), (b"2", True)]


def test_recover_without_requeue(peer_0_9: Peer09, target: Target) -> None:
    action = lambda: peer_0_9.call(spec.BasicRecover(requeue=False))  # noqa: E731
    assert outcome(action) == target.expects("recover: without requeue", ("connection", 540))


def test_consumer_priorities(connect_0_9: Connect, name: Callable[[str], str], target: Target) -> None:
    """x-priority: the consumer with the higher one gets all that its credit allows."""
    peer: Peer09 = connect_0_9()
    peer.declare_queue(name("q"))
    peer.send(spec.BasicQos(prefetch_count=3))
    for tag, priority in (("low", 1), ("high", 10)):
        peer.send(spec.BasicConsume(queue=name("q"), consumer_tag=tag, arguments={"x-priority": priority}))
    peer.sync()
    peer.publish_all(name("q"), [b"%d" % number for number in range(5)])
    both = target.expects("consume: x-priority", ([b"0", b"1", b"2"], [b"3", b"4"]))
    found = peer.wait_for(len(both[0]) + len(both[1]))
    assert tuple([each.body for each in found if each.consumer == tag] for tag in ("high", "low")) == both
    assert len(got(peer, "high")) + len(got(peer, "low")) == len(found)
