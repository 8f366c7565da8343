"""Consumers: whose turn it is, exclusive, single active, browsing, and what they hold."""

from __future__ import annotations

from amqp_core.broker.model.errors import Refusal
from tests.core.broker.model_support import ME, Host, Sink, bodies, refused


def test_nothing_is_delivered_before_ready() -> None:
    host = Host()
    host.make()
    host.send("a")
    sink = Sink()
    consumer = host.consume("q", sink, owner=ME)
    assert sink.got == []
    consumer.queue.ready()
    assert sink.bodies == ["a"]
    assert (consumer.queue.message_count, consumer.queue.unsettled_count, consumer.queue.consumer_count) == (0, 1, 1)


def test_no_ack_settles_on_delivery() -> None:
    host = Host()
    host.make()
    sink = Sink()
    host.listen(sink, no_ack=True)
    host.send("a")
    host.release(sink.got)
    assert sink.bodies == ["a"]
    assert host.queues["q"].unsettled_count == 0


def test_round_robin_is_fair_and_passes_over_those_without_room() -> None:
    host = Host()
    host.make()
    sinks = [Sink(), Sink(1), Sink()]
    consumers = [host.listen(sink) for sink in sinks]
    for number in range(7):
        host.send(str(number))
    assert [sink.bodies for sink in sinks] == [["0", "3", "5"], ["1"], ["2", "4", "6"]]
    sinks[1].room = 1
    sinks[0].room = sinks[2].room = 0
    host.send("7")
    host.cancel(consumers[0])
    assert sinks[1].bodies == ["1", "7"]
    host.send("8")
    assert host.queues["q"].message_count == 1
    sinks[2].room = 1
    consumers[2].queue.ready()
    assert sinks[2].bodies[-1] == "8"


def test_higher_priority_consumers_first() -> None:
    host = Host()
    host.make()
    low, high, high2 = Sink(), Sink(1), Sink(2)
    host.listen(low, priority=-1)
    host.listen(high, priority=7)
    host.listen(high2, priority=7)
    for number in range(5):
        host.send(str(number))
    assert (high.bodies, high2.bodies, low.bodies) == (["0"], ["1", "2"], ["3", "4"])


class Narrow(Sink):
    """It takes short messages only."""

    def has_room(self, size: int) -> bool:
        return size < 3


def narrow_host(**arguments: int) -> tuple[Host, Narrow]:
    """A queue whose head, with a second to live, is too long for its consumer."""
    host = Host()
    host.make("q", **arguments)
    sink = Narrow()
    host.listen(sink)
    host.send("long", ttl_ms=1000)
    return host, sink


def test_what_is_behind_a_head_that_does_not_fit_is_delivered_when_it_has_gone() -> None:
    host, sink = narrow_host()
    host.send("a")
    assert sink.got == []
    assert host.get("q", owner=ME) is not None
    assert sink.bodies == ["a"]

    host, sink = narrow_host()
    host.send("a")
    host.expire(1)
    assert sink.bodies == ["a"]

    host, sink = narrow_host(x_max_length=1)
    host.send("a")
    assert sink.bodies == ["a"]

    host, sink = narrow_host()
    browser = Sink()
    host.listen(browser, browse=True)
    host.send("a")
    host.acquire(browser.got[:1])
    assert sink.bodies == ["a"]


def test_an_exclusive_consumer_is_alone() -> None:
    host = Host()
    host.make()
    consumer = host.listen(Sink(), exclusive=True)
    for exclusive in (True, False):
        with refused(Refusal.ACCESS_REFUSED, "'q'"):
            host.consume("q", Sink(), owner=ME, exclusive=exclusive)
    host.cancel(consumer)
    host.listen(Sink())
    with refused(Refusal.ACCESS_REFUSED, "'q'"):
        host.consume("q", Sink(), owner=ME, exclusive=True)


def test_consume_needs_the_queue() -> None:
    with refused(Refusal.NOT_FOUND, "'q'"):
        Host().consume("q", Sink(), owner=ME)


def test_one_consumer_is_active_and_the_next_follows() -> None:
    host = Host()
    host.make(x_single_active_consumer=True)
    sinks = [Sink(1), Sink(), Sink()]
    consumers = [host.listen(sink, priority=priority) for sink, priority in zip(sinks, (0, 0, 1), strict=True)]
    for body in "abc":
        host.send(body)
    assert [sink.bodies for sink in sinks] == [["a"], [], []]
    host.cancel(consumers[1])
    assert [sink.bodies for sink in sinks] == [["a"], [], []]
    host.cancel(consumers[0])
    assert [sink.bodies for sink in sinks] == [["a"], [], ["b", "c"]]
    host.release(sinks[0].got)
    assert sinks[2].bodies == ["b", "c", "a"]


def test_get_beside_a_single_active_consumer() -> None:
    host = Host()
    host.make(x_single_active_consumer=True)
    host.make("quorum", x_single_active_consumer=True, x_queue_type="quorum")
    assert host.get("q", owner=ME) is None
    with refused(Refusal.RESOURCE_LOCKED, "'quorum'"):
        host.get("quorum", owner=ME)


def test_cancelling_leaves_unsettled_what_it_holds() -> None:
    host = Host()
    host.make()
    sink = Sink()
    consumer = host.listen(sink)
    host.send("a")
    host.cancel(consumer)
    host.cancel(consumer)
    assert not sink.was_cancelled
    assert (consumer.queue.message_count, consumer.queue.unsettled_count, consumer.queue.consumer_count) == (0, 1, 0)
    host.accept(sink.got)
    assert consumer.queue.unsettled_count == 0


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    host = Host()
    host.declare_queue("q", owner=ME, auto_delete=True)
    consumers = [host.listen(Sink()), host.listen(Sink(), browse=True)]
    host.cancel(consumers[0])
    assert "q" in host.queues
    host.cancel(consumers[1])
    assert "q" not in host.queues


def test_released_messages_go_back_to_their_places_and_say_so() -> None:
    host = Host()
    host.make()
    for body in "abcdef":
        host.send(body)
    entries = list(host.all_of())
    host.release([entries[4], entries[1]])
    host.release([entries[2]], delivered=False)
    host.release([entries[0], entries[5]])
    host.accept([entries[3]])
    again = list(host.all_of())
    assert bodies(again) == ["a", "b", "c", "e", "f"]
    assert [entry.redelivered for entry in again] == [True, True, False, True, True]
    assert [entry.returns for entry in again] == [1, 1, 0, 1, 1]


def test_released_messages_are_delivered_again_in_order() -> None:
    host = Host()
    host.make()
    first, second = Sink(3), Sink()
    host.listen(first)
    for body in "abc":
        host.send(body)
    host.listen(second)
    host.release(reversed(first.got))
    assert second.bodies == ["a", "b", "c"]


def test_settling_twice_is_settling_once() -> None:
    host = Host()
    host.make()
    host.send("a")
    held = list(host.all_of())
    host.release([*held, *held])
    host.release(held)
    assert host.queues["q"].message_count == 1
    assert host.queues["q"].unsettled_count == 0
    host.accept(held)
    assert host.waiting() == ["a"]


def test_browsers_see_everything_once_and_take_nothing() -> None:
    host = Host()
    host.make()
    host.send("a")
    browser, late, sink = Sink(2), Sink(), Sink()
    looking = host.listen(browser, browse=True)
    host.send("b")
    host.send("c")
    host.listen(late, browse=True)
    host.listen(sink)
    host.send("d")
    assert late.bodies == ["a", "b", "c", "d"]
    assert sink.bodies == ["a", "b", "c", "d"]
    assert browser.bodies == ["a", "b"]
    host.release(sink.got[2:], delivered=False)
    browser.room = 10
    sink.room = 0
    host.release(sink.got[1:3], delivered=False)
    looking.queue.ready()
    assert browser.bodies == ["a", "b", "c"]


def test_browsing_by_priority() -> None:
    host = Host()
    host.make(x_max_priority=3)
    browser = Sink()
    host.send("a", priority=1)
    host.send("b", priority=2)
    host.listen(browser, browse=True)
    host.send("c", priority=3)
    host.send("d", priority=0)
    host.send("e", priority=2)
    assert browser.bodies == ["b", "a", "c", "d", "e"]
    assert host.waiting() == ["c", "b", "e", "a", "d"]


def test_a_browser_may_acquire_what_nobody_else_has() -> None:
    host = Host()
    host.make()
    browser, sink = Sink(), Sink(1)
    host.listen(browser, browse=True)
    for body in "abc":
        host.send(body)
    host.listen(sink)
    host.accept(browser.got)
    assert host.queues["q"].message_count == 2
    acquired = host.acquire(browser.got)
    assert bodies(acquired) == ["b", "c"]
    host.accept(acquired[:1])
    host.release(acquired)
    assert host.waiting() == ["c"]
