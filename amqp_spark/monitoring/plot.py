"""A picture of a query for notebooks. ``matplotlib`` (extra ``plot``) is imported when it is needed."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pandas as pd

from amqp_spark.errors import MissingExtra
from amqp_spark.monitoring import history
from amqp_spark.monitoring.readings import read_progress
from amqp_spark.monitoring.series import QuerySeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql.streaming.query import StreamingQuery

_PHASES = {"offset_s": "offsets", "planning_s": "planning", "work_s": "work", "log_s": "checkpoint"}


class Picture:
    """A drawing that notebooks show as the value of a cell.

    Attributes:
        figure: of matplotlib, to change or save it.
    """

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def __repr__(self) -> str:
        return "Picture(a notebook shows it; figure.savefig(...) writes it to a file)"

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def show(query: StreamingQuery | pd.DataFrame) -> Picture:
    """Draw rows per second, backlog and duration of the batches of a query.

    Args:
        query: a streaming query, of which Spark keeps the last 100 batches; or rows of ``Metrics.history()``, of one
            query.

    Returns:
        A picture, which a notebook shows if it is the value of a cell.

    Raises:
        MissingExtra: ``matplotlib`` is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - the extra plot
    except ImportError as error:
        raise MissingExtra.of("Pictures", "matplotlib", "plot") from error
    frame = query if isinstance(query, pd.DataFrame) else _recent(query)
    figure = Figure(figsize=(8, 7), layout="constrained")
    rate, backlog, duration = figure.subplots(3, 1, sharex=True)
    when = frame["time"].dt.tz_localize(None)
    rate.plot(when, _numbers(frame, "rows_in_per_s"), label="in", marker=".")
    if frame["rows_out_per_s"].notna().any():
        rate.plot(when, _numbers(frame, "rows_out_per_s"), label="out", marker=".")
        rate.legend(loc="upper left")
    _label(rate, "rows/s", "Rate")
    backlog.plot(when, _numbers(frame, "backlog"), color="tab:red", marker=".")
    _label(backlog, "messages", "Backlog")
    parts = [_numbers(frame, name).fillna(0.0) for name in _PHASES]
    duration.stackplot(when, parts, labels=list(_PHASES.values()), alpha=0.6)
    duration.plot(when, _numbers(frame, "batch_s"), color="black", linewidth=1, label="batch")
    duration.legend(loc="upper left", ncols=3, fontsize="small")
    _label(duration, "s", "Time of a batch")
    duration.set_xlabel("time (UTC)")
    figure.autofmt_xdate()
    names = ", ".join(dict.fromkeys(map(str, frame["query"])))
    figure.suptitle(names or "no batch yet", parse_math=False, usetex=False)  # a name may have a "$"
    return Picture(figure)


def _recent(query: StreamingQuery) -> pd.DataFrame:
    series = QuerySeries("", "", 1_000)
    for progress in query.recentProgress:
        series.add(read_progress(progress))
    return history.frame(series.batches)


def _numbers(frame: pd.DataFrame, name: str) -> pd.Series[float]:
    return frame[name].astype("float64")


def _label(axes: Any, unit: str, title: str) -> None:
    axes.set_ylabel(unit)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
