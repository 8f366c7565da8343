"""What the messages of a broker take, and when publishers have to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.broker.memory_limit import default_memory_limit, memory_size
from amqp_core.broker.model.errors import Refusal
from amqp_core.broker.model.memory import ENTRY_BYTES, MESSAGE_BYTES, Memory
from tests.core.broker.model_support import ME, Host, Sink, message, refused

if TYPE_CHECKING:
    from pathlib import Path

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.memory import Restraint
    from amqp_core.broker.model.messages import Message

MIB = 1 << 20


def expected(held: dict[int, tuple[Message, int]]) -> int:
    return sum(each.size + MESSAGE_BYTES + ENTRY_BYTES * places for each, places in held.values())


def waits(restraint: Restraint) -> bool:
    """Whether publishers have to wait."""
    return restraint.holds


def counted(host: Host, *others: Entry) -> int:
    """What the queues of a host hold, and ``others``, counted one by one."""
    held: dict[int, tuple[Message, int]] = {}
    entries = [entry for queue in host.queues.values() for entry in queue._backlog]
    for entry in (*entries, *others):
        _, places = held.get(id(entry.message), (entry.message, 0))
        held[id(entry.message)] = entry.message, places + 1
    return expected(held)


STEPS = st.tuples(
    st.sampled_from(
        ["publish", "publish", "publish", "take", "accept", "reject", "release", "purge", "delete", "expire", "no_ack"]
    ),
    st.integers(0, 3),
    st.sampled_from([0, 1, 200, 5000, 2 * MIB]),
)


@given(st.lists(STEPS, max_size=40))
def test_all_that_is_held_is_counted_and_nothing_else(steps: list[tuple[str, int, int]]) -> None:
    host = Host(Memory(1e12))
    held: list[Entry] = []
    now = 0.0
    for kind, number, size in steps:
        now += 0.5
        name = f"q{number}"
        if name not in host.queues:
            dead = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "q0"} if number == 1 else {}
            host.make(name, **({"x_max_length": 3, "x_message_ttl": 3000} if number else {}), **dead)
            host.bind_queue(name, "amq.fanout", "", owner=ME)
        if kind == "publish":
            host.send("x" * size, name, "amq.fanout" if size == 200 else "", now=now)
        elif kind in ("take", "no_ack"):
            taken = [entry for entry in [host.get(name, owner=ME, now=now)] if entry is not None]
            if kind == "take":
                held += taken
            else:
                host.accept(taken)
        elif kind == "accept":
            host.accept([held.pop() for _ in range(min(len(held), 2))])
        elif kind == "reject":
            host.reject([held.pop() for _ in range(min(len(held), 1))], now=now)
        elif kind == "release":
            host.release([held.pop(0) for _ in range(min(len(held), 2))], now=now)
        elif kind == "purge":
            host.purge_queue(name, owner=ME)
        elif kind == "delete":
            host.delete_queue(name, owner=ME)
        else:
            host.expire(now)
        assert host.memory.queued.nbytes == counted(host, *held)
    for name in list(host.queues):
        host.delete_queue(name, owner=ME)
    host.release(held)
    held.clear()
    assert host.memory.used == 0


def test_what_is_gone_is_not_kept_by_timers_or_browsers() -> None:
    host = Host()
    host.make(x_message_ttl=1_000_000)
    browser = Sink()
    host.listen(browser, browse=True)
    host.send("a" * 1000)
    host.send("b" * 1000)
    host.accept(list(host.all_of()))
    assert len(browser.got) == 2
    assert host.memory.used == 0
    host.listen(Sink(), no_ack=True)
    host.send("c" * 1000)
    assert host.memory.used == 0


def test_what_was_browsed_is_not_kept_when_it_goes_later() -> None:
    """A session may acquire what it has browsed, also when its subscription is over: it keeps the entries."""
    host = Host(Memory(1e12))
    host.make(x_delivery_limit=0)
    browser = Sink()
    subscription = host.listen(browser, browse=True)
    host.send("returned too often")
    host.send("without acks")
    host.cancel(subscription)
    entry = host.get("q", owner=ME)
    assert entry is not None
    host.release([entry])
    host.listen(Sink(), no_ack=True)
    assert len(browser.got) == 2
    assert host.memory.used == 0


def test_publishers_wait_above_the_limit_until_a_fifth_is_gone() -> None:
    host = Host(Memory(10_000))
    host.make()
    bodies = ["x" * 450] * 10  # a thousand bytes each
    for body in bodies:
        assert host.publish(message(body), now=0).restraints == ()
    assert host.memory.used == 10_000
    assert host.publish(message(), now=0).restraints == (host.memory,)
    held = list(host.all_of())
    host.accept(held[:2])
    assert waits(host.memory)
    assert host.publish(message(), now=0).restraints == (host.memory,)
    host.accept(held[2:4])
    assert not waits(host.memory)
    assert host.publish(message("x" * 450), now=0).restraints == ()


def test_what_is_under_way_counts_and_cannot_keep_publishers_waiting_alone() -> None:
    host = Host(Memory(10_000))
    host.make()
    host.memory.transit = 20_000
    for _ in range(8):
        assert host.publish(message("x" * 450), now=0).restraints == ()
    assert host.publish(message("x" * 450), now=0).restraints == (host.memory,)
    host.accept(list(host.all_of())[:1])
    assert not host.memory.holds


def test_transactions_may_take_half_of_the_limit() -> None:
    host = Host(Memory(10_000))
    host.make()
    published = [message("x" * 600) for _ in range(5)]
    for each in published:
        host.memory.admit(each)
    assert host.memory.uncommitted.nbytes == 5000
    with refused(Refusal.RESOURCE_LIMIT, "5000 bytes", "half of the memory limit"):
        host.memory.admit(message())
    host.publish(published.pop(), now=0)
    assert (host.memory.uncommitted.nbytes, host.memory.queued.nbytes) == (4000, 1000 + ENTRY_BYTES)
    published.clear()
    assert host.memory.uncommitted.nbytes == 0


@pytest.mark.parametrize("limit", [{"x_max_length": 10}, {"x_max_length_bytes": 100}])
def test_a_queue_with_flow_control_takes_all_and_stops_its_publishers(limit: dict[str, Any]) -> None:
    host = Host()
    host.make(x_overflow="flow-control", **limit)
    host.make("other")
    for name in ("q", "other"):
        host.bind_queue(name, "amq.fanout", "", owner=ME)
    queue = host.queues["q"]
    for _ in range(9):
        assert host.publish(message("x" * 10), now=0).restraints == ()
    for _ in range(3):
        assert host.publish(message("x" * 10, exchange="amq.fanout"), now=0).restraints == (queue,)
    assert host.publish(message("x" * 10, "other"), now=0).restraints == ()
    assert queue.message_count == 12
    held = [host.get("q", owner=ME) for _ in range(3)]
    assert waits(queue)
    assert host.publish(message(key="none"), now=0).restraints == ()
    held.append(host.get("q", owner=ME))
    assert queue.message_count == 8
    assert not waits(queue)
    assert host.publish(message("x" * 10), now=0).restraints == ()


def test_a_queue_that_is_deleted_stops_nobody() -> None:
    host = Host()
    host.make(x_overflow="flow-control", x_max_length=0)
    queue = host.queues["q"]
    host.send()
    assert waits(queue)
    host.delete_queue("q", owner=ME)
    assert not waits(queue)


def test_a_queue_with_a_consumer_is_not_full() -> None:
    host = Host()
    host.make(x_overflow="flow-control", x_max_length=1)
    sink = Sink(3)
    host.listen(sink)
    for _ in range(3):
        assert host.publish(message(), now=0).restraints == ()
    assert host.publish(message(), now=0).restraints == (host.queues["q"],)
    sink.room = 1
    host.queues["q"].ready()
    assert not host.queues["q"].holds


def test_resume_capacity() -> None:
    host = Host()
    arguments = {"x-max-length-bytes": 100, "x-overflow": "flow-control", "x-qpid-flow-resume-capacity": 10}
    host.declare_queue("q", owner=ME, arguments=arguments)
    for _ in range(10):
        host.send("x" * 10)
    for _ in range(8):
        host.get("q", owner=ME)
        assert host.queues["q"].holds
    host.get("q", owner=ME)
    assert not host.queues["q"].holds


def test_what_is_over_makes_room_in_a_queue_that_rejects() -> None:
    host = Host()
    host.make(x_overflow="reject-publish", x_max_length=1)
    host.send("a", ttl_ms=1000, now=0)
    assert host.send("b", now=0.5) == (0, True)
    assert host.send("b", now=1) == (1, False)
    assert host.waiting(now=1) == ["b"]


@pytest.mark.parametrize(
    ("text", "size"), [("1048576", MIB), ("1M", MIB), ("512m", 512 * MIB), ("2GiB", 2048 * MIB), ("4096KB", 4 * MIB)]
)
def test_sizes(text: str, size: int) -> None:
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1T", "-1M", "1.5G", "1023K", "0"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size of memory"):
        memory_size(text)


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path) -> None:
    of_machine = default_memory_limit(tmp_path / "missing")
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    assert default_memory_limit(limit) == of_machine
    limit.write_text(f"{100 * MIB}\n")
    assert default_memory_limit(limit) == 40 * MIB
    older = tmp_path / "memory.limit_in_bytes"  # of control groups of version 1, which have no memory.max
    older.write_text(f"{50 * MIB}\n")
    assert default_memory_limit(tmp_path / "missing", older) == 20 * MIB
    older.write_text("9223372036854771712\n")
    assert default_memory_limit(tmp_path / "missing", older) == of_machine, "no limit"
