"""Time to live of messages and queues."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amqp_core.broker.model.branches import Xid
from tests.core.broker.model_support import ME, Host, Sink

DEAD = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}


def test_the_smaller_ttl_counts() -> None:
    host = Host()
    host.make(x_message_ttl=2000)
    host.make("own")
    host.send("a", now=10)
    host.send("b", now=10, ttl_ms=1000)
    host.send("c", now=10, ttl_ms=3000)
    assert host.expire(10.9) == 11
    assert host.expire(11) == 12
    assert host.waiting(now=11) == ["a", "c"]
    assert host.expire(12) is None
    assert host.waiting(now=12) == []


def test_expired_messages_are_dead_lettered_in_order() -> None:
    host = Host()
    host.make("dead")
    host.make(**DEAD)
    for body, ttl_ms in (("a", None), ("b", 3000), ("c", 1000), ("d", 2000), ("e", None)):
        host.send(body, ttl_ms=ttl_ms)
    assert host.expire(0.5) == 1
    assert host.expire(3) is None
    assert host.waiting(now=3) == ["a", "e"]
    dead = list(host.all_of("dead", now=3))
    assert [entry.message.body for entry in dead] == [b"b", b"c", b"d"]
    assert {entry.message.deaths[0].reason for entry in dead} == {"expired"}
    assert {entry.message.ttl_ms for entry in dead} == {None}


def test_nothing_is_delivered_when_it_has_expired() -> None:
    host = Host()
    host.make()
    host.send("a", ttl_ms=1000)
    host.send("b", ttl_ms=5000)
    sink = Sink(0)
    consumer = host.listen(sink)
    sink.room = 2
    consumer.queue.ready(1.0)
    assert sink.bodies == ["b"]
    host.send("c", ttl_ms=1000, now=2)
    host.send("d", now=2)
    assert sink.bodies == ["b", "c"]
    host.release(sink.got, delivered=True, now=2.5)
    assert host.waiting(now=3) == ["b", "d"]


def test_the_time_known_counts_where_none_is_given() -> None:
    host = Host()
    host.make()
    host.make("other")
    host.send("a", ttl_ms=1000)
    host.send("later", key="other", now=1)
    sink = Sink()
    host.listen(sink)
    assert sink.bodies == []
    assert host.queues["q"].message_count == 0


def test_get_and_browsers_pass_over_what_has_expired() -> None:
    host = Host()
    host.make()
    browser = Sink(0)
    consumer = host.listen(browser, browse=True)
    host.send("a", ttl_ms=1000)
    host.send("b")
    browser.room = 5
    consumer.queue.ready(1.5)
    assert browser.bodies == ["b"]
    assert host.waiting(now=1.5) == ["b"]


def test_no_time_to_live_is_enough_for_a_consumer_that_waits() -> None:
    host = Host()
    host.make("dead")
    host.make(**DEAD)
    sink, browser = Sink(1), Sink()
    host.listen(sink)
    for number in range(2):
        assert host.send(f"{number}", ttl_ms=0, now=5) == (1, False)
    assert sink.bodies == ["0"]
    assert host.queues["q"].message_count == 0
    host.listen(browser, browse=True)
    sink.room = 1
    host.send("2", ttl_ms=0, now=5)
    host.send("3", ttl_ms=0, now=5)
    assert sink.bodies == ["0", "2"]
    assert browser.bodies == ["2", "3"]
    assert host.waiting("dead", now=5) == ["1", "3"]


def test_a_held_message_expires_when_it_comes_back() -> None:
    host = Host()
    host.make("dead")
    host.make(**DEAD)
    host.send("a", ttl_ms=1000)
    held = list(host.all_of())
    assert host.expire(5) is None
    host.release(held, now=5)
    assert host.waiting("dead", now=5) == ["a"]
    host.send("b", now=5, ttl_ms=1000)
    held = list(host.all_of(now=5))
    assert host.expire(5) is None
    host.release(held, now=5)
    assert host.next_expiry == 6


def test_what_is_found_to_be_over_is_dead_lettered_at_once() -> None:
    host = Host()
    host.make("dead")
    host.make(**DEAD)
    sink = Sink()
    host.listen(sink, "dead")
    host.send("a", ttl_ms=1000)
    assert host.get("q", owner=ME, now=1) is None
    host.send("b", ttl_ms=1000, now=1)
    host.queues["q"].ready(2)
    assert sink.bodies == ["a", "b"]


def test_an_unused_queue_expires() -> None:
    host = Host()
    host.declare_queue("q", owner=ME, arguments={"x-expires": 1000}, now=10)
    assert host.expire(10.5) == 11
    host.declare_queue("q", owner=ME, arguments={"x-expires": 1000}, now=10.5)
    assert host.expire(11) == 11.5
    host.get("q", owner=ME, now=11)
    assert host.expire(11.5) == 12
    consumer = host.listen(Sink())
    assert host.expire(20) is None
    host.cancel(consumer, now=20)
    assert host.next_expiry == 21
    host.send("a", now=20.5)
    assert host.expire(20.9) == 21
    assert host.expire(21) is None
    assert not host.queues


def test_a_queue_that_was_deleted_with_consumers_does_not_expire_later() -> None:
    host = Host()
    host.make(x_expires=1000)
    host.listen(Sink())
    host.delete_queue("q", owner=ME)
    assert host.next_expiry is None
    host.make()
    host.send("a")
    assert host.expire(1) is None
    assert host.waiting(now=1) == ["a"], "another queue has its name"


def test_time_does_not_go_back() -> None:
    host = Host()
    host.make()
    host.send("a", now=10)
    host.send("b", now=0, ttl_ms=1000)
    assert host.next_expiry == 11


def test_a_new_end_is_told() -> None:
    host = Host()
    ends = [host.has_new_expiry]
    host.make(x_message_ttl=1000)
    host.send("a", now=1)
    ends.append(host.has_new_expiry)
    assert host.expire(1) == 2
    ends.append(host.has_new_expiry)
    host.branches.start(Xid(1, b"g", b"b"), ME, join=False, now=1)
    ends.append(host.has_new_expiry)
    assert host.expire(2) == 61
    ends.append(host.has_new_expiry)
    host.branches.set_timeout(Xid(1, b"g", b"b"), 5, now=2)
    ends.append(host.has_new_expiry)
    assert host.expire(2) == 7
    ends.append(host.has_new_expiry)
    assert ends == [False, True] * 3 + [False]


def test_what_has_left_does_not_stay_in_memory() -> None:
    host = Host()
    host.make(x_message_ttl=1_000_000)
    for _ in range(5000):
        host.send("a")
        host.accept(list(host.all_of()))
    assert len(host.queues["q"]._expiries._heap) < 200


@given(
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 8)), st.integers(0, 2)), max_size=20),
    st.lists(st.integers(0, 10), max_size=5),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_expire_removes_all_that_is_over_and_nothing_else(
    messages: list[tuple[int, int | None, int]], times: list[int], queue_ttl: int | None
) -> None:
    host = Host()
    host.make("dead")
    ttl: dict[str, Any] = {} if queue_ttl is None else {"x_message_ttl": queue_ttl * 1000}
    host.make(x_max_priority=2, **ttl, **DEAD)
    now = 0
    alive: list[tuple[int, int, float]] = []
    died = 0
    for number, (later, own, priority) in enumerate(messages):
        now += later
        host.send(str(number), ttl_ms=None if own is None else own * 1000, priority=priority, now=now)
        end = now + min([time for time in (own, queue_ttl) if time is not None], default=float("inf"))
        alive.append((-priority, number, end))
    for later in times:
        now += later
        again = host.expire(now)
        died += len([each for each in alive if each[2] <= now])
        alive = [each for each in alive if each[2] > now]
        assert again == min([end for _, _, end in alive if end != float("inf")], default=None)
        assert host.queues["q"].message_count == len(alive)
        assert host.queues["dead"].message_count == died
    host.expire(now)
    alive = [each for each in alive if each[2] > now]
    assert host.waiting(now=now) == [str(number) for _, number, _ in sorted(alive)]
    assert host.queues["q"]._backlog.nbytes == sum(len(str(number)) for _, number, _ in alive)
