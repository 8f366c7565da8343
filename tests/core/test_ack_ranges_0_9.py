"""Ranges of delivery tags become acks: exactly the wanted ones, each once, and as few methods as possible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_core.v0_9.settlement import Settlement, Unsettled
from tests.support.choice import examples

TAGS = st.integers(1, 40)
RANGES = st.lists(st.tuples(TAGS, st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=4)
ARRIVALS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10)), max_size=4)


class Broker:
    """What a channel of RabbitMQ does with settlements."""

    def __init__(self, tags: set[int]) -> None:
        self.held = set(tags)

    def settle(self, tag: int, *, multiple: bool) -> set[int]:
        assert tag in self.held, "PRECONDITION_FAILED - unknown delivery tag"
        settled = {held for held in self.held if held <= tag} if multiple else {tag}
        self.held -= settled
        return settled


def arrive(unsettled: Unsettled, arrivals: list[tuple[int, int]]) -> set[int]:
    """Runs of deliveries; tags between them belong to a consumer that does not settle."""
    following, tags = 1, set()
    for gap, count in arrivals:
        unsettled.passed(following, gap)
        following += gap
        unsettled.arrived(following, count)
        tags |= set(range(following, following + count))
        following += count
    return tags


@settings(max_examples=examples(1500))
@given(ARRIVALS, st.lists(RANGES, max_size=6))
def test_exactly_the_wanted_deliveries_are_settled(
    arrivals: list[tuple[int, int]], calls: list[list[tuple[int, int]]]
) -> None:
    unsettled = Unsettled()
    broker = Broker(arrive(unsettled, arrivals))
    for ranges in calls:
        wanted = {tag for low, high in ranges for tag in range(low, high + 1)} & broker.held
        prefix = {tag for tag in wanted if all(held in wanted for held in broker.held if held <= tag)}
        before = set(broker.held)
        found = unsettled.settle(ranges)
        settled = set().union(*(broker.settle(tag, multiple=multiple) for tag, multiple in found))
        assert settled == wanted
        assert broker.held == before - wanted
        assert len(found) == len(wanted - prefix) + bool(prefix)
        assert unsettled.count() == len(broker.held)
        assert all((tag in unsettled) == (tag in broker.held) for tag in range(1, 80))


@settings(max_examples=examples(300))
@given(ARRIVALS, st.lists(RANGES, max_size=6))
def test_taken_one_by_one(arrivals: list[tuple[int, int]], calls: list[list[tuple[int, int]]]) -> None:
    unsettled = Unsettled()
    held = arrive(unsettled, arrivals)
    for ranges in calls:
        wanted = {tag for low, high in ranges for tag in range(low, high + 1)} & held
        assert unsettled.take(ranges) == sorted(wanted)
        held -= wanted


def test_all_up_to_a_delivery_are_one_ack() -> None:
    unsettled = Unsettled()
    unsettled.arrived(1, 100)
    assert unsettled.settle([(1, 60)]) == [Settlement(60, multiple=True)]
    assert unsettled.settle([(1, 60)]) == []
    assert unsettled.settle([(70, 71)]) == [Settlement(70, multiple=False), Settlement(71, multiple=False)]
    assert unsettled.settle([(61, 69), (72, 80)]) == [Settlement(80, multiple=True)]
    assert unsettled.settle([(0, 1000)]) == [Settlement(100, multiple=True)]


def test_what_may_be_under_way_is_not_settled_with_others() -> None:
    """A tag that did not come may be a delivery that comes late, or of another client behind the same proxy."""
    unsettled = Unsettled()
    unsettled.arrived(1, 2)
    unsettled.arrived(4, 3)
    assert unsettled.settle([(1, 4)]) == [Settlement(2, multiple=True), Settlement(4, multiple=False)]
    assert unsettled.settle([(5, 5)]) == [Settlement(5, multiple=False)]
    unsettled.arrived(3, 1)
    assert unsettled.settle([(6, 6)]) == [Settlement(6, multiple=False)], "3 is not settled"
    unsettled.arrived(7, 2)
    assert unsettled.settle([(1, 8)]) == [Settlement(8, multiple=True)]


@pytest.mark.parametrize("gaps", [1, 5, 1000])
def test_many_tags_that_never_come_take_no_memory(gaps: int) -> None:
    unsettled = Unsettled()
    for tag in range(2, 2 * gaps + 2, 2):
        unsettled.arrived(tag, 1)
        assert unsettled.settle([(tag, tag)]) == [Settlement(tag, multiple=False)]
    for tag in range(1, 2 * gaps + 1, 2):  # they come after all: only few of them are still told from one another
        unsettled.arrived(tag, 1)
        assert unsettled.settle([(tag, tag)])[0].tag == tag
    assert len(unsettled._missing.ranges()) <= 8


def test_a_message_that_was_asked_for_is_no_gap_once_it_is_recorded() -> None:
    """basic.get-ok, whose tag is recorded after those of deliveries that came right behind it."""
    unsettled = Unsettled()
    unsettled.arrived(2, 3)
    unsettled.arrived(1, 1)
    assert unsettled.settle([(1, 4)]) == [Settlement(4, multiple=True)]


def test_a_million_in_pieces_is_quick() -> None:
    unsettled = Unsettled()
    unsettled.arrived(1, 1_000_000)
    for tag in range(2, 20_000, 2):
        assert unsettled.settle([(tag, tag)]) == [Settlement(tag, multiple=False)]
    assert unsettled.settle([(1, 500_000)]) == [Settlement(500_000, multiple=True)]


def test_what_was_settled_in_a_transaction_comes_back_when_it_is_rolled_back() -> None:
    unsettled = Unsettled()
    unsettled.arrived(1, 6)
    unsettled.settle([(1, 1)])
    unsettled.begin()
    unsettled.settle([(2, 2)])
    unsettled.commit()
    assert unsettled.settle([(3, 4)]) == [Settlement(4, multiple=True)]
    assert unsettled.take([(6, 6)]) == [6]
    unsettled.roll_back()
    assert unsettled.take([(1, 6)]) == [3, 4, 5, 6]
    unsettled.commit()
    unsettled.roll_back()
    assert unsettled.count() == 0
