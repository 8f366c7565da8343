"""The messages of a queue that wait: what expires in the middle costs no pass over all."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hypothesis import given
from hypothesis import strategies as st

from amqp_core.broker.model.backlog import Backlog
from amqp_core.broker.model.entries import GONE, READY, Entry
from amqp_core.broker.model.messages import Message
from tests.core.broker.model_support import FixedWire, Host, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.broker.model.queues import Queue


class CountedEntry(Entry):
    """Counts how often anybody asks for the state of one."""

    asked: ClassVar[int] = 0

    @property
    def state(self) -> int:
        CountedEntry.asked += 1
        return self._state

    @state.setter
    def state(self, value: int) -> None:
        self._state = value


class CountedBody(bytes):
    """Counts how often anybody asks for the length of one."""

    asked: ClassVar[int] = 0

    def __len__(self) -> int:
        CountedBody.asked += 1
        return super().__len__()


def a_queue() -> Queue:
    host = Host()
    return host.queues[host.make()]


def test_what_is_dropped_in_the_middle_costs_the_same_in_a_long_queue() -> None:
    queue, backlog, count = a_queue(), Backlog(0), 5_000
    entries = [CountedEntry(message("x" * 3), queue, number, None) for number in range(count)]
    for entry in entries:
        backlog.append(entry)
    CountedEntry.asked = 0
    for entry in entries[1::2]:
        entry.state = GONE
        backlog.drop(entry)
        assert backlog.head() is entries[0]
    assert CountedEntry.asked < 20 * count, "and not the square of it"
    assert (backlog.count, backlog.nbytes) == (count // 2, 3 * count // 2)
    assert list(backlog) == entries[::2]
    assert sum(map(len, backlog._highest_first)) < 2 * backlog.count, "they are not kept for ever"


def test_messages_that_expire_at_once_behind_many_others() -> None:
    host = Host()
    host.make()
    count = 1_000
    for number in range(2 * count):
        host.publish(
            Message(FixedWire(), "", "q", b"", CountedBody(b"x"), ttl_ms=0 if number % 2 else None), now=number
        )
    assert CountedBody.asked < 50 * count, "and not the square of it"
    assert host.queues["q"].message_count == count


def walked(backlog: Backlog, seen: dict[int, int]) -> Iterator[Entry]:
    while (entry := backlog.behind(seen)) is not None:
        assert next(backlog.all_behind(seen)) is entry
        yield entry
        seen[backlog.priority_of(entry)] = entry.sequence


@given(
    st.integers(0, 2),
    st.lists(
        st.tuples(st.sampled_from(["append", "drop", "remove", "insert", "pop", "pop_least"]), st.integers(0, 99))
    ),
)
def test_it_is_a_sorted_list(priorities: int, calls: list[tuple[str, int]]) -> None:
    queue, backlog = a_queue(), Backlog(priorities)
    expected: list[Entry] = []
    removed: list[Entry] = []

    def order(entry: Entry) -> tuple[int, int]:
        return -min(entry.message.priority, priorities), entry.sequence

    for number, (call, which) in enumerate(calls, start=1):
        if call == "append":
            entry = Entry(message(str(number), priority=which % 3), queue, number, None)
            backlog.append(entry)
            expected = sorted([*expected, entry], key=order)
        elif call == "insert" and removed:
            entry = removed.pop()
            backlog.insert(entry)
            expected = sorted([*expected, entry], key=order)
        elif call in ("drop", "remove") and expected:
            entry = expected.pop(which % len(expected))
            if call == "remove":
                backlog.remove(entry)
                removed.append(entry)
            else:
                entry.state = GONE
                backlog.drop(entry)
                entry.forget()
        elif call == "pop" and expected:
            assert backlog.pop() is expected.pop(0)
        elif call == "pop_least" and expected:
            least = max(order(each)[0] for each in expected)
            entry = next(each for each in expected if order(each)[0] == least)
            expected.remove(entry)
            assert backlog.pop_least() is entry
        assert list(backlog) == list(walked(backlog, {})) == expected
        assert (backlog.count, backlog.nbytes) == (len(expected), sum(len(each.message.body) for each in expected))
        assert not expected or backlog.head() is expected[0]
        assert all(each.state == READY for each in backlog)
