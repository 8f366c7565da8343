"""Dead letters: where they go, what they tell, and when they are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.model.arguments import parse
from amqp_core.broker.model.dead_letters import MOST_COPIES
from amqp_core.broker.model.errors import Refused
from amqp_core.broker.model.messages import Death
from tests.core.broker.model_support import ME, Host, Sink

if TYPE_CHECKING:
    from amqp_core.broker.model.queues import Entry


def only(host: Host, queue: str, now: float = 0.0) -> Entry:
    entries = list(host.all_of(queue, now))
    assert len(entries) == 1
    return entries[0]


def test_a_rejected_message_goes_to_the_exchange_with_its_key_and_a_death() -> None:
    host = Host()
    host.make("dead")
    host.bind_queue("dead", "amq.direct", "q", owner=ME)
    host.make(x_dead_letter_exchange="amq.direct")
    host.send("a", ttl_ms=5000, priority=3)
    before = only(host, "q").message
    host.send("b", ttl_ms=5000, priority=3)
    entry = only(host, "q")
    wire = entry.message.wire
    host.reject([entry, entry], now=1.5)
    after = only(host, "dead", 1.5).message
    assert after.deaths == (Death("q", "rejected", "", ("q",), 1, 1.5),)
    assert (after.exchange, after.routing_key, after.body) == ("amq.direct", "q", b"b")
    assert (after.ttl_ms, after.priority, after.header, after.wire) == (None, 3, b"", wire)
    assert before.deaths == ()
    assert host.queues["q"].unsettled_count == 1


def test_without_an_exchange_they_are_dropped() -> None:
    host = Host()
    host.make()
    host.make("missing", x_dead_letter_exchange="none")
    for name in ("q", "missing"):
        host.send("a", name)
        host.reject(list(host.all_of(name)), now=1)
        assert (host.queues[name].message_count, host.queues[name].unsettled_count) == (0, 0)


def test_a_deleted_queue_of_0_9_1_drops_what_is_in_it() -> None:
    """As RabbitMQ does; only the alternate exchange of 0-10 gets such messages."""
    host = Host()
    host.make("dead")
    host.bind_queue("dead", "amq.fanout", "", owner=ME)
    host.make(x_dead_letter_exchange="amq.fanout")
    for body in ("1", "2", "3"):
        host.send(body)
    held = [host.get("q", owner=ME), host.get("q", owner=ME)]
    host.delete_queue("q", owner=ME)
    entries = [each for each in held if each is not None]
    host.release(entries[:1])
    host.reject(entries[1:], now=1)
    assert host.waiting("dead") == []


def test_deaths_are_counted_by_queue_and_reason_and_the_latest_is_first() -> None:
    host = Host()
    host.make("a", x_dead_letter_exchange="", x_dead_letter_routing_key="b")
    host.make("b", x_dead_letter_exchange="", x_dead_letter_routing_key="a", x_message_ttl=1000)
    host.send("m", "a")
    for now in (1.0, 3.0):
        host.reject(list(host.all_of("a", now)), now=now)
        host.expire(now + 1)
    assert only(host, "a", 4.0).message.deaths == (
        Death("b", "expired", "", ("b",), 2, 2.0),
        Death("a", "rejected", "", ("a",), 2, 1.0),
    )


def test_what_comes_back_too_often_at_once_keeps_its_order() -> None:
    host = Host()
    host.make("dead")
    host.make(x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_delivery_limit=0)
    for body in "1234":
        host.send(body)
    entries = list(host.all_of("q"))
    host.release([entries[2], *entries])
    assert host.waiting("dead") == ["1", "2", "3", "4"]
    assert (host.queues["q"].message_count, host.queues["q"].unsettled_count) == (0, 0)


def test_a_circle_without_a_rejection_ends() -> None:
    host = Host()
    host.make("a", x_dead_letter_exchange="", x_dead_letter_routing_key="b", x_message_ttl=1000)
    host.make("b", x_dead_letter_exchange="", x_dead_letter_routing_key="a", x_message_ttl=1000)
    host.send("m", "a")
    assert host.expire(1) == 2
    assert host.queues["b"].message_count == 1
    assert host.expire(2) is None
    assert (host.queues["a"].message_count, host.queues["b"].message_count) == (0, 0)


def test_a_circle_to_the_queue_itself_ends_too() -> None:
    host = Host()
    host.make("a", x_dead_letter_exchange="", x_message_ttl=1000)
    host.make("full", x_dead_letter_exchange="", x_max_length=0)
    host.send("m", "a")
    host.send("m", "full")
    assert host.expire(1) is None
    assert host.queues["a"].message_count == 0


def test_a_rejected_message_may_come_back_for_ever() -> None:
    host = Host()
    host.make("a", x_dead_letter_exchange="")
    host.send("m", "a")
    for now in range(5):
        host.reject(list(host.all_of("a")), now=now)
    assert only(host, "a").message.deaths == (Death("a", "rejected", "", ("a",), 5, 0),)


def test_a_long_chain_of_full_queues() -> None:
    host = Host()
    last = 3000
    for number in range(last):
        host.make(f"{number}", x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key=f"{number + 1}")
    host.make(f"{last}")
    host.send("m", "0")
    assert len(only(host, f"{last}").message.deaths) == last


def full_queues(count: int, **arguments: object) -> Host:
    """A host with queues that pass all on to the exchange that they, and the queue ``end``, get their messages from."""
    host = Host()
    host.make("end")
    host.bind_queue("end", "amq.fanout", "", owner=ME)
    for number in range(count):
        host.make(f"{number}", x_dead_letter_exchange="amq.fanout", **arguments)
        host.bind_queue(f"{number}", "amq.fanout", "", owner=ME)
    return host


@pytest.mark.parametrize("arguments", [{"x_max_length": 0}, {"x_message_ttl": 0}, {"x_message_ttl": 1000}])
def test_copies_do_not_multiply_without_end(arguments: dict[str, object]) -> None:
    """Twelve queues would make more than 10 ** 9 copies, one for each order of any of them."""
    host = full_queues(12, **arguments)
    host.send("m", exchange="amq.fanout")
    now = 0.0
    while (due := host.expire(now)) is not None:
        now = due
    assert 1 < host.queues["end"].message_count < 2 * MOST_COPIES
    before = host.queues["end"].message_count
    host.send("n", exchange="amq.fanout", now=now)
    while (due := host.expire(now)) is not None:
        now = due
    assert host.queues["end"].message_count == 2 * before, "each message has its own"


def test_few_copies_are_as_on_rabbitmq() -> None:
    """One for each order in which a message can die in some of the queues."""
    host = full_queues(4, x_max_length=0)
    host.send("m", exchange="amq.fanout")
    assert host.queues["end"].message_count == 1 + 4 + 4 * 3 + 4 * 3 * 2 + 4 * 3 * 2


def test_a_message_may_die_in_many_queues_and_be_rejected_without_end() -> None:
    """What multiplies nothing is not counted, and a rejection begins again."""
    host = Host()
    for name in ("dead", "also dead"):
        host.make(name)
        host.bind_queue(name, "amq.direct", "dead", owner=ME)
    for number in range(MOST_COPIES + 10):
        host.make(f"{number}", x_dead_letter_exchange="", x_dead_letter_routing_key="a", x_message_ttl=1000)
        host.bind_queue(f"{number}", "amq.fanout", "", owner=ME)
    host.make("a")
    host.send("m", exchange="amq.fanout")
    host.expire(1.0)
    assert host.queues["a"].message_count == MOST_COPIES + 10
    host.make("q", x_dead_letter_exchange="amq.direct", x_dead_letter_routing_key="dead")
    for name in ("dead", "also dead"):
        host.purge_queue(name, owner=ME)
    host.bind_queue("q", "amq.direct", "dead", owner=ME)
    host.send("m")
    for _ in range(MOST_COPIES):
        host.reject([only(host, "q")], now=2.0)
    assert host.queues["dead"].message_count == MOST_COPIES


def test_dead_letters_are_delivered_at_once() -> None:
    host = Host()
    host.make("dead")
    host.make(x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_max_length=1)
    sink = Sink()
    host.listen(sink, "dead")
    host.send("a")
    host.send("b")
    assert sink.bodies == ["a"]


@pytest.mark.parametrize("name", ["x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_a_name_that_no_protocol_can_carry_is_refused(name: str) -> None:
    arguments = {"x-dead-letter-exchange": "e", name: "\u00fc" * 128}
    with pytest.raises(Refused, match="is not a string of at most 255 bytes"):
        parse("q", arguments)
