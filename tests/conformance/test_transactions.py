"""Local transactions (class tx) of publishes and settlements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.peer import outcome
from tests.conformance.peer_0_10 import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.conftest import Connect
    from tests.conformance.peer import Peer
    from tests.conformance.peer_0_9 import Peer09
    from tests.conformance.peer_0_10 import Peer010
    from tests.conformance.targets import Target


def filled(peer: Peer, queue: str, count: int) -> None:
    peer.declare_queue(queue)
    peer.publish_all(queue, [b"%d" % number for number in range(count)])


def test_what_is_published_is_there_after_commit(connect: Connect, name: Callable[[str], str]) -> None:
    peer, other = connect(), connect()
    for queue in ("q1", "q2"):
        peer.declare_queue(name(queue))
    peer.sync()
    peer.select_tx()
    for number in range(4):
        peer.publish("", name(f"q{number % 2 + 1}"), b"%d" % number)
    peer.sync()
    assert other.drain(name("q1"), name("q2")) == {name("q1"): [], name("q2"): []}
    peer.commit()
    assert other.drain(name("q1"), name("q2")) == {name("q1"): [b"0", b"2"], name("q2"): [b"1", b"3"]}


def test_what_is_published_is_not_there_after_rollback(connect: Connect, name: Callable[[str], str]) -> None:
    peer, other = connect(), connect()
    peer.declare_queue(name("q"))
    peer.sync()
    peer.select_tx()
    peer.publish("", name("q"), b"undone")
    peer.roll_back()
    peer.publish("", name("q"), b"done")
    peer.commit()
    assert other.bodies(name("q")) == [b"done"]


def test_what_is_accepted_is_gone_after_commit(connect: Connect, name: Callable[[str], str]) -> None:
    peer, other = connect(), connect()
    filled(other, name("q"), 3)
    peer.select_tx()
    held = peer.get(name("q"))[name("q")]
    peer.accept(*held[:2])
    peer.commit()
    peer.reopen()
    assert other.bodies(name("q")) == [b"2"]


def test_what_was_accepted_is_held_after_rollback(connect: Connect, name: Callable[[str], str], target: Target) -> None:
    """It is not delivered again by itself (0-9-1 and 0-10 section tx.rollback), and can be settled again."""
    peer, other = connect(), connect()
    filled(other, name("q"), 2)
    peer.select_tx()
    held = peer.get(name("q"))[name("q")]
    peer.accept(held[0])
    peer.roll_back()
    free = target.expects("rollback: what was accepted", [])
    assert other.bodies(name("q")) == free
    if free:
        return
    peer.accept(held[0])
    peer.commit()
    peer.reopen()
    assert other.bodies(name("q")) == [b"1"]


def test_what_is_released_after_its_accept_is_free_after_rollback(
    connect_0_10: Connect, name: Callable[[str], str]
) -> None:
    """So does the messaging API of qpid-python; the specification says nothing of it."""
    peer, other = connect_0_10(), connect_0_10()
    filled(other, name("q"), 1)
    peer.select_tx()
    held = peer.get(name("q"))[name("q")]
    peer.accept(*held)
    peer.release(*held)
    peer.roll_back()
    assert other.bodies(name("q")) == [b"0"]


def test_what_was_accepted_comes_back_when_the_session_ends(
    connect: Connect, name: Callable[[str], str], target: Target
) -> None:
    """Without commit nothing is done: neither what was published, nor what was accepted."""
    peer, other = connect(), connect()
    filled(other, name("q"), 2)
    peer.select_tx()
    held = peer.get(name("q"))[name("q")]
    peer.accept(*held)
    peer.publish("", name("q"), b"undone")
    peer.sync()
    peer.reopen()
    found = other.get(name("q"), accept=True)[name("q")]
    flags = target.expects("end in a transaction: redelivered", [True, True])
    assert ([each.body for each in found], [each.redelivered for each in found]) == ([b"0", b"1"], flags)


def test_publishes_and_acceptances_are_one(connect: Connect, name: Callable[[str], str]) -> None:
    peer, other = connect(), connect()
    filled(other, name("in"), 3)
    other.declare_queue(name("out"))
    other.sync()
    peer.select_tx()
    for _ in range(3):
        (each,) = peer.get(name("in"), most=1)[name("in")]
        peer.publish("", name("out"), b"from " + each.body)
        peer.accept(each)
        peer.sync()
        assert other.bodies(name("out")) == []
        peer.commit()
        assert other.bodies(name("out")) == [b"from " + each.body]
    peer.reopen()
    assert other.bodies(name("in")) == []


def test_what_is_released_in_a_transaction(connect: Connect, name: Callable[[str], str], target: Target) -> None:
    """0-10: only transfers and acceptances are transactional. 0-9-1 on RabbitMQ: all settlements are."""
    peer, other = connect(), connect()
    filled(other, name("q"), 1)
    peer.select_tx()
    peer.release(*peer.get(name("q"))[name("q")])
    peer.sync()
    at_once = target.expects("release in a transaction: at once", target.protocol == "0-10")
    assert bool(other.bodies(name("q"))) == at_once
    peer.commit()
    assert bool(other.bodies(name("q"))) != at_once


def test_an_order_between_transactions(connect: Connect, name: Callable[[str], str]) -> None:
    """Messages are in the queue in the order of the commits, not of the publishes."""
    first, second, reader = connect(), connect(), connect()
    first.declare_queue(name("q"))
    first.sync()
    for peer in (first, second):
        peer.select_tx()
    first.publish("", name("q"), b"1")
    first.sync()
    second.publish("", name("q"), b"2")
    second.commit()
    first.publish("", name("q"), b"3")
    first.commit()
    assert reader.bodies(name("q")) == [b"2", b"1", b"3"]


def test_commit_without_select(peer: Peer, target: Target) -> None:
    """0-9-1 has a channel exception for it (406), 0-10 an illegal state (409)."""
    specified = ("session", 409) if target.protocol == "0-10" else ("channel", 406)
    assert outcome(peer.commit) == target.expects("commit without select", specified)


def test_select_twice(peer: Peer, target: Target) -> None:
    peer.select_tx()
    specified = ("session", 409) if target.protocol == "0-10" else "ok"
    assert outcome(peer.select_tx) == target.expects("select twice", specified)


def test_an_unknown_exchange_in_a_transaction(connect: Connect, name: Callable[[str], str], target: Target) -> None:
    """Refused at once or by the commit; nothing of the transaction is done."""
    peer, other = connect(), connect()
    other.declare_queue(name("q"))
    other.sync()
    peer.select_tx()
    peer.publish("", name("q"), b"undone")
    peer.publish(name("none"), "k", b"lost")
    specified = ("session" if target.protocol == "0-10" else "channel", 404)
    assert outcome(peer.commit) == target.expects("an unknown exchange in a transaction", specified)
    assert other.bodies(name("q")) == target.expects("an unknown exchange in a transaction: the rest", [])


def test_mandatory_in_a_transaction(peer_0_9: Peer09, name: Callable[[str], str], target: Target) -> None:
    """What cannot be routed comes back when the transaction commits."""
    peer_0_9.select_tx()
    peer_0_9.publish("amq.direct", name("nowhere"), b"lost", mandatory=True)
    if target.serves("mandatory in a transaction", peer_0_9.commit):
        assert [(method.reply_code, body) for method, body in peer_0_9.returns] == [(312, b"lost")]


def test_unroutable_in_a_transaction(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    """The same of 0-10: it is rejected when the transaction commits, if not before."""
    peer_0_10.select_tx()
    peer_0_10.publish("amq.direct", name("nowhere"), b"lost", mandatory=True)
    peer_0_10.commit()
    assert list(peer_0_10.rejected.values()) == [1]


def test_accept_mode_none_in_a_transaction(peer_0_10: Peer010, name: Callable[[str], str], target: Target) -> None:
    """0-10 section tx.select, explicit-accepts: not allowed, whichever comes first."""
    peer_0_10.declare_queue(name("q"))
    peer_0_10.select_tx()

    def subscribe() -> None:
        peer_0_10.subscribe(name("q"), "d", accept_mode=NONE)
        peer_0_10.sync()

    assert outcome(subscribe) == target.expects("subscribe with accept-mode none in a transaction", ("session", 530))
    peer_0_10.drop()


def test_select_with_a_subscription_of_accept_mode_none(
    peer_0_10: Peer010, name: Callable[[str], str], target: Target
) -> None:
    peer_0_10.declare_queue(name("q"))
    peer_0_10.subscribe(name("q"), "d", accept_mode=NONE)
    peer_0_10.sync()
    found = outcome(peer_0_10.select_tx)
    assert found == target.expects("select with a subscription of accept-mode none", ("session", 530))
