"""Positions, ranges, settlements and cuts, without threads or I/O."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_spark.datasource.planner import plan_batch
from amqp_spark.datasource.receive_buffer import HeldBlock, QueueBuffer
from amqp_spark.errors import OffsetError
from tests.support.fake_broker import FakeBlock, bodies_of, transfer_frames

if TYPE_CHECKING:
    from collections.abc import Iterator


def block(first_id: int, *bodies: bytes) -> FakeBlock:
    frames, ends, largest = b"", [], 0
    for body in bodies:
        raw = transfer_frames(body)
        frames += raw
        ends.append(len(frames))
        largest = max(largest, len(raw))
    return FakeBlock(frames, ends, first_id, largest)


def numbered(begin: int, count: int, size: int = 10) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(begin, begin + count)]


def filled(queue: str = "q", blocks: int = 3, per_block: int = 4, size: int = 10) -> QueueBuffer:
    buffer = QueueBuffer(queue)
    for index in range(blocks):
        buffer.append(block(100 * index, *numbered(index * per_block, per_block, size)))
    return buffer


def plan(buffer: QueueBuffer, messages: int | None = None, size: int = 1 << 30) -> int:
    return plan_batch([buffer], max_messages=messages, max_bytes=size, turn=0)


def content(buffer: QueueBuffer, begin: int, end: int) -> list[int]:
    return [int(body) for part in buffer.parts(begin, end) for body in bodies_of(bytes(part))]


SIZE = len(transfer_frames(b"0" * 10))


def test_a_plan_takes_what_waits_up_to_both_bounds() -> None:
    buffer = filled()
    assert plan(buffer, messages=5) == 5
    assert buffer.planned == 5
    assert plan(buffer, size=3 * SIZE + 1) == 3
    assert plan(buffer) == 4
    assert plan(buffer) == 0
    assert buffer.ranges == {5: 0, 8: 5, 12: 8}
    assert buffer.waiting_bytes == 0


def test_a_message_above_the_byte_bound_is_planned_alone() -> None:
    buffer = QueueBuffer("q")
    buffer.append(block(0, b"0", b"1" * 5000, b"2"))
    assert [plan(buffer, size=1000) for _ in range(4)] == [1, 1, 1, 0]
    assert buffer.ranges == {1: 0, 2: 1, 3: 2}


def test_a_range_is_exactly_what_was_received_across_blocks() -> None:
    buffer = filled()
    plan(buffer)
    assert content(buffer, 2, 9) == list(range(2, 9))
    assert content(buffer, 4, 8) == [4, 5, 6, 7]
    assert content(buffer, 3, 3) == []


def test_what_is_not_planned_or_no_longer_held_is_not_served() -> None:
    buffer = filled()
    plan(buffer, messages=6)
    with pytest.raises(OffsetError, match="positions 0 to 7 are not in it"):
        buffer.parts(0, 7)
    buffer.accept(6)
    with pytest.raises(OffsetError, match="positions 0 to 6 are not in it"):
        buffer.parts(0, 6)
    with pytest.raises(OffsetError, match="no batch ends at position 6"):
        buffer.begin_of(6)


def test_accepting_names_command_ids_by_contiguous_ranges_and_frees_whole_blocks() -> None:
    buffer = filled()
    plan(buffer)
    held = buffer.held_bytes
    (settlement,) = buffer.accept(6)
    assert settlement.accept == [(0, 3), (100, 101)]
    assert buffer.held_bytes == held - 4 * SIZE
    assert buffer.accept(6) == []
    assert [each.accept for each in buffer.accept(12)] == [[(102, 103), (200, 203)]]
    assert buffer.held_bytes == 0
    assert not buffer.blocks


def test_consecutive_ids_of_two_blocks_are_one_range() -> None:
    buffer = QueueBuffer("q")
    buffer.append(block(7, *numbered(0, 3)))
    buffer.append(block(10, *numbered(3, 3)))
    plan(buffer)
    assert buffer.accept(6)[0].accept == [(7, 12)]


def test_rejected_positions_are_left_out_of_the_accept() -> None:
    buffer = filled()
    plan(buffer)
    buffer.reject([0, 2, 5, 5], "why")
    buffer.reject([2], "other")  # a second task attempt
    (settlement,) = buffer.accept(8)
    assert settlement.accept == [(1, 1), (3, 3), (100, 100), (102, 103)]
    assert settlement.reject == [((0, 0), "why"), ((2, 2), "why"), ((101, 101), "why")]
    buffer.reject([3], "too late")
    assert buffer.rejected == {}


def test_the_rejected_positions_are_looked_through_once_and_not_for_every_block() -> None:
    walks: list[int] = []

    class Watched(dict[int, str]):
        def __iter__(self) -> Iterator[int]:
            walks.append(len(self))
            return super().__iter__()

        def items(self) -> NoReturn:
            raise AssertionError("this walk would not be counted")

        keys = values = items

    buffer = filled(blocks=50)
    plan(buffer)
    buffer.rejected = Watched()
    buffer.reject(range(0, 200, 2), "even")
    (settlement,) = buffer.accept(199)
    assert len(settlement.reject) == 100
    assert sum(last - first + 1 for first, last in settlement.accept) == 99
    assert buffer.rejected == {}
    assert walks == [100]


def test_a_new_incarnation_drops_what_was_not_planned_and_keeps_planned_ranges_readable() -> None:
    buffer = filled()
    plan(buffer, messages=5)
    buffer.new_incarnation()
    assert (buffer.planned, buffer.received, buffer.waiting_bytes) == (5, 5, 0)
    assert content(buffer, 0, 5) == [0, 1, 2, 3, 4]
    buffer.append(block(0, *numbered(5, 3)))
    assert plan(buffer) == 3
    assert content(buffer, 5, 8) == [5, 6, 7]
    first, second = buffer.accept(8)
    assert (first.incarnation, first.accept) == (0, [(0, 3), (100, 100)])
    assert (second.incarnation, second.accept) == (1, [(0, 2)])
    assert buffer.held_bytes == 0


def test_a_new_incarnation_frees_a_block_of_which_all_that_was_planned_is_accepted() -> None:
    buffer = filled(blocks=1)
    plan(buffer, messages=1)
    buffer.accept(1)
    buffer.new_incarnation()
    # what counts here as held is missing from the budget, and nothing is left whose accept would give it back
    assert buffer.held_bytes == 0
    buffer.append(block(0, *numbered(1, 3)))
    assert plan(buffer) == 3
    (settlement,) = buffer.accept(4)
    assert (settlement.incarnation, settlement.accept) == (1, [(0, 2)])


def test_what_the_session_holds_counts_only_its_incarnation() -> None:
    buffer = filled()
    plan(buffer, messages=5)
    assert buffer.held_by_session == 12
    buffer.accept(2)
    assert buffer.held_by_session == 10
    buffer.new_incarnation()
    assert buffer.held_by_session == 0
    buffer.append(block(0, b"x"))
    assert buffer.held_by_session == 1


def test_an_incarnation_can_end_without_dropping_anything() -> None:
    buffer = filled()
    plan(buffer, messages=5)
    buffer.new_incarnation(keep_waiting=True)
    assert buffer.waiting == 7
    assert plan(buffer) == 7


@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 100])
def test_cuts_cover_the_range_at_transfer_boundaries(pieces: int) -> None:
    buffer = filled(blocks=5, per_block=7)
    plan(buffer)
    cuts = buffer.cut(3, 31, pieces)
    assert len(cuts) == min(pieces, 28)
    assert (cuts[0][0], cuts[-1][1]) == (3, 31)
    assert all(left[1] == right[0] for left, right in pairwise(cuts))
    assert all(size == buffer.bytes_of(begin, end) for begin, end, size in cuts)
    assert max(size for *_, size in cuts) - min(size for *_, size in cuts) <= 2 * SIZE


def test_fair_shares_of_the_queues() -> None:
    small, large = filled("small", blocks=1, per_block=2), filled("large", blocks=10, per_block=10)
    count = plan_batch([large, small], max_messages=None, max_bytes=12 * SIZE, turn=0)
    assert (count, small.planned, large.planned) == (12, 2, 10)


def test_no_queue_waits_behind_the_others_for_ever() -> None:
    large_messages, small_messages = QueueBuffer("large"), filled("small", blocks=50, per_block=10)
    large_messages.append(block(0, *(b"1" * 900 for _ in range(4))))
    planned = []
    for turn in range(8):
        before = large_messages.planned
        plan_batch([small_messages, large_messages], max_messages=None, max_bytes=1200, turn=turn)
        planned.append(large_messages.planned - before)
    assert sum(planned) == 4


sizes = st.lists(st.integers(0, 200), min_size=1, max_size=8)


@given(
    queues=st.lists(st.lists(sizes, min_size=0, max_size=5), min_size=1, max_size=3),
    max_messages=st.none() | st.integers(1, 20),
    max_bytes=st.integers(1, 1500),
)
def test_every_batch_is_within_both_bounds_and_everything_is_planned_once(
    queues: list[list[list[int]]], max_messages: int | None, max_bytes: int
) -> None:
    buffers = []
    for index, blocks in enumerate(queues):
        buffer = QueueBuffer(str(index))
        number = 0
        for each in blocks:
            buffer.append(block(number, *(b"%d" % n + b"." * size for n, size in enumerate(each, number))))
            number += len(each)
        buffers.append(buffer)
    turn = 0
    while sum(buffer.waiting for buffer in buffers):
        before = [buffer.planned for buffer in buffers]
        count = plan_batch(buffers, max_messages=max_messages, max_bytes=max_bytes, turn=turn)
        size = sum(buffer.bytes_of(begin, buffer.planned) for buffer, begin in zip(buffers, before, strict=True))
        assert count == sum(buffer.planned for buffer in buffers) - sum(before)
        assert count >= 1
        assert max_messages is None or count <= max_messages
        assert size <= max_bytes or count == 1
        turn += 1
    for buffer in buffers:
        found = [body.split(b".")[0] for part in buffer.parts(0, buffer.planned) for body in bodies_of(bytes(part))]
        assert found == [b"%d" % number for number in range(buffer.received)]
        assert buffer.waiting_bytes == 0


class _Counting(deque[HeldBlock]):
    """Counts how often a block is looked up by its place, which takes long in the middle."""

    looks = 0

    def __getitem__(self, index: SupportsIndex) -> HeldBlock:  # type: ignore[override]  # no slices of a deque
        self.looks += 1
        return super().__getitem__(index)

    def __reversed__(self) -> NoReturn:
        raise AssertionError("all that waits would be passed")


def test_a_small_batch_does_not_pass_all_that_waits() -> None:
    """Messages that come one by one are a block each; with a trigger of an hour hundreds of thousands wait."""
    buffer = filled(blocks=2000, per_block=1)
    buffer.blocks = blocks = _Counting(buffer.blocks)
    assert plan(buffer, messages=3) == 3
    assert buffer.protocol_before(buffer.planned) == "0-10"
    assert content(buffer, 0, 3) == [0, 1, 2]
    assert [end for _, end, _ in buffer.cut(0, 3, 3)] == [1, 2, 3]
    assert blocks.looks < 500
