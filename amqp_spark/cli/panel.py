"""Draws the panel of a job: from a state to what ``rich`` (extra ``panel``) renders, and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from amqp_spark.cli.progress import counted
from amqp_spark.cli.warning_lines import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from amqp_spark.cli.queue_tracks import LastBatch, Track

WIDE: Final = 72
"""Columns from which on numbers are written out and backlogs have a sparkline."""
SPARKS: Final = 20
_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = "_.-=+#"
_MOST_WARNINGS: Final = 4
_UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a panel shows.

    Attributes:
        job: its name.
        phase: what it does, such as ``starting Spark``.
        seconds: since it began.
        queues: those that it reads, in order.
        last: the last batch with rows.
        rows: rows read in all batches.
        batches: batches with rows.
        tasks: finished and all tasks of an action that has no batches.
        warnings: texts and how often each came, the newest last.
    """

    job: str
    phase: str
    seconds: float
    queues: tuple[Track, ...] = ()
    last: LastBatch | None = None
    rows: int = 0
    batches: int = 0
    tasks: tuple[int, int] | None = None
    warnings: tuple[tuple[str, int], ...] = ()


def draw(state: State, *, width: int, height: int, ascii_only: bool = False) -> RenderableType:
    """The panel.

    Args:
        state: what to show.
        width: columns of the terminal.
        height: its lines; the panel leaves out queues and warnings to take fewer.
        ascii_only: no bars and boxes of Unicode.
    """
    warnings = _warnings(state.warnings, max(1, min(_MOST_WARNINGS, height // 4)))
    below = [*_numbers(state), *warnings]
    room = max(1, height - len(below) - 5)  # borders, the heads of columns, the queues left out, the cursor
    parts: list[RenderableType] = []
    if state.queues:
        shown, left_out = _fitting(state.queues, room)
        parts.append(_table(shown, wide=width >= WIDE, ascii_only=ascii_only))
        if left_out:
            parts.append(_line(f"and {counted(left_out, 'queue', 'queues')} with smaller backlogs", "dim"))
    parts += below
    title = Text(f"{state.job}: {state.phase}, {duration(state.seconds)}", style="bold")
    return Panel(Group(*parts), title=title, title_align="left", width=width, padding=(0, 1))


def _fitting(queues: Sequence[Track], room: int) -> tuple[Sequence[Track], int]:
    """The queues with the largest backlogs, in their order, and how many others there are."""
    if len(queues) <= room:
        return queues, 0
    largest = sorted(queues, key=lambda each: each.backlog or 0, reverse=True)[:room]
    return [each for each in queues if each in largest], len(queues) - room


def _table(queues: Sequence[Track], *, wide: bool, ascii_only: bool) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column("queue", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("backlog", justify="right", no_wrap=True)
    if wide:
        table.add_column("", no_wrap=True)
    table.add_column("time to drain" if wide else "drained", justify="right", no_wrap=True)
    for each in queues:
        number = _exact if wide else _short
        rate = _UNKNOWN if each.rate is None else f"{number(each.rate)}/s"
        backlog = _UNKNOWN if each.backlog is None else number(each.backlog)
        cells = [Text(printable(each.queue)), Text(rate), Text(backlog, "bold")]
        if wide:
            cells.append(Text(sparkline(each.course[-SPARKS:], ascii_only=ascii_only), "cyan"))
        table.add_row(*cells, _drain(each))
    return table


def _numbers(state: State) -> list[Text]:
    lines = []
    if state.tasks is not None:
        lines.append(_line(f"{state.tasks[0]:,} of {state.tasks[1]:,} tasks are done"))
    if state.last is not None:
        last = state.last
        rate = f", {last.rows / last.seconds:,.0f} rows/s" if last.seconds else ""
        lines.append(_line(f"last batch {last.number}: {last.rows:,} rows in {last.seconds:.1f} s{rate}"))
        lines.append(_line(f"all: {state.rows:,} rows in {counted(state.batches, 'batch', 'batches')}", "dim"))
    return lines or [_line("no batch yet", "dim")]


def _warnings(warnings: Sequence[tuple[str, int]], most: int) -> list[Text]:
    return [
        _line(f"warning{'' if count == 1 else f' ({count:,} times)'}: {printable(text)}", "yellow")
        for text, count in warnings[-most:]
    ]


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _drain(track: Track) -> Text:
    if track.drain_s is None:
        return Text(_UNKNOWN)
    if math.isinf(track.drain_s):
        return Text("grows", "yellow") if track.growth else Text("steady")
    return Text("empty", "green") if not track.drain_s else Text(duration(track.drain_s))


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """One character for each value, its height relative to the largest one."""
    bars, most = _ASCII_BARS if ascii_only else _BARS, max(values, default=0)
    return "".join(bars[math.ceil((len(bars) - 1) * value / most) if most > 0 else 0] for value in values)


def duration(seconds: float) -> str:
    """Seconds in words of at most two units."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def _exact(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / (1e3 if name == 'k' else unit):,.1f}{name}"
    return f"{value:,.0f}"
