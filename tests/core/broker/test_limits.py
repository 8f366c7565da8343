"""Longest queues, and priorities."""

from __future__ import annotations

import pytest

from tests.core.broker.model_support import ME, Host, Sink

DEAD = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}


def test_drop_head_is_the_default() -> None:
    host = Host()
    host.make("dead")
    host.make(x_max_length=2, **DEAD)
    for body in "abcd":
        assert host.send(body) == (1, False)
    assert host.waiting() == ["c", "d"]
    assert host.waiting("dead") == ["a", "b"]


def test_what_is_held_does_not_count_until_it_comes_back() -> None:
    host = Host()
    host.make(x_max_length=2)
    for body in "ab":
        host.send(body)
    held = list(host.all_of())
    for body in "cd":
        host.send(body)
    host.release(held)
    assert host.waiting() == ["c", "d"]


def test_bytes_of_bodies_count() -> None:
    host = Host()
    host.make(x_max_length_bytes=5)
    for body in ("aa", "bb", "cc"):
        host.send(body)
    assert host.waiting() == ["bb", "cc"]
    host.send("dddddd")
    assert host.waiting() == []


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_full_queue_may_refuse(overflow: str) -> None:
    host = Host()
    host.make("dead")
    host.make("other")
    host.make(x_max_length=2, x_max_length_bytes=10, x_overflow=overflow, **DEAD)
    for name in ("q", "other"):
        host.bind_queue(name, "amq.fanout", "", owner=ME)
    assert host.send("a" * 9) == (1, False)
    assert host.send("bb") == (0, True)
    assert host.send("c", exchange="amq.fanout") == (2, False)
    assert host.send("", exchange="amq.fanout") == (1, True)
    assert host.waiting() == ["a" * 9, "c"]
    assert host.waiting("other") == ["c", ""]
    assert host.waiting("dead") == ([] if overflow == "reject-publish" else ["bb", ""])


def test_a_queue_without_room_still_delivers() -> None:
    host = Host()
    host.make(x_max_length=0)
    sink = Sink(1)
    host.listen(sink)
    host.send("a")
    host.send("b")
    assert sink.bodies == ["a"]
    assert host.waiting() == []


def test_higher_priorities_go_first_and_the_lowest_are_dropped_first() -> None:
    host = Host()
    host.make(x_max_priority=5, x_max_length=4)
    for body, priority in (("a", 0), ("b", 5), ("c", 1), ("d", 9), ("e", 1)):
        host.send(body, priority=priority)
    assert host.waiting() == ["b", "d", "c", "e"]
    held = list(host.all_of())
    host.send("f", priority=5)
    host.release(reversed(held))
    assert host.waiting() == ["b", "d", "f", "e"]


def test_a_message_of_higher_priority_that_fits_goes_before_one_that_does_not() -> None:
    class Narrow(Sink):
        def has_room(self, size: int) -> bool:
            return size < 3

    host = Host()
    host.make(x_max_priority=1)
    sink = Narrow()
    host.listen(sink)
    host.send("long")
    host.send("b")
    host.send("a", priority=1)
    assert sink.bodies == ["a"]
    assert host.queues["q"].message_count == 2


def test_without_the_argument_priorities_do_not_count() -> None:
    host = Host()
    host.make()
    host.send("a")
    host.send("b", priority=9)
    assert host.waiting() == ["a", "b"]


def test_a_delivery_limit_ends_a_message() -> None:
    host = Host()
    host.make("dead")
    host.make(x_delivery_limit=2, **DEAD)
    host.send("a")
    for returns in range(3):
        entries = list(host.all_of())
        assert [entry.returns for entry in entries] == [returns]
        host.release(entries, delivered=False)
        host.release(host.all_of())
    assert host.waiting() == []
    (dead,) = host.all_of("dead")
    assert [(death.queue, death.reason) for death in dead.message.deaths] == [("q", "delivery_limit")]
    assert host.queues["q"].unsettled_count == 0


def test_minus_one_is_no_delivery_limit() -> None:
    host = Host()
    host.make(x_delivery_limit=-1)
    host.send("a")
    for _ in range(50):
        host.release(list(host.all_of()))
    assert host.waiting() == ["a"]
