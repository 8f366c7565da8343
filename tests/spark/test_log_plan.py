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
