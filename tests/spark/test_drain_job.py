"""The command line of jobs/drain.py, and its report: without a broker."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StringType

from amqp_spark.options import CONNECTION, SOURCE
from tests.spark.job_support import SECRET, help_of, without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> Any:
    return without_spark("drain", monkeypatch)


GOOD = ["--url", "amqp://localhost/v", "--queue", "q", "--output", "out", "--checkpoint", "ck"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["--output", "--dry-run"]),
        (["--output", "out"], ["--checkpoint"]),
        (["--dry-run"], ["'url' is required", "'queue' is required"]),
        ([*GOOD, "--dry-run", "--option", "mode=REJECT"], ["in a batch read, which browses and cannot reject"]),
        ([*GOOD, "--option", "exchange=e"], ["belongs to the sink"]),
        ([*GOOD, "--option", "queue=p"], ["repeats another argument"]),
        ([*GOOD, "--option", f"password={SECRET}"], ["--password-file", "AMQP_PASSWORD"]),
        ([*GOOD, "--username", "u", "--password-file", "/no/such/file"], ["'/no/such/file' cannot be read"]),
    ],
)
def test_a_wrong_command_line_ends_with_2_before_spark_starts(
    drain: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], texts: list[str]
) -> None:
    assert drain.main(arguments) == 2
    shown = capsys.readouterr()
    for text in texts:
        assert text in shown.err
    assert SECRET not in shown.err + shown.out


def test_arguments_that_argparse_refuses_end_with_2_too(drain: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        drain.main([*GOOD, "--exact", "--schema", "body STRING"])
    assert caught.value.code == 2


def test_help_lists_what_can_be_given(drain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(drain, capsys)
    assert "exit codes: 0 done" in shown
    for option in (*CONNECTION, *SOURCE):
        assert (f"  {option.name} " in shown) is not option.secret


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/report.json", "is in a directory that does not exist"),
        ("", "is a directory"),
        ("file/report.json", "is in a directory that does not exist"),
        ("locked/report.json", "may not be written by this user"),
        ("locked.json", "may not be written by this user"),
        ("a\0b", "contains a NUL character"),
        ("x" * 300, "is no path: File name too long"),
    ],
)
def test_a_report_that_cannot_be_written_is_told_before_messages_are_taken(
    dry_run: list[str], name: str, said: str,
    drain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked.json").touch()
    before = sorted(tmp_path.iterdir())
    access = os.access  # root may write everywhere
    monkeypatch.setattr(
        os, "access", lambda place, mode: not Path(place).name.startswith("locked") and access(place, mode)
    )
    monkeypatch.setattr(drain.cli, "protocol_of", lambda *_: pytest.fail("the broker was asked"))
    given = ["--url", "amqp://localhost/v", "--queue", "q", "--output", "/o", "--checkpoint", "/c", *dry_run]
    assert drain.main([*given, "--report", f"{tmp_path}/{name}"]) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["new.json", "old.json"])
def test_a_report_that_can_be_written_is_not_made_before_its_time(drain: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "old.json").write_text("old")
    drain.check_report(str(tmp_path / name))
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_a_report_whose_file_can_no_longer_be_written_is_shown(
    drain: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FileNotFoundError):
        drain.deliver(drain.Report(messages=3), str(tmp_path / "gone" / "report.json"), "3 rows", is_complete=True)
    assert capsys.readouterr().out.startswith("drain: 3 rows\nmessages         3\n")


def test_the_report_is_written_before_spark_is_stopped(
    drain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That takes seconds. A second signal, or the end of a scheduler's patience, loses the report otherwise."""
    file = tmp_path / "report.json"

    @contextmanager
    def session(*_: object) -> Iterator[tuple[object, Any]]:
        yield None, SimpleNamespace(progress=lambda _: drain.cli.Progress(io.StringIO(), quiet=True))
        assert file.read_text().endswith('"complete": false}\n')
        assert "drain: 0 rows" in capsys.readouterr().out

    monkeypatch.setattr(drain.cli, "watched_session", session)
    monkeypatch.setattr(drain, "start", lambda *_: None)
    monkeypatch.setattr(drain.cli, "follow", lambda *_: 143)
    assert drain.main([*GOOD, "--report", str(file)]) == 143


def test_an_empty_report(drain: Any) -> None:
    report = drain.Report()
    assert report.text() == "no messages"
    assert report.as_dict() == {
        "messages": 0, "without_timestamp": 0, "first_timestamp": None, "last_timestamp": None,
        "body_bytes": None, "smallest_body": None, "largest_body": None,
    }  # fmt: skip


MESSAGES: list[tuple[datetime | None, bytes]] = [
    (datetime(2026, 11, 21, 0, 5, 30, 123000, UTC), b"abc"),
    (None, b""),
    (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), b"x" * 5000),
]
TEXT = """messages         3
first timestamp  1969-12-31T23:59:59.000000Z
last timestamp   2026-11-21T00:05:30.123000Z
no timestamp     1 message
bodies           5,003 bytes, smallest 0, largest 5,000"""


@pytest.mark.spark
def test_parts_of_a_report_add_up(drain: Any, spark: SparkSession) -> None:
    rows = spark.createDataFrame(MESSAGES, "timestamp TIMESTAMP, body BINARY")
    metrics = drain.metrics_of(rows.schema, "auto")
    report = drain.Report()
    for part in (rows.filter("timestamp is not null"), rows.filter("timestamp is null"), rows.filter("false")):
        report.add(part.agg(*metrics).collect()[0].asDict())
    assert report.text() == TEXT
    assert report.as_dict() == {
        "messages": 3,
        "without_timestamp": 1,
        "first_timestamp": "1969-12-31T23:59:59.000000Z",
        "last_timestamp": "2026-11-21T00:05:30.123000Z",
        "body_bytes": 5003,
        "smallest_body": 0,
        "largest_body": 5000,
    }


@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "unit", "micros"),
    [
        (1_795_219_530, "auto", 1_795_219_530_000_000),
        (1_795_219_530_123, "auto", 1_795_219_530_123_000),
        (1_795_219_530_123, "ms", 1_795_219_530_123_000),
        (1_795_219_530, "ms", 1_795_219_530_000),
        (100_000_000_001, "s", 100_000_000_001_000_000),
    ],
)
def test_times_as_numbers_are_read_in_the_unit_of_the_source(
    drain: Any, spark: SparkSession, number: int, unit: str, micros: int
) -> None:
    rows = spark.createDataFrame([(number, "ä")], "Timestamp BIGINT, body STRING")
    found = rows.agg(*drain.metrics_of(rows.schema, unit)).collect()[0]
    assert (found.first, found.last, found.total) == (micros, micros, 2)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "unit", "shown"),
    [
        (1_700_000_000_000_000, "auto", "1700000000000000000 microseconds since 1970"),
        (1_700_000_000_000, "s", "1700000000000000000 microseconds since 1970"),
        (1_700_000_000_000_000_000, "auto", None),
        (-(2**63), "auto", None),
        (2**63 - 1, "s", None),
    ],
)
def test_numbers_that_are_no_time_in_the_unit_of_the_source_break_no_report(
    drain: Any, spark: SparkSession, number: int, unit: str, shown: str | None
) -> None:
    rows = spark.createDataFrame([(number, "a")], "timestamp BIGINT, body STRING")
    report = drain.Report()
    report.add(rows.agg(*drain.metrics_of(rows.schema, unit)).collect()[0].asDict())
    assert report.as_dict()["first_timestamp"] == shown
    assert (shown or "messages         1") in report.text()


@pytest.mark.parametrize("kind", [[], ["--exact"], ["--schema", "body STRING, _bad STRING"]])
@pytest.mark.spark
def test_the_column_for_what_does_not_fit_is_read_and_written(drain: Any, spark: SparkSession, kind: list[str]) -> None:
    del spark  # parses the schema
    schema, names = drain.reading(drain.parser().parse_args([*GOOD, *kind]), "_bad")
    assert names.count("_bad") == 1
    assert schema["_bad"].dataType == StringType()


@pytest.mark.spark
def test_types_that_do_not_tell_are_left_out(drain: Any, spark: SparkSession) -> None:
    rows = spark.createDataFrame([(MESSAGES[0][0], (1,))], "timestamp TIMESTAMP, body STRUCT<a INT>")
    report = drain.Report()
    report.add(rows.agg(*drain.metrics_of(rows.schema, "auto")).collect()[0].asDict())
    assert "bodies" not in report.text()
    assert report.as_dict()["body_bytes"] is None
