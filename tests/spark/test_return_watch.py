"""When a session of a quorum queue learns that the queue has taken messages back from it."""

from __future__ import annotations

import pytest

from amqp_core.api import Identity
from amqp_spark.datasource.exactly_once import return_watch
from amqp_spark.datasource.exactly_once.return_watch import ReturnWatch


def message(name: str, deliveries: int = 0, *, named: bool = True) -> Identity:
    return Identity(name.encode(), deliveries, named)


def unnamed(name: str, deliveries: int = 0) -> Identity:
    return message(name, deliveries, named=False)


NAMED = [message("a"), message("b")]
UNNAMED = [unnamed("a"), unnamed("b")]


@pytest.fixture
def watch() -> ReturnWatch:
    return ReturnWatch()


def test_the_first_message_of_a_batch_that_comes_again_shows_it(watch: ReturnWatch) -> None:
    assert watch.shows([message("x", 3), message("a", 1)], [[message("c")], NAMED])


def test_a_message_that_is_no_first_one_shows_nothing(watch: ReturnWatch) -> None:
    """Barriers and sessions that have ended return messages, which may come in any order."""
    assert not watch.shows([message("b", 1), message("x", 7)], [NAMED])
    assert not watch.shows([message("a", 1)], [])
    assert not watch.shows([], [NAMED])


def test_a_message_that_was_not_delivered_more_often_is_another_one(watch: ReturnWatch) -> None:
    assert not watch.shows([message("a", 1)], [[message("a", 1)]])
    assert watch.shows([message("a", 2)], [[message("a", 1)]])


def test_without_an_id_the_second_message_must_follow(watch: ReturnWatch) -> None:
    assert not watch.shows([unnamed("a", 1)], [UNNAMED])
    assert watch.shows([unnamed("b", 1)], [UNNAMED])
    watch.restart()
    assert not watch.shows([unnamed("a", 1), unnamed("x", 1), unnamed("b", 1)], [UNNAMED])
    assert not watch.shows([unnamed("b", 1)], [UNNAMED])


@pytest.mark.parametrize("head", [[unnamed("a")], [unnamed("a"), unnamed("a")], [unnamed("a"), None]])
def test_equal_messages_without_an_id_are_not_taken_for_one(watch: ReturnWatch, head: list[Identity | None]) -> None:
    assert not watch.shows([unnamed("a", 1), unnamed("a", 1)], [head])


def test_what_cannot_be_read_shows_nothing(watch: ReturnWatch) -> None:
    assert not watch.shows([None, None], [[None, message("a")], UNNAMED])


def test_a_message_shows_it_a_few_times(watch: ReturnWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link may be cut again. But a publisher may have sent it twice: else sessions might be replaced for ever."""
    monkeypatch.setattr(return_watch, "MOST_REMEMBERED", 2)
    monkeypatch.setattr(return_watch, "MOST_SHOWN", 2)
    for deliveries, expected in [(5, True), (5, False), (6, True), (7, False)]:
        watch.restart()
        assert watch.shows([message("a", deliveries)], [NAMED]) is expected
    for name in "cd":
        assert watch.shows([message(name, 1)], [[message(name)]])
    assert watch.shows([message("a", 5)], [NAMED]), "the memory is bounded"
