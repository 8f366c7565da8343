"""A gap in a stream: whether messages are gone is for the broker to say, however late it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.api import LogEntry
from amqp_core.errors import DeadlineExceeded
from amqp_spark.datasource.log import positions, range_reader
from amqp_spark.datasource.log.offsets import LogOffset
from amqp_spark.datasource.log.probe import EMPTY_SECONDS, SURE_SECONDS, LogProbe
from amqp_spark.datasource.log.range_reader import LogPartition, RangeReader
from amqp_spark.errors import LogError
from amqp_spark.options import SourceOptions
from amqp_spark.options.log_positions import Edge
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    from collections.abc import Callable

DIGEST = bytes(20)


def options(*, fails: bool) -> SourceOptions:
    given = {"url": "amqp://localhost", "queue": "s", "queueType": "stream", "failOnDataLoss": str(fails).lower()}
    return SourceOptions.parse(given)


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str | int, float], LogEntry | None]) -> None:
    """Let the broker give this answer to a question for the message at an offset; the client waits ``patience_s``."""
    monkeypatch.setattr(
        LogProbe, "entry", lambda _probe, _log, since, patience_s=EMPTY_SECONDS: answer(since, patience_s)
    )


def counting(monkeypatch: pytest.MonkeyPatch, *, filled: bool) -> None:
    """Whether the broker counts messages in the log."""
    monkeypatch.setattr(LogProbe, "is_filled", lambda _probe, _log: filled)


def late(since: str | int, patience_s: float) -> LogEntry | None:
    """The log begins at 900; the broker takes longer to say so than for an empty log."""
    del since
    return LogEntry(900, DIGEST) if patience_s >= SURE_SECONDS else None


def before_gap(*, fails: bool) -> RangeReader:
    """A reader of offsets 0 to 1000 that has received 900 first."""
    reader = RangeReader(LogPartition("s", 0, 1000), options(fails=fails), cast("Any", None), FakeBroker().connect)
    reader._pending = range_reader._Run(cast("Any", None), 0, 10, 900)
    return reader


def test_a_late_answer_does_not_hide_that_messages_are_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answering(monkeypatch, late)
    with pytest.raises(LogError, match=r"AMQP_LOG_DATA_LOST\] Messages 0 to 900"):
        before_gap(fails=True)._skip_gap()
    reader = before_gap(fails=False)
    reader._skip_gap()
    assert reader._at == 900
    assert "AMQP_LOG_DATA_LOST" in caplog.text


def test_no_answer_is_no_proof_that_there_never_were_any(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda *_: None)
    reader = before_gap(fails=False)
    with pytest.raises(DeadlineExceeded, match=r"waited for it to send the first message of stream 's'"):
        reader._skip_gap()
    assert reader._at == 0


def test_a_checkpoint_does_not_go_on_across_messages_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, late)
    counting(monkeypatch, filled=True)
    start = LogOffset(20, DIGEST.hex())
    with pytest.raises(LogError, match=r"AMQP_LOG_DATA_LOST\] Messages 20 to 900"):
        positions.checked(LogProbe(cast("Any", None)), "s", start, fail_on_data_loss=True)


@pytest.mark.parametrize(("filled", "first"), [(True, 900), (False, 0)])
def test_earliest_is_where_the_log_begins_however_late_it_says_so(
    monkeypatch: pytest.MonkeyPatch, *, filled: bool, first: int
) -> None:
    answering(monkeypatch, late)
    counting(monkeypatch, filled=filled)
    assert positions.resolve(LogProbe(cast("Any", None)), "s", Edge.EARLIEST, "startingOffsets") == first
