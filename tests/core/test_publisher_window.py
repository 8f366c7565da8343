"""The window of a publisher: how it grows and shrinks, and its bounds."""

from __future__ import annotations

import itertools

import pytest

from amqp_core.errors import UsageError
from amqp_core.publisher_window import FIRST_BYTES, FIRST_TRANSFERS, Window


def grown(window: Window, answers: int) -> list[int]:
    sizes = []
    for _ in range(answers):
        window.grow()
        sizes.append(window.nbytes)
    return sizes


def test_it_begins_small_and_grows_to_its_bounds() -> None:
    window = Window(10_000, 4 << 20, small=True)
    assert FIRST_TRANSFERS <= window.transfers < 2 * FIRST_TRANSFERS
    assert window.nbytes == FIRST_BYTES
    sizes = grown(window, 20)
    assert sizes == sorted(sizes)
    assert sizes[0] < 2 * FIRST_BYTES
    assert (window.transfers, window.nbytes) == (10_000, 4 << 20)


def test_it_is_as_large_as_it_may_be_where_the_broker_says_when_to_stop() -> None:
    window = Window(10_000, 32 << 20)
    assert (window.transfers, window.nbytes) == (10_000, 32 << 20)
    window.stop()
    assert (window.transfers, window.nbytes) == (FIRST_TRANSFERS, FIRST_BYTES)
    assert grown(window, 300)[-1] == 32 << 20


def test_after_a_stop_it_grows_fast_to_half_and_slowly_from_there() -> None:
    window = Window(1_000_000, 16 << 20, small=True)
    grown(window, 30)
    assert window.nbytes == 16 << 20
    window.stop()
    window.stop()  # the same stop lasts
    assert window.nbytes == FIRST_BYTES
    sizes = [FIRST_BYTES, *grown(window, 40)]
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    fast = sizes.index(8 << 20)
    assert all(size <= 8 << 20 for size in sizes[: fast + 1])
    assert set(steps[fast:]) == {FIRST_BYTES // 8}
    assert fast < 10


@pytest.mark.parametrize("bounds", [(7, 1 << 30), (1, 100)])
@pytest.mark.parametrize("small", [True, False])
def test_small_bounds_hold_from_the_beginning(bounds: tuple[int, int], small: bool) -> None:
    window = Window(*bounds, small=small)
    for _ in range(30):
        assert window.transfers == bounds[0]
        assert window.nbytes <= bounds[1]
        window.grow()
    window.stop()
    assert window.transfers == bounds[0]


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_bounds_that_let_nothing_pass(bounds: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="lets nothing pass"):
        Window(*bounds)


def test_what_was_found_out_holds_for_the_next_publisher_of_the_connection() -> None:
    window = Window(10_000, 4 << 20, small=True)
    grown(window, 20)
    assert window.within(10_000, 4 << 20).nbytes == 4 << 20
    assert window.within(10_000, 1 << 20).nbytes == 1 << 20
    window.stop()
    assert window.within(10_000, 4 << 20).nbytes == FIRST_BYTES
    stopped = Window(10_000, 32 << 20)
    assert stopped.within(100, 1 << 20).transfers == 100
    stopped.stop()
    assert stopped.within(10_000, 32 << 20).nbytes == FIRST_BYTES


def test_it_shows_its_size() -> None:
    assert repr(Window(10, 20)) == "<window of 10 transfers, 20 bytes>"


def test_a_probing_window_has_one_transfer_until_two_answers_have_come() -> None:
    window = Window(10_000, 32 << 20)
    window.probe()
    sizes = []
    for _ in range(3):
        sizes.append(window.transfers)
        window.grow()
    assert sizes == [1, 1, FIRST_TRANSFERS]
    assert grown(window, 300)[-1] == 32 << 20
