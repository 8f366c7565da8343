"""Command ids over the wrap, and sets of them, against plain Python sets."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core import sequence_numbers
from amqp_core.errors import ProtocolError
from amqp_core.sequence_numbers import MODULUS, RangeSet, unwrap, unwrap_ranges, wire_ranges, wrap

small = st.integers(0, 60)
pairs = st.lists(st.tuples(small, small), max_size=30)


@given(st.integers(0, 1 << 40), st.integers(-(1 << 31) + 1, (1 << 31) - 1))
def test_unwrap_finds_the_nearest_id(near: int, distance: int) -> None:
    command_id = near + distance
    if command_id >= 0:
        assert unwrap(wrap(command_id), near) == command_id


@given(st.integers(0, MODULUS - 1), st.integers(0, 1 << 34))
def test_unwrap_is_never_negative_and_wraps_back(wire: int, near: int) -> None:
    command_id = unwrap(wire, near)
    assert command_id >= 0
    assert wrap(command_id) == wire


def test_a_range_may_run_through_the_wrap() -> None:
    assert wire_ranges([(MODULUS - 2, MODULUS + 1)]) == [(0xFFFFFFFE, 1)]
    assert unwrap_ranges([(0xFFFFFFFE, 1)], MODULUS + 1) == [(MODULUS - 2, MODULUS + 1)]
    assert unwrap_ranges([(0xFFFFFFFE, 1)], MODULUS - 5) == [(MODULUS - 2, MODULUS + 1)]


@pytest.mark.parametrize(("low", "high"), [(5, 4), (0, 0xFFFFFFFF), (1, 0x80000001)])
def test_a_range_that_ends_before_it_begins_is_refused(low: int, high: int) -> None:
    with pytest.raises(ProtocolError, match=f"from {low} to {high} ends before"):
        unwrap_ranges([(low, high)], 10)


@given(pairs, pairs)
def test_range_set_is_a_set(added: list[tuple[int, int]], removed: list[tuple[int, int]]) -> None:
    ranges, model = RangeSet(), set[int]()
    for (low, high), (low2, high2) in zip(added, [*removed, *added], strict=False):
        ranges.add(low, high)
        model |= set(range(low, high + 1))
        ranges.discard(low2, high2)
        model -= set(range(low2, high2 + 1))
        assert list(ranges) == sorted(model)
    assert ranges.count() == len(model)
    assert bool(ranges) == bool(model)
    assert all((value in ranges) == (value in model) for value in range(62))
    found = ranges.ranges()
    assert all(high + 1 < low for (_, high), (low, _) in itertools.pairwise(found))
    assert RangeSet(found) == ranges


@given(pairs, small, small)
def test_covers_asks_for_every_id(added: list[tuple[int, int]], low: int, high: int) -> None:
    ranges = RangeSet(added)
    assert ranges.covers(low, high) == all(value in ranges for value in range(low, high + 1))


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
def test_many_ranges_in_any_order_move_few_others(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list grows with the set: one that did would be moved with every range."""
    monkeypatch.setattr(sequence_numbers, "_LONGEST_RUN", 16)
    ids = list(range(0, 8000, 2))
    if order == "shuffled":
        random.Random(1).shuffle(ids)
    ranges = RangeSet()
    for value in ids if order != "descending" else reversed(ids):
        ranges.add(value, value)
    assert ranges.ranges() == [(value, value) for value in range(0, 8000, 2)]
    assert max(map(len, ranges._lows._runs)) <= 16
    assert len(ranges._lows._runs) <= 2 * 4000 / 16 + 1
    assert ranges.within(100, 105) == [(100, 100), (102, 102), (104, 104)]
    ranges.discard(10, 7990)
    assert ranges.ranges() == [(value, value) for value in (0, 2, 4, 6, 8, 7992, 7994, 7996, 7998)]
    assert (ranges.count(), ranges.highest()) == (9, 7998)
    ranges.add(1, 9000)
    assert ranges.ranges() == [(0, 9000)]


@given(pairs, st.integers(2, 6))
def test_runs_of_any_length_hold_the_same(added: list[tuple[int, int]], longest: int) -> None:
    before, sequence_numbers._LONGEST_RUN = sequence_numbers._LONGEST_RUN, longest
    try:
        test_range_set_is_a_set.hypothesis.inner_test(added, added[::2])  # type: ignore[attr-defined]  # hypothesis's own
    finally:
        sequence_numbers._LONGEST_RUN = before


def test_range_set_says_what_it_holds() -> None:
    ranges = RangeSet([(5, 9), (1, 2)])
    assert repr(ranges) == "RangeSet([(1, 2), (5, 9)])"
    assert ranges != [(1, 2), (5, 9)]
    assert "5" not in ranges
    with pytest.raises(TypeError):
        hash(ranges)
