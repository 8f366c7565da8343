"""Queues: declaring, arguments, owners, deleting, purging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.model.errors import Refusal, Refused
from tests.core.broker.model_support import ME, OTHER, Host, Sink, refused

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_queue_without_a_name_gets_a_new_one() -> None:
    host = Host()
    names = {host.declare_queue("", owner=ME).name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("amq.gen-") for name in names)
    for name in names:
        assert host.declare_queue(name, owner=ME).name == name
        host.delete_queue(name, owner=ME)


def test_reserved_names_are_refused() -> None:
    host = Host()
    with refused(Refusal.ACCESS_REFUSED, "amq.mine"):
        host.declare_queue("amq.mine", owner=ME)
    assert not host.queues


def test_passive_wants_it_to_be_there_and_nothing_else() -> None:
    host = Host()
    for name in ("q", ""):
        with refused(Refusal.NOT_FOUND, f"queue '{name}'"):
            host.declare_queue(name, owner=ME, passive=True)
    queue = host.declare_queue("q", owner=ME, durable=True)
    assert host.declare_queue("q", owner=ME, passive=True, arguments={"x-max-length": -1}) is queue


def test_declaring_again_needs_the_same_properties() -> None:
    host = Host()
    arguments = {"x-message-ttl": 5, "x-unknown": 1}
    queue = host.declare_queue("q", owner=ME, durable=True, arguments=arguments)
    again = {"x-message-ttl": 5, "x-other": 1, "x-queue-mode": "lazy", "x-queue-type": "classic"}
    assert host.declare_queue("q", owner=ME, durable=True, arguments=again) is queue
    assert queue.arguments == arguments
    other: dict[str, Callable[[], object]] = {
        "durable": lambda: host.declare_queue("q", owner=ME, arguments=arguments),
        "auto-delete": lambda: host.declare_queue("q", owner=ME, durable=True, auto_delete=True, arguments=arguments),
        "x-message-ttl": lambda: host.declare_queue("q", owner=ME, durable=True, arguments={"x-message-ttl": 6}),
        "x-queue-type": lambda: host.declare_queue(
            "q", owner=ME, durable=True, arguments={**arguments, "x-queue-type": "quorum"}
        ),
    }
    for word, declare in other.items():
        with refused(Refusal.PRECONDITION_FAILED, "'q'", word):
            declare()
    with refused(Refusal.RESOURCE_LOCKED, "'q'", "shared"):
        host.declare_queue("q", owner=ME, durable=True, exclusive=True, arguments=arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length", -1),
        ("x-max-length", "1"),
        ("x-max-length", True),
        ("x-max-length", 1.0),
        ("x-max-length-bytes", -1),
        ("x-overflow", "drop-tail"),
        ("x-overflow", 1),
        ("x-message-ttl", -1),
        ("x-message-ttl", 315_360_000_001),
        ("x-expires", 0),
        ("x-dead-letter-exchange", 1),
        ("x-max-priority", 0),
        ("x-max-priority", 256),
        ("x-single-active-consumer", 1),
        ("x-delivery-limit", -2),
        ("x-queue-type", "fast"),
    ],
)
def test_wrong_values_are_refused_by_name(name: str, value: object) -> None:
    host = Host()
    with refused(Refusal.PRECONDITION_FAILED, f"'{name}'", "'q'", repr(value)):
        host.declare_queue("q", owner=ME, arguments={name: value})
    assert not host.queues


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length", 0),
        ("x-max-length-bytes", 1 << 40),
        ("x-overflow", "reject-publish-dlx"),
        ("x-message-ttl", 0),
        ("x-message-ttl", 315_360_000_000),
        ("x-expires", 1),
        ("x-expires", 315_360_000_000),
        ("x-dead-letter-exchange", ""),
        ("x-max-priority", 255),
        ("x-single-active-consumer", True),
        ("x-delivery-limit", -1),
        ("x-queue-type", "quorum"),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 2),
        ("x-queue-master-locator", "min-masters"),
        ("x-queue-leader-locator", "balanced"),
        ("x-quorum-initial-group-size", 3),
        ("x-never-heard-of", [1]),
    ],
)
def test_good_and_unknown_arguments(name: str, value: object) -> None:
    assert Host().declare_queue("q", owner=ME, arguments={name: value}).arguments == {name: value}


def test_streams_are_not_served() -> None:
    with refused(Refusal.NOT_IMPLEMENTED, "x-queue-type", "'q'"):
        Host().make(x_queue_type="stream")


def test_a_dead_letter_key_needs_an_exchange() -> None:
    with refused(Refusal.PRECONDITION_FAILED, "x-dead-letter-routing-key"):
        Host().make(x_dead_letter_routing_key="k")


def test_an_exclusive_queue_is_its_owners_only() -> None:
    host = Host()
    queue = host.declare_queue("q", owner=OTHER, exclusive=True)
    assert queue.exclusive is OTHER
    for call in (
        lambda: host.queue("q", ME),
        lambda: host.declare_queue("q", owner=ME),
        lambda: host.declare_queue("q", owner=ME, passive=True),
        lambda: host.declare_queue("q", owner=ME, exclusive=True),
        lambda: host.delete_queue("q", owner=ME),
        lambda: host.purge_queue("q", owner=ME),
        lambda: host.get("q", owner=ME),
        lambda: host.consume("q", Sink(), owner=ME),
    ):
        with refused(Refusal.RESOURCE_LOCKED, "'q'"):
            call()
    assert host.send("1") == (1, False)
    assert host.declare_queue("q", owner=OTHER, exclusive=True) is queue
    assert host.queue("q", OTHER) is queue


def test_closing_an_owner_deletes_its_exclusive_queues() -> None:
    host = Host()
    for owner in (ME, OTHER):
        host.declare_queue(f"exclusive of {owner}", owner=owner, exclusive=True)
        host.declare_queue(f"of {owner}", owner=owner)
    host.close(ME, now=1)
    assert set(host.queues) == {f"of {ME}", f"exclusive of {OTHER}", f"of {OTHER}"}
    host.close(None, now=1)
    assert len(host.queues) == 3


def test_delete_under_conditions() -> None:
    host = Host()
    host.make()
    consumer = host.listen(Sink(0))
    with refused(Refusal.IN_USE, "'q'"):
        host.delete_queue("q", owner=ME, if_unused=True)
    host.send("1")
    host.cancel(consumer)
    with refused(Refusal.PRECONDITION_FAILED, "'q'"):
        host.delete_queue("q", owner=ME, if_empty=True)
    assert host.delete_queue("q", owner=ME, if_unused=True) == 1
    with refused(Refusal.NOT_FOUND, "'q'"):
        host.delete_queue("q", owner=ME)


def test_deleting_tells_the_consumers_and_removes_the_bindings() -> None:
    host = Host()
    host.make()
    host.bind_queue("q", "amq.fanout", "", owner=ME)
    sink, browser = Sink(), Sink()
    consumer = host.listen(sink)
    host.listen(browser, browse=True)
    host.send("1")
    assert host.delete_queue("q", owner=ME) == 0
    assert sink.was_cancelled
    assert browser.was_cancelled
    assert not host.exchanges["amq.fanout"].bindings
    host.cancel(consumer)
    host.make()
    host.release(sink.got)
    host.reject(sink.got, now=1)
    assert host.waiting() == []


def test_what_was_held_of_a_deleted_queue_may_still_be_settled() -> None:
    host = Host()
    host.make("dead")
    for settle in (host.accept, host.release, lambda entries: host.reject(entries, now=1)):
        host.declare_queue("q", owner=ME, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        host.send("1")
        held = list(host.all_of())
        queue = host.queues["q"]
        host.delete_queue("q", owner=ME)
        settle(held)
        assert (queue.message_count, queue.unsettled_count) == (0, 0)
    assert host.waiting("dead") == []


def test_purge_takes_what_is_ready() -> None:
    host = Host()
    host.make()
    for body in "abc":
        host.send(body)
    held = host.get("q", owner=ME)
    assert held is not None
    assert host.purge_queue("q", owner=ME) == 2
    queue = host.queues["q"]
    assert (queue.message_count, queue.unsettled_count) == (0, 1)
    host.release([held])
    assert host.waiting() == ["a"]


def test_get_takes_one_and_counts_it() -> None:
    host = Host()
    host.make()
    queue = host.queues["q"]
    assert host.get("q", owner=ME) is None
    host.send("a")
    host.send("b")
    entry = host.get("q", owner=ME)
    assert entry is not None
    assert (queue.message_count, queue.unsettled_count) == (1, 1)
    other = host.get("q", owner=ME)
    assert other is not None
    assert (queue.message_count, queue.unsettled_count) == (0, 2)
    host.accept([other])
    host.accept([entry])
    host.accept([entry])
    assert queue.unsettled_count == 0


def test_an_error_says_why_in_words_and_as_a_value() -> None:
    error = Refused(Refusal.NOT_FOUND, "There is no queue 'q'")
    assert (error.reason, error.text, str(error)) == (Refusal.NOT_FOUND, "There is no queue 'q'", error.text)
