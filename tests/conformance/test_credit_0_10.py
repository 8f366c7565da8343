"""Credit in 0-10: in messages and in bytes, as a window or not; flush and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.v0_10 import spec
from tests.conformance.peer import outcome
from tests.conformance.peer_0_10 import BYTE, CREDIT, INFINITE, MESSAGE, WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.peer_0_10 import Peer010
    from tests.conformance.targets import Target


def filled(peer: Peer010, queue: str, count: int, size: int = 1) -> None:
    """Declare a queue with ``count`` messages of ``size`` bytes."""
    peer.declare_queue(queue)
    peer.publish_all(queue, [b"%d" % number * size for number in range(count)])


def got(peer: Peer010) -> list[bytes]:
    """What has come after a round trip: deliveries that credit allows come before its end."""
    peer.flush("other")
    return [each.body for each in peer.deliveries if each.consumer == "d"]


def subscribed(peer: Peer010, queue: str, mode: int) -> None:
    """Subscribe to a queue as "d", and to an empty one as "other", by which the end of deliveries can be seen."""
    peer.declare_queue(queue + "-other")
    peer.subscribe(queue + "-other", "other")
    peer.subscribe(queue, "d", mode=mode)
    peer.sync()


def test_there_is_no_credit_at_first(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 3)
    subscribed(peer_0_10, name("q"), WINDOW)
    assert peer_0_10.flush("d") == []


def test_both_units_are_needed(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 3)
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.send(spec.MessageFlow(destination="d", unit=MESSAGE, value=5))
    assert got(peer_0_10) == []
    peer_0_10.send(spec.MessageFlow(destination="d", unit=BYTE, value=INFINITE))
    peer_0_10.wait_for(3)
    assert got(peer_0_10) == [b"0", b"1", b"2"]


def test_credit_in_messages(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 5)
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.flow("d", 2)
    first = peer_0_10.wait_for(2)
    peer_0_10.accept(*first)
    assert got(peer_0_10) == [b"0", b"1"]
    peer_0_10.send(spec.MessageFlow(destination="d", unit=MESSAGE, value=1))
    peer_0_10.wait_for(1)
    assert got(peer_0_10) == [b"0", b"1", b"2"]


def test_credit_adds_up(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 5)
    subscribed(peer_0_10, name("q"), CREDIT)
    for _ in range(2):
        peer_0_10.send(spec.MessageFlow(destination="d", unit=MESSAGE, value=2))
    peer_0_10.send(spec.MessageFlow(destination="d", unit=BYTE, value=INFINITE))
    peer_0_10.wait_for(4)
    assert len(got(peer_0_10)) == 4


def test_credit_in_bytes(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    """2,500 bytes are enough for two messages of 1,000 and their headers, and not for three."""
    filled(peer_0_10, name("q"), 5, 1000)
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.flow("d", nbytes=2500)
    peer_0_10.wait_for(2)
    assert len(got(peer_0_10)) == 2


def test_a_message_that_is_larger_than_the_credit_waits(
    peer_0_10: Peer010, name: Callable[[str], str], target: Target
) -> None:
    filled(peer_0_10, name("q"), 1, 1000)
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.flow("d", nbytes=500)
    assert got(peer_0_10) == []
    peer_0_10.send(spec.MessageFlow(destination="d", unit=BYTE, value=1000))
    count = target.expects("credit: bytes that come later", 1)
    peer_0_10.wait_for(count)
    assert len(got(peer_0_10)) == count


def test_a_window_opens_by_completion_not_by_acceptance(
    peer_0_10: Peer010, name: Callable[[str], str], target: Target
) -> None:
    filled(peer_0_10, name("q"), 6)
    subscribed(peer_0_10, name("q"), WINDOW)
    peer_0_10.flow("d", 2)
    first, second = peer_0_10.wait_for(2)
    assert len(got(peer_0_10)) == 2
    peer_0_10.control(spec.SessionCompleted(commands=[(first.number, first.number)]))
    peer_0_10.wait_for(1)
    assert len(got(peer_0_10)) == 3
    peer_0_10.send(spec.MessageAccept(transfers=[(second.number, second.number)]))
    assert len(got(peer_0_10)) == target.expects("window: accepted, not completed", 3)


def test_a_window_in_bytes(peer_0_10: Peer010, name: Callable[[str], str], target: Target) -> None:
    filled(peer_0_10, name("q"), 6, 1000)
    subscribed(peer_0_10, name("q"), WINDOW)
    peer_0_10.flow("d", nbytes=2500)
    first, _ = peer_0_10.wait_for(2)
    assert len(got(peer_0_10)) == 2
    peer_0_10.control(spec.SessionCompleted(commands=[(first.number, first.number)]))
    count = target.expects("window: bytes that come back", 3)
    peer_0_10.wait_for(count - 2)
    assert len(got(peer_0_10)) == count


def test_flush_sends_what_there_is_and_takes_the_credit(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 3)
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.flow("d", 10)
    peer_0_10.flush("d")
    assert got(peer_0_10) == [b"0", b"1", b"2"]
    peer_0_10.publish_all(name("q"), [b"later"])
    assert got(peer_0_10) == [b"0", b"1", b"2"]
    peer_0_10.flow("d", 1)
    peer_0_10.wait_for(4)


def test_flush_ends_with_the_credit(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 5)
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.flow("d", 2)
    peer_0_10.flush("d")
    assert got(peer_0_10) == [b"0", b"1"]


def test_stop_takes_the_credit(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    peer_0_10.declare_queue(name("q"))
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.flow("d", 10)
    peer_0_10.publish_all(name("q"), [b"1"])
    peer_0_10.wait_for(1)
    peer_0_10.call(spec.MessageStop(destination="d"))
    peer_0_10.publish_all(name("q"), [b"2"])
    assert got(peer_0_10) == [b"1"]
    peer_0_10.flow("d", 1)
    peer_0_10.wait_for(1)
    assert got(peer_0_10) == [b"1", b"2"]


def test_the_mode_cannot_be_changed_while_there_is_credit(
    peer_0_10: Peer010, name: Callable[[str], str], target: Target
) -> None:
    peer_0_10.declare_queue(name("q"))
    subscribed(peer_0_10, name("q"), CREDIT)
    peer_0_10.flow("d", 10)
    action = lambda: peer_0_10.call(spec.MessageSetFlowMode(destination="d", flow_mode=WINDOW))  # noqa: E731
    assert outcome(action) == target.expects("set-flow-mode: with credit", ("session", 406))


def test_credit_belongs_to_one_destination(peer_0_10: Peer010, name: Callable[[str], str]) -> None:
    filled(peer_0_10, name("q"), 4)
    peer_0_10.subscribe(name("q"), "d1")
    peer_0_10.subscribe(name("q"), "d2")
    peer_0_10.flow("d1", 1)
    peer_0_10.flow("d2", 2)
    found = peer_0_10.wait_for(3)
    assert sorted(each.consumer for each in found) == ["d1", "d2", "d2"]
