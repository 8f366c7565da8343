"""Branches that a broker cannot list: a scripted qpidd that ends each connection on which dtx.recover is asked for."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from amqp_core.api import Xid
from amqp_core.errors import ConnectionLost
from amqp_core.v0_10 import spec
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.cli import EXIT_BROKER, EXIT_DONE, EXIT_FAILED
from amqp_spark.options import SinkOptions
from amqp_spark.sink.commit_coordinator import CommitCoordinator
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.errors import MOST_TASKS
from amqp_spark.sink.prepared_transactions import PreparedBranch as Marker
from amqp_spark.state.names import CONSUMER, WRITER, Names
from amqp_spark.state.records import OPEN, ConsumerState, DecidedBranch, WriterState
from amqp_spark.state.xids import ListLost, Run, TooManyPrepared, new_branch, prepared_branches, xid_text
from amqp_spark.transactions.__main__ import main
from tests.spark.test_sink_exactly_once import SCHEMA, rows
from tests.support.fake_broker import FakeBroker
from tests.support.fakepeer import QPIDD, FakePeer, Peer
from tests.support.tasks import ExactlyOnceTask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Dropped(Exception):
    """The peer ends the connection."""


@dataclass
class FullQpidd:
    """State that its connections share: branches, by the text of their xid, and the queries received."""

    prepared: set[str] = field(default_factory=set)
    expired: set[str] = field(default_factory=set)
    status: int = spec.DtxXaStatus.XA_OK
    """Its answer about a branch that is prepared."""
    asked: list[str] = field(default_factory=list)
    queues: dict[str, list[bytes]] = field(default_factory=dict)
    """Messages of the queues, to be browsed."""

    def script(self, peer: Peer) -> None:
        """Serve one connection."""
        peer.answers[spec.QueueQuery] = self._query
        subscribed: dict[str, list[bytes]] = {}
        peer.hooks[spec.MessageSubscribe] = lambda command: subscribed.update(
            {command.destination: list(self.queues[command.queue])}
        )
        peer.hooks[spec.MessageFlow] = lambda command: self._send(peer, command, subscribed)
        peer.answers[spec.ExchangeBound] = lambda _: spec.ExchangeBoundResult(key_not_matched=True)
        peer.answers[spec.DtxGetTimeout] = lambda _: spec.DtxGetTimeoutResult(timeout=3600)
        for resolving in (spec.DtxRollback, spec.DtxCommit):
            peer.answers[resolving] = self._resolve
        peer.hooks[spec.DtxRecover] = self._drop
        for asking in (spec.DtxGetTimeout, spec.DtxRollback, spec.DtxCommit):
            peer.hooks[asking] = lambda command: self._known(peer, command)
        try:
            peer.open()
            peer.serve()
        except Dropped:
            pass

    def _query(self, asked: spec.QueueQuery) -> spec.QueueQueryResult:
        if asked.queue not in self.queues:
            return spec.QueueQueryResult()
        return spec.QueueQueryResult(queue=asked.queue, message_count=len(self.queues[asked.queue]))

    def _send(self, peer: Peer, command: spec.MessageFlow, subscribed: dict[str, list[bytes]]) -> None:
        assert command.destination is not None
        if command.unit == spec.MessageCreditUnit.MESSAGE:
            bodies, subscribed[command.destination] = subscribed[command.destination], []
            peer.transfer(*bodies, destination=command.destination)

    def _drop(self, _: object) -> None:
        self.asked.append("recover")
        raise Dropped

    def _known(self, peer: Peer, command: spec.DtxGetTimeout | spec.DtxRollback | spec.DtxCommit) -> None:
        assert command.xid is not None
        text = xid_text(Xid(command.xid.format, command.xid.global_id, command.xid.branch_id))
        self.asked.append(f"{command.NAME} {text}")
        if text not in self.prepared | self.expired:
            peer.exception(404, None, "no such branch")
            peer.flush()
            peer.serve()
            raise Dropped

    def _resolve(self, command: spec.DtxRollback | spec.DtxCommit) -> spec.XaResult:
        assert command.xid is not None
        text = xid_text(Xid(command.xid.format, command.xid.global_id, command.xid.branch_id))
        if text in self.expired:
            return spec.XaResult(status=spec.DtxXaStatus.XA_RBTIMEOUT)
        self.prepared.discard(text)
        return spec.XaResult(status=self.status)


@pytest.fixture
def full() -> FullQpidd:
    return FullQpidd()


@contextmanager
def serving(full: FullQpidd) -> Iterator[FakePeer]:
    with FakePeer(full.script, server_properties=QPIDD) as server:
        yield server


def tool(server: FakePeer, *arguments: str) -> int:
    return main([f"amqp://127.0.0.1:{server.port}/", *arguments])


@pytest.mark.parametrize("action", ["--rollback", "--commit"])
def test_a_branch_is_resolved_without_a_list(full: FullQpidd, action: str) -> None:
    xids = [xid_text(new_branch("w", "lineage", 7, partition, 0)) for partition in range(2)]
    xids.append("77:foreign:branch")
    full.prepared.update(xids)
    with serving(full) as server:
        assert tool(server, *(part for xid in xids for part in (action, xid)), "--yes") == EXIT_DONE
    assert full.prepared == set()
    assert "recover" not in full.asked


def test_a_branch_that_is_not_there_is_told_before_anything_is_done(
    full: FullQpidd, capsys: pytest.CaptureFixture[str]
) -> None:
    there, gone = (xid_text(new_branch("w", "lineage", 7, partition, 0)) for partition in range(2))
    full.prepared.add(there)
    with serving(full) as server:
        assert tool(server, "--rollback", there, "--rollback", gone, "--yes") == EXIT_FAILED
    assert f"{gone} is not prepared on this broker" in capsys.readouterr().err
    assert full.prepared == {there}


@pytest.mark.parametrize("action", ["--rollback", "--commit"])
def test_a_branch_that_has_ended_is_told(full: FullQpidd, action: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its timeout can still be asked for."""
    xid = xid_text(new_branch("w", "lineage", 7, 0, 0))
    full.expired.add(xid)
    with serving(full) as server:
        assert tool(server, action, xid, "--yes") == EXIT_FAILED
    assert f"{xid} is not prepared on this broker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "status", "code", "said"),
    [
        ("--commit", spec.DtxXaStatus.XA_HEURCOM, EXIT_DONE, "committed"),
        ("--rollback", spec.DtxXaStatus.XA_HEURCOM, EXIT_BROKER, "AMQP_TRANSACTION_COMMITTED"),
        ("--commit", spec.DtxXaStatus.XA_HEURRB, EXIT_FAILED, "AMQP_BRANCH_NOT_PREPARED"),
        ("--rollback", spec.DtxXaStatus.XA_HEURRB, EXIT_FAILED, "AMQP_BRANCH_NOT_PREPARED"),
        ("--commit", spec.DtxXaStatus.XA_HEURMIX, EXIT_BROKER, "AMQP_TRANSACTION_MIXED"),
        ("--commit", 99, EXIT_BROKER, "AMQP_TRANSACTION_MIXED"),
        ("--rollback", 99, EXIT_BROKER, "AMQP_TRANSACTION_MIXED"),
    ],
)
def test_a_branch_that_the_broker_has_resolved_by_itself(
    full: FullQpidd, action: str, status: int, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    xid = xid_text(new_branch("w", "lineage", 7, 0, 0))
    full.prepared.add(xid)
    full.status = status
    with serving(full) as server:
        assert tool(server, action, xid, "--yes") == code
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert (xid in told.out) == (code == EXIT_DONE)


@pytest.mark.parametrize("what", [(), ("--transactional-id", "w")])
def test_a_list_that_costs_the_connection_is_explained(
    full: FullQpidd, what: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(full) as server:
        assert tool(server, *what) == EXIT_FAILED
    told = capsys.readouterr().err
    assert "AMQP_PREPARED_LIST_TOO_LONG" in told
    assert "--rollback XID" in told


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_a_writer_has_decided_is_shown_without_a_list(
    full: FullQpidd, form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """So that its branches can be committed by their names."""
    committed, waiting = (xid_text(new_branch("w", "lineage", 7, partition, 0)) for partition in range(2))
    branches = tuple(DecidedBranch(xid, number, 1, "d") for number, xid in enumerate((committed, waiting)))
    names = Names(WRITER, "w")
    full.queues[names.state] = [WriterState("w", "lineage", 7, OPEN, branches).dump()]
    full.queues[names.markers] = [Marker("lineage", 7, 0, committed, 1, "d").dump()]
    with serving(full) as server:
        assert tool(server, "--transactional-id", "w", *form) == EXIT_FAILED
    told = capsys.readouterr()
    assert waiting in told.out
    assert "not listed" in told.out
    assert "AMQP_PREPARED_LIST_TOO_LONG" in told.err


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_consumer_is_shown_without_a_list(
    full: FullQpidd, form: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It has no branches."""
    full.queues[Names(CONSUMER, "c").state] = [ConsumerState("c", "the queue", str(tmp_path)).dump()]
    with serving(full) as server:
        assert tool(server, "--consumer-id", "c", *form) == EXIT_FAILED
    told = capsys.readouterr()
    assert "the queue" in told.out
    assert "AMQP_PREPARED_LIST_TOO_LONG" in told.err


def test_a_lost_list_of_another_broker_is_a_lost_connection(full: FullQpidd) -> None:
    with FakePeer(full.script) as server, pytest.raises(ConnectionLost) as failed:
        prepared_branches(server.connect())
    assert not isinstance(failed.value, ListLost)


def test_a_run_is_refused_before_it_has_prepared_anything(full: FullQpidd) -> None:
    with serving(full) as server:
        given = {"url": f"amqp://127.0.0.1:{server.port}/", "heartbeat": 1, "retry.maxDelay": 0.1}
        options = SinkOptions.parse(given | {"deliveryGuarantee": "exactly-once", "transactionalId": "w"})
        pool = Connections()
        decision = CommitCoordinator(options, connections=pool, sleep=lambda _: None)
        with pytest.raises(TooManyPrepared, match=r"dtx\.recover"):
            decision.sweep_before("lineage", 7, Run.new())
        pool.close()
    assert full.asked == ["recover"] * 2


# ------------------------------------------------------------------------------------------------------ too many tasks
@pytest.mark.parametrize(("qpidd", "partition", "taken"), [(True, 499, True), (True, 500, False), (False, 5000, True)])
def test_a_task_beyond_what_a_broker_can_list_begins_no_branch(qpidd: bool, partition: int, taken: bool) -> None:
    broker = FakeBroker(qpidd=qpidd)
    options = SinkOptions.parse(
        {"url": "amqp://b", "exchange": "amq.direct", "transactionalId": "w", "deliveryGuarantee": "exactly-once"}
    )
    place = TaskId("lineage", 7, partition)
    task = ExactlyOnceTask(MessagePlan.build(SCHEMA, options), options, place, connections=Connections(broker.connect))
    if taken:
        task.run([rows(1)])
        assert task.prepared.xid
        return
    with pytest.raises(Exception, match=rf"Batch 7 has more than {MOST_TASKS} tasks.*coalesce\({MOST_TASKS}\)"):
        task.run([rows(1)])
    assert "start" not in broker.calls
