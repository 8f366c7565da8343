"""A range asks for as many messages as it has: more would have to be read before its connection closes."""

from __future__ import annotations

import struct
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import types as t

from amqp_core.blocks import Block
from amqp_core.v0_9.log_messages import log_entry
from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.datasource.log import range_reader
from amqp_spark.datasource.log.range_reader import LogPartition, RangeReader
from amqp_spark.options import SourceOptions
from tests.support import wire_0_9 as wire
from tests.support.clock import Clock

if TYPE_CHECKING:
    from amqp_core.api import LogEntry

OPTIONS = SourceOptions.parse({"url": "amqp://localhost", "queue": "s", "queueType": "stream"})
SCHEMA = t.StructType([t.StructField("body", t.StringType())])
COLUMNS = ColumnPlan.build(SCHEMA, mode="FAILFAST", timestamp_unit="auto")


class Log:
    """A client of a broker with a log of 1,000 messages, without the offsets in ``missing``; a subscription, too.

    It sends as many messages as the prefetch and the settled ones allow; of each ``hidden`` one it only counts so.
    """

    peer = "log:5672"
    protocol = "0-9-1"
    heartbeat_s = 0
    under_way_bytes = 0

    def __init__(self, clock: Clock, missing: range = range(0), hidden: range = range(0)) -> None:
        self.clock = clock
        self.missing = missing
        self.hidden = hidden
        self.sent = self.counted = self.tag = 0
        self.allowed = 0
        self.at = 0
        self.settled: set[int] = set()
        self.stalls_at = -1
        self.arrived: list[Block] = []
        self.is_ceasing = self.ceased = False
        self.most_held = 0

    def subscribe(self, _log: str, *, max_unsettled: int, arguments: dict[str, object]) -> Log:
        self.allowed, self.at = (
            self.counted - len(self.settled) + max_unsettled,
            cast("int", arguments["x-stream-offset"]),
        )
        self.is_ceasing = self.ceased = False
        return self

    def cease(self) -> None:
        self.is_ceasing = True

    def cancel(self) -> None:
        while not self.ceased:  # the answer comes behind all that it was asked for before
            self.is_ceasing = True
            self.arrived += self.take_blocks(0)
        self.most_held = max(self.most_held, sum(len(block.ends) for block in self.arrived))
        self.allowed = 0

    def take_arrived(self) -> list[Block]:
        taken, self.arrived = self.arrived, []
        return taken

    def take_blocks(self, seconds: float) -> list[Block]:
        if self.at == self.stalls_at:
            self.stalls_at = -1
            self.clock.now += seconds
            return []
        frames: list[bytes] = []
        while self.counted < self.allowed + len(self.settled) and self.at < 1000 and len(frames) < 7:
            offset, self.at = self.at, self.at + 1
            if offset in self.missing:
                continue
            self.counted += 1
            if offset not in self.hidden:
                self.sent += 1
                headers = wire.table((b"x-stream-offset", b"l" + struct.pack(">q", offset)))
                tag = self.tag + len(frames) + 1
                frames.append(wire.delivery(tag, b"%d" % offset, properties=wire.properties(headers=headers)))
        if not frames:
            self.ceased = self.is_ceasing
            self.clock.now += seconds
            return []
        first, self.tag = self.tag + 1, self.tag + len(frames)
        return [Block(b"".join(frames), list(accumulate(map(len, frames))), first)]  # type: ignore[arg-type]

    def accept(self, ranges: list[tuple[int, int]]) -> None:
        for low, high in ranges:
            assert high <= self.tag
            self.settled |= {*range(low, high + 1)}

    def log_entry(self, block: Any, index: int) -> LogEntry | None:
        return log_entry(block, index)

    def pause_reading(self, paused: bool) -> None:
        pass

    def close(self) -> None:
        pass


def skip_gap(reader: RangeReader) -> None:
    """Without the question whether messages are gone."""
    if reader._pending is not None:
        reader._at = min(reader._pending.offset, reader._end)


def reading(monkeypatch: pytest.MonkeyPatch, log: Log, end: int) -> RangeReader:
    """A reader from offset 100 on."""
    monkeypatch.setattr(range_reader, "PREFETCH", 50)
    monkeypatch.setattr(range_reader, "time", SimpleNamespace(monotonic=log.clock))
    monkeypatch.setattr(RangeReader, "_skip_gap", skip_gap)
    return RangeReader(LogPartition("s", 100, end), OPTIONS, COLUMNS, lambda _: cast("Any", log))


def read(monkeypatch: pytest.MonkeyPatch, log: Log, end: int) -> list[str | None]:
    """The rows from offset 100 on."""
    return [row for batch in reading(monkeypatch, log, end).batches() for row in batch.column(0).to_pylist()]


@pytest.mark.parametrize("messages", [1, 3, 50, 51, 99, 400])
def test_no_message_behind_the_range_is_sent(monkeypatch: pytest.MonkeyPatch, messages: int) -> None:
    log = Log(Clock())
    assert read(monkeypatch, log, 100 + messages) == [str(offset) for offset in range(100, 100 + messages)]
    assert log.sent == messages


@pytest.mark.parametrize("missing", [range(100, 110), range(150, 170), range(190, 200), range(100, 200)])
def test_behind_a_gap_the_range_ends_with_what_comes_next(monkeypatch: pytest.MonkeyPatch, missing: range) -> None:
    log = Log(Clock(), missing=missing)
    assert read(monkeypatch, log, 200) == [str(offset) for offset in range(100, 200) if offset not in missing]
    assert log.sent <= 100
    assert log.clock.now < Clock().now + 1


@pytest.mark.parametrize("hidden", [range(100, 130), range(120, 160), range(170, 200)])
def test_a_broker_that_counts_what_it_does_not_send_is_asked_for_more(
    monkeypatch: pytest.MonkeyPatch, hidden: range
) -> None:
    log = Log(Clock(), hidden=hidden)
    end = 200 if hidden[0] > 100 else 120
    assert read(monkeypatch, log, end) == [str(offset) for offset in range(100, end) if offset not in hidden]


def test_the_time_that_spark_works_on_rows_is_no_silence_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(Clock(), missing=range(167, 168), hidden=range(169, 201))
    rows: list[str | None] = []
    for batch in reading(monkeypatch, log, 200).batches():
        rows += batch.column(0).to_pylist()
        log.clock.now += range_reader.SILENT_SECONDS
    assert rows == [str(offset) for offset in (*range(100, 167), 168)]


@pytest.mark.parametrize("stalls_at", [100, 121])
def test_what_is_under_way_after_a_stall_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch, stalls_at: int) -> None:
    """A connection that stands still for some seconds, as after lost packets, then brings all that was asked for."""
    log = Log(Clock())
    log.stalls_at = stalls_at
    assert read(monkeypatch, log, 200) == [str(offset) for offset in range(100, 200)]
    assert log.most_held == 0
