"""Order within a queue, and what comes back to it: to its old place, and flagged as redelivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.choice import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.conformance.conftest import Connect
    from tests.conformance.peer import Delivery, Peer
    from tests.conformance.targets import Target


def numbered(count: int) -> list[bytes]:
    """Bodies of messages."""
    return [b"%d" % number for number in range(count)]


def flagged(deliveries: Iterable[Delivery]) -> list[tuple[bytes, bool]]:
    """Bodies and whether they are flagged as redelivered."""
    return [(each.body, each.redelivered) for each in deliveries]


def filled(peer: Peer, queue: str, bodies: Sequence[bytes]) -> None:
    """Declare a queue with these messages."""
    peer.declare_queue(queue)
    peer.publish_all(queue, bodies)


def test_messages_leave_in_the_order_in_which_they_came(peer: Peer, name: Callable[[str], str]) -> None:
    bodies = numbered(50)
    filled(peer, name("q"), bodies)
    assert peer.bodies(name("q")) == bodies


def test_a_consumer_gets_them_in_this_order(peer: Peer, name: Callable[[str], str]) -> None:
    filled(peer, name("q"), numbered(50))
    peer.consume(name("q"), "c")
    found = peer.wait_for(50)
    assert flagged(found) == [(body, False) for body in numbered(50)]
    peer.accept(*found)
    peer.sync()


def test_each_publisher_keeps_its_order(connect: Connect, name: Callable[[str], str]) -> None:
    consumer = connect()
    consumer.declare_queue(name("q"))
    consumer.sync()
    publishers = [connect() for _ in range(3)]
    for number in range(20):
        for index, publisher in enumerate(publishers):
            publisher.publish("", name("q"), b"%d %d" % (index, number))
            publisher.push()
    for publisher in publishers:
        publisher.sync()
    found = consumer.bodies(name("q"))
    assert len(found) == 60
    for index in range(3):
        own = [body for body in found if body.startswith(b"%d " % index)]
        assert own == [b"%d %d" % (index, number) for number in range(20)]


def test_several_keys_of_an_exchange_keep_their_order(peer: Peer, name: Callable[[str], str]) -> None:
    peer.declare_queue(name("q"))
    peer.declare_exchange(name("x"), "topic")
    peer.bind(name("q"), name("x"), "a.#")
    for number in range(12):
        peer.publish(name("x"), "a." * (number % 3) + "a", b"%d" % number)
    peer.sync()
    assert peer.bodies(name("q")) == numbered(12)


# Of eight messages so many are held, and these of them are released, in this order.
plans = st.integers(1, 8).flatmap(
    lambda count: st.tuples(st.just(count), st.lists(st.sampled_from(range(count)), unique=True))
)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(plan=plans)
def test_what_is_released_goes_back_to_its_place(
    peer: Peer, name: Callable[[str], str], plan: tuple[int, list[int]]
) -> None:
    """Some of the held messages are released, in any order, the others accepted."""
    count, indices = plan
    queue = name("q")
    peer.declare_queue(queue)
    peer.publish_all(queue, numbered(8))
    held = peer.get(queue, most=count)[queue]
    released = [held[index] for index in indices]
    for each in released:
        peer.release(each)
    rest = [each for each in held if each not in released]
    if rest:
        peer.accept(*rest)
    peer.sync()
    back = {each.body for each in released}
    waiting = [body for body in numbered(8) if body in back or body not in {each.body for each in held}]
    found = peer.get(queue, most=10, accept=True)[queue]
    assert flagged(found) == [(body, body in back) for body in waiting]


def reopen(peer: Peer) -> None:
    peer.reopen()


def close(peer: Peer) -> None:
    peer.close()


def drop(peer: Peer) -> None:
    peer.drop()


@pytest.mark.parametrize("ending", [reopen, close, drop])
@pytest.mark.parametrize("way", ["get", "consume"])
def test_what_was_held_comes_back(
    connect: Connect, name: Callable[[str], str], target: Target, ending: Callable[[Peer], None], way: str
) -> None:
    """After the end of a channel or session, of a connection, or of its socket: in the broker's own time."""
    queue = name("q")
    other, peer = connect(), connect()
    filled(other, queue, numbered(6))
    if way == "get":
        held = peer.get(queue, most=4)[queue]
    else:
        peer.consume(queue, "c", credit=4)
        held = peer.wait_for(4)
    peer.accept(held[1])
    peer.sync()
    ending(peer)
    found: list[Delivery] = []
    while len(found) < 5:
        found += other.get(queue, most=10)[queue]
    flags = dict(flagged(found))
    assert sorted(flags) == [b"0", b"2", b"3", b"4", b"5"]
    if target.broker != "broker-j" or ending is reopen:  # it flags a message after it has returned it: a race
        assert (flags[b"0"], flags[b"2"], flags[b"3"], flags[b"5"]) == (True, True, True, False)
    other.accept(*found)
    other.sync()
    assert other.bodies(queue) == []


def test_what_comes_back_is_in_its_old_place(connect: Connect, name: Callable[[str], str]) -> None:
    """The holder is gone before anybody asks: then the order is that of the beginning."""
    queue = name("q")
    peer = connect()
    filled(peer, queue, numbered(6))
    held = peer.get(queue, most=4)[queue]
    peer.accept(held[1])
    peer.sync()
    peer.reopen()
    expected = [(b"0", True), (b"2", True), (b"3", True), (b"4", False), (b"5", False)]
    assert flagged(peer.get(queue, most=10, accept=True)[queue]) == expected


def test_two_consumers_share_a_queue(peer: Peer, name: Callable[[str], str]) -> None:
    """Each message goes to one of them, and both get some (round robin)."""
    queue = name("q")
    peer.declare_queue(queue)
    peer.consume(queue, "c1")
    peer.consume(queue, "c2")
    peer.sync()
    for body in numbered(20):
        peer.publish("", queue, body)
        peer.sync()
    found = peer.wait_for(20)
    assert sorted(int(each.body) for each in found) == list(range(20))
    assert {each.consumer for each in found} == {"c1", "c2"}
    for consumer in ("c1", "c2"):
        own = [int(each.body) for each in found if each.consumer == consumer]
        assert own == sorted(own)


def test_what_is_cancelled_keeps_what_it_holds(peer: Peer, name: Callable[[str], str]) -> None:
    """Cancelling a consumer does not return its messages; they can still be settled."""
    queue = name("q")
    filled(peer, queue, numbered(3))
    peer.consume(queue, "c", credit=2)
    held = peer.wait_for(2)
    peer.cancel("c")
    peer.sync()
    assert [each.body for each in peer.get(queue, most=5, accept=True)[queue]] == [b"2"]
    peer.accept(held[0])
    peer.release(held[1])
    peer.sync()
    assert flagged(peer.get(queue, most=5, accept=True)[queue]) == [(b"1", True)]


def test_purge_leaves_what_is_held(peer: Peer, name: Callable[[str], str], target: Target) -> None:
    queue = name("q")
    filled(peer, queue, numbered(5))
    held = peer.get(queue, most=2)[queue]
    peer.purge(queue)
    peer.sync()
    assert peer.bodies(queue) == []
    peer.release(*held)
    peer.sync()
    assert peer.bodies(queue) == target.expects("purge: what is held", [b"0", b"1"])


def test_a_message_without_a_flag_is_no_redelivery_for_a_new_queue(peer: Peer, name: Callable[[str], str]) -> None:
    """The flag belongs to the place in one queue: another queue of the same message knows nothing of it."""
    for queue in (name("q1"), name("q2")):
        peer.declare_queue(queue)
        peer.bind(queue, "amq.fanout")
    peer.publish("amq.fanout", "", b"0")
    peer.sync()
    (held,) = peer.get(name("q1"))[name("q1")]
    peer.release(held)
    peer.sync()
    found = peer.get(name("q1"), name("q2"), accept=True)
    assert [flagged(each) for each in found.values()] == [[(b"0", True)], [(b"0", False)]]
