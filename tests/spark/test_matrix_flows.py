"""How the crash matrix brings a query to its end, over a driver with prepared answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.matrix.flows import Group
from tests.matrix.judging import Verdict, body_of, counted, judge
from tests.matrix.soak import Soak
from tests.spark.matrix_support import BEGUN, BESIDE, FORGETFUL, REFUSAL, SINK, checkpoint, subject_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.matrix.place import Place
    from tests.matrix.subjects import Subject

SLOW = "Python worker failed to connect back"


class Driver:
    """Its queries end with prepared errors, one after the other."""

    def __init__(self, *errors: str | None) -> None:
        self.errors = list(errors)
        self.starts = 0
        self.running = True

    def start_query(self, _query: object, **_trigger: Any) -> None:
        self.starts += 1

    def stop_query(self, _query: object) -> None:
        pass

    def wait(self, _query: object, _timeout_s: int) -> str | None:
        return self.errors.pop(0)

    def status(self, _query: object) -> tuple[bool, str | None]:
        return False, self.errors.pop(0)


def drained(subject: Subject, driver: Driver) -> Subject:
    """After it was brought to its end."""
    place = cast("Place", SimpleNamespace(driver=driver, points=None))
    Group(place, [subject])._drain()
    assert not driver.errors, "it was asked as often as it had answers"
    return subject


def test_a_query_that_fails_is_started_again(tmp_path: Path) -> None:
    driver = Driver("the connection was lost", SLOW, None)
    subject = drained(subject_of(SINK, tmp_path), driver)
    assert subject.errors == ["the connection was lost"]
    assert subject.problems == []
    assert subject.restarts == driver.starts == 3


def test_a_query_that_fails_and_fails_is_a_problem(tmp_path: Path) -> None:
    subject = drained(subject_of(SINK, tmp_path), Driver(*["no"] * 5))
    assert subject.problems == ["not drained after 6 starts: ['no']"]


def test_a_checkpoint_that_was_begun_only_is_deleted_and_the_query_started_again(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, *BESIDE, *BEGUN)
    subject = drained(subject_of(SINK, tmp_path), Driver(REFUSAL, None))
    assert not found.exists()
    assert subject.errors == []
    assert subject.problems == []
    assert subject.restarts == 2


def test_a_refused_checkpoint_with_a_batch_is_kept_and_a_problem(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, *BESIDE, *BEGUN, "offsets/0")
    subject = drained(subject_of(SINK, tmp_path), Driver(REFUSAL, REFUSAL, None))
    assert (found / "offsets/0").exists()
    assert subject.errors == [REFUSAL] * 2
    assert subject.problems == ["Spark refuses a checkpoint that has more than a batch that was begun: ['offsets/0']"]


@pytest.mark.parametrize("errors", [(None,), ("the connection was lost", None), ("no", "no")])
def test_what_a_broker_has_forgotten_is_not_passed_over_in_silence(
    errors: tuple[str | None, ...], tmp_path: Path
) -> None:
    subject = drained(subject_of(FORGETFUL, tmp_path), Driver(*errors))
    assert judge(subject, counted(map(body_of, range(10))), ()).problems == ()
    verdict = judge(subject, counted(map(body_of, range(9))), ())
    assert verdict.problems == ("1 went with the memory of the broker, and no error of the query says so",)


def test_what_a_broker_has_forgotten_may_be_said_once(tmp_path: Path) -> None:
    subject = drained(subject_of(FORGETFUL, tmp_path), Driver("errors.NotFound: no queue", "it ends"))
    assert judge(subject, counted(()), ()) == Verdict(0, 0, (), gone=10)


@pytest.mark.parametrize(
    ("case", "held", "reader"),
    [("source:exactly-once:commit-logged@reader#0", 7, 7), ("source:exactly-once:read-started@reader#0", 30, 21)],
)
def test_a_reader_that_ends_beside_the_query_is_not_taken_for_its_own(
    case: str, held: int, reader: int, tmp_path: Path
) -> None:
    """At its own points a reader is known; at others it is the youngest that no other query has."""
    place = cast("Place", SimpleNamespace(driver=SimpleNamespace(readers=lambda: [3, 7, 21]), points=None))
    subject = subject_of(case, tmp_path)
    assert Group(place, [subject])._hold(subject, held)
    assert (subject.held, subject.reader) == (held, reader)


# -- the soak ---------------------------------------------------------------------------------------------------


def soak_of(directory: Path, driver: Driver) -> Soak:
    """One that has not begun."""
    place = SimpleNamespace(
        driver=driver,
        directory=directory,
        proxy=SimpleNamespace(port=5672),
        broker=SimpleNamespace(username="u", password="p"),
    )
    return Soak(cast("Place", place), "stream", 1)


def test_the_soak_deletes_a_checkpoint_that_was_begun_only(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, *BESIDE, *BEGUN)
    driver = Driver(REFUSAL, SLOW, "the connection was lost", None)
    soak = soak_of(tmp_path, driver)
    while driver.errors:
        soak.keep_running()
    assert not found.exists()
    assert (soak.forgotten, soak.starts) == (1, 4)
    assert soak.errors == ["the connection was lost"]
    assert soak.problems == []


def test_the_soak_tells_of_one_that_holds_a_batch(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, *BESIDE, *BEGUN, "commits/0")
    driver = Driver(REFUSAL, REFUSAL)
    soak = soak_of(tmp_path, driver)
    while driver.errors:
        soak.keep_running()
    assert (found / "commits/0").exists()
    assert soak.forgotten == 0
    assert soak.errors == [REFUSAL] * 2
    assert soak.problems == ["Spark refuses a checkpoint that has more than a batch that was begun: ['commits/0']"]
