"""A task of an exactly-once sink: its steps, what it answers, and what becomes of the branch when it fails."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from amqp_core.errors import (
    AuthenticationFailed,
    CommandInvalid,
    ConnectionFailed,
    ConnectionLost,
    InvalidArgument,
    MessageRejected,
    NotFound,
    NotImplementedByPeer,
    PublisherStopped,
    TransactionFailed,
    UnauthorizedAccess,
)
from amqp_core.v0_10.spec import DtxXaStatus
from amqp_spark import crashpoints
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.errors import PublishFailed, RowError, StateError, Unroutable, UnsupportedModeError
from amqp_spark.options import SinkOptions
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.prepared_transactions import BATCH_WRITES, PreparedBranch, same_rows
from amqp_spark.state.xids import parse_branch, parse_xid
from amqp_spark.timeouts import OTHERS_SECONDS
from tests.support.fake_broker import FakeBroker, FakeClient, FakeTransactions, Script
from tests.support.hosts_tried import hosts_tried
from tests.support.tasks import ExactlyOnceTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqp_core.api import Xid

SCHEMA = StructType().add("body", "string").add("routing_key", "string")
BEGIN = ["declare", "select", "start", "set_timeout"]
END = ["marker", "confirm", "end", "prepare"]


def rows(count: int, begin: int = 0, **columns: list[str | None]) -> pa.RecordBatch:
    """A batch whose bodies say which row they are."""
    arrays: dict[str, Any] = {"body": pa.array([f"row-{number:04}" for number in range(begin, begin + count)])}
    arrays["routing_key"] = pa.array(["k"] * count)
    arrays |= {name: pa.array(values, pa.string()) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


class Tasks:
    """Tasks of one process against a broker."""

    def __init__(self, broker: FakeBroker, **options: object) -> None:
        given: dict[str, object] = {"url": "amqp://broker", "exchange": "amq.direct", "transactionalId": "w"}
        self.options = SinkOptions.parse(given | {"deliveryGuarantee": "exactly-once"} | options)
        self.broker = broker
        self.pool = Connections(broker.connect)
        self.waits: list[float] = []

    def task(self, *, query_id: str | None = "query", partition: int = 3, attempt: int = 0) -> ExactlyOnceTask:
        plan = MessagePlan.build(SCHEMA, self.options)
        place = TaskId(query_id, 12, partition)
        pool, sleep = self.pool, self.waits.append
        return ExactlyOnceTask(plan, self.options, place, attempt=attempt, connections=pool, sleep=sleep)

    def run(self, *batches: pa.RecordBatch) -> PreparedBranch:
        return self.run_from(batches)

    def run_from(self, batches: Iterable[pa.RecordBatch]) -> PreparedBranch:
        task = self.task()
        task.run(batches)
        return task.prepared


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker()


def test_rows_and_marker_are_prepared_in_one_branch(fake: FakeBroker) -> None:
    task = Tasks(fake, transactionTimeout=100).task(partition=5, attempt=2)
    statistics = task.run([rows(3), rows(0), rows(5000, 3)])
    assert fake.calls == BEGIN + END
    prepared = task.prepared
    [marker] = fake.markers
    assert marker == prepared
    assert (prepared.query_id, prepared.batch, prepared.partition, prepared.rows) == ("query", 12, 5, 5003)
    assert prepared.digest == hashlib.sha256(b"".join(fake.taken)).hexdigest()
    assert list(fake.prepared) == [prepared.xid]
    branch = parse_branch(parse_xid(prepared.xid))
    assert branch is not None
    assert (branch.batch, branch.partition, branch.attempt, branch.is_of("w", "query")) == (12, 5, 2, True)
    assert (statistics.messages, statistics.nbytes) == (5003, sum(map(len, fake.taken)))
    assert list(fake.timers.values()) == [[100]]
    [client] = fake.clients
    assert isinstance(client, FakeClient)
    assert client.transactions.silence_timeout_s > 300.0 + 5.0, "the broker may be silent while it stores 5003 rows"


def test_a_broker_without_what_exactly_once_needs_gets_no_row(fake: FakeBroker) -> None:
    fake.lacks = frozenset({"binding_queries"})
    with pytest.raises(UnsupportedModeError, match="deliveryGuarantee=exactly-once needs binding queries") as told:
        Tasks(fake).run(rows(3))
    assert told.value.condition == "AMQP_CAPABILITY_MISSING"
    assert (fake.taken, fake.calls, fake.clients[0].ended) == ([], [], "discarded")


def test_a_protocol_without_prepared_transactions_gets_no_row_and_the_alternative_is_named() -> None:
    fake = FakeBroker(protocol="0-9-1")
    with pytest.raises(
        UnsupportedModeError,
        match=r"no prepared transactions \(AMQP 0-9-1\)\. Use protocol=0-10 if .* Broker-J; .*stableMessageId=true",
    ) as told:
        Tasks(fake).run(rows(3))
    assert told.value.condition == "AMQP_EXACTLY_ONCE_NOT_OFFERED"
    assert (fake.taken, fake.calls, fake.clients[0].ended) == ([], [], "discarded")


def test_connections_are_kept_for_tasks_of_this_kind(fake: FakeBroker) -> None:
    tasks = Tasks(fake)
    first, second = tasks.run(rows(2)), tasks.run(rows(2))
    assert fake.calls == [*BEGIN, *END, "declare", "start", "set_timeout", *END], "dtx is selected once"
    assert (len(fake.clients), fake.clients[0].ended) == (1, "")
    assert first.xid != second.xid
    assert same_rows(first, second)


def test_without_rows_there_is_no_branch(fake: FakeBroker) -> None:
    assert Tasks(fake).run(rows(0), rows(0)) == PreparedBranch("query", 12, 3)
    assert fake.clients == []


def test_what_is_no_stream_has_a_query_too(fake: FakeBroker) -> None:
    task = Tasks(fake).task(query_id=None)
    task.run([rows(1)])
    assert task.prepared.query_id == BATCH_WRITES


def test_a_digest_is_that_of_the_rows_and_their_order(fake: FakeBroker) -> None:
    tasks = Tasks(fake)
    digest = tasks.run(rows(4)).digest
    assert tasks.run(rows(1), rows(3, 1)).digest == digest, "how Spark cuts its batches means nothing"
    assert tasks.run(rows(4, routing_key=["k", "k", "k", "j"])).digest != digest
    assert tasks.run(rows(2, 2), rows(2)).digest != digest


# ------------------------------------------------------------------------------------------------------------ beginning
def test_a_connection_that_cannot_be_made_is_tried_again(fake: FakeBroker) -> None:
    fake.fails["connect"] = [ConnectionFailed("connection refused")] * 3
    tasks = Tasks(fake)
    assert tasks.run(rows(2)).rows == 2
    assert len(tasks.waits) == 3


def test_attempts_to_connect_end(fake: FakeBroker) -> None:
    fake.fails["connect"] = [ConnectionFailed("connection refused")] * 4
    tasks = Tasks(fake, **{"retry.maxAttempts": 3})
    with pytest.raises(ConnectionFailed, match="connection refused"):
        tasks.run(rows(2))
    assert (len(tasks.waits), fake.fails["connect"]) == (3, [])


def test_a_login_that_is_refused_is_not_tried_again(fake: FakeBroker) -> None:
    fake.fails["connect"] = [AuthenticationFailed("no"), ConnectionFailed("not asked")]
    with pytest.raises(AuthenticationFailed):
        Tasks(fake).run(rows(2))
    assert len(fake.fails["connect"]) == 1


@pytest.mark.parametrize("step", BEGIN)
def test_a_connection_that_is_lost_before_the_first_row_is_made_again(fake: FakeBroker, step: str) -> None:
    fake.fails[step] = [ConnectionLost("cut")]
    tasks = Tasks(fake)
    task = tasks.task()
    assert task.run([rows(2)]).retries == 1
    assert task.prepared.rows == 2
    assert [client.ended for client in fake.clients] == ["discarded", ""]
    assert (fake.calls[-8:], len(fake.prepared)) == (BEGIN + END, 1)


@pytest.mark.parametrize("step", BEGIN)
def test_after_a_loss_the_next_host_is_tried_first(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also to roll back the branch that was begun, perhaps."""
    tried = hosts_tried(fake, monkeypatch)
    fake.fails[step] = [ConnectionLost("cut")]
    assert Tasks(fake, url="amqp://fake,b").run(rows(2)).rows == 2
    assert tried == ["fake", "b"]


def test_after_a_loss_among_the_rows_the_branch_is_rolled_back_at_the_next_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeBroker(Script(breaks_after=1))
    tried = hosts_tried(fake, monkeypatch)
    with pytest.raises(PublishFailed, match="lost in the middle"):
        Tasks(fake, url="amqp://fake,b").run(rows(2))
    assert (tried, len(fake.rolled_back)) == (["fake", "b"], 1)


def test_a_kept_connection_that_broke_costs_no_attempt(fake: FakeBroker) -> None:
    tasks = Tasks(fake, **{"retry.maxAttempts": 0})
    tasks.run(rows(1))
    fake.fails["declare"] = [ConnectionLost("cut while it was idle")]
    assert tasks.run(rows(2)).rows == 2
    assert tasks.waits == [0.0]


def test_a_login_that_may_not_declare(fake: FakeBroker) -> None:
    fake.fails["declare"] = [UnauthorizedAccess(403, 0, "Permission CREATE is denied")]
    with pytest.raises(StateError, match=r"may not declare the queue 'amqp-spark\.markers\..*transactionalId 'w'.*403"):
        Tasks(fake).run(rows(1))
    assert (fake.clients[0].ended, fake.taken) == ("discarded", [])


@pytest.mark.parametrize("step", ["select", "start"])
def test_a_broker_without_distributed_transactions(fake: FakeBroker, step: str) -> None:
    error = NotImplementedByPeer(540, 0, "no dtx") if step == "select" else CommandInvalid(503, 0, "not selected")
    fake.fails[step] = [error]
    with pytest.raises(StateError, match="does not let this login use distributed transactions"):
        Tasks(fake).run(rows(1))
    assert fake.clients[0].ended == "discarded"


def test_a_timeout_that_the_broker_does_not_take() -> None:
    fake = FakeBroker(qpidd=True)
    fake.fails["set_timeout"] = [InvalidArgument(542, 0, "xid=..., timeout=7200")]
    with pytest.raises(StateError, match=r"Option 'transactionTimeout' is 7200, .*dtx-max-timeout, 3600 s"):
        Tasks(fake, transactionTimeout=7200).run(rows(1))
    assert fake.clients[0].ended == "discarded"


# -------------------------------------------------------------------------------------------------------------- failing
def test_a_connection_that_is_lost_among_the_rows_fails_the_task() -> None:
    broker = FakeBroker(Script(breaks_after=3))
    with pytest.raises(
        PublishFailed, match=r"lost in the middle of the transaction .*nothing of it is in doubt"
    ) as told:
        Tasks(broker).run(rows(2), rows(3, 2))
    assert (told.value.partition, told.value.batch_id) == (3, 12)
    assert (broker.prepared, [client.ended for client in broker.clients]) == ({}, ["discarded", ""])
    [xid] = broker.rolled_back
    assert (branch := parse_branch(parse_xid(xid))) is not None
    assert branch.is_of("w"), "on another connection, since Broker-J keeps what it holds"


@pytest.mark.parametrize("at_marker", [False, True])
def test_a_broker_that_stops_the_task_for_too_long_is_named_and_not_a_lost_connection(*, at_marker: bool) -> None:
    stopped = PublisherStopped("broker:5672", 600.0)
    broker = FakeBroker() if at_marker else FakeBroker(Script(breaks_after=3, error=stopped))
    broker.fails["marker"] = [stopped] if at_marker else []
    with pytest.raises(PublishFailed) as told:
        Tasks(broker).run(rows(2), rows(3, 2))
    assert "AMQP_PUBLISHING_BLOCKED_TOO_LONG] Cannot publish partition 3 in batch 12" in str(told.value)
    assert "stopped this publisher for 600 s, and option blockedTimeout=600 s is over" in str(told.value)
    assert (broker.prepared, len(broker.rolled_back)) == ({}, 1)


@pytest.mark.parametrize("step", ["connect", "rollback"])
def test_a_branch_that_cannot_be_rolled_back_elsewhere_is_left_to_its_timer(fake: FakeBroker, step: str) -> None:
    fake.fails["end"] = [ConnectionLost("cut")]
    fake.fails["rollback"] = [NotFound(404, 0, "no such branch")] if step == "rollback" else []
    tasks = Tasks(fake)
    task = tasks.task()
    connected = fake.connect

    def connect(options: Any) -> Any:
        if step == "connect" and fake.clients:
            raise ConnectionFailed("connection refused")
        return connected(options)

    tasks.pool._connect = connect  # the broker goes away
    with pytest.raises(PublishFailed, match="lost in the middle of the transaction"):
        task.run([rows(2)])
    assert fake.rolled_back == []
    assert {client.ended for client in fake.clients} == {"discarded"}


@pytest.mark.parametrize("step", END)
def test_a_connection_that_is_lost_at_the_end_fails_the_task(fake: FakeBroker, step: str) -> None:
    fake.fails[step] = [ConnectionLost("cut")]
    with pytest.raises(PublishFailed, match="lost in the middle of the transaction"):
        Tasks(fake).run(rows(2))
    assert (fake.prepared, fake.clients[0].ended) == ({}, "discarded")


@pytest.mark.parametrize("qpidd", [True, False])
@pytest.mark.parametrize("gone", ["binding", "exchange"])
def test_a_target_that_is_deleted_among_the_rows_rolls_the_branch_back(gone: str, *, qpidd: bool) -> None:
    """It is asked for again after the last row, before the branch is ended: qpidd completes what it drops.

    A broker that rejects has taken all rows by then, and drops them when the branch is committed.
    """
    fake = FakeBroker(qpidd=qpidd)

    def delete() -> None:
        if len(fake.taken) == 100:
            fake.bindings.clear()
            if gone == "exchange":
                fake.exchanges.clear()

    fake.on_taken = delete
    with pytest.raises(PublishFailed, match=r"200 message\(s\), the first is row 0 .*may be lost") as told:
        Tasks(fake).run(rows(100), rows(100, 100))
    assert isinstance(told.value, Unroutable) == (gone == "binding")
    assert (fake.calls, fake.prepared) == ([*BEGIN, "abandon"], {})


@pytest.mark.parametrize("qpidd", [True, False])
def test_a_marker_that_goes_nowhere_rolls_the_branch_back(*, qpidd: bool) -> None:
    fake = FakeBroker(qpidd=qpidd)
    tasks = Tasks(fake)
    task = tasks.task()
    publish = FakeClient.publish_to_queue

    def lose(client: FakeClient, queue: str, body: bytes, *, content_type: str) -> None:
        publish(client, queue, body, content_type=content_type)
        fake.queues.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeClient, "publish_to_queue", lose)
        with pytest.raises(
            PublishFailed, match=r"the queue 'amqp-spark\.markers\..* does not take its marker \(it was deleted\)"
        ):
            task.run([rows(2)])
    assert (fake.calls, fake.prepared) == ([*BEGIN, "marker", "confirm", "abandon"], {})


def test_rows_that_cannot_be_sent_roll_the_branch_back(fake: FakeBroker) -> None:
    with pytest.raises(RowError):
        Tasks(fake).run(rows(2), rows(1, 2, body=[None]))
    assert fake.calls == [*BEGIN, "abandon"]
    assert fake.clients[0].ended == "discarded"


def test_rows_that_spark_does_not_compute_roll_the_branch_back(fake: FakeBroker) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Tasks(fake).run_from(failing())
    assert fake.calls == [*BEGIN, "abandon"]


def test_what_the_broker_rejects_fails_the_task() -> None:
    broker = FakeBroker(Script(rejects={1: 1}))
    with pytest.raises(Unroutable, match="row 1 of partition 3 in batch 12"):
        Tasks(broker).run(rows(3))
    assert broker.calls == [*BEGIN, "abandon"]


def test_what_may_be_discarded_is_counted_and_the_digest_is_that_of_all_rows() -> None:
    broker = FakeBroker(Script(rejects={1: 1}))
    task = Tasks(broker, onUnroutable="discard").task()
    assert task.run([rows(3)]).discarded == 1
    other = FakeBroker()
    assert same_rows(task.prepared, Tasks(other).run(rows(3)))
    assert (len(broker.taken), len(other.taken)) == (4, 3), "it was sent once more, to learn whether a queue is full"


def test_a_refused_row_fails_the_task_and_names_it() -> None:
    broker = FakeBroker(Script(refuses=1))
    with pytest.raises(PublishFailed, match="row 1 of partition 3 in batch 12"):
        Tasks(broker).run(rows(3))
    assert broker.clients[0].ended == "discarded"


def test_a_marker_that_is_rejected_fails_the_task(fake: FakeBroker) -> None:
    fake.fails["confirm"] = [MessageRejected(1, 1, "Unroutable")]
    with pytest.raises(PublishFailed, match=r"the queue 'amqp-spark\.markers\..* does not take its marker"):
        Tasks(fake).run(rows(3))
    assert fake.calls[-1] == "abandon"


@pytest.mark.parametrize(
    ("step", "status", "told", "abandoned"),
    [
        ("end", 2, r"transactionTimeout=3600 s.*\. Raise the option", ["abandon ended"]),
        ("prepare", 2, r"transactionTimeout=3600 s.*\. Raise the option", []),
        ("end", 1, "Read the log of the broker", ["abandon ended"]),
    ],
)
def test_a_branch_that_the_broker_rolls_back(
    fake: FakeBroker, step: str, status: int, told: str, abandoned: list[str]
) -> None:
    fake.fails[step] = [TransactionFailed(f"dtx.{step}", status, DtxXaStatus(status).name)]
    with pytest.raises(PublishFailed, match=told):
        Tasks(fake).run(rows(3))
    assert [call for call in fake.calls if call.startswith("abandon")] == abandoned
    assert (fake.prepared, fake.clients[0].ended) == ({}, "discarded")


def test_the_points_of_a_task_are_passed_in_order(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    monkeypatch.setattr(crashpoints, "reached", passed.append)
    Tasks(fake).run(rows(3), rows(3))
    assert passed == list(crashpoints.EXACTLY_ONCE_SINK_POINTS[: len(passed)])
    assert passed[-1] == crashpoints.PREPARED


# -------------------------------------------------------------------------------------------------------------- markers
def test_a_marker_is_read_as_it_was_written() -> None:
    marker = PreparedBranch("query", 12, 3, "1:a:b", 7, "digest")
    assert PreparedBranch.load(marker.dump()) == marker


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"7", b"{}", b'{"version":2}', b'{"version":1,"lineage":"q"}', b'[{"version":1}]']
)
def test_what_is_no_marker_is_refused(body: bytes) -> None:
    with pytest.raises(StateError, match="marker"):
        PreparedBranch.load(body)


def test_a_marker_with_a_wrong_type_is_refused() -> None:
    with pytest.raises(StateError, match="each of its type"):
        PreparedBranch.load(PreparedBranch("q", 1, 2, "x", 3, "d").dump().replace(b"3", b'"3"'))


def test_a_command_that_is_refused_rolls_the_branch_back_elsewhere() -> None:
    """It has ended the session, with which Broker-J would keep the branch and all its rows until the timer ends."""
    broker = FakeBroker(Script(refuses=1))
    with pytest.raises(PublishFailed):
        Tasks(broker).run(rows(3))
    assert (len(broker.rolled_back), [client.ended for client in broker.clients]) == (1, ["discarded", ""])


@pytest.mark.parametrize("step", ["start", "set_timeout"])
def test_a_branch_that_was_begun_without_a_timer_is_rolled_back(fake: FakeBroker, step: str) -> None:
    fake.fails[step] = [ConnectionLost("cut")]
    tasks = Tasks(fake)
    assert tasks.run(rows(2)).rows == 2
    assert len(fake.rolled_back) == 1
    assert fake.rolled_back[0] not in fake.prepared


def test_all_that_is_asked_about_branches_waits_for_those_of_others(fake: FakeBroker) -> None:
    tasks = Tasks(fake)
    patience: list[float] = []
    start = FakeTransactions.start

    def starting(self: FakeTransactions, xid: Xid) -> None:
        patience.append(self.silence_timeout_s)
        start(self, xid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTransactions, "start", starting)
        tasks.run(rows(2))
        tasks.run(rows(2))
    assert patience == [OTHERS_SECONDS, OTHERS_SECONDS]
