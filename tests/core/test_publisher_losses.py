"""Whatever a broker does, wherever the connection ends: every transfer is completed, rejected or unfinished, once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_core.errors import ConnectionFailed
from tests.support.choice import examples
from tests.support.runs import numbered, numbers_of
from tests.support.simulated import SimulatedBroker

if TYPE_CHECKING:
    from amqp_core.v0_10.publisher import Publisher, Transfers

# Runs as the numbers of their transfers and the bytes of their bodies.
RUNS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0, 10, 3000])), min_size=1, max_size=6)
WINDOWS = st.tuples(st.sampled_from([1, 2, 3, 7, 50, 10_000]), st.sampled_from([1, 500, 9000, 1 << 25]))
FIRST_IDS = st.one_of(st.just(0), st.integers((1 << 32) - 80, (1 << 32) + 3))


def runs_of(shapes: list[tuple[int, int]]) -> list[Transfers]:
    runs, first = [], 0
    for tag, (count, size) in enumerate(shapes):
        runs.append(numbered(count, first, size=size, tag=tag))
        first += count
    return runs


def send_all(publisher: Publisher, runs: list[Transfers]) -> list[Transfers]:
    """Send and finish; return what has to be sent elsewhere, since the connection ended."""
    for position, transfers in enumerate(runs):
        try:
            publisher.send(transfers)
        except ConnectionFailed:
            return publisher.unfinished() + runs[position + 1 :]
    try:
        publisher.finish()
    except ConnectionFailed:
        return publisher.unfinished()
    assert publisher.unfinished() == []
    return []


def check_rejects(publisher: Publisher, runs: list[Transfers], broker: SimulatedBroker) -> None:
    numbers = {tag: numbers_of([transfers]) for tag, transfers in enumerate(runs)}
    found = [numbers[one.tag][one.index] for one in publisher.rejected if isinstance(one.tag, int)]
    assert len(found) == len(set(found)) == len(publisher.rejected)
    assert set(found) == broker.rejected


@given(RUNS, WINDOWS, FIRST_IDS, st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=examples(150))
def test_all_is_completed_whatever_the_order(
    shapes: list[tuple[int, int]], window: tuple[int, int], first_id: int, seed: int, qpidd: bool
) -> None:
    runs = runs_of(shapes)
    with SimulatedBroker(random.Random(seed), first_id=first_id, qpidd=qpidd) as broker:
        publisher = broker.client.publisher(max_in_flight=window[0], max_bytes_in_flight=window[1])
        assert send_all(publisher, runs) == []
        assert list(broker.taken.values()) == numbers_of(runs)
        assert broker.completed == set(broker.taken.values())
        check_rejects(publisher, runs, broker)
        assert publisher.sent == publisher.completed
        assert publisher.sent.nbytes == sum(transfers.frames.nbytes for transfers in runs)
        assert broker.most_in_flight[0] <= window[0]
        assert broker.most_in_flight[1] <= max(window[1], 3010)


@given(RUNS, WINDOWS, FIRST_IDS, st.integers(0, 1 << 32), st.floats(0, 1))
@settings(max_examples=examples(300))
def test_a_loss_leaves_exactly_what_was_not_completed(
    shapes: list[tuple[int, int]], window: tuple[int, int], first_id: int, seed: int, share: float
) -> None:
    runs = runs_of(shapes)
    lost_after = int(share * sum(transfers.frames.nbytes for transfers in runs)) + 1
    with SimulatedBroker(random.Random(seed), first_id=first_id, lost_after=lost_after, qpidd=True) as broker:
        publisher = broker.client.publisher(max_in_flight=window[0], max_bytes_in_flight=window[1])
        left = send_all(publisher, runs)
        done = broker.completed | broker.rejected
        assert numbers_of(left) == [number for number in numbers_of(runs) if number not in done]
        check_rejects(publisher, runs, broker)
        assert publisher.completed.transfers == len(broker.completed)
        check_tags(left, runs)


@given(RUNS, WINDOWS, FIRST_IDS, st.integers(0, 1 << 32), st.floats(0, 1))
@settings(max_examples=examples(300))
def test_a_broker_that_completes_what_it_does_not_take_is_not_believed(
    shapes: list[tuple[int, int]], window: tuple[int, int], first_id: int, seed: int, share: float
) -> None:
    runs = runs_of(shapes)
    numbers = numbers_of(runs)
    lost_after = int(share * sum(transfers.frames.nbytes for transfers in runs)) + 1
    with SimulatedBroker(random.Random(seed), first_id=first_id, lost_after=lost_after, lies=True) as broker:
        publisher = broker.client.publisher(max_in_flight=window[0], max_bytes_in_flight=window[1])
        left = send_all(publisher, runs)
        again = numbers_of(left)
        assert again == sorted(set(again))
        done = set(numbers) - set(again) - broker.rejected
        assert done <= set(broker.taken.values())
        assert done <= broker.completed
        check_rejects(publisher, runs, broker)
        check_tags(left, runs)


def check_tags(left: list[Transfers], runs: list[Transfers]) -> None:
    for transfers in left:
        assert isinstance(transfers.tag, int)
        numbers = numbers_of([runs[transfers.tag]])
        assert numbers_of([transfers]) == numbers[transfers.first : transfers.first + len(transfers)]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_goes_elsewhere_and_nothing_is_skipped(seed: int) -> None:
    chance = random.Random(seed)
    runs = runs_of([(chance.randint(1, 200), chance.choice([0, 100, 5000])) for _ in range(10)])
    left, there, sent = runs, set[int](), 0
    while left:
        total = sum(transfers.frames.nbytes for transfers in left)
        with SimulatedBroker(chance, lost_after=chance.randint(1, 2 * total), lies=seed % 2 == 0, rejects=0) as broker:
            left = send_all(broker.client.publisher(max_in_flight=100), left)
            there |= set(broker.taken.values())
            sent += len(broker.taken)
    assert sorted(there) == numbers_of(runs)
    assert sent >= len(there)
