"""The state of a quorum queue as files: the newest one counts, and a process that was replaced cannot hide it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.spool import state_files
from amqp_spark.spool.directories import CLAIM
from amqp_spark.spool.spool import Spool
from amqp_spark.spool.spooled_record import SpooledRecord
from amqp_spark.spool.state_files import StateFiles, StateOutdatedError
from amqp_spark.state.records import RecordUnreadable
from tests.spark.spool_support import faulty_spool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(str(tmp_path), consumer_id="c", queue="q")
    spool.open()
    return spool


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("state*"))


def test_the_newest_file_is_the_state(spool: Spool, tmp_path: Path) -> None:
    files = StateFiles(spool, "state")
    assert files.latest() is None
    assert files.begin(7, b"a")
    files.write(7, 1, b"b")
    assert files.latest() == (7, 1, b"b")
    assert files.begin(8, b"c")
    assert files.latest() == (8, 0, b"c")
    assert names(tmp_path) == ["state.0000000008-00000000.json"]


def test_one_process_begins_an_epoch(spool: Spool) -> None:
    ours, other = StateFiles(spool, "state"), StateFiles(spool, "state")
    assert ours.begin(7, b"a")
    assert not other.begin(7, b"b")
    assert ours.latest() == (7, 0, b"a")


def test_no_process_begins_an_epoch_again_that_another_one_has_begun_and_written(spool: Spool) -> None:
    """It was suspended between reading the state and raising the epoch."""
    suspended, ours = StateFiles(spool, "state"), StateFiles(spool, "state")
    assert ours.begin(7, b"a")
    ours.write(7, 1, b"b")
    ours.write(7, 2, b"c")
    assert not suspended.begin(7, b"d")
    assert ours.latest() == (7, 2, b"c")
    assert ours.begin(8, b"e")
    assert not suspended.begin(7, b"d")
    assert ours.latest() == (8, 0, b"e")


def test_a_file_that_is_replaced_while_it_is_read_is_no_error(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, reader = StateFiles(spool, "state"), StateFiles(spool, "state")
    assert files.begin(7, b"a")
    files.write(7, 1, b"b")
    opened, contents = spool.place.open, [b"c", b"d"]

    def replaced(name: str) -> Any:
        if contents:
            files.write(7, 4 - len(contents), contents.pop(0))
        return opened(name)

    monkeypatch.setattr(spool.place, "open", replaced)
    assert reader.latest() == (7, 3, b"d")
    assert len(names(tmp_path)) == 2


def test_what_a_replaced_process_writes_is_not_the_state(spool: Spool) -> None:
    replaced, ours = StateFiles(spool, "state"), StateFiles(spool, "state")
    assert replaced.begin(7, b"a")
    assert ours.latest()
    assert ours.begin(8, b"b")
    assert replaced.write(7, 1, b"c") == 8, "it is told the later epoch"
    assert ours.write(8, 1, b"d") == 8
    assert ours.latest() == (8, 1, b"d")


def test_states_of_other_queues_are_others(spool: Spool) -> None:
    assert StateFiles(spool, "state.1").begin(7, b"a")
    assert StateFiles(spool, "state").latest() is None


def test_the_files_are_not_batches(spool: Spool) -> None:
    StateFiles(spool, "state").begin(7, b"a")
    assert spool.files() == []
    assert spool.rubbish((), spool.instance) == []


def test_a_record() -> None:
    record = SpooledRecord(
        state=b'{"a":1}', doubts={"f": True, "g": False}, recognised=3, alike=4, token="t", anchor="a"
    )
    assert SpooledRecord.load(record.dump()) == record


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version":2}', b'{"version":1}', b"\xff"])
def test_a_foreign_record(content: bytes) -> None:
    with pytest.raises(RecordUnreadable):
        SpooledRecord.load(content)


def test_another_version_is_named() -> None:
    content = json.dumps({"version": 2}).encode()
    with pytest.raises(RecordUnreadable, match="it has version 2, and 1 is known"):
        SpooledRecord.load(content)


def test_empty_files_are_skipped(spool: Spool, tmp_path: Path) -> None:
    """Some stores create a file before they have its content; the writer may be killed in between."""
    files = StateFiles(spool, "state")
    (tmp_path / "state.0000000007-00000000.json").touch()
    assert files.latest() is None
    assert files.begin(8, b"a")
    files.write(8, 1, b"b")
    (tmp_path / "state.0000000008-00000002.json").touch()
    (tmp_path / "state.0000000009-00000000.json").touch()
    assert files.latest() == (8, 1, b"b")


def test_an_epoch_whose_first_file_stays_empty_is_begun_again(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "_EMPTY_SECONDS", 0.0)
    files = StateFiles(spool, "state")
    assert files.begin(7, b"a")
    (tmp_path / "state.0000000008-00000000.json").touch()
    assert files.begin(8, b"b")
    assert files.latest() == (8, 0, b"b")


def test_an_empty_file_that_gets_its_content_is_of_another_process(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.0000000008-00000000.json"
    file.touch()
    monkeypatch.setattr("time.sleep", lambda _: file.write_bytes(b"c"))
    files = StateFiles(spool, "state")
    assert not files.begin(8, b"b")
    assert files.latest() == (8, 0, b"c")


def test_what_a_process_leaves_that_is_killed_while_it_begins_does_not_stay(tmp_path: Path) -> None:
    """Where a file cannot be created exclusively, as in an object store."""
    spool, faulty = faulty_spool(tmp_path)
    spool.open()
    place, left = tmp_path / "spool", list[str]()
    files = StateFiles(spool, "state")
    faulty.before["move"] = lambda _: left.extend(path.name for path in place.glob(f"*{CLAIM}"))
    assert files.begin(7, b"a")
    del faulty.before["move"]
    assert left
    for name in left:
        (place / name).write_bytes(b"a")
    assert files.latest() == (7, 0, b"a")
    assert files.begin(8, b"b")
    assert names(place) == ["state.0000000008-00000000.json"]


def test_an_epoch_does_not_begin_with_a_state_that_has_changed_since_it_was_read(spool: Spool, tmp_path: Path) -> None:
    """By a process that was suspended, and has lost its lock: it found no later epoch, so that it went on."""
    suspended, ours = StateFiles(spool, "state"), StateFiles(spool, "state")
    assert suspended.begin(7, b"a")
    assert suspended.write(7, 1, b"owns a batch") == 7
    assert ours.latest() == (7, 1, b"owns a batch")
    assert suspended.write(7, 2, b"has deleted it") == 7
    with pytest.raises(StateOutdatedError):
        ours.begin(8, b"owns a batch, too")
    assert ours.latest() == (7, 2, b"has deleted it")
    assert ours.begin(8, b"b")
    assert names(tmp_path) == ["state.0000000008-00000000.json"]


def test_what_is_written_until_an_epoch_begins_counts(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended, ours = StateFiles(spool, "state"), StateFiles(spool, "state")
    assert suspended.begin(7, b"a")
    assert suspended.write(7, 1, b"owns a batch") == 7
    assert ours.latest() == (7, 1, b"owns a batch")
    claim = spool.place.claim

    def late(name: str, content: bytes, token: str) -> None:
        assert suspended.write(7, 2, b"has deleted it") == 7
        claim(name, content, token)

    monkeypatch.setattr(spool.place, "claim", late)
    with pytest.raises(StateOutdatedError):
        ours.begin(8, b"owns a batch, too")
    monkeypatch.undo()
    assert ours.latest() == (7, 2, b"has deleted it")
    assert ours.begin(8, b"b")
    assert names(tmp_path) == ["state.0000000008-00000000.json"]
