"""Queues over time, from progress events as Spark sends them."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from amqp_spark.cli.queue_tracks import COURSE, FRESH_SECONDS, MOST_FRESH_SECONDS, LastBatch, QueueTracks, Track


def event(second: int, latest: object, *, rows: int = 10, batch: int | None = None) -> StreamingQueryProgress:
    source: dict[str, Any] = {
        "description": "amqp", "startOffset": None, "endOffset": None, "latestOffset": json.dumps(latest),
        "numInputRows": rows, "inputRowsPerSecond": 5.0, "processedRowsPerSecond": 5.0, "metrics": {},
    }  # fmt: skip
    fields: dict[str, Any] = {
        "id": str(uuid.UUID(int=1)), "runId": str(uuid.UUID(int=2)), "name": None,
        "timestamp": f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000Z",
        "batchId": second if batch is None else batch, "batchDuration": 2000, "durationMs": {"triggerExecution": 2000},
        "eventTime": {}, "stateOperators": [], "sources": [source], "numInputRows": rows, "inputRowsPerSecond": 5.0,
        "processedRowsPerSecond": 5.0, "observedMetrics": {},
        "sink": {"description": "sink", "numOutputRows": -1, "metrics": {}},
    }  # fmt: skip
    return StreamingQueryProgress.fromJson(fields)


def queue(backlog: int | None = None, **counts: int) -> dict[str, object]:
    entry: dict[str, object] = {"position": 5, "metrics": counts}
    return entry if backlog is None else entry | {"backlog": backlog}


def test_each_queue_has_its_rate_backlog_and_time_to_drain() -> None:
    tracks = QueueTracks()
    tracks.add([event(0, {"a": queue(1000, received=100), "b": queue(5, received=2)})])
    tracks.add([event(10, {"a": queue(800, received=300), "b": queue(25, received=2)})])
    a, b = tracks.tracks()
    assert a == Track(queue="a", rate=20.0, backlog=800, course=(1000, 800), growth=-20.0, drain_s=40.0)
    assert b == Track(queue="b", rate=0.0, backlog=25, course=(5, 25), growth=2.0, drain_s=math.inf)


def test_a_clock_that_is_set_back_changes_no_sign() -> None:
    tracks = QueueTracks()
    for second, backlog, received in ((3000, 900, 0), (3010, 800, 100), (600, 700, 200)):
        tracks.add([event(second, {"a": queue(backlog, received=received)})])
    assert tracks.tracks() == (Track(queue="a", rate=50.0, backlog=700, course=(900, 800, 700)),)
    tracks.add([event(610, {"a": queue(600, received=300)})])
    assert tracks.tracks() == (
        Track(queue="a", rate=10.0, backlog=600, course=(900, 800, 700, 600), growth=-10.0, drain_s=60.0),
    )
    assert (tracks.rows, tracks.batches) == (40, 4)


def test_an_event_without_a_batch_changes_backlogs_only() -> None:
    tracks = QueueTracks()
    tracks.add([event(0, {"a": queue(7, received=10)}, rows=4)])
    tracks.add([event(10, {"a": queue(9, received=10)}, rows=0, batch=1)])
    assert tracks.last == LastBatch(number=0, rows=4, seconds=2.0)
    assert (tracks.rows, tracks.batches) == (4, 1)
    assert tracks.tracks()[0].backlog == 9
    assert tracks.tracks()[0].rate == 0.0


def test_a_rate_is_zero_after_a_while_without_an_event() -> None:
    now = 100.0
    tracks = QueueTracks(clock=lambda: now)
    tracks.add([event(0, {"a": queue(7, received=10), "b": {"metrics": {}}})])
    now += FRESH_SECONDS
    assert [track.rate for track in tracks.tracks()] == [5.0, None]
    now += 1
    assert [(track.rate, track.backlog) for track in tracks.tracks()] == [(0.0, 7), (None, None)]
    tracks.add([event(10, {"a": queue(7, received=30)})])
    now += 10  # the next event is due, if there is a trigger of 10 s
    assert tracks.tracks()[0].rate == 2.0
    tracks.add([event(610, {"a": queue(7, received=630)})])
    now += MOST_FRESH_SECONDS + 1  # a longer trigger
    assert tracks.tracks()[0].rate == 0.0


def test_a_stream_of_rabbitmq_has_a_lag_and_the_rate_of_the_query() -> None:
    tracks = QueueTracks()
    tracks.add([event(0, {"log": {"lag": 12, "offset": 40, "rowsPerSecond": 1.5}})])
    assert tracks.tracks() == (Track(queue="log", rate=5.0, backlog=12, course=(12,)),)


def test_other_sources_and_unknown_backlogs_have_no_numbers() -> None:
    tracks = QueueTracks()
    tracks.add([event(0, {"logOffset": 4})])
    assert tracks.tracks() == ()
    tracks.add([event(1, {"a": queue()})])
    assert tracks.tracks() == (Track(queue="a", rate=5.0),)


def test_the_course_is_bounded() -> None:
    tracks = QueueTracks()
    tracks.add(event(second, {"a": queue(second)}) for second in range(COURSE + 40))
    assert tracks.tracks()[0].course == tuple(range(40, COURSE + 40))


def test_what_the_reader_lost_is_a_warning() -> None:
    tracks = QueueTracks()
    tracks.add([event(0, {"a": queue(rejected=0, lost_sessions=0), "b": queue()})])
    assert tracks.losses() == ()
    tracks.add([event(1, {"a": {"metrics": {"rejected": 3, "lostSessions": 1}}})])
    assert tracks.losses() == ("a: 3 messages rejected: outside of the schema", "a: 1 session lost")
