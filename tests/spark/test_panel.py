"""The panel as it is drawn: on wide and narrow terminals, with and without colours."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest
from rich.console import Console

from amqp_spark.cli.panel import State, draw, duration, sparkline
from amqp_spark.cli.queue_tracks import LastBatch, Track

TICKS = Track(queue="ticks", rate=1234.5, backlog=12_000, course=tuple(range(24_000, 12_000, -1000)), drain_s=95.0)
STATE = State(
    job="ingest",
    phase="running",
    seconds=75,
    queues=(
        TICKS,
        Track(queue="orders", rate=0.0, backlog=50, course=(10, 50), growth=4.0, drain_s=math.inf),
        Track(queue="quiet", rate=0.0, backlog=5, course=(5, 5), growth=0.0, drain_s=math.inf),
        Track(queue="done", rate=7.0, backlog=0, course=(3, 0), growth=-3.0, drain_s=0.0),
        Track(queue="new"),
    ),
    last=LastBatch(number=12, rows=1000, seconds=0.8),
    rows=13_000,
    batches=13,
    warnings=(("session lost: connection reset", 3),),
)

_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def drawn(state: State, width: int, height: int = 30, *, ascii_only: bool = False, **console: Any) -> str:
    written = io.StringIO()
    given = {"color_system": None, **console}
    Console(file=written, width=width, force_terminal=True, **given).print(
        draw(state, width=width, height=height, ascii_only=ascii_only)
    )
    return written.getvalue() if console else _STYLES.sub("", written.getvalue())


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each line by its first one."""
    lines = [line.strip("│| \n").split("  ") for line in text.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    return {line[0]: line[1:] for line in cells if line}


def test_a_wide_terminal_shows_everything() -> None:
    text = drawn(STATE, 100)
    assert text.splitlines()[0].startswith("╭─ ingest: running, 1 min 15 s ─")
    cells = rows(text)
    assert cells["queue"] == ["rate", "backlog", "time to drain"]
    assert cells["ticks"] == ["1,234/s", "12,000", "████▇▇▇▆▆▆▆▅", "1 min 35 s"]
    assert cells["orders"] == ["0/s", "50", "▃█", "grows"]
    assert cells["quiet"] == ["0/s", "5", "██", "steady"]
    assert cells["done"] == ["7/s", "0", "█▁", "empty"]
    assert cells["new"] == ["-", "-", "-"]
    assert "last batch 12: 1,000 rows in 0.8 s, 1,250 rows/s" in text
    assert "all: 13,000 rows in 13 batches" in text
    assert "warning (3 times): session lost: connection reset" in text


def test_a_narrow_terminal_shows_short_numbers_and_no_sparkline() -> None:
    text = drawn(STATE, 40)
    assert {len(line) for line in text.splitlines()} == {40}
    assert rows(text)["ticks"] == ["1,234/s", "12.0k", "1 min 35 s"]
    assert "█" not in text
    assert "warning (3 times): session lost: co…" in text


@pytest.mark.parametrize("width", [10, 20, 40, 71, 72, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert all(len(line) <= width for line in drawn(STATE, width).splitlines())


def test_colours_carry_no_meaning_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = drawn(STATE, 100, color_system="standard")
    assert "\x1b[33m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(STATE, 100, color_system="standard")
    assert "\x1b[3" not in plain
    assert _STYLES.sub("", coloured) == _STYLES.sub("", plain) == drawn(STATE, 100)


def test_a_terminal_without_unicode() -> None:
    text = drawn(STATE, 100, ascii_only=True)
    assert "#" in text
    assert "▇" not in text


def test_a_low_terminal_shows_the_largest_backlogs() -> None:
    many = State(
        job="drain", phase="running", seconds=1, warnings=STATE.warnings * 9, last=STATE.last,
        queues=tuple(Track(queue=f"q{number}", backlog=number) for number in range(50)),
    )  # fmt: skip
    for height in (8, 12, 24):
        text = drawn(many, 100, height)
        assert len(text.splitlines()) <= max(height, 10)
        assert "q49" in text
        assert " q1 " not in text
    assert "and 37 queues with smaller backlogs" in drawn(many, 100, 24)


def test_before_the_first_batch_and_of_an_action() -> None:
    assert "no batch yet" in drawn(State(job="drain", phase="starting Spark", seconds=3), 60)
    assert "3 of 8 tasks are done" in drawn(State(job="publish", phase="running", seconds=3, tasks=(3, 8)), 60)


def test_names_and_warnings_cannot_command_the_terminal() -> None:
    bad = "a\x1b[2Jb\nc[red]d"
    text = drawn(State(job="x", phase="y", seconds=0, queues=(Track(queue=bad),), warnings=((bad, 1),)), 80)
    assert "warning: abc[red]d" in text
    assert rows(text)["abc[red]d"] == ["-", "-", "-"]


def test_durations_and_sparklines() -> None:
    seconds = (0, 0.2, 59, 60, 599, 600, 3599, 3600, 90_000)
    assert [duration(each) for each in seconds] == [
        "0 s", "1 s", "59 s", "1 min 0 s", "9 min 59 s", "10 min", "59 min", "1 h 0 min", "1 d 1 h",
    ]  # fmt: skip
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 1, 50, 100]) == "▁▂▅█"  # what is not empty does not look so
