"""State messages and xids: written, read back, and refused when they are not ours."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.api import Xid
from amqp_core.v0_10._codec import encode_struct32
from amqp_core.v0_10.spec import DtxRecoverResult
from amqp_core.v0_10.spec import Xid as WireXid
from amqp_spark.errors import StateError
from amqp_spark.sink.errors import MOST_TASKS
from amqp_spark.sink.prepared_transactions import PreparedBranch
from amqp_spark.state.names import CONSUMER, WRITER, Names, hashed, query_key
from amqp_spark.state.records import OPEN, ConsumerState, DecidedBranch, OwnedBatch, ReadPosition, WriterState
from amqp_spark.state.xids import FORMAT, MOST_LISTED, Run, new_branch, parse_branch, parse_xid, xid_text

_OWNED = OwnedBatch(epoch=3, sequence=7, begin=10, end=25, nbytes=4000, file="f-3-7.spool", checksum="0badcafe")
_CONSUMER = ConsumerState("c", "q", "file:///spool", 3, 8, ReadPosition(2, 99), (_OWNED, replace(_OWNED, sequence=8)))
_WRITER = WriterState("t", "lineage", 5, OPEN, (DecidedBranch("1:a:b", 0, 12, "ff"),), {"before": 4})


_ASIDE = replace(_CONSUMER, owned=(_OWNED, replace(_OWNED, sequence=8, skipped=(0, 14))))


@pytest.mark.parametrize("state", [_CONSUMER, _ASIDE, ConsumerState("c", "q", "/s")])
def test_a_consumers_state_comes_back(state: ConsumerState) -> None:
    assert ConsumerState.load(state.dump()) == state


@pytest.mark.parametrize("state", [_WRITER, WriterState("t")])
def test_a_writers_state_comes_back(state: WriterState) -> None:
    assert WriterState.load(state.dump()) == state


def test_the_query_id_keeps_its_stored_name() -> None:
    """State messages and markers of earlier versions stay readable."""
    assert json.loads(_WRITER.dump())["lineage"] == "lineage"
    assert json.loads(PreparedBranch("q", 1, 2).dump())["lineage"] == "q"


def test_messages_that_were_set_aside_are_written_only_where_there_are_any() -> None:
    assert b"skipped" not in _CONSUMER.dump()
    first, second = json.loads(_ASIDE.dump())["owned"]
    assert "skipped" not in first
    assert second["skipped"] == [0, 14]
    assert _ASIDE.owned[1].skipped_positions == (10, 24)


@pytest.mark.parametrize("skipped", [[15], [-1], ["1"], [True], 3, {"1": 2}])
def test_messages_set_aside_that_are_none_of_the_batch_are_refused(skipped: object) -> None:
    value = json.loads(_CONSUMER.dump())
    value["owned"][0]["skipped"] = skipped
    with pytest.raises(StateError, match="'skipped'"):
        ConsumerState.load(json.dumps(value).encode())


def test_an_owned_batch_knows_its_count_and_end() -> None:
    assert (_OWNED.count, _OWNED.mark) == (15, ReadPosition(3, 25))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version 2"),
        ({"kind": "writer"}, "not of a consumer"),
        ({"owned": None}, "no readable 'owned'"),
        ({"owned": [{"epoch": 1}]}, "OwnedBatch"),
        ({"epoch": "3"}, "a str as ConsumerState.epoch"),
        ({"epoch": True}, "a bool as ConsumerState.epoch"),
        ({"finished": {"epoch": 1, "position": 2, "more": 3}}, "ReadPosition"),
        ({"finished": [1]}, "ReadPosition"),
        ({"more": 1}, "ConsumerState"),
    ],
)
def test_what_is_not_a_consumers_state_is_refused(change: dict[str, object], told: str) -> None:
    body = json.dumps(json.loads(_CONSUMER.dump()) | change).encode()
    with pytest.raises(StateError, match=told):
        ConsumerState.load(body)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"state": "half"}, "'half'"),
        ({"past": {"x": "y"}}, "'past'"),
        ({"branches": [{"xid": 1, "partition": 0, "rows": 1, "digest": ""}]}, "DecidedBranch.xid"),
        ({"kind": "consumer"}, "not of a writer"),
    ],
)
def test_what_is_not_a_writers_state_is_refused(change: dict[str, object], told: str) -> None:
    body = json.dumps(json.loads(_WRITER.dump()) | change).encode()
    with pytest.raises(StateError, match=told):
        WriterState.load(body)


@given(st.binary(max_size=200))
def test_any_other_body_is_refused(body: bytes) -> None:
    with pytest.raises(StateError, match="not written by amqp_spark"):
        ConsumerState.load(body)


def test_names_differ_by_kind_identity_and_index_and_say_nothing() -> None:
    several = [
        Names(kind, identity, index) for kind in (CONSUMER, WRITER) for identity in ("a", "b") for index in (0, 1)
    ]
    names = [name for each in several for name in (each.state, each.lock, each.markers, each.begun)]
    names.append(query_key("a"))
    assert len(set(names)) == len(names)
    assert all(name.startswith("amqp-spark.") and len(name) < 64 for name in names)


def test_a_thousand_branches_of_ours_are_named_in_one_frame() -> None:
    """qpidd has no more for its answer to dtx.recover."""
    xids = [
        new_branch(f"writer {number % 3}", "a query", 100_000 + number, number % 500, number % 4, run=Run.new())
        for number in range(MOST_LISTED)
    ]
    answer = encode_struct32(DtxRecoverResult(in_doubt=[WireXid(x.format, x.global_id, x.branch_id) for x in xids]))
    assert MOST_LISTED >= 1000
    assert MOST_LISTED >= 2 * MOST_TASKS
    assert len(answer) + 100 < 65_535


def test_a_branch_of_the_first_version_is_found_to_be_ours() -> None:
    """It may be prepared still when the new version starts."""
    gid = f"as1k{hashed(WRITER, 't')}{hashed('lineage')}".encode()
    branch = parse_branch(Xid(format=FORMAT, global_id=gid, branch_id=b"12.3.1.65f00000.0123abcd"))
    assert branch is not None
    assert (branch.batch, branch.partition, branch.attempt, branch.begun) == (12, 3, 1, 0x65F00000)
    assert branch.is_of("t", "lineage")
    assert not branch.is_of("t", "another")
    assert not branch.is_of("u", "lineage")
    assert not Run.new().is_followed_by(branch.run)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1))
def test_a_branch_is_read_as_it_was_made(batch: int, partition: int, attempt: int, begun: int) -> None:
    run = Run(begun, "0a0b0c")
    xid = new_branch("t", "lineage", batch, partition, attempt, run=run)
    assert len(xid.branch_id or b"") <= 64
    branch = parse_branch(parse_xid(xid_text(xid)))
    assert branch is not None
    assert (branch.batch, branch.partition, branch.attempt, branch.run) == (batch, partition, attempt, run)


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_a_branch_of_another_program_is_no_error(gid: bytes, branch: bytes) -> None:
    parse_branch(Xid(format=FORMAT, global_id=gid, branch_id=branch))
    for prefix in (b"as1k", b"as2k"):
        parse_branch(Xid(format=FORMAT, global_id=prefix + gid, branch_id=branch))


def test_runs_follow_one_another() -> None:
    early, late = Run(1, "000001"), Run(2, "000002")
    assert early.is_followed_by(late)
    assert not late.is_followed_by(early)
    assert not early.is_followed_by(Run(1, "000003")), "of the same second: none is known to be the later one"
    assert not early.is_followed_by(Run(2, "000001"))


def test_a_branch_is_found_to_be_ours() -> None:
    xid = new_branch("t", "lineage", 2**63 - 1, 9999, 3)
    assert len(xid.global_id or b"") <= 64
    assert len(xid.branch_id or b"") <= 64
    branch = parse_branch(xid)
    assert branch is not None
    assert (branch.batch, branch.partition, branch.attempt) == (2**63 - 1, 9999, 3)
    assert branch.is_of("t")
    assert branch.is_of("t", "lineage")
    assert not branch.is_of("t", "another")
    assert not branch.is_of("u", "lineage")
    assert new_branch("t", "lineage", 1, 1, 1) != new_branch("t", "lineage", 1, 1, 1)


@pytest.mark.parametrize(
    "xid",
    [
        Xid(),
        Xid(format=1, global_id=b"", branch_id=b""),
        Xid(format=1, global_id=b"as1k", branch_id=b"1.2.3.4.5"),
        Xid(format=1, global_id=b"as1k" + b"\xff" * 48, branch_id=b"1.2.3.zz.00000000"),
        Xid(format=1, global_id=b"other" + b"0" * 47, branch_id=b"1.2.3.4.00000000"),
    ],
)
def test_foreign_branches_are_not_ours(xid: Xid) -> None:
    assert parse_branch(xid) is None


_IDS = st.one_of(st.binary(max_size=64), st.text("abc019._-x", max_size=20).map(str.encode))


@given(st.integers(0, 2**32 - 1), _IDS, _IDS)
def test_the_text_of_an_xid_is_read_back(number: int, gid: bytes, branch: bytes) -> None:
    xid = Xid(format=number, global_id=gid, branch_id=branch)
    text = xid_text(xid)
    assert text.isprintable()
    assert parse_xid(text) == xid


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "1:a", "1:a:b:c", "x:a:b", "1:0xzz:b", "1:a b:c", "1:ä:b", "-1:a:b", "4294967296:a:b"),
        *(f"1:{'a' * 256}:b", f"1:a:0x{'00' * 256}"),
    ],
)
def test_what_is_no_text_of_an_xid_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="AMQP_XID_INVALID"):
        parse_xid(text)
