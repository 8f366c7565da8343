"""What is recognised, for any order, losses and equal messages: nothing is lost; twice only what cannot be told."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from amqp_core.api import Identity
from amqp_spark.datasource.exactly_once.recognition import Recognition, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable


def identity(name: int, *, deliveries: int = 0, named: bool = False) -> Identity:
    return Identity(name.to_bytes(16), deliveries, named)


def in_doubt(*names: int, named: bool = False, returning: bool = False) -> Recognition:
    found = Recognition()
    found.add("f", [identity(name, named=named) for name in names], returning=returning)
    found.restart()
    return found


def come_again(recognition: Recognition, *names: int, named: bool = False, first_id: int = 1) -> list[bool]:
    return [
        recognition.withholds(identity(name, deliveries=1, named=named), first_id + at) for at, name in enumerate(names)
    ]


def test_a_named_batch_that_has_come_again_is_dropped_at_once() -> None:
    found = in_doubt(1, 2, named=True)
    assert come_again(found, 2, 3, 1, named=True) == [True, False, True]
    assert found.decide(past=False) == Verdict([1, 3], [], ["f"], ["f"])


def test_a_batch_without_names_waits_for_what_else_comes() -> None:
    found = in_doubt(1, 2)
    come_again(found, 1, 2)
    assert found.decide(past=False) == Verdict([], [], [], [])
    assert found.decide(past=True) == Verdict([1, 2], [], ["f"], ["f"])


def test_a_batch_without_names_is_decided_on_when_nothing_else_can_come() -> None:
    found = in_doubt(1, 2)
    come_again(found, 1, 2)
    assert found.decide(past=False, full=True) == Verdict([1, 2], [], ["f"], ["f"])


def test_a_part_of_a_batch_is_not_the_batch() -> None:
    """A queue loses an acknowledgement as a whole or not at all."""
    found = in_doubt(1, 2)
    come_again(found, 1)
    assert found.decide(past=False, full=True) == Verdict([], [], [], [])
    assert found.decide(past=True) == Verdict([], [1], ["f"], [])


def test_equal_messages_are_kept() -> None:
    found = in_doubt(1, 1, 1)
    come_again(found, 1, 1, 1, 1)
    assert found.decide(past=True) == Verdict([], [1, 2, 3], ["f"], [])


def test_one_message_that_is_unlike_all_others_shows_that_equal_ones_have_come_again() -> None:
    found = in_doubt(1, 1, 2)
    come_again(found, 1, 1, 1, 2)
    assert found.decide(past=True) == Verdict([1, 2, 4], [], ["f"], ["f"])


def test_an_equal_message_that_was_never_delivered_shows_that_the_identity_repeats() -> None:
    found = in_doubt(1)
    come_again(found, 1)
    found.arrived(identity(1))
    assert found.decide(past=True) == Verdict([], [1], ["f"], [])


def test_a_message_that_was_not_delivered_more_often_is_another_one() -> None:
    found = in_doubt(1)
    assert not found.withholds(identity(1, deliveries=0), 1)
    assert found.decide(past=True) == Verdict([], [], ["f"], [])


def test_a_batch_that_is_acknowledged_again_may_come_in_part() -> None:
    found = in_doubt(1, 2, 3, 3, returning=True)
    come_again(found, 2, 3)
    assert found.decide(past=False) == Verdict([], [], [], [])
    assert found.decide(past=True) == Verdict([1], [2], ["f"], ["f"])


def test_equal_messages_are_kept_if_their_batch_was_acknowledged_again() -> None:
    """Some may be gone, and others that look like them come in their place."""
    found = in_doubt(1, 1, 2, returning=True)
    come_again(found, 1, 1, 2)
    assert found.decide(past=False) == Verdict([3], [1, 2], ["f"], ["f"])


def test_a_message_without_identity_is_never_recognised() -> None:
    found = Recognition()
    found.add("f", [None, identity(1)])
    assert not found.withholds(None, 1)
    assert found.count == 1


def test_an_equal_message_in_another_batch_shows_that_the_identity_repeats() -> None:
    found = in_doubt(1)
    found.arrived(identity(1))
    found.restart()
    come_again(found, 1)
    assert found.decide(past=True) == Verdict([], [1], ["f"], [])


def test_two_batches_with_an_equal_message() -> None:
    found = Recognition()
    found.add("f", [identity(1), identity(2)])
    found.add("g", [identity(1), identity(3)])
    found.restart()
    come_again(found, 1, 1, 2, 3)
    verdict = found.decide(past=True)
    assert sorted(verdict.drop) == [1, 2, 3, 4]
    assert verdict.ended == ["f", "g"]
    for file in verdict.ended:
        found.remove(file)
    assert not found.files
    assert not come_again(found, 1)[0]


Batch = list[int]


@given(
    batch=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    held=st.lists(st.integers(0, 6), max_size=8),
    fresh=st.lists(st.integers(0, 6), max_size=4),
    lost=st.booleans(),
    names=st.sets(st.integers(0, 6)),
    order=st.randoms(use_true_random=False),
    sessions=st.integers(1, 3),
)
def test_any_messages_in_any_order(
    batch: Batch, held: Batch, fresh: Batch, lost: bool, names: set[int], order: object, sessions: int
) -> None:
    """``held`` were delivered and not in the batch; the acknowledgement of the batch was lost, or was not."""
    everything = Counter(batch + held + fresh)
    # a message_id is that of one message
    names = {name for name in names if everything[name] == 1}
    found = Recognition()
    found.add("f", [identity(name, named=name in names) for name in batch])
    kept: Counter[int] = Counter()
    withheld: dict[int, int] = {}
    for session in range(sessions):  # the ones before ended with nothing decided
        found.restart()
        returned = (batch if lost else []) + held
        order.shuffle(returned)  # type: ignore[attr-defined]
        kept, withheld = _session(found, returned, fresh, names, deliveries=1 + session)
    verdict = found.decide(past=True)
    assert verdict.ended == ["f"]
    assert sorted(verdict.drop + verdict.keep) == sorted(withheld)
    read = Counter(batch) + kept + Counter(withheld[each] for each in verdict.keep)
    missing = everything - read
    alone = {name for name in batch if everything[name] == 1}
    unlike = bool(alone)  # one message of the batch is unlike all others
    if unlike:
        assert not missing
        assert read == everything
    elif missing:
        # Only if the session before held, unseen, an equal one of each message of the batch.
        assert not lost
        assert Counter(batch) <= Counter(held)
        assert any(held.count(name) == 1 for name in batch)


def _session(
    found: Recognition, returned: Iterable[int], fresh: Iterable[int], names: set[int], *, deliveries: int
) -> tuple[Counter[int], dict[int, int]]:
    """What is read at once, and what is withheld under which id."""
    kept: Counter[int] = Counter()
    withheld: dict[int, int] = {}
    for tag, name in enumerate(returned, 1):
        if found.withholds(identity(name, deliveries=deliveries, named=name in names), tag):
            withheld[tag] = name
        else:
            kept[name] += 1
    for name in fresh:
        found.arrived(identity(name))
        kept[name] += 1
    return kept, withheld


def test_what_comes_while_a_batch_is_acknowledged_again_is_none_of_its_messages() -> None:
    """What has not come was acknowledged before: a message that looks like it must not be withheld and forgotten."""
    found = in_doubt(1, 2, 3, returning=True)
    come_again(found, 3)
    assert found.decide(past=True) == Verdict([1], [], ["f"], ["f"])
    found.mark_returning(["f"])
    assert come_again(found, 1, first_id=2) == [False]


def test_a_batch_that_has_not_come_again_is_not_acknowledged_again_with_another_one() -> None:
    """Else a message that looks like one of it would be dropped on the next session, without being read."""
    found = in_doubt(1, 2, named=True)
    found.add("g", [identity(3), identity(4)])
    come_again(found, 1, 2, named=True)
    come_again(found, 3, first_id=3)
    assert found.decide(past=True) == Verdict([1, 2], [3], ["f", "g"], ["f"])
