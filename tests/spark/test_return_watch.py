"""When a session of a quorum queue learns that the queue has taken messages back from it."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_core.api import Identity, Ready
from amqp_spark.datasource.exactly_once import return_watch
from amqp_spark.datasource.exactly_once.return_watch import ReturnWatch


def message(name: str, deliveries: int = 1, *, named: bool = True) -> Identity:
    return Identity(name.encode(), deliveries, named)


def arrive(watch: ReturnWatch, *messages: Identity | str) -> bytes | None:
    """A block of messages: those with an identity are marked as redelivered."""
    flagged = [index for index, each in enumerate(messages) if isinstance(each, Identity)]
    return watch.arrived(len(messages), flagged, [each for each in messages if isinstance(each, Identity)])


@pytest.fixture
def watch() -> ReturnWatch:
    return ReturnWatch()


def test_what_earlier_sessions_held_comes_first(watch: ReturnWatch) -> None:
    assert arrive(watch, message("a"), message("b")) is None
    assert arrive(watch, message("c"), "new") is None
    assert arrive(watch, "new", "new") is None


@pytest.mark.parametrize(
    "blocks", [[["new", message("a")]], [["new"], [message("a")]], [["new"], ["new", message("a")]]]
)
def test_what_comes_behind_a_new_message_was_taken_back(watch: ReturnWatch, blocks: list[list[Any]]) -> None:
    *others, last = blocks
    for block in others:
        assert arrive(watch, *block) is None
    assert arrive(watch, *last) == b"a"


def test_without_a_new_message_the_second_delivery_was_taken_back(watch: ReturnWatch) -> None:
    assert arrive(watch, message("a"), message("b")) is None
    assert arrive(watch, message("a", 2), message("b", 2)) == b"a"


def test_when_everything_has_come_that_was_delivered_before_nothing_of_it_may_come(watch: ReturnWatch) -> None:
    assert arrive(watch, message("a")) is None
    watch.past()
    assert arrive(watch, message("b")) == b"b"


def test_equal_messages_without_an_id_that_were_delivered_as_often_are_two(watch: ReturnWatch) -> None:
    assert arrive(watch, message("a"), message("a")) is None
    assert arrive(watch, message("b", named=False), message("b", 2, named=False)) is None


def test_what_a_barrier_has_returned_comes_once_more(watch: ReturnWatch) -> None:
    arrive(watch, "new")
    assert watch.returned(Ready(redelivered=False, identity=message("a", 0))) is None
    assert watch.returned(Ready(redelivered=True, identity=message("a"))) is None, "it still waits"
    assert arrive(watch, message("a", 2)) is None
    assert arrive(watch, message("a", 3)) == b"a"


def test_a_barrier_that_meets_a_delivered_message_shows_it(watch: ReturnWatch) -> None:
    ready = Ready(redelivered=True, identity=message("a"))
    assert watch.returned(ready) is None, "nothing that is new has come: it may be from an earlier session"
    watch.restart()
    arrive(watch, "new")
    assert watch.returned(ready) == b"a"


def test_a_barrier_that_meets_nothing_or_what_cannot_be_read_shows_nothing(watch: ReturnWatch) -> None:
    arrive(watch, "new")
    assert watch.returned(None) is None
    assert watch.returned(Ready(redelivered=True, identity=None)) is None
    assert watch.arrived(2, [0, 1], [None, None]) is None


def test_a_session_is_replaced_once_for_a_message(watch: ReturnWatch) -> None:
    for expected in (b"a", None):
        watch.restart()
        assert arrive(watch, "new", message("a")) == expected
        watch.replaced_for(b"a")
    assert arrive(watch, message("a"), message("b")) == b"b"


def test_the_messages_that_are_remembered_are_bounded(watch: ReturnWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(return_watch, "MOST_CAUSES", 2)
    for name in "abc":
        watch.replaced_for(name.encode())
    assert arrive(watch, "new", message("a")) == b"a"
    assert arrive(watch, message("b"), message("c")) is None
