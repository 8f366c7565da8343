"""State messages and xids: written, read back, and refused when they are not ours."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.v0_10.spec import Xid
from amqp_spark.errors import StateError
from amqp_spark.state.names import CONSUMER, WRITER, Names, lineage_key
from amqp_spark.state.records import OPEN, ConsumerState, DecidedBranch, Mark, OwnedBatch, WriterState
from amqp_spark.state.xids import new_branch, parse_branch, parse_xid, xid_text

_OWNED = OwnedBatch(epoch=3, sequence=7, begin=10, end=25, nbytes=4000, file="f-3-7.spool", checksum="0badcafe")
_CONSUMER = ConsumerState("c", "q", "file:///spool", 3, 8, Mark(2, 99), (_OWNED, replace(_OWNED, sequence=8)))
_WRITER = WriterState("t", "lineage", 5, OPEN, (DecidedBranch("1:a:b", 0, 12, "ff"),), {"before": 4})


@pytest.mark.parametrize("state", [_CONSUMER, ConsumerState("c", "q", "/s")])
def test_a_consumers_state_comes_back(state: ConsumerState) -> None:
    assert ConsumerState.load(state.dump()) == state


@pytest.mark.parametrize("state", [_WRITER, WriterState("t")])
def test_a_writers_state_comes_back(state: WriterState) -> None:
    assert WriterState.load(state.dump()) == state


def test_an_owned_batch_knows_its_count_and_end() -> None:
    assert (_OWNED.count, _OWNED.mark) == (15, Mark(3, 25))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version 2"),
        ({"kind": "writer"}, "not of a consumer"),
        ({"owned": None}, "no readable 'owned'"),
        ({"owned": [{"epoch": 1}]}, "OwnedBatch"),
        ({"epoch": "3"}, "a str as ConsumerState.epoch"),
        ({"epoch": True}, "a bool as ConsumerState.epoch"),
        ({"finished": {"epoch": 1, "position": 2, "more": 3}}, "Mark"),
        ({"finished": [1]}, "Mark"),
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
    names.append(lineage_key("a"))
    assert len(set(names)) == len(names)
    assert all(name.startswith("amqp-spark.") and len(name) < 64 for name in names)


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


@pytest.mark.parametrize("text", ["", "1", "1:a", "1:a:b:c", "x:a:b", "1:0xzz:b", "1:a b:c", "1:ä:b"])
def test_what_is_no_text_of_an_xid_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="no xid"):
        parse_xid(text)
