"""The record of the crash matrix: what was good is not run again, what was bad is, and both are in the table."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.matrix import __main__ as program
from tests.matrix import runs
from tests.matrix.brokers import Given
from tests.matrix.cases import Case
from tests.matrix.results import COLUMNS, Record, Result, how_to_repeat, summary, table
from tests.spark.matrix_support import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, FORGETFUL, SINK, result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

GOOD = Case.parse(EXACTLY_ONCE)
BAD = Case.parse(SINK)
MISSED = Case.parse(AT_LEAST_ONCE)
NEW = Case.parse(AT_MOST_ONCE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "build" / "record.jsonl"


def filled(path: Path) -> Record:
    """One good run, one bad one, one that did not come to its point."""
    record = Record(path)
    record.add(result_of(str(GOOD), messages=10))
    record.add(result_of(str(BAD), problems=["1 lost"], errors=["why it failed"], log="what the driver said", lost=1))
    record.add(result_of(str(MISSED), missed=["accept-sent"]))
    return record


def loaded(path: Path) -> Record:
    """As the next call finds it."""
    record = Record(path)
    record.load()
    return record


def rows_of(text: str) -> list[list[str]]:
    """The cells of a table without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


# -- resume -----------------------------------------------------------------------------------------------------


def test_what_was_good_is_skipped_and_what_was_bad_is_repeated(path: Path) -> None:
    filled(path)
    assert loaded(path).left([GOOD, BAD, MISSED, NEW], 1) == [BAD, MISSED, NEW]


def test_another_seed_is_another_run(path: Path) -> None:
    filled(path)
    assert loaded(path).left([GOOD], 2) == [GOOD]


def test_the_last_run_of_a_case_counts(path: Path) -> None:
    record = filled(path)
    record.add(result_of(str(BAD)))
    record.add(result_of(str(GOOD), problems=["1 duplicated"]))
    assert record.left([GOOD, BAD], 1) == loaded(path).left([GOOD, BAD], 1) == [GOOD]
    assert len(path.read_text().splitlines()) == 5


def test_a_record_of_an_older_version_is_read(path: Path) -> None:
    filled(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"abolished": 1}) + "\n" for line in lines))
    assert loaded(path).left([GOOD, BAD], 1) == [BAD]


def test_what_was_recorded_is_found_again(path: Path) -> None:
    record = filled(path)
    found = loaded(path).results
    assert list(found) == list(record.results)
    assert [result.problems for result in found.values()] == [[], ["1 lost"], []]
    assert [result.good for result in found.values()] == [True, False, False]


def test_the_evidence_of_a_failure_goes_when_the_run_is_repeated_without_one(path: Path) -> None:
    record = filled(path)
    evidence = sorted((path.parent / "record-failures").iterdir())
    assert len(evidence) == 2
    (text,) = [found.read_text() for found in evidence if "prepared" in found.name]
    assert all(part in text for part in ("1 lost", "why it failed", "what the driver said", how_to_repeat_of(BAD)))
    record.add(result_of(str(BAD)))
    record.add(result_of(str(MISSED)))
    assert not list((path.parent / "record-failures").iterdir())


# -- the command line -------------------------------------------------------------------------------------------


def how_to_repeat_of(case: Case) -> str:
    return how_to_repeat(result_of(str(case)))


def test_the_hint_repeats_one_run_and_deletes_nothing(path: Path) -> None:
    filled(path)
    make, target, arguments = shlex.split(how_to_repeat(result_of(str(BAD), seed=7)))
    assert (make, target) == ("make", "crash-matrix")
    options = program.parser().parse_args(arguments.removeprefix("ARGS=").split())
    assert program.chosen(options) == [BAD]
    assert options.seed == 7
    assert not options.fresh


def test_resume_is_what_is_done_anyway_and_excludes_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    given, without = program.parser().parse_args(["--resume"]), program.parser().parse_args([])
    assert vars(given) == vars(without) | {"resume": True}
    with pytest.raises(SystemExit):
        program.parser().parse_args(["--resume", "--fresh"])
    assert "not allowed with" in capsys.readouterr().err


class NoPlace:
    """Where nothing runs."""

    def __init__(self, *, server: object, given_broker: object) -> None:
        self.server, self.broker = server, given_broker

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        pass


class Silent:
    """A bar without a terminal."""

    def __init__(self, **_how: Any) -> None:
        self.written: list[str] = []

    def update(self) -> None:
        pass

    def write(self, text: str, **_how: Any) -> None:
        self.written.append(text)

    def set_postfix(self, **_what: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "tqdm", Silent)


@pytest.fixture
def call(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, list[str]]]:
    """Calls the program with prepared outcomes of its runs; returns the exit code and the runs."""

    def call(*arguments: str, bad: Sequence[Case] = ()) -> tuple[int, list[str]]:
        ran: list[str] = []

        def run(_place: NoPlace, cases: Sequence[Case], seed: int) -> list[Result]:
            ran.extend(map(str, cases))
            return [result_of(str(case), seed=seed, problems=["it is lost"] * (case in bad)) for case in cases]

        monkeypatch.setattr(program, "Place", NoPlace)
        monkeypatch.setattr(runs, "run", run)
        return program.main([*arguments, "--output", str(path)]), sorted(ran)

    return call


TWO = ("--case", str(GOOD), "--case", str(BAD))


def test_a_failure_is_the_exit_code_and_is_run_again_until_it_is_none(
    call: Callable[..., tuple[int, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*TWO, bad=[BAD]) == (1, [str(BAD), str(GOOD)])
    assert f"FAILED {BAD}: it is lost\n  {how_to_repeat_of(BAD)}\n2 runs, 1 failed" in capsys.readouterr().out
    assert call(*TWO, "--resume", bad=[BAD]) == (1, [str(BAD)])
    assert call(*TWO) == (0, [str(BAD)])
    assert call(*TWO) == (0, [])
    assert "2 runs, 0 failed" in capsys.readouterr().out


def test_a_group_that_breaks_off_is_a_failure_of_each_of_its_cases(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_how: object) -> NoPlace:
        raise RuntimeError("there is no broker")

    monkeypatch.setattr(program, "Place", broken)
    record = Record(path)
    program.Jobs(record, 1, 2, Given()).run([[GOOD, BAD]], 1, None)
    assert record.left([GOOD, BAD], 1) == [GOOD, BAD]
    assert all("there is no broker" in result.problems[0] for result in record.results.values())
    assert len(record.results) == 2


def test_nothing_is_begun_after_the_time_is_up(call: Callable[..., tuple[int, list[str]]], path: Path) -> None:
    assert call(*TWO, "--minutes", "0") == (0, [])
    assert not path.exists()


def test_only_fresh_deletes_the_record_and_not_to_look_at_it(
    call: Callable[..., tuple[int, list[str]]], path: Path
) -> None:
    call(*TWO)
    call(*TWO, "--list", "--fresh")
    call("--table", "--fresh")
    assert len(path.read_text().splitlines()) == 2
    assert call("--case", str(BAD), "--fresh") == (0, [str(BAD)])
    assert len(path.read_text().splitlines()) == 1


# -- the table --------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_what_was_struck_alike() -> None:
    results = [
        result_of(EXACTLY_ONCE, seed=1, recover_s=2.0, lost=1, problems=["1 lost"]),
        result_of(EXACTLY_ONCE, seed=2, recover_s=4.0, duplicated=2, problems=["2 duplicated"]),
        result_of(EXACTLY_ONCE, seed=3, recover_s=9.0),
        result_of(AT_LEAST_ONCE, duplicated=3),
        result_of(FORGETFUL, gone=5, recover_s=1.0),
    ]
    text, gone = table(results), "0 (and 5 with the broker's memory)"
    assert text.splitlines()[0] == f"| {' | '.join(COLUMNS)} |"
    assert rows_of(text) == [
        ["accept-sent", "driver", "source", "at-least-once", "1", "0", "3", "-"],
        ["prepared", "memory-broker", "sink-stream", "exactly-once", "1", gone, "0", "1.0, 1.0"],
        ["tx-sent", "driver", "source", "exactly-once", "3 (2 failed)", "1", "2", "4.0, 9.0"],
    ]


def test_what_did_not_come_to_its_point_is_no_run_but_a_failure() -> None:
    results = [result_of(EXACTLY_ONCE, messages=10), result_of(EXACTLY_ONCE, seed=2, messages=20, missed=["tx-sent"])]
    assert rows_of(table(results)) == [["tx-sent", "driver", "source", "exactly-once", "1", "0", "0", "-"]]
    assert rows_of(summary(results)) == [["exactly-once", "source", "1", "10", "0", "0", "1", "-"]]


def test_the_summary_adds_up_by_guarantee_and_kind() -> None:
    results = [
        result_of(SINK, messages=10, recover_s=1.0),
        result_of(SINK, seed=2, messages=20, recover_s=3.0, lost=1, duplicated=2, problems=["1 lost"]),
        result_of(EXACTLY_ONCE, messages=5),
        result_of(AT_MOST_ONCE, messages=7, lost=3, recover_s=2.5),
    ]
    assert rows_of(summary(results)) == [
        ["at-most-once", "source", "1", "7", "3", "0", "0", "2.5, 2.5"],
        ["exactly-once", "sink-stream", "2", "30", "1", "2", "1", "2.0, 3.0"],
        ["exactly-once", "source", "1", "5", "0", "0", "0", "-"],
    ]
