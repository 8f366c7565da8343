"""Leftovers that exactly-once must not have are reported; objects that belong there are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.api import Xid
from amqp_spark.errors import StateError
from amqp_spark.spool.spooled_record import SpooledRecord
from amqp_spark.state import names as names_of
from amqp_spark.state.names import Names
from amqp_spark.state.records import OPEN, ConsumerState, OwnedBatch, WriterState
from amqp_spark.state.xids import new_branch
from tests.matrix.leftovers import branches_left, consumer_left, of_spool, spooled_left, writer_left

if TYPE_CHECKING:
    from pathlib import Path

CONSUMER = ConsumerState(consumer_id="c", queue="q", spool="file:///spool", epoch=3, sequence=9)
OWNED = OwnedBatch(epoch=3, sequence=8, begin=0, end=5, nbytes=100, file="a.spool", checksum="crc32:0")
WRITER = WriterState(transactional_id="t", query_id="l", batch=4)


def owning(*owned: OwnedBatch) -> bytes:
    """A consumer's state."""
    return ConsumerState("c", "q", "file:///spool", epoch=3, sequence=9, owned=owned).dump()


def test_a_consumer_that_has_finished_leaves_one_state() -> None:
    assert consumer_left([CONSUMER.dump()], locked=False) == []


@pytest.mark.parametrize("states", [None, [], [CONSUMER.dump()] * 2], ids=["no queue", "none", "two"])
def test_a_consumer_without_just_one_state_is_told(states: list[bytes] | None) -> None:
    problem = "the state queue of the consumer does not hold exactly one message"
    assert consumer_left(states, locked=False) == [problem]


def test_batches_that_are_owned_still_are_told() -> None:
    (problem,) = consumer_left([owning(OWNED)], locked=False)
    assert problem.startswith("1 batches are owned still")
    assert "a.spool" in problem


def test_a_lock_that_is_held_is_told() -> None:
    assert consumer_left([CONSUMER.dump()], locked=True) == ["the lock of the consumer is held"]
    assert writer_left([WRITER.dump()], [], locked=True) == ["the lock of the writer is held"]


def test_a_state_that_is_not_ours_is_no_clean_one() -> None:
    with pytest.raises(StateError):
        consumer_left([b"{}"], locked=False)
    with pytest.raises(StateError):
        writer_left([CONSUMER.dump()], [], locked=False)


def test_a_writer_that_is_done_leaves_one_state() -> None:
    assert writer_left([WRITER.dump()], [], locked=False) == []


@pytest.mark.parametrize("states", [None, [], [WRITER.dump()] * 2], ids=["no queue", "none", "two"])
def test_a_writer_without_just_one_state_is_told(states: list[bytes] | None) -> None:
    problem = "the state queue of the writer does not hold exactly one message"
    assert writer_left(states, [], locked=False) == [problem]


def test_an_open_decision_and_markers_are_told() -> None:
    state = WriterState(transactional_id="t", query_id="l", batch=4, state=OPEN)
    assert writer_left([state.dump()], [b"m", b"n"], locked=False) == [
        "the decision of batch 4 is open",
        "2 markers are left: [b'm', b'n']",
    ]


def test_branches_of_this_writer_are_told_and_those_of_others_are_not() -> None:
    others = [new_branch("u", "l", 1, 0, 0), Xid(format=1, global_id=b"foreign", branch_id=b"b")]
    ours = [new_branch("t", "l", 1, 0, 0), new_branch("t", "another lineage", 1, 0, 0)]
    assert branches_left(others, "t") == []
    (problem,) = branches_left([*others, *ours], "t")
    assert problem.startswith("2 branches are prepared still: ")


def test_files_in_a_spool_are_told_but_not_whose_it_is(tmp_path: Path) -> None:
    assert of_spool(tmp_path / "never-made") == []
    (tmp_path / "amqp-spark-spool.json").touch()
    assert of_spool(tmp_path) == []
    (tmp_path / "b.spool").touch()
    (tmp_path / "a.spool.part").touch()
    assert of_spool(tmp_path) == ["2 files are left in the spool: ['a.spool.part', 'b.spool']"]


def test_a_process_that_lost_its_lock_may_leave_what_nobody_reads(tmp_path: Path) -> None:
    names = Names(names_of.CONSUMER, "c")
    record = SpooledRecord(state=CONSUMER.dump()).dump()
    for place in ("0000000003-00000007", "0000000003-00000008", "0000000004-00000002"):
        (tmp_path / f"{names.state}.{place}.json").write_bytes(record)
    (tmp_path / "x.part").touch()
    assert spooled_left(names, tmp_path, locked=False, orphaned=True) == []
    (problem,) = spooled_left(names, tmp_path, locked=False)
    assert "3 states" in problem
    (tmp_path / f"{names.state}.0000000004-00000003.json").write_bytes(record)
    (problem,) = spooled_left(names, tmp_path, locked=False, orphaned=True)
    assert "4 states" in problem, "two of one epoch"
