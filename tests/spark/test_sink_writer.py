"""The writers as Spark makes and calls them, without a JVM: checks at planning, pickles, places, one line per batch."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import IntegerType, MapType, StringType, StructType

from amqp_spark import AmqpDataSource, reports
from amqp_spark.arrow.encode import TaskId
from amqp_spark.errors import OptionError, SchemaError, UnsupportedModeError
from amqp_spark.sink import AmqpBatchSink, Statistics, at_least_once, batch_sink, commit_coordinator
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.prepared_transactions import PreparedBranch
from amqp_spark.sink.writer import REPEATED, Published, current_task_id
from tests.spark.driver import dumps, through_pickle
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_spark.sink.writer import AmqpBatchWriter, AmqpStreamWriter

OPTIONS = {"url": "amqp://broker", "username": "u", "password": "s3cret", "exchange": "amq.direct"}
BODY = StructType().add("body", "string")
BATCH = pa.RecordBatch.from_pydict({"body": ["a", "b", "c"]})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    fake = FakeBroker()
    pool = Connections(fake.connect)
    monkeypatch.setattr(at_least_once, "shared", lambda: pool)
    yield fake
    pool.close()


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend to be task 7 of a stage; gives the local properties to fill."""
    properties: dict[str, str] = {}

    class Context:
        def getLocalProperty(self, key: str) -> str | None:
            return properties.get(key)

        def partitionId(self) -> int:
            return 7

    monkeypatch.setattr(TaskContext, "get", Context)
    monkeypatch.setattr("amqp_spark.sink.writer.spare_collections", lambda: None)
    return properties


def batch_writer(**options: object) -> AmqpBatchWriter:
    return AmqpDataSource(OPTIONS | {key: str(value) for key, value in options.items()}).writer(BODY, False)


def stream_writer(**options: object) -> AmqpStreamWriter:
    return AmqpDataSource(OPTIONS | {key: str(value) for key, value in options.items()}).streamWriter(BODY, False)


# --- planning


@pytest.mark.parametrize("make", ["writer", "streamWriter"])
def test_options_and_columns_are_told_together(make: str) -> None:
    schema = StructType().add("topic", "string").add("body", "date").add("exchange", "integer")
    wrong = OPTIONS | {"maxInFlight": "many", "queue": "q", "exchangeFromColumn": "true"}
    with pytest.raises(OptionError) as caught:
        getattr(AmqpDataSource(wrong), make)(schema, False)
    problems = caught.value.problems
    starts = [
        "[AMQP_OPTION_UNKNOWN] Option 'queue' is not known to the sink",
        "[AMQP_OPTION_INVALID] Option 'maxInFlight'",
        "[AMQP_COLUMN_UNKNOWN] There is no column 'topic'",
        "[AMQP_COLUMN_TYPE_UNSUPPORTED] Column 'body'",
        "[AMQP_COLUMN_TYPE_UNSUPPORTED] Column 'exchange'",
    ]
    assert [problem.startswith(start) for problem, start in zip(problems, starts, strict=True)] == [True] * 5
    with pytest.raises(SchemaError) as alone:
        getattr(AmqpDataSource(OPTIONS), make)(schema, False)
    assert len(alone.value.problems) == 2  # without exchangeFromColumn that column is ignored


def test_a_content_type_that_contradicts_counts_although_other_options_are_wrong() -> None:
    schema = StructType().add("body", MapType(StringType(), IntegerType()))
    wrong = OPTIONS | {"contentType": "text/plain", "priority": "256", "exchangeFromColumn": "maybe", "exchange": "e"}
    with pytest.raises(OptionError, match=r"(?s)3 options.*'exchangeFromColumn'.*'priority'.*option contentType"):
        AmqpDataSource(wrong).writer(schema, False)


def test_a_batch_overwrites_nothing_and_a_stream_may_be_complete() -> None:
    with pytest.raises(UnsupportedModeError, match=r'Use mode\("append"\)'):
        AmqpDataSource(OPTIONS).writer(BODY, True)
    AmqpDataSource(OPTIONS).streamWriter(BODY, True)


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_the_login_goes_along_and_is_not_shown(make: Any) -> None:
    writer = make()
    assert b"s3cret" in dumps(writer)
    assert "s3cret" not in repr(writer) + str(writer)
    assert repr(through_pickle(writer)) == repr(writer) == f"{type(writer).__name__}(exchange='amq.direct')"
    assert "s3cret" not in repr(AmqpBatchSink(OPTIONS)) + str(AmqpBatchSink(OPTIONS))


# --- tasks


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_a_task_publishes_and_returns_what_it_counted(fake: FakeBroker, make: Any) -> None:
    message = through_pickle(through_pickle(make()).write(iter([BATCH, BATCH])))
    assert isinstance(message, Published)
    assert message.statistics.messages == len(fake.taken) == 6


def test_a_task_says_where_it_is(in_task: dict[str, str], fake: FakeBroker) -> None:
    assert current_task_id() == TaskId(None, None, 7)
    assert current_task_id(3) == TaskId(None, 3, 7)
    in_task |= {"sql.streaming.queryId": "id-of-query", "streaming.sql.batchId": "12"}
    assert current_task_id() == TaskId("id-of-query", 12, 7)
    stream_writer(stampHeaders=True, batchId=5).write(iter([BATCH]))
    for piece in (b"id-of-query", b"amqp-spark.batch-id\x31\0\0\0\0\0\0\0\x0c", b"amqp-spark.partition\x21\0\0\0\x07"):
        assert piece in fake.taken[0]


def test_outside_of_a_task_there_is_one_partition() -> None:
    assert current_task_id(5) == TaskId(None, 5, 0)


# --- the driver's log


def published(**counts: Any) -> Published:
    return Published(Statistics(**counts))


def test_one_line_tells_what_a_batch_has_published(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqp_spark.sink")
    messages = [
        published(messages=60_000, nbytes=20_000_000, seconds=1.0, started=100.0),
        published(messages=40_000, nbytes=11_400_000, seconds=0.9, started=100.3, retries=1, resent=7, discarded=2),
    ]
    stream_writer().commit(messages, 12)
    batch_writer().commit(messages[:1])
    batch_writer(batchId=4).commit([published()])
    assert caplog.messages == [
        "batch 12: 100,000 messages, 31.4 MB, 1.2 s, 1 retries, 7 sent again, 2 discarded as unroutable",
        "batch write: 60,000 messages, 20.0 MB, 1.0 s, 0 retries",
        "batch 4: 0 messages, 0.0 kB, 0.0 s, 0 retries",
    ]


def test_one_line_tells_that_a_batch_failed(caplog: pytest.LogCaptureFixture) -> None:
    stream_writer().abort([published(messages=5, nbytes=2000, started=1.0), None], 12)
    batch_writer().abort([None])
    assert [message.partition(" retries;")[0] for message in caplog.messages] == [
        "batch 12: failed; 1 of 2 tasks had published 5 messages, 2.0 kB, 0.0 s, 0",
        "batch write: failed; 0 of 1 tasks had published 0 messages, 0.0 kB, 0.0 s, 0",
    ]


ONCE: dict[str, object] = {"deliveryGuarantee": "exactly-once", "transactionalId": "w"}
BRANCH = PreparedBranch("id-of-query", 3, 0, xid="00-11", rows=5)


@pytest.mark.parametrize(("is_new", "expected"), [(True, (5, 1, 0)), (False, (0, 0, 1))])
def test_a_repetition_of_a_batch_has_published_nothing(
    is_new: bool, expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "amqp_spark.sink")
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(reports, "send", sent.append)
    monkeypatch.setattr(commit_coordinator.CommitCoordinator, "commit", lambda *_: is_new)
    task = Published(Statistics(messages=5, nbytes=2000, retries=1, resent=2, started=1.0), BRANCH, query_id="q")
    stream_writer(**ONCE).commit([task], 3)
    (report,) = sent
    assert (report["messages"], report["committed"], report["rolledBack"]) == expected
    assert any(report[name] for name in ("bytes", "retries", "resent")) is is_new
    assert caplog.messages[0].startswith("batch 3: 5 messages")
    assert caplog.messages[0].endswith(", exactly once" if is_new else "and these were rolled back")


def test_what_a_broker_without_prepared_transactions_refused_was_not_rolled_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Connections(FakeBroker(protocol="0-9-1").connect)
    monkeypatch.setattr(commit_coordinator, "shared", lambda _: pool)
    stream_writer(deliveryGuarantee="exactly-once", transactionalId="w").abort([None], 12)
    assert caplog.messages == ["batch 12: failed; nothing was published"]
    pool.close()


_COMMIT = """
import importlib.machinery, logging, sys
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec({main!r}, None)
{before}
from amqp_spark.sink import Statistics
from amqp_spark.sink.writer import log_batch
for batch in (1, 2):
    log_batch(Statistics(), batch)
print(len(logging.getLogger().handlers), len(logging.getLogger("amqp_spark.sink").handlers))
"""


@pytest.mark.parametrize(
    ("main", "before", "lines", "handlers"),
    [
        ("pyspark.daemon", "", 2, "0 1"),
        ("pyspark.daemon", "logging.basicConfig(level=logging.WARNING)", 2, "1 1"),
        ("pyspark.daemon", "logging.basicConfig(level=logging.INFO)", 2, "1 0"),
        ("my.job", "", 0, "0 0"),
    ],
    ids=["nothing is configured", "others log warnings", "others log all", "a process of the user"],
)
def test_the_line_is_seen_once_in_a_worker_of_spark(main: str, before: str, lines: int, handlers: str) -> None:
    program = _COMMIT.format(main=main, before=before)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr.count("0 messages") == lines
    assert run.stdout.strip() == handlers


# --- sums


def test_statistics_add_up() -> None:
    one = Statistics(messages=1, nbytes=2, seconds=5.0, retries=3, resent=4, discarded=5, started=10.0)
    two = Statistics(messages=10, nbytes=20, seconds=1.0, retries=30, resent=40, discarded=50, started=17.0)
    both = Statistics(messages=11, nbytes=22, seconds=8.0, retries=33, resent=44, discarded=55, started=10.0)
    assert one + two == two + one == both
    assert one + Statistics() == Statistics() + one == one


# --- foreachBatch


class Frame:
    """As much of a DataFrame as the sink uses; two tasks."""

    def __init__(self, schema: StructType) -> None:
        self.schema = schema

    def mapInArrow(self, function: Any, schema: str) -> Frame:
        self.names = [column.split()[0] for column in schema.split(",")]
        self.function = through_pickle(function)
        return self

    def collect(self) -> list[Any]:
        from pyspark.sql import Row  # noqa: PLC0415

        rows = []
        for batches in ([BATCH], []):
            for batch in self.function(iter(batches)):
                assert batch.schema.names == self.names
                rows += [Row(**values) for values in batch.to_pylist()]
        return rows


def test_a_batch_sink_counts_logs_and_tells(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqp_spark.sink")
    told: list[tuple[int, Statistics]] = []
    sink = AmqpBatchSink(OPTIONS, on_batch=lambda batch, statistics: told.append((batch, statistics)))
    frame: Any = Frame(BODY)
    sink(frame, 4)
    sink(frame, 5)
    assert len(fake.taken) == sink.total.messages == 6
    assert sink.last.messages == 3
    assert [batch for batch, _ in told] == [4, 5]
    assert told[1][1] == sink.last
    assert [message.partition(",")[0] for message in caplog.messages] == ["batch 4: 3 messages", "batch 5: 3 messages"]


def test_a_batch_sink_does_not_count_a_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(reports, "send", sent.append)
    monkeypatch.setattr(batch_sink, "_query_of", lambda _: "id-of-query")
    row = asdict(Statistics(messages=5, nbytes=2000, started=1.0))
    notes = [", exactly once", REPEATED]
    monkeypatch.setattr(AmqpBatchSink, "_exactly_once", lambda *_: ([row], [BRANCH], notes.pop(0)))
    sink = AmqpBatchSink(OPTIONS | ONCE)
    frame: Any = Frame(BODY)
    for _ in range(2):
        sink(frame, 3)
    assert (sink.last, sink.total.messages) == (Statistics(), 5)
    assert [(report["messages"], report["rolledBack"]) for report in sent] == [(5, 0), (0, 1)]


def test_a_batch_sink_checks_options_when_made_and_columns_before_any_task(fake: FakeBroker) -> None:
    with pytest.raises(OptionError, match=r"(?s)2 options.*Use 'routingKey' instead.*'url' is required"):
        AmqpBatchSink(key="k")
    frame: Any = Frame(StructType().add("topic", "string"))
    with pytest.raises(SchemaError, match=r"(?s)topic.*body"):
        AmqpBatchSink(OPTIONS)(frame, 0)
    assert fake.clients == []


def test_a_batch_sink_pickles() -> None:
    copy = pickle.loads(pickle.dumps(AmqpBatchSink(OPTIONS)))
    assert repr(copy) == "AmqpBatchSink(url='amqp://broker', exchange='amq.direct')"
