"""What a batch of streams has, where the stream is made again while it is planned, and where a node lags behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.api import LogEntry
from amqp_spark.datasource.log.offsets import LogOffset
from amqp_spark.datasource.log.probe import EMPTY_SECONDS, LogProbe
from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
from amqp_spark.errors import LogError
from amqp_spark.options import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = SourceOptions.parse({"url": "amqp://localhost", "queue": "s", "queueType": "stream"})
OLD, NEW = bytes(20), bytes([1] * 20)
PROBE = LogProbe(cast("Any", None))


def reader_of(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], LogEntry | None], *, known_end: int, end: int
) -> AmqpLogStreamReader:
    """A reader with Trigger.AvailableNow, and the log's answers; its beginning is at 0."""

    def entry(_probe: object, _log: str, since: str | int, _patience_s: float = EMPTY_SECONDS) -> LogEntry | None:
        return answer(0 if isinstance(since, str) else since)

    monkeypatch.setattr(LogProbe, "entry", entry)
    monkeypatch.setattr(LogProbe, "end", lambda *_, **__: end)
    reader = AmqpLogStreamReader(OPTIONS, cast("Any", None))
    reader._broker = cast("Any", SimpleNamespace(sessions=1))
    reader._bounded, reader._ends = True, {"s": known_end}
    return reader


def test_a_log_that_is_made_again_while_a_batch_is_planned_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its digest is noted for the end of the batch, which then has rows of the new log, without the first ones."""
    digests = [OLD, NEW, NEW, NEW]
    reader = reader_of(monkeypatch, lambda since: LogEntry(since, digests.pop(0)), known_end=34, end=300)
    reader._verified = 1
    with pytest.raises(LogError, match=r"AMQP_LOG_REPLACED\] Stream 's' has another message before offset 17"):
        reader._plan(PROBE, {"s": LogOffset(17, OLD.hex())})


def test_the_end_that_a_node_has_told_that_lags_behind_the_checkpoint_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next node has what the batches before had read, and more: AvailableNow ended without it."""
    reader = reader_of(monkeypatch, lambda since: LogEntry(since, OLD), known_end=50, end=200)
    assert reader._plan(PROBE, {"s": LogOffset(100, OLD.hex())}) == {"s": LogOffset(200, OLD.hex())}


def test_the_end_that_was_known_before_a_lost_connection_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log was made again, and is shorter; at its beginning nothing else tells. Or this node lags behind."""
    reader = reader_of(monkeypatch, lambda since: LogEntry(since, NEW) if since < 10 else None, known_end=1000, end=10)
    reader._bounded = False
    monkeypatch.setattr(LogProbe, "has_news", lambda *_: True)
    assert reader._plan(PROBE, {"s": LogOffset(0)}) == {"s": LogOffset(10, NEW.hex())}
