"""A batch comes out of the spool as it went in, at every kind of place, also when a process dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from array import array
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_spark import crashpoints
from amqp_spark.errors import SpoolError
from amqp_spark.spool.identity import IDENTITY
from amqp_spark.spool.spool import Spool
from amqp_spark.state.names import hashed
from tests.spark.spool_support import CONSUMER, QUEUE, Faulty, at_once, faulty_spool, owned, write
from tests.support.choice import examples
from tests.support.objectstore import BUCKET
from tests.support.query_process import CrashPoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.objectstore import ObjectStore

ROOT = Path(__file__).parents[2]
ROUND = settings(max_examples=examples(60))


class Place(Protocol):
    """Somewhere a spool can be."""

    def spool(self, consumer_id: str = CONSUMER, queue: str = QUEUE) -> Spool: ...

    def names(self) -> list[str]:
        """Everything that is there, sorted."""

    def put(self, name: str) -> None:
        """Put a file there that is none of the spool's."""


@dataclass
class LocalPlace:
    directory: Path
    uri: bool = False

    @property
    def location(self) -> str:
        return self.directory.as_uri() if self.uri else str(self.directory)

    def spool(self, consumer_id: str = CONSUMER, queue: str = QUEUE) -> Spool:
        return Spool(self.location, consumer_id=consumer_id, queue=queue)

    def names(self) -> list[str]:
        return sorted(each.name for each in self.directory.iterdir())

    def put(self, name: str) -> None:
        (self.directory / name).write_bytes(b"foreign")


@dataclass
class RemotePlace(LocalPlace):
    """A file system that Arrow calls back for: it moves files, or puts them as object stores do."""

    type_name: str = "remote"

    def spool(self, consumer_id: str = CONSUMER, queue: str = QUEUE) -> Spool:
        root = self.directory.parent
        return faulty_spool(root, consumer_id=consumer_id, queue=queue, type_name=self.type_name)[0]


@dataclass
class StorePlace:
    store: ObjectStore
    directory: str

    @property
    def location(self) -> str:
        return self.store.url(self.directory)

    def spool(self, consumer_id: str = CONSUMER, queue: str = QUEUE) -> Spool:
        return Spool(self.location, consumer_id=consumer_id, queue=queue)

    def names(self) -> list[str]:
        return self.store.names(self.directory)

    def put(self, name: str) -> None:
        with self.store.filesystem().open_output_stream(f"{BUCKET}/{self.directory}/{name}") as stream:
            stream.write(b"foreign")


@pytest.fixture(params=["path", "uri", "moved", "put", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "path":
            return LocalPlace(tmp_path / "a b%20" / "spool")
        case "uri":
            return LocalPlace(tmp_path / "a b%20" / "spool", uri=True)
        case "moved":
            return RemotePlace(tmp_path / "spool")
        case "put":
            return RemotePlace(tmp_path / "spool", type_name="s3")
        case _:
            return StorePlace(request.getfixturevalue("object_store"), f"{tmp_path.name}/deep/spool")


@pytest.fixture
def spool(place: Place) -> Spool:
    spool = place.spool()
    spool.open()
    return spool


def test_a_batch_comes_back_byte_for_byte(spool: Spool) -> None:
    bodies = [b"\0\xff", b"", b"AMQPSPOL", b"\x80" * 5000]
    written = write(spool, bodies, sequence=7, epoch=3)
    batch = spool.read(written.file, written.checksum)
    assert batch.frames == b"".join(bodies)
    assert batch.ends == array("Q", [2, 2, 10, 5010])
    assert (written.nbytes, batch.header.nbytes) == (5010, 5010)
    assert (batch.header.epoch, batch.header.sequence, batch.header.begin, batch.header.count) == (3, 7, 100, 4)
    assert (batch.header.consumer_id, batch.header.queue) == (CONSUMER, QUEUE)
    spool.check(owned(spool, written))
    spool.check(owned(spool, written), thorough=True)
    assert spool.batch(written.file) == owned(spool, written)


def test_large_and_small_parts_together(spool: Spool) -> None:
    bodies = [os.urandom(100), os.urandom(3 << 20), *(os.urandom(900) for _ in range(2000)), os.urandom((1 << 20) + 1)]
    written = write(spool, bodies)
    batch = spool.read(written.file, written.checksum)
    assert batch.frames == b"".join(bodies)
    assert batch.ends == array("Q", accumulate(map(len, bodies)))
    spool.check(owned(spool, written))


def test_another_process_reads_it(spool: Spool, place: Place) -> None:
    written = write(spool)
    later = place.spool()
    later.open()
    assert later.files() == [written.file]
    assert later.read(written.file, written.checksum).frames.tobytes() == b"onetwothree"


def test_to_look_changes_nothing(spool: Spool, place: Place) -> None:
    written = write(spool)
    before = place.names()
    later = place.spool()
    later.look()
    assert later.files() == [written.file]
    later.check(owned(spool, written))
    assert place.names() == before


def test_to_look_where_nothing_is_creates_nothing(place: Place) -> None:
    with pytest.raises(SpoolError, match="cannot be read"):
        place.spool().look()
    with pytest.raises((FileNotFoundError, AssertionError)):
        assert place.names() != []


def test_files_come_oldest_first_and_are_deleted_once(spool: Spool) -> None:
    names = [write(spool, sequence=sequence, epoch=epoch).file for epoch, sequence in ((1, 9), (1, 10), (2, 11))]
    assert len(set(names)) == 3
    assert spool.files() == names
    spool.delete(names[0])
    spool.delete(names[0])
    assert spool.files() == names[1:]


def test_the_same_sequence_again_is_another_file(spool: Spool) -> None:
    first, second = write(spool, [b"first"]), write(spool, [b"second"])
    assert first.file != second.file
    assert spool.read(first.file, first.checksum).frames.tobytes() == b"first"


def test_queues_of_a_consumer_share_a_directory(spool: Spool, place: Place) -> None:
    other = place.spool(queue="returns")
    other.open()
    mine, others = write(spool), write(other, [b"other"])
    assert (spool.files(), other.files()) == ([mine.file], [others.file])
    with pytest.raises(SpoolError, match="AMQP_SPOOL_FILE_FOREIGN"):
        spool.read(others.file, others.checksum)
    with pytest.raises(SpoolError, match="AMQP_SPOOL_FILE_FOREIGN"):
        spool.delete(others.file)
    assert other.files() == [others.file]


def test_what_is_foreign_is_left_alone(spool: Spool, place: Place) -> None:
    prefix = hashed(CONSUMER, QUEUE)
    mine, foreign = (
        f"{prefix}-0000-interrupted.part",
        ["notes.txt", "x.part", f"{prefix}.part", f"{prefix}-notes.spool"],
    )
    for name in (mine, *foreign):
        place.put(name)
    written = write(spool)
    assert spool.files() == [written.file]
    for name in spool.rubbish((), ""):
        spool.delete_rubbish(name)
    spool.delete(written.file)
    assert place.names() == sorted([IDENTITY, *foreign])
    for name in foreign:
        with pytest.raises(SpoolError, match="AMQP_SPOOL_FILE_FOREIGN"):
            spool.delete(name)


def test_opened_again_and_again(place: Place) -> None:
    for _ in range(3):
        place.spool().open()
        assert place.names() == [IDENTITY]


def test_nothing_happens_before_open(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), consumer_id=CONSUMER, queue=QUEUE)
    with pytest.raises(SpoolError, match="is not open"):
        spool.files()
    with pytest.raises(SpoolError, match="is not open"):
        write(spool)
    assert not (tmp_path / "spool").exists()


def test_the_identity_is_what_other_tools_can_read(tmp_path: Path) -> None:
    Spool(str(tmp_path), consumer_id="Süd №1", queue=QUEUE).open()
    assert json.loads((tmp_path / IDENTITY).read_text()) == {"version": 1, "consumerId": "Süd №1"}


def test_ends_as_arrays_of_any_kind(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), consumer_id=CONSUMER, queue=QUEUE)
    spool.open()
    for ends in (
        array("I", [1, 3]),
        array("Q", [1, 3]),
        np.array([1, 3], dtype=">u8"),
        np.array([1, 0, 3], dtype="i4")[::2],
        (1, 3),
    ):
        written = spool.write(epoch=1, sequence=0, begin=0, parts=[memoryview(b"abc")], ends=ends)
        assert spool.read(written.file, written.checksum).ends == array("Q", [1, 3])
    for wrong in ([1, 2], [], [3, 4]):
        with pytest.raises(ValueError, match="the parts have 3"):
            spool.write(epoch=1, sequence=0, begin=0, parts=[memoryview(b"abc")], ends=wrong)


@ROUND
@given(
    bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 8000), max_size=10),
    epoch=st.integers(0, 2**40),
    sequence=st.integers(0, 2**40),
    begin=st.integers(0, 2**62),
    consumer_id=st.text(min_size=1, max_size=50),
    queue=st.text(min_size=1, max_size=50),
)
def test_any_batch_in_any_parts(
    tmp_path_factory: pytest.TempPathFactory,
    bodies: list[bytes],
    cuts: list[int],
    epoch: int,
    sequence: int,
    begin: int,
    consumer_id: str,
    queue: str,
) -> None:
    spool = Spool(str(tmp_path_factory.mktemp("spool")), consumer_id=consumer_id, queue=queue)
    spool.open()
    whole = b"".join(bodies)
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parts = [memoryview(whole)[first:last] for first, last in pairwise(bounds)]
    ends = list(accumulate(map(len, bodies)))
    written = spool.write(epoch=epoch, sequence=sequence, begin=begin, parts=parts, ends=ends)
    assert spool.files() == [written.file]
    batch = spool.read(written.file, written.checksum)
    assert (batch.frames.tobytes(), list(batch.ends)) == (whole, ends)
    spool.check(owned(spool, written))


# --- a process that dies while it writes


CRASHER = """
import sys
from amqp_spark.spool.spool import Spool
spool = Spool(sys.argv[1], consumer_id="orders-loader", queue="orders")
spool.open()
body = b"x" * 3_000_000
spool.write(epoch=1, sequence=0, begin=0, parts=[memoryview(body)], ends=[len(body)])
"""


@pytest.fixture
def points() -> Iterator[CrashPoints]:
    points = CrashPoints()
    yield points
    points.close()


def die_at(point: str, points: CrashPoints, location: str) -> None:
    points.arm(point, action="kill")
    environment = os.environ | {crashpoints.VARIABLE: str(points.directory)}
    done = subprocess.run(
        [sys.executable, "-c", CRASHER, location], env=environment, cwd=ROOT, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", [crashpoints.SPOOL_PARTIAL, crashpoints.SPOOL_SYNCED])
def test_killed_before_the_file_has_its_name(point: str, points: CrashPoints, tmp_path: Path) -> None:
    place = LocalPlace(tmp_path / "spool")
    die_at(point, points, place.location)
    (aside,) = (name for name in place.names() if name != IDENTITY)
    size = (place.directory / aside).stat().st_size
    assert (0 < size < 3_000_000) if point == crashpoints.SPOOL_PARTIAL else size > 3_000_000
    spool = place.spool()
    spool.open()
    assert spool.files() == []
    for name in spool.rubbish((), ""):
        spool.delete_rubbish(name)
    assert place.names() == [IDENTITY]


def test_killed_when_it_has(points: CrashPoints, tmp_path: Path) -> None:
    place = LocalPlace(tmp_path / "spool")
    die_at(crashpoints.SPOOL_RENAMED, points, place.location)
    spool = place.spool()
    spool.open()
    (file,) = spool.files()
    assert spool.batch(file).nbytes == 3_000_000
    assert place.names() == sorted([IDENTITY, file])


@pytest.mark.parametrize("point", [crashpoints.SPOOL_PARTIAL, crashpoints.SPOOL_SYNCED, crashpoints.SPOOL_RENAMED])
def test_killed_while_it_puts_an_object(
    point: str, points: CrashPoints, object_store: ObjectStore, tmp_path: Path
) -> None:
    place = StorePlace(object_store, tmp_path.name)
    die_at(point, points, place.location)
    spool = place.spool()
    spool.open()
    files = spool.files()
    assert len(files) == (1 if point == crashpoints.SPOOL_RENAMED else 0), "an object shows when it is complete"
    assert place.names() == sorted([IDENTITY, *files])


@pytest.mark.parametrize("size", [1, 10_000_000])
def test_crash_points_come_in_order_whatever_the_size(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    monkeypatch.setattr(crashpoints, "reached", passed.append)
    for type_name in ("local", "remote", "s3"):
        local = Spool(str(tmp_path / "local"), consumer_id=CONSUMER, queue=QUEUE)
        spool = local if type_name == "local" else faulty_spool(tmp_path / type_name, type_name=type_name)[0]
        spool.open()
        passed.clear()
        write(spool, [b"x" * size])
        assert passed == [crashpoints.SPOOL_PARTIAL, crashpoints.SPOOL_SYNCED, crashpoints.SPOOL_RENAMED], type_name


# --- durable where pyarrow is not


def test_a_local_file_is_synced_before_it_gets_its_name_and_the_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(str(tmp_path / "new" / "spool"), consumer_id=CONSUMER, queue=QUEUE)
    synced: list[tuple[str, list[str]]] = []
    fsync: Callable[[int], None] = os.fsync

    def told(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        synced.append((path.name, spool.files() if path.name != "new" and spool_is_open else []))
        fsync(fd)

    spool_is_open = False
    monkeypatch.setattr(os, "fsync", told)
    spool.open()
    assert {tmp_path.name, "new", "spool"} <= {name for name, _ in synced}, "entries of new directories last, too"
    synced.clear()
    spool_is_open = True
    written = write(spool)
    (aside, before), (directory, after) = synced
    assert aside.endswith(".part")
    assert (before, directory, after) == ([], "spool", [written.file])


def test_a_file_system_that_cannot_sync_directories_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def refuse(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().is_dir():
            raise OSError(22, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    spool = Spool(str(tmp_path / "spool"), consumer_id=CONSUMER, queue=QUEUE)
    spool.open()
    written = write(spool)
    assert spool.files() == [written.file]


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert at_once(*(Spool(str(tmp_path), consumer_id=CONSUMER, queue=queue) for queue in "abc")) == [None] * 3
    Spool(str(tmp_path), consumer_id=CONSUMER, queue=QUEUE).open()
    Spool(str(tmp_path), consumer_id=CONSUMER, queue=QUEUE).open()
    assert [each.name for each in tmp_path.iterdir()] == [IDENTITY]


def test_the_fakes_are_what_they_say(tmp_path: Path) -> None:
    assert Faulty(tmp_path, type_name="s3").resolve("")[0].type_name == "s3"


def test_a_spool_without_a_protocol_is_of_0_10(tmp_path: Path) -> None:
    """As it was written before files named one; the name of 0-10 is still left out."""
    opened = LocalPlace(tmp_path).spool()
    opened.open()
    file, checksum, _ = write(opened, [b"one"])
    assert "protocol" not in json.loads((tmp_path / IDENTITY).read_text())
    assert b"protocol" not in (tmp_path / file).read_bytes()
    assert opened.read(file, checksum).header.protocol == "0-10"


def test_a_spool_keeps_its_protocol(tmp_path: Path) -> None:
    opened = LocalPlace(tmp_path).spool()
    opened.protocol = "0-9-1"
    opened.open()
    file, checksum, _ = write(opened, [b"one"])
    assert opened.read(file, checksum).header.protocol == "0-9-1"
    looking = LocalPlace(tmp_path).spool()
    looking.look()
    assert looking.protocol == "0-9-1"
    with pytest.raises(SpoolError, match=r"has messages of AMQP 0-9-1, and the broker speaks AMQP 0-10"):
        LocalPlace(tmp_path).spool().open()
    opened.protocol = "0-10"
    with pytest.raises(SpoolError, match=r"has messages of AMQP 0-9-1, not of 0-10"):
        opened.read(file, checksum)
