"""``python -m amqp_spark.transactions`` on a real broker: what it shows, what it changes, and what it refuses to."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from amqp_core.api import Xid
from amqp_core.errors import TransactionFailed
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.transactions import Transactions
from amqp_spark.cli import EXIT_BROKER, EXIT_DONE, EXIT_FAILED
from amqp_spark.sink.prepared_transactions import PreparedBranch as Marker
from amqp_spark.spool.spool import Spool
from amqp_spark.state.names import CONSUMER, WRITER, Names
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.records import DONE, OPEN, ConsumerState, DecidedBranch, OwnedBatch, ReadPosition, WriterState
from amqp_spark.state.xids import new_branch, xid_text
from tests.broker.stream_support import depth
from tests.support.capabilities import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from amqp_core.v0_10.client import Client
    from tests.broker.transactions_support import Command
    from tests.support.fixtures import Broker, Connect

pytestmark = pytest.mark.broker


@dataclass
class Things:
    """Objects that a test has created on the broker."""

    client: Client
    queue: str
    connect: Callable[[], Client]
    identity: str = field(default_factory=lambda: f"test {uuid.uuid4()}")
    states: list[Names] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)

    def put(self, state: ConsumerState | WriterState, index: int = 0) -> StateQueue:
        """A state that this client holds with its lock."""
        kind = CONSUMER if isinstance(state, ConsumerState) else WRITER
        identity = state.consumer_id if isinstance(state, ConsumerState) else state.transactional_id
        names = Names(kind, identity, index)
        self.states.append(names)
        queue = StateQueue(self.client, names)
        queue.lock()
        assert queue.take() is None
        queue.create(state.dump())
        return queue

    def prepare(self, xid: Xid, body: bytes = b"row") -> Xid:
        """A prepared branch with one message for ``queue``."""
        self.xids.append(xid)
        client = self.connect()
        with client.transactions.branch(xid, timeout_s=3000):
            client.publish(Message(body), routing_key=self.queue)
            client.confirm()
        client.close()
        return xid

    def branch(self, batch: int, partition: int = 0, *, query_id: str = "lineage", identity: str | None = None) -> Xid:
        """A prepared branch of a writer."""
        return self.prepare(new_branch(self.identity if identity is None else identity, query_id, batch, partition, 0))

    def prepared(self) -> set[str]:
        """The branches created here that are still prepared."""
        return {*map(xid_text, self.client.transactions.recover())} & {*map(xid_text, self.xids)}

    def close(self) -> None:
        """Take everything away."""
        client = self.connect()
        left = self.prepared()
        for xid in self.xids:
            if xid_text(xid) in left:
                client.transactions.rollback_branch(xid)
        for names in self.states:
            for queue in (names.state, names.markers):
                if client.query_queue(queue) is not None:
                    client.delete_queue(queue)


@pytest.fixture
def things(connect: Connect, queue: str) -> Iterator[Things]:
    made = Things(connect(), queue, connect)
    yield made
    made.close()


def decided(identity: str, *xids: Xid, state: str = OPEN) -> WriterState:
    branches = tuple(DecidedBranch(xid_text(xid), number, 1, "digest") for number, xid in enumerate(xids))
    return WriterState(identity, "lineage", 7, state, branches, {"earlier": 3})


def owned(spool: Path, identity: str, queue: str, count: int) -> ConsumerState:
    """A consumer that owns batches of ten messages, with their files."""
    files = Spool(str(spool), consumer_id=identity, queue=queue)
    files.open()
    batches = []
    for number in range(count):
        ends = np.arange(10, 101, 10)
        written = files.write(epoch=2, sequence=number, begin=number * 10, parts=[memoryview(bytes(100))], ends=ends)
        batches.append(
            OwnedBatch(2, number, number * 10, number * 10 + 10, written.nbytes, written.file, written.checksum)
        )
    return ConsumerState(identity, queue, str(spool), 2, count, ReadPosition(1, 5), tuple(batches))


# --- looking


def test_the_owned_batches_of_a_consumer_are_shown_with_their_files(
    command: Command, things: Things, tmp_path: Path
) -> None:
    state = owned(tmp_path, things.identity, "a queue", 3)
    (tmp_path / state.owned[1].file).unlink()
    with (tmp_path / state.owned[2].file).open("r+b") as file:
        file.seek(-60, 2)
        file.write(b"????")
    before = sorted(path.name for path in tmp_path.iterdir())
    things.put(state).unlock()
    (found,) = command.json("--consumer-id", things.identity)["states"]
    assert found["state"]["queue"] == "a queue"
    assert [each["in_spool"] for each in found["files"]] == ["exists", "missing", "damaged"]
    assert [each["rows"] for each in found["files"]] == [10, 10, 10]
    assert command("--consumer-id", things.identity) == EXIT_DONE
    for each in (
        "'a queue'",
        "not in use",
        "epoch 2, next sequence 3",
        "10-20",
        "missing",
        "damaged",
        str(tmp_path),
    ):
        assert each in command.out
    assert all(batch.file in command.out for batch in state.owned)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_spool_that_cannot_be_reached_from_here_is_no_loss(command: Command, things: Things, tmp_path: Path) -> None:
    state = owned(tmp_path / "there", things.identity, "q", 1)
    things.put(state).unlock()
    elsewhere = str(tmp_path / "here")
    (found,) = command.json("--consumer-id", things.identity, "--spool", elsewhere)["states"]
    assert found["files"][0]["in_spool"] == "not reachable"
    assert found["spool"] == elsewhere
    assert not (tmp_path / "here").exists()
    (tmp_path / "there").rename(tmp_path / "here")  # mounted there
    (found,) = command.json("--consumer-id", things.identity, "--spool", elsewhere)["states"]
    assert found["files"][0]["in_spool"] == "exists"


def test_every_queue_of_a_consumer_is_shown_also_behind_one_that_was_deleted(command: Command, things: Things) -> None:
    for index in range(3):
        things.put(ConsumerState(things.identity, f"q{index}", "/spool"), index).unlock()
    things.client.delete_queue(things.states[1].state)
    found = command.json("--consumer-id", things.identity)["states"]
    assert [(each["index"], each["state"]["queue"]) for each in found] == [(0, "q0"), (2, "q2")]


def test_a_state_that_is_held_is_said_to_be_and_stays_as_it_is(command: Command, things: Things) -> None:
    held = things.put(ConsumerState(things.identity, "q", "/spool", sequence=1))
    found = command.json("--consumer-id", things.identity)["states"][0]
    assert (found["held"], found["exists"]) == (True, True)
    assert command("--consumer-id", things.identity) == EXIT_DONE
    assert "held by a live query" in command.out
    assert "not in use" not in command.out
    held.swap(b"still mine")  # with the lock and the message that it had
    held.unlock()


def test_states_that_say_nothing_are_explained(command: Command, things: Things) -> None:
    state = things.put(ConsumerState(things.identity, "q", "/spool"))
    state.swap(b'{"version": 99, "kind": "consumer"}')
    state.unlock()
    assert command("--consumer-id", things.identity) == EXIT_DONE
    assert "has version 99" in command.out
    things.client.purge_queue(state.names.state)
    assert command("--consumer-id", things.identity) == EXIT_DONE
    assert "purged" in command.out
    assert command("--consumer-id", f"{things.identity} unknown") == EXIT_DONE
    assert "no state of it" in command.out


def test_branches_are_told_apart_without_an_id(command: Command, things: Things) -> None:
    ours = [things.branch(7), things.branch(7, 1), things.branch(7), things.branch(8)]
    things.put(decided(things.identity, *ours[:2])).unlock()
    stateless = things.branch(1, identity=f"{things.identity} unknown")
    foreign = things.prepare(Xid(format=77, global_id=b"\x1b[2J" + uuid.uuid4().bytes, branch_id=b"b"))
    found = {each["xid"]: each for each in command.json()["prepared"]}
    standings = ["decided", "decided", "orphan", "not decided", "unknown", "foreign"]
    assert [found[xid_text(xid)]["standing"] for xid in (*ours, stateless, foreign)] == standings
    assert {found[xid_text(xid)]["transactional_id"] for xid in ours} == {things.identity}
    assert found[xid_text(ours[0])]["timeout_s"] == 3000
    assert found[xid_text(foreign)]["timeout_s"] is None
    assert 0 <= found[xid_text(ours[0])]["age_s"] < 600
    assert command() == EXIT_DONE
    assert "\x1b" not in command.out
    lines = [line.strip() for line in command.out.splitlines()]
    assert all(xid_text(xid) in lines for xid in (*ours, stateless, foreign))
    assert "--transactional-id ID" in lines[-1]


def test_a_writer_is_shown_with_its_decision_its_markers_and_its_branches(command: Command, things: Things) -> None:
    xids = [things.branch(7), things.branch(7, 1), new_branch(things.identity, "lineage", 7, 2, 0)]
    things.put(decided(things.identity, *xids)).unlock()
    markers = things.states[0].markers
    things.client.declare_queue(markers, durable=True)
    for body in (Marker("lineage", 7, 0, xid_text(xids[0]), 1, "digest").dump(), b"rubbish"):
        things.client.publish(Message(body), routing_key=markers)
    things.client.confirm()
    things.client.transactions.commit_branch(xids[0])
    foreign = things.prepare(Xid(format=77, global_id=uuid.uuid4().bytes, branch_id=b"b"))
    found = command.json("--transactional-id", things.identity)
    assert [each["standing"] for each in found["decisions"]] == ["committed", "prepared", "gone"]
    assert [each["xid"] for each in found["markers"]] == [xid_text(xids[0]), ""]
    assert [each["xid"] for each in found["prepared"]] == [xid_text(xids[1])]
    assert xid_text(foreign) in {each["xid"] for each in found["others"]}
    assert command("--transactional-id", things.identity) == EXIT_DONE
    for each in (
        "batch 7 of query 'lineage': open",
        "gone",
        "markers left: 2",
        "not of amqp_spark",
        "earlier queries: 1",
    ):
        assert each in command.out
    assert depth(things.client, markers) == 2


# --- resolving


def test_branches_are_resolved_as_asked(command: Command, things: Things) -> None:
    xids = [things.branch(7), things.branch(8), things.branch(8, 1)]
    things.put(decided(things.identity, xids[0])).unlock()
    foreign = things.prepare(Xid(format=77, global_id=uuid.uuid4().bytes, branch_id=b"b"))
    for action, xid, said in (
        ("--commit", xids[0], "as its writer would do"),
        ("--commit", xids[1], "may come twice"),
        ("--rollback", xids[2], "replayed whole"),
        ("--rollback", foreign, "not written by amqp_spark"),
    ):
        assert command(action, xid_text(xid), "--yes") == EXIT_DONE, command.err
        assert xid_text(xid) in command.out
        assert said in command.err
    assert not things.prepared()
    assert depth(things.client, things.queue) == 2
    assert things.client.query_queue(things.states[0].lock) is None


def test_a_decided_branch_is_not_rolled_back(command: Command, things: Things) -> None:
    xids = [things.branch(7), things.branch(8)]
    things.put(decided(things.identity, xids[0])).unlock()
    assert command("--rollback", xid_text(xids[1]), "--rollback", xid_text(xids[0]), "--yes") == EXIT_FAILED
    assert "must not be rolled back" in command.err
    assert "--commit" in command.err
    assert len(things.prepared()) == 2  # all is checked before anything is done


def test_a_branch_that_was_rolled_back_in_part_is_told(
    command: Command, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker of these tests decides by itself."""

    def mixed(_: Transactions, __: Xid) -> None:
        raise TransactionFailed("dtx.rollback", 6, "XA_HEURMIX")

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "rollback_branch", mixed)
        assert command("--rollback", xid_text(things.branch(8)), "--yes") == EXIT_BROKER
    assert "AMQP_TRANSACTION_MIXED" in command.err
    assert "Compare the messages in the queues" in command.err


def test_a_branch_that_is_not_prepared_is_an_error_and_nothing_is_done(command: Command, things: Things) -> None:
    there, gone = things.branch(8), new_branch(things.identity, "lineage", 8, 1, 0)
    assert command("--rollback", xid_text(there), "--rollback", xid_text(gone), "--yes") == EXIT_FAILED
    assert xid_text(gone) in command.err
    assert "is not prepared on this broker" in command.err
    assert things.prepared() == {xid_text(there)}


def test_a_branch_is_not_resolved_while_its_writer_is_at_work(
    command: Command, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amqp_spark.transactions.actions.LOCK_SECONDS", 0.6)
    xid = things.branch(8)
    things.put(decided(things.identity))
    assert command("--rollback", xid_text(xid), "--yes") == EXIT_FAILED
    assert "in use" in command.err
    assert things.prepared() == {xid_text(xid)}


@pytest.mark.parametrize(
    ("answer", "code"), [("y\n", EXIT_DONE), ("n\n", EXIT_FAILED), ("\n", EXIT_FAILED), ("", EXIT_FAILED)]
)
def test_the_answer_decides(
    command: Command, things: Things, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    xid = things.branch(8)
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", stdin)
    assert command("--rollback", xid_text(xid)) == code
    assert "[y/N]" in command.err
    assert len(things.prepared()) == (code != EXIT_DONE)


def test_what_was_decided_between_question_and_answer_is_not_rolled_back(
    command: Command, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    xid = things.branch(8)
    state = things.put(decided(things.identity))
    state.unlock()

    class Answer(io.StringIO):
        def isatty(self) -> bool:
            return True

        def readline(self, _size: int | None = -1) -> str:  # type: ignore[override]
            state.lock()
            state.take()
            state.swap(decided(things.identity, xid).dump())
            state.unlock()
            return "yes\n"

    monkeypatch.setattr("sys.stdin", Answer())
    assert command("--rollback", xid_text(xid)) == EXIT_FAILED
    assert "must not be rolled back" in command.err
    assert things.prepared() == {xid_text(xid)}


def test_a_question_is_asked_on_a_real_terminal(things: Things, broker: Broker) -> None:
    xid = things.branch(8)
    ours, theirs = pty.openpty()
    environment = os.environ | {"AMQP_USERNAME": broker.username, "AMQP_PASSWORD": broker.password}
    arguments = [sys.executable, "-m", "amqp_spark.transactions", broker.url()]
    with subprocess.Popen(
        [*arguments, "--rollback", xid_text(xid)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stderr is not None
        asked = b""
        while b"[y/N]" not in asked:
            chunk = os.read(process.stderr.fileno(), 4096)
            assert chunk, asked
            asked += chunk
        os.write(ours, b"y\n")
        out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == EXIT_DONE, err
    assert xid_text(xid).encode() in out
    assert not things.prepared()


# --- forgetting


def test_a_consumer_is_forgotten_with_all_its_states_but_its_files_stay(
    command: Command, things: Things, tmp_path: Path
) -> None:
    state = owned(tmp_path, things.identity, "q0", 2)
    things.put(state).unlock()
    things.put(ConsumerState(things.identity, "q1", str(tmp_path)), 1).unlock()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert command("--consumer-id", things.identity, "--forget", "--yes") == EXIT_DONE, command.err
    assert "2 owned batch(es) with 20 messages" in command.err
    assert "adoptState" in command.err
    assert str(tmp_path) in command.out
    for names in things.states:
        assert things.client.query_queue(names.state) is None
        assert things.client.query_queue(names.lock) is None
        assert not StateQueue(things.client, names).marked_anywhere(names.begun)
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert command("--consumer-id", things.identity, "--forget", "--yes") == EXIT_FAILED
    assert "has no state of" in command.err


def test_a_consumer_in_use_is_not_forgotten(command: Command, things: Things) -> None:
    things.put(ConsumerState(things.identity, "q0", "/spool")).unlock()
    held = things.put(ConsumerState(things.identity, "q1", "/spool"), 1)
    assert command("--consumer-id", things.identity, "--forget", "--yes") == EXIT_FAILED
    assert "in use" in command.err
    held.swap(b"still mine")
    assert all(things.client.query_queue(names.state) is not None for names in things.states)


def test_a_damaged_or_purged_state_can_be_forgotten(command: Command, things: Things) -> None:
    things.put(ConsumerState(things.identity, "q0", "/spool")).unlock()
    state = things.put(ConsumerState(things.identity, "q1", "/spool"), 1)
    state.swap(b"rubbish")
    state.unlock()
    things.client.purge_queue(things.states[0].state)
    assert command("--consumer-id", things.identity, "--forget", "--yes") == EXIT_DONE, command.err
    assert "cannot be read" in command.err
    assert all(things.client.query_queue(names.state) is None for names in things.states)


def test_a_state_that_changed_since_the_question_is_not_forgotten(
    command: Command, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = things.put(ConsumerState(things.identity, "q", "/spool"))
    state.unlock()

    class Answer(io.StringIO):
        def isatty(self) -> bool:
            return True

        def readline(self, _size: int | None = -1) -> str:  # type: ignore[override]
            state.lock()
            state.take()
            state.swap(ConsumerState(things.identity, "q", "/spool", 1).dump())
            state.unlock()
            return "y\n"

    monkeypatch.setattr("sys.stdin", Answer())
    assert command("--consumer-id", things.identity, "--forget") == EXIT_FAILED
    assert "has changed in the meantime" in command.err
    assert things.client.query_queue(state.names.state) is not None
    assert things.client.query_queue(state.names.lock) is None


def test_a_writer_is_forgotten_unless_that_would_lose_a_decision(command: Command, things: Things) -> None:
    xid, new = things.branch(7), things.branch(8)
    things.put(decided(things.identity, xid)).unlock()
    names = things.states[0]
    things.client.declare_queue(names.markers, durable=True)
    assert command("--transactional-id", things.identity, "--forget", "--yes") == EXIT_FAILED
    assert "--commit them first" in command.err
    assert xid_text(xid) in command.err
    assert command("--transactional-id", things.identity, "--commit", xid_text(xid), "--forget", "--yes") == EXIT_DONE
    assert "published again" in command.err
    assert things.client.query_queue(names.state) is None
    assert things.client.query_queue(names.markers) is None
    assert things.prepared() == {xid_text(new)}
    assert depth(things.client, things.queue) == 1


def test_a_writer_that_is_done_loses_what_it_knows_when_it_is_forgotten(command: Command, things: Things) -> None:
    things.put(decided(things.identity, state=DONE)).unlock()
    assert command("--transactional-id", things.identity, "--forget", "--yes") == EXIT_DONE
    assert "no longer known that batch 7" in command.err


@needs("checks_passwords")
def test_a_login_that_is_refused_is_code_3(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_PASSWORD", "a wrong password")
    assert command() == EXIT_BROKER
    assert "a wrong password" not in command.err
