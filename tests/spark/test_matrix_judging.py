"""The crash matrix can fail: it reports missing, doubled, foreign or damaged messages, by the guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.matrix.judging import Verdict, body_of, counted, is_clear, judge
from tests.spark.matrix_support import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, FORGETFUL, SINK, subject_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SENT = 10
EVERY = (EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE, SINK)
CLEAR = "amqp_spark.errors.StateError: the state queue 'amqp-spark.state.5' must have one message, and has 0"


def bodies() -> list[bytes]:
    """Return the messages that arrive if nothing goes wrong."""
    return [body_of(number) for number in range(SENT)]


def missing() -> list[bytes]:
    return [body for body in bodies() if body != body_of(4)]


def twice() -> list[bytes]:
    return [*bodies(), body_of(4)]


def foreign() -> list[bytes]:
    return [*bodies(), body_of(SENT)]


def damaged() -> list[bytes]:
    return [*missing(), body_of(4) + b"x"]


def verdict_of(case: str, found: list[bytes], directory: Path, *dirt: str) -> Verdict:
    return judge(subject_of(case, directory, sent=SENT), counted(found), dirt)


@pytest.mark.parametrize("case", [*EVERY, FORGETFUL])
def test_what_came_once_is_no_problem(case: str, tmp_path: Path) -> None:
    assert verdict_of(case, bodies()[::-1], tmp_path) == Verdict(lost=0, duplicated=0, problems=())


@pytest.mark.parametrize("case", [EXACTLY_ONCE, AT_LEAST_ONCE, SINK])
def test_a_missing_message_is_told(case: str, tmp_path: Path) -> None:
    assert verdict_of(case, missing(), tmp_path) == Verdict(1, 0, ("1 lost, first [4]",))


def test_at_most_once_may_lose_and_it_is_counted(tmp_path: Path) -> None:
    assert verdict_of(AT_MOST_ONCE, missing(), tmp_path) == Verdict(1, 0, ())


def test_nothing_at_all_is_told(tmp_path: Path) -> None:
    assert verdict_of(EXACTLY_ONCE, [], tmp_path) == Verdict(SENT, 0, ("10 lost, first [0, 1, 2, 3, 4]",))


@pytest.mark.parametrize("case", [EXACTLY_ONCE, AT_MOST_ONCE, SINK, FORGETFUL])
def test_a_message_that_came_twice_is_told(case: str, tmp_path: Path) -> None:
    assert verdict_of(case, twice(), tmp_path) == Verdict(0, 1, ("1 duplicated, first [4]",))


def test_at_least_once_may_repeat_and_it_is_counted(tmp_path: Path) -> None:
    assert verdict_of(AT_LEAST_ONCE, [*twice(), body_of(4)], tmp_path) == Verdict(0, 1, ())


@pytest.mark.parametrize("case", [*EVERY, FORGETFUL])
def test_a_foreign_message_is_told(case: str, tmp_path: Path) -> None:
    verdict = verdict_of(case, foreign(), tmp_path)
    assert verdict == Verdict(0, 0, (f"1 arrived that were not published: [{SENT}]",))


@pytest.mark.parametrize("case", EVERY)
def test_a_damaged_body_is_told(case: str, tmp_path: Path) -> None:
    assert "1 arrived that were not published: [-1]" in verdict_of(case, damaged(), tmp_path).problems


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-1],
        lambda body: body + b"x",
        lambda body: b"5" + body[1:],
        lambda body: b"0" + body,
        lambda body: body.replace(b":", b";", 1),
        lambda body: body[:2] + bytes([body[2] ^ 1]) + body[3:],
        lambda body: b"\xff" + body[1:],
        lambda _body: b"",
    ],
    ids=["cut", "longer", "another id", "a zero more", "no id", "one bit", "no text", "empty"],
)
def test_every_damage_is_seen(damage: Callable[[bytes], bytes]) -> None:
    assert counted([body_of(4), damage(body_of(4))]) == {4: 1, -1: 1}


@pytest.mark.parametrize("case", EVERY)
def test_what_is_left_is_told(case: str, tmp_path: Path) -> None:
    assert verdict_of(case, bodies(), tmp_path, "3 files are left").problems == ("3 files are left",)


def test_what_went_wrong_on_the_way_is_kept(tmp_path: Path) -> None:
    subject = subject_of(EXACTLY_ONCE, tmp_path, sent=SENT)
    subject.problems.append("it does not end")
    assert judge(subject, counted(missing()), ()).problems == ("it does not end", "1 lost, first [4]")


def test_a_broker_without_a_store_may_lose_when_the_query_says_so(tmp_path: Path) -> None:
    subject = subject_of(FORGETFUL, tmp_path, sent=SENT)
    subject.errors = ["the connection was lost", CLEAR, "something else"]
    assert judge(subject, counted(missing()), ["the state is gone"]) == Verdict(0, 0, (), gone=1)


@pytest.mark.parametrize(
    "errors",
    [[], ["java.lang.ClassNotFoundException: Foo"], ["the connection was lost", "java.io.FileNotFoundException: bar"]],
    ids=["none", "one", "two"],
)
def test_but_not_in_silence(errors: list[str], tmp_path: Path) -> None:
    subject = subject_of(FORGETFUL, tmp_path, sent=SENT)
    subject.errors = errors
    verdict = judge(subject, counted(missing()), ())
    assert verdict.gone == 1
    assert verdict.problems == ("1 went with the memory of the broker, and no error of the query says so",)


def test_a_broker_with_a_store_may_not_lose_whatever_the_query_says(tmp_path: Path) -> None:
    subject = subject_of("sink-stream:exactly-once:prepared@broker#0", tmp_path, sent=SENT)
    subject.errors = [CLEAR]
    assert judge(subject, counted(missing()), ()) == Verdict(1, 0, ("1 lost, first [4]",))


@pytest.mark.parametrize("name", ["StateError", "OffsetError", "SpoolError", "NotFound"])
def test_a_clear_error_has_one_of_our_names(name: str) -> None:
    assert is_clear(f"Caused by: amqp.errors.{name}: it is gone")
    assert not is_clear(f"Caused by: java.io.File{name}Exception: it is gone")
    assert not is_clear(f"Caused by: java.io.File{name}: it is gone")
    assert not is_clear(f"Caused by: java.io.{name}Exception: it is gone")
