"""``python -m amqp_spark.transactions`` without a broker: its command line, and what it makes of what it is shown."""

from __future__ import annotations

import io
import json
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.api import Capabilities, Xid
from amqp_core.printable import printable
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import QueueQueryResult
from amqp_spark.cli import EXIT_BROKER, EXIT_OPTIONS
from amqp_spark.datasource.exactly_once.recovery import Consumer
from amqp_spark.sink.prepared_transactions import PreparedBranch as Marker
from amqp_spark.state.names import CONSUMER, WRITER, Names, hashed, lock_queue, state_queue
from amqp_spark.state.records import DONE, OPEN, ConsumerState, DecidedBranch, OwnedBatch, WriterState
from amqp_spark.state.xids import new_branch, parse_branch, parse_xid, xid_text
from amqp_spark.transactions import actions, branch_status, report
from amqp_spark.transactions.__main__ import main
from amqp_spark.transactions.actions import COMMIT, ROLLBACK, Resolution
from amqp_spark.transactions.branch_status import (
    DECIDED,
    FOREIGN,
    MEANINGS,
    ORPHAN,
    UNDECIDED,
    UNKNOWN,
    BranchList,
    BranchStatus,
    standing_of,
)
from amqp_spark.transactions.browse import Found, find
from amqp_spark.transactions.consumer_status import MISSING, ConsumerQueue, OwnedFile
from amqp_spark.transactions.writer_status import COMMITTED, GONE, PREPARED, WriterStatus, decisions_of
from tests.spark.job_support import SECRET

if TYPE_CHECKING:
    from pathlib import Path

    from amqp_core.v0_10.client import Client

URL = "amqp://127.0.0.1:1/default"


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("URL", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"AMQP_{what}", raising=False)


# --- the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Option 'url' is required"),
        (["http://x"], "The URL is not valid"),
        ([URL, "--option", "heartbeat=never"], "'heartbeat' has the value 'never'"),
        ([URL, "--option", "queue=a"], "Option 'queue' is not known"),
        ([URL, "--option", f"password={SECRET}"], "--password-file"),
        ([URL, "--password-file", "/no/such/file", "--username", "u"], "/no/such/file"),
        ([URL, "--consumer-id", ""], "--consumer-id"),
        ([URL, "--consumer-id", "a\x1bb"], "control characters"),
        ([URL, "--transactional-id", "x" * 201], "200 bytes"),
        ([URL, "--consumer-id", "a", "--spool", "relative"], "--spool"),
        ([URL, "--consumer-id", "a", "--spool", f"s3://key:{SECRET}@bucket/x"], "credentials"),
        ([URL, "--spool", "/spool"], "--spool is for consumers only. Add --consumer-id"),
        ([URL, "--forget", "--yes"], "--forget has no owner. Add --consumer-id ID or --transactional-id ID"),
        ([URL, "--commit", "nonsense", "--yes"], "format:global-id:branch-id"),
        ([URL, "--commit", "99999999999:a:b", "--yes"], "format:global-id:branch-id"),
        ([URL, "--commit", "1:a:b", "--rollback", "1:a:b", "--yes"], "twice"),
        ([URL, "--yes"], "--yes has no effect"),
        ([URL, "--commit", "1:a:b", "--yes", "--json"], "--json"),
        ([URL, "--consumer-id", "a", "--export", "x"], "Write EPOCH:POSITION"),
        ([URL, "--consumer-id", "a", "--export", "1:2:3"], "Write EPOCH:POSITION"),
        ([URL, "--export", "1"], "--export has no consumer. Add --consumer-id"),
        (
            [URL, "--transactional-id", "a", "--skip", "1", "--to", "/f", "--yes"],
            "--skip has no consumer. Add --consumer-id",
        ),
        ([URL, "--consumer-id", "a", "--skip", "1", "--yes"], "--skip needs a file for the message. Add --to FILE"),
        ([URL, "--consumer-id", "a", "--skip", "1", "--to", "/f"], "there is no terminal"),
        ([URL, "--consumer-id", "a", "--to", "/f"], "--to has no effect. Add --export or --skip"),
        ([URL, "--consumer-id", "a", "--queue", "q"], "--queue has no effect. Add --export or --skip"),
        ([URL, "--consumer-id", "a", "--skip", "1", "--to", "/f", "--forget", "--yes"], "--skip excludes"),
        ([URL, "--consumer-id", "a", "--export", "1", "--json"], "--export excludes"),
    ],
)
def test_a_wrong_command_line_is_told_before_anything_is_done(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == EXIT_OPTIONS
    told = capsys.readouterr()
    assert said in told.err
    assert SECRET not in told.err
    assert not told.out


@pytest.mark.parametrize("action", [["--commit", "1:a:b"], ["--rollback", "1:a:b"], ["--forget", "--consumer-id", "a"]])
def test_without_a_terminal_and_without_yes_nothing_is_done(
    action: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main([URL, *action]) == EXIT_OPTIONS
    assert "there is no terminal for a question. Add --yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stopped_at", "said"),
    [
        ("ask", "stopped by SIGINT; only the actions reported above were done"),
        ("actions.resolve", "stopped by SIGINT; whether 1:a:b was committed is unknown: the command without an action"),
    ],
)
def test_an_interruption_before_the_brokers_answer_does_not_say_that_nothing_was_done(
    stopped_at: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    prepared = MagicMock(text="1:a:b")
    module = "amqp_spark.transactions.__main__"
    monkeypatch.setattr(f"{module}.connect_to", MagicMock())
    monkeypatch.setattr(f"{module}.actions.choose", lambda *_: [MagicMock(action="commit", prepared=prepared)])
    monkeypatch.setattr(f"{module}.{stopped_at}", interrupted)
    assert main([URL, "--commit", "1:a:b", "--yes"]) == 130
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "action",
    [["--forget", "--yes"], ["--skip", "1:2", "--to", "/f", "--yes"], ["--export", "1:2"]],
    ids=lambda it: it[0],
)
def test_with_a_quorum_queue_an_action_is_not_answered_by_the_advice_to_add_what_is_given(
    action: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MagicMock(peer="rabbit:5672", protocol="0-9-1")
    client.capabilities = Capabilities(counts_deliveries=True, distributed_transactions=False)
    monkeypatch.setattr("amqp_spark.transactions.__main__.connect_to", lambda *_, **__: client)
    assert main([URL, "--consumer-id", "a", "--spool", "/spool", *action]) == EXIT_OPTIONS
    told = capsys.readouterr().err
    assert "add --spool" not in told
    assert "another consumerId and spoolLocation; to get past a message, set mode=PERMISSIVE" in told


def test_both_ids_at_once_are_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([URL, "--consumer-id", "a", "--transactional-id", "b"])
    assert ended.value.code == EXIT_OPTIONS
    assert "not allowed with" in capsys.readouterr().err


def test_help_names_arguments_options_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.partition("options of the connection")[0].splitlines())) <= 120
    for each in (
        "--consumer-id",
        "--transactional-id",
        "--forget",
        "--rollback XID",
        "heartbeat",
        "exit codes",
        "3 the",
    ):
        assert each in text


def test_a_broker_that_is_not_there_is_code_3_and_no_password_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMQP_PASSWORD", SECRET)
    assert main([URL, "--username", "u", "--option", "connectTimeout=2"]) == EXIT_BROKER
    told = capsys.readouterr()
    assert "127.0.0.1:1" in told.err
    assert SECRET not in told.err + told.out


# --- what is shown

A_WRITER = WriterState("w", "lineage", 7, OPEN, (), {"past": 3})


def test_the_digest_in_an_xid_names_the_queues_of_its_writer() -> None:
    names = Names(WRITER, "w")
    branch = parse_branch(new_branch("w", "lineage", 1, 0, 0))
    assert branch is not None
    assert (state_queue(branch.writer), lock_queue(branch.writer)) == (names.state, names.lock)


def standing(xid: Xid, state: WriterState) -> str:
    branch = parse_branch(xid)
    assert branch is not None
    return standing_of(xid, branch, state, branch_status.decided(state))


def test_a_decision_is_read_once_and_not_for_each_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash in the middle of a commit thousands may be prepared, and as many in the decision."""
    xids = [new_branch("w", "lineage", 7, partition, 0) for partition in range(100)]
    state = replace(A_WRITER, branches=tuple(DecidedBranch(xid_text(xid), 0, 1, "d") for xid in xids))
    reads: list[str] = []

    def counted(text: str) -> Xid:
        reads.append(text)
        return parse_xid(text)

    monkeypatch.setattr(branch_status, "parse_xid", counted)
    monkeypatch.setattr(branch_status, "listed", lambda _: [*xids, Xid(1, b"other", b"")])
    monkeypatch.setattr(branch_status, "find_writer", lambda *_: Found("q", exists=True, held=False, state=state))
    client: Any = None
    standings = [each.standing for each in branch_status.look_at_branches(client).prepared]
    assert standings == [DECIDED] * 100 + [FOREIGN]
    assert len(reads) == 100


def test_the_standing_of_a_branch_follows_from_the_state_of_its_writer() -> None:
    named = new_branch("w", "lineage", 7, 0, 0)
    state = replace(A_WRITER, branches=(DecidedBranch(xid_text(named), 0, 1, "d"),))
    assert standing(named, state) == DECIDED
    assert standing(Xid(0, named.global_id, named.branch_id), state) == DECIDED  # a broker that drops the format
    assert standing(named, replace(state, state=DONE)) == ORPHAN
    assert standing(new_branch("w", "lineage", 7, 0, 1), state) == ORPHAN
    assert standing(new_branch("w", "lineage", 6, 0, 0), state) == ORPHAN
    assert standing(new_branch("w", "lineage", 8, 0, 0), state) == UNDECIDED
    assert standing(new_branch("w", "past", 9, 0, 0), state) == ORPHAN
    assert standing(new_branch("w", "new", 0, 0, 0), state) == UNDECIDED


def test_a_decided_branch_is_committed_prepared_or_gone() -> None:
    xids = [new_branch("w", "lineage", 7, partition, 0) for partition in range(3)]
    state = replace(A_WRITER, branches=tuple(DecidedBranch(xid_text(x), n, 1, "d") for n, x in enumerate(xids)))
    branches = BranchList((BranchStatus(xids[1], parse_branch(xids[1]), DECIDED),), {})
    marker = Marker("lineage", 7, 0, xid_text(xids[0]), 1)
    assert [each.standing for each in decisions_of(state, (marker,), branches)] == [COMMITTED, PREPARED, GONE]
    done = decisions_of(replace(state, state=DONE), (), BranchList((), {}))
    assert {each.standing for each in done} == {COMMITTED}


def test_the_lines_of_branches_fit_a_terminal_and_have_each_xid_whole_on_its_own_line() -> None:
    now = time.time()
    ours = new_branch("w", "lineage", 123_456, 99, 3)
    theirs = Xid(format=0xFFFFFFFF, global_id=b"\x1b]0;title\x07" * 5, branch_id=b"b" * 64)
    prepared = [
        BranchStatus(ours, parse_branch(ours), UNDECIDED, "a writer \x1b[2J", 3600),
        BranchStatus(theirs, None, FOREIGN),
    ]
    lines = report.branch_lines(prepared, now)
    assert max(len(line) for line in lines if xid_text(ours) not in line and xid_text(theirs) not in line) <= 120
    assert {line.strip() for line in lines} >= {xid_text(ours), xid_text(theirs)}
    assert all(line.isprintable() for line in lines)
    assert "3600 s" in "\n".join(lines)
    for standing_ in (UNDECIDED, FOREIGN):
        assert any(MEANINGS[standing_] in line for line in lines)
    assert all(MEANINGS[ORPHAN] not in line for line in lines)


@given(st.text())
def test_no_text_moves_the_cursor(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_ages(seconds: int, text: str) -> None:
    assert report.age_text(seconds) == text


def test_a_branch_from_the_future_or_from_no_time_at_all_is_shown() -> None:
    gid = f"as1k{hashed(WRITER, 'w')}{hashed('lineage')}".encode()
    xid = Xid(format=1, global_id=gid, branch_id=b"1.0.0.fffffffffffffffffff.00000000")
    lines = report.branch_lines([BranchStatus(xid, parse_branch(xid), UNKNOWN)], time.time())
    assert any("?" in line and "0 s" in line for line in lines)


@pytest.mark.parametrize(
    ("action", "standing_", "said"),
    [
        (COMMIT, DECIDED, "as its writer would do"),
        (COMMIT, UNDECIDED, "may come twice"),
        (COMMIT, ORPHAN, "come twice: another attempt"),
        (COMMIT, UNKNOWN, "may come twice"),
        (ROLLBACK, ORPHAN, "need not be"),
        (ROLLBACK, UNDECIDED, "replayed whole"),
        (ROLLBACK, UNKNOWN, "lost if its writer had decided"),
        (COMMIT, FOREIGN, "transaction manager"),
        (ROLLBACK, FOREIGN, "transaction manager"),
    ],
)
def test_a_question_says_what_will_happen(action: str, standing_: str, said: str) -> None:
    xid = Xid(1, b"foreign", b"b") if standing_ == FOREIGN else new_branch("w", "lineage", 7, 1, 0)
    question = Resolution(action, BranchStatus(xid, parse_branch(xid), standing_, "w")).question()
    assert question.startswith(f"{action} {xid_text(xid)}")
    assert said in question


# --- a state that a session holds, as a broker shows it


class Browsed:
    """A subscription of a broker that shows messages that no session holds, and counts what its kind counts."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies

    def grant(self, _messages: int) -> None: ...

    def take_one(self, *, timeout: float) -> Message | None:
        assert timeout >= 0
        return Message(self._bodies.pop(0)) if self._bodies else None

    def flush(self) -> None: ...

    def cancel(self) -> None: ...


class Shown:
    """As much of a client as looking needs."""

    def __init__(self, *, counted: int | None, seen: list[bytes], locked: bool, begun: bool = True) -> None:
        self._counted = counted
        self._seen = seen
        self._locked = locked
        self._begun = begun

    def query_queue(self, queue: str) -> QueueQueryResult | None:
        if queue == "lock":
            return QueueQueryResult(queue=queue) if self._locked else None
        return None if self._counted is None else QueueQueryResult(queue=queue, message_count=self._counted)

    def subscribe(self, _queue: str, *, accept: bool, acquire: bool) -> Browsed:
        assert not accept
        assert not acquire
        return Browsed(list(self._seen))

    def is_bound(self, _exchange: str, binding_key: str) -> bool:
        assert binding_key == "begun"
        return self._begun


@pytest.mark.parametrize(
    ("client", "exists", "held", "problem"),
    [
        (Shown(counted=None, seen=[], locked=False), False, False, ""),
        (Shown(counted=0, seen=[], locked=True), True, True, "held by a live query"),  # qpidd counts what is ready
        (Shown(counted=1, seen=[], locked=True), True, True, "held by a live query"),  # Broker-J counts all
        (Shown(counted=1, seen=[], locked=False), True, False, "holds the message without the lock"),
        (Shown(counted=0, seen=[], locked=False), True, False, "purged"),
        (Shown(counted=0, seen=[], locked=False, begun=False), True, False, "is new and has no state"),
        (Shown(counted=1, seen=[b"{}"], locked=False), True, False, "not written by amqp_spark"),
        (Shown(counted=1, seen=[A_WRITER.dump()], locked=False), True, False, ""),
        (Shown(counted=1, seen=[A_WRITER.dump()], locked=True), True, True, ""),  # between lock and take
    ],
)
def test_what_is_said_of_a_state_queue(client: Shown, exists: bool, held: bool, problem: str) -> None:
    found = find(cast("Client", client), "state", "lock", WriterState, begun="begun")
    assert (found.exists, found.held) == (exists, held)
    assert problem in found.problem
    assert (found.state == A_WRITER) == (exists and not problem)


def test_the_report_for_programs_keeps_the_stored_names() -> None:
    marker = Marker("q", 7, 0)
    status = WriterStatus(Names(WRITER, "w"), Found("amqp-spark.state.w", True, False, A_WRITER), (), (marker,), (), ())
    shown = report.writer_json(status, now=0.0)
    assert shown["state"]["lineage"] == "lineage"
    assert shown["markers"][0]["lineage"] == "q"


def test_texts_that_standard_output_cannot_show_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr("amqp_spark.transactions.__main__.connect_to", MagicMock())
    monkeypatch.setattr("amqp_spark.transactions.__main__.look", lambda *_: (["queue 'b\u00fccher'"], {}))
    assert main([URL]) == 0
    shown.flush()
    assert shown.buffer.getvalue() == rb"queue 'b\xfccher'" + b"\n"


def test_a_location_is_reported_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = OwnedBatch(epoch=1, sequence=0, begin=0, end=1, nbytes=1, file="f", checksum="c")
    state = ConsumerState("c", "q", f"s3://key:{SECRET}@bucket/state?sig={SECRET}", owned=(batch,))
    names = Names(CONSUMER, "c")
    found = Found(names.state, True, False, state)
    location = f"s3://key:{SECRET}@bucket/now?sig={SECRET}"
    queue = ConsumerQueue(names, found, location, (OwnedFile(batch, MISSING),))
    monkeypatch.setattr(actions, "look_at_consumer", lambda *_, **__: [queue])
    forgetting = actions.forget_consumer(cast("Client", None), "c")
    consumer = Consumer(consumer_id="c", queue="q", index=0, count=1, spool=location, adopt=False, heartbeat=30)
    texts = [
        "\n".join(report.consumer_lines("c", [queue])),
        "\n".join(report.consumer_lines("c", [], spool=location)),
        json.dumps(report.consumer_json("c", [queue])),
        forgetting.question(),
        repr(consumer),
    ]
    assert [SECRET in each for each in texts] == [False] * 5
    assert all("s3://bucket/now" in each for each in texts[:4])
    assert "the state says s3://bucket/state" in texts[0]
    assert "s3://bucket/state" in texts[2]
