"""Consumers that select: they get what matches, in order, and the rest stays for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.broker.model.effort import EACH, MOST
from amqp_core.broker.model.errors import Refusal
from amqp_core.broker.model.messages import Message
from tests.core.broker.model_support import ME, FixedWire, Host, Sink, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.broker.model.queues import Consumer


def vowels(message: Message) -> bool:
    return message.body[:1] in (b"a", b"e", b"i", b"o", b"u")


def select(host: Host, sink: Sink, *, browse: bool = False, no_ack: bool = False, priority: int = 0) -> Consumer:
    consumer = host.consume("q", sink, owner=ME, browse=browse, no_ack=no_ack, priority=priority, selector=vowels)
    consumer.queue.ready()
    return consumer


def filled(bodies: str = "abcdef", **arguments: object) -> Host:
    host = Host()
    host.make("q", **arguments)
    for body in bodies:
        host.send(body)
    return host


def test_it_takes_what_matches_and_leaves_the_rest() -> None:
    host = filled()
    sink, browser, other = Sink(), Sink(), Sink()
    select(host, browser, browse=True)
    select(host, sink)
    for body in "xoy":
        host.send(body)
    assert (sink.bodies, browser.bodies) == (["a", "e", "o"], ["a", "e", "o"])
    queue = host.queues["q"]
    assert (queue.message_count, queue.unsettled_count, queue.consumer_count) == (6, 3, 2)
    host.listen(other)
    assert other.bodies == ["b", "c", "d", "f", "x", "y"]


def test_what_does_not_match_costs_no_credit() -> None:
    host = filled("bcdaxeyi")
    sink = Sink(2)
    consumer = select(host, sink)
    assert sink.bodies == ["a", "e"]
    sink.room = 1
    consumer.queue.ready()
    assert sink.bodies == ["a", "e", "i"]


def test_what_comes_back_is_offered_again_before_what_follows() -> None:
    host = filled("abeciou")
    sink = Sink(3)
    consumer = select(host, sink)
    assert sink.bodies == ["a", "e", "i"]
    host.release([sink.got[1], sink.got[0]])
    sink.room = 3
    consumer.queue.ready()
    assert sink.bodies[3:] == ["a", "e", "o"]
    host.accept(sink.got)
    host.cancel(consumer)
    assert host.waiting() == ["b", "c", "u"]


def test_what_others_took_and_gave_back_is_found() -> None:
    host = filled("ab")
    held = list(host.all_of())
    sink = Sink()
    select(host, sink)
    host.send("e")
    host.release(held)
    assert sink.bodies == ["e", "a"]
    assert host.waiting() == ["b"]


def test_many_returns_are_no_growth() -> None:
    host = filled("ea")
    sink = Sink()
    consumer = select(host, sink)
    sink.room = 0
    host.release(sink.got)
    for _ in range(1000):
        first, second = host.all_of()
        host.release([second])
        host.release([first])
        host.effort.next_turn(0.0)
    sink.room = 5
    consumer.queue.ready()
    assert sink.bodies == ["e", "a", "e", "a"]


def test_those_who_select_the_same_take_turns_and_come_before_others() -> None:
    host = filled("")
    one, two, low, plain = Sink(), Sink(), Sink(), Sink()
    host.listen(plain, priority=9)
    select(host, low, priority=-1)
    select(host, one)
    select(host, two)
    for body in "abeicou":
        host.send(body)
    assert (one.bodies, two.bodies, low.bodies, plain.bodies) == (["a", "i", "u"], ["e", "o"], [], ["b", "c"])


class Short(Sink):
    """It has no room for more than one byte."""

    def has_room(self, size: int) -> bool:
        return super().has_room(size) and size < 2


def test_what_is_behind_one_that_does_not_fit_comes_when_that_has_gone() -> None:
    host = filled("")
    short, plain = Short(), Sink(0)
    select(host, short)
    consumer = host.listen(plain)
    host.send("along")
    host.send("e")
    assert short.got == []
    plain.room = 1
    consumer.queue.ready()
    assert (plain.bodies, short.bodies) == (["along"], ["e"])
    host.send("other")
    host.send("i")
    select(host, Sink(1))
    assert short.bodies == ["e", "i"]


def test_a_selector_is_asked_once_for_a_message_without_room() -> None:
    asked: list[bytes] = []

    def count(message: Message) -> bool:
        asked.append(message.body)
        return vowels(message)

    host = filled("xa")
    host.consume("q", Sink(0), owner=ME, selector=count).queue.ready()
    for body in "bcd":
        host.send(body)
    assert asked == [b"x", b"a"]


def test_priorities_of_messages() -> None:
    host = filled("", x_max_priority=2)
    sink = Sink(0)
    consumer = select(host, sink)
    for body, priority in (("a", 0), ("e", 2), ("x", 2), ("i", 1), ("o", 2)):
        host.send(body, priority=priority)
    sink.room = 3
    consumer.queue.ready()
    assert sink.bodies == ["e", "o", "i"]
    host.release(sink.got)
    sink.room = 4
    consumer.queue.ready()
    assert sink.bodies[3:] == ["e", "o", "i", "a"]


def test_no_message_comes_whose_time_is_over_but_one_with_no_time_at_once() -> None:
    host = filled("")
    sink = Sink(0)
    consumer = select(host, sink)
    host.send("a", now=1, ttl_ms=1000)
    host.send("e", now=1)
    sink.room = 2
    consumer.queue.ready(3)
    host.send("i", now=3, ttl_ms=0)
    host.send("x", now=3, ttl_ms=0)
    assert sink.bodies == ["e", "i"]
    assert host.queues["q"].message_count == 0


def test_without_acks() -> None:
    host = filled()
    sink = Sink()
    select(host, sink, no_ack=True)
    assert sink.bodies == ["a", "e"]
    assert host.queues["q"].unsettled_count == 0
    assert host.waiting() == ["b", "c", "d", "f"]


def test_exclusive_deleted_and_a_single_active_consumer() -> None:
    host = filled()
    sink = Sink(0)
    select(host, sink)
    with refused(Refusal.ACCESS_REFUSED, "'q'"):
        host.consume("q", Sink(), owner=ME, exclusive=True)
    host.delete_queue("q", owner=ME)
    assert sink.was_cancelled
    host = filled(x_single_active_consumer=True)
    with refused(Refusal.NOT_IMPLEMENTED, "'q'", "single active"):
        host.consume("q", Sink(), owner=ME, selector=vowels)
    select(host, sink, browse=True)


# --- in turns: how long selectors take


def counting(asked: list[bytes], wanted: bytes = b"") -> Callable[[Message], bool]:
    def wants(message: Message) -> bool:
        asked.append(message.body)
        return message.body in (wanted, b"last")

    return wants


def test_a_long_queue_is_searched_in_turns() -> None:
    host = filled("x" * 5000)
    host.send("last")
    asked: list[bytes] = []
    sink = Sink()
    host.consume("q", sink, owner=ME, selector=counting(asked)).queue.ready()
    turns, before = 1, 0
    while host.effort.has_unfinished:
        assert before < len(asked) <= before + MOST // EACH + 1
        before = len(asked)
        host.effort.next_turn(0.0)
        turns += 1
    assert sink.bodies == ["last"]
    assert len(asked) == 5001
    assert turns == 1 + 5001 // (MOST // EACH)


def test_a_heavy_selector_and_long_headers_have_less_in_a_turn() -> None:
    host = filled("x" * 100)
    asked: list[bytes] = []
    host.consume("q", Sink(), owner=ME, selector=counting(asked), weight=MOST // EACH // 10).queue.ready()
    assert len(asked) == 11
    host = Host()
    host.make("q")
    long = Message(FixedWire(), "", "q", bytes(MOST // 4), b"x")
    for _ in range(10):
        host.publish(long, now=0.0)
    asked.clear()
    host.consume("q", Sink(), owner=ME, selector=counting(asked)).queue.ready()
    assert len(asked) == 4


def test_all_queues_share_a_turn_and_go_on_one_after_the_other() -> None:
    host = Host()
    asked: dict[str, list[bytes]] = {}
    for name in "ab":
        host.make(name)
        for _ in range(3000):
            host.send("x", key=name)
        asked[name] = []
        host.consume(name, Sink(), owner=ME, selector=counting(asked[name])).queue.ready()
    most = MOST // EACH
    assert [len(each) for each in asked.values()] == [most, 0]
    host.effort.next_turn(0.0)
    assert [len(each) for each in asked.values()] == [2 * most, 0]
    host.effort.next_turn(0.0)
    assert [len(each) for each in asked.values()] == [2 * most, most]


def test_who_selects_is_asked_first_also_in_later_turns() -> None:
    """Those without a selector, and those after it, get what it has passed, and wait for the rest."""
    host = filled("x" * 1500 + "a" + "x" * 1500)
    first, second, plain, browser = Sink(), Sink(), Sink(), Sink()
    host.consume("q", browser, owner=ME, browse=True)
    select(host, first, priority=1)
    select(host, second)
    host.listen(plain)
    assert (first.bodies, plain.bodies) == ([], [])
    host.send("y")
    assert "y" not in plain.bodies
    while host.effort.has_unfinished:
        host.effort.next_turn(0.0)
    assert (first.bodies, second.bodies) == (["a"], [])
    assert plain.bodies == ["x"] * 3000 + ["y"]
    assert browser.bodies == ["x"] * 1500 + ["a"] + ["x"] * 1500 + ["y"]


def test_nobody_takes_what_one_that_selects_has_not_been_asked_for() -> None:
    """The first passes what the second wants, and its turn ends before the second has looked at anything."""
    host = filled("a" + "x" * 1000)
    host.consume("q", Sink(), owner=ME, priority=1, selector=counting([]))
    wants = Sink()
    select(host, wants)
    plain = Sink()
    host.listen(plain)
    assert (wants.bodies, plain.bodies) == ([], [])
    while host.effort.has_unfinished:
        host.effort.next_turn(0.0)
    assert (wants.bodies, plain.bodies) == (["a"], ["x"] * 1000)


def test_what_comes_back_behind_the_walk_is_looked_at_in_turns_too() -> None:
    host = filled("")
    asked: list[bytes] = []
    sink = Sink()
    consumer = host.consume("q", sink, owner=ME, selector=counting(asked))
    for _ in range(3000):
        host.send("x")
        host.effort.next_turn(0.0)
    held = list(host.all_of())
    asked.clear()
    host.effort.next_turn(0.0)
    host.release(held)
    assert len(asked) == MOST // EACH
    while host.effort.has_unfinished:
        host.effort.next_turn(0.0)
    assert len(asked) == 3000
    host.cancel(consumer)
    assert host.queues["q"].message_count == 3000


def test_a_queue_that_is_deleted_or_emptied_meanwhile() -> None:
    host = filled("x" * 3000)
    asked: list[bytes] = []
    sink, plain = Sink(), Sink()
    host.consume("q", sink, owner=ME, selector=counting(asked, b"a")).queue.ready()
    host.listen(plain)
    host.purge_queue("q", owner=ME)
    host.send("a")
    host.send("b")
    host.effort.next_turn(0.0)
    assert (sink.bodies, plain.bodies[-1]) == (["a"], "b")
    for _ in range(3000):
        host.send("x")
    assert host.effort.has_unfinished
    host.delete_queue("q", owner=ME)
    host.effort.next_turn(0.0)
    assert not host.effort.has_unfinished
