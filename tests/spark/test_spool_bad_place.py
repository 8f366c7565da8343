"""Places that cannot be used, or no longer: a SpoolError that says what to do, and nothing is spoilt."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.errors import SpoolError
from amqp_spark.spool.directories import CLAIM
from amqp_spark.spool.identity import IDENTITY
from amqp_spark.spool.location import Location
from amqp_spark.spool.spool import Spool
from tests.spark.spool_support import CONSUMER, QUEUE, at_once, faulty_spool, outcome_of, owned, write
from tests.support.objectstore import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
KINDS = pytest.mark.parametrize("type_name", ["remote", "s3"])


def local(directory: Path, consumer_id: str = CONSUMER, queue: str = QUEUE) -> Spool:
    return Spool(str(directory), consumer_id=consumer_id, queue=queue)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = local(tmp_path / "spool")
    spool.open()
    return spool


def remains(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


# --- the place


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for location in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            SpoolError, match=f"{location} cannot be used: Not a directory. Set spoolLocation to a directory"
        ):
            local(location).open()
    assert (tmp_path / "file").read_text() == "x"


def test_a_place_where_no_directory_can_be_made() -> None:
    with pytest.raises(SpoolError, match="The spool /proc/missing/spool cannot be used: No such file or directory"):
        local(Path("/proc/missing/spool")).open()


@pytest.mark.parametrize(
    ("number", "text"), [(errno.EROFS, "Read-only file system"), (errno.EACCES, "Permission denied")]
)
@KINDS
def test_a_place_that_cannot_be_written(type_name: str, number: int, text: str, tmp_path: Path) -> None:
    spool, faulty = faulty_spool(tmp_path, type_name=type_name)
    faulty.fails["write"] = OSError(number, text)
    with pytest.raises(
        SpoolError, match=f"remote://host/spool cannot be used: {text}. Let the user that runs the driver"
    ):
        spool.open()
    assert remains(tmp_path / "spool") == []


def test_a_local_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Callable[..., Any] = Path.open

    def refuse(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if "x" in mode or "w" in mode:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return opened(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)  # permissions do not stop root, who may run this
    with pytest.raises(
        SpoolError, match=r"cannot be used: Read-only file system. Let the user that runs the driver read"
    ):
        local(tmp_path).open()


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("foo://host/spool", "Unrecognized filesystem type"),
        ("s3://bucket/spool?sort=of", "Unexpected query parameter"),
        ("file://elsewhere/spool", "Unsupported hostname"),
        ("s3://[/spool", "Cannot parse URI"),
    ],
)
def test_a_uri_that_arrow_does_not_know(location: str, told: str) -> None:
    with pytest.raises(SpoolError, match=f"cannot be used: .*{told}.*Check that spoolLocation exists"):
        Spool(location, consumer_id=CONSUMER, queue=QUEUE).open()


@pytest.mark.parametrize(
    "location",
    [
        "s3://user:geheim1@bucket/spool?secret_key=geheim2&region=here",
        "s3://user:geheim1@[/spool?secret_key=geheim2",
        "foo://user:geheim1@bucket/spool?geheim2",
    ],
)
def test_no_credentials_in_messages(location: str, tmp_path: Path) -> None:
    # The options refuse most of them; what they cannot know must not be seen here.
    with pytest.raises(SpoolError) as told:
        Spool(location, consumer_id=CONSUMER, queue=QUEUE).open()
    spool, faulty = faulty_spool(tmp_path, location=location)
    spool.open()
    faulty.fails["list"] = OSError(f"GET {location} failed: 'geheim2' is wrong")
    with pytest.raises(SpoolError) as told_later:
        spool.files()
    for text in (str(told.value), str(told_later.value), repr(told.value)):
        assert "geheim" not in text
        assert "/spool" in text


def test_errors_cross_processes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpoolError) as told:
        local(tmp_path / "file").open()
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


def test_a_bucket_that_is_not_there(object_store: ObjectStore) -> None:
    location = object_store.url("spool").replace("s3://bucket", "s3://missing")
    with pytest.raises(SpoolError, match="The spool s3://missing/spool cannot be used: Bucket 'missing' not found"):
        Spool(location, consumer_id=CONSUMER, queue=QUEUE).open()


def test_an_object_where_the_directory_should_be(object_store: ObjectStore, tmp_path: Path) -> None:
    with object_store.filesystem().open_output_stream(f"bucket/{tmp_path.name}") as stream:
        stream.write(b"x")
    with pytest.raises(SpoolError, match="Not a directory"):
        Spool(object_store.url(tmp_path.name), consumer_id=CONSUMER, queue=QUEUE).open()


def test_a_store_that_goes_away() -> None:
    with ObjectStore() as mortal:
        spool = Spool(
            mortal.url("spool"),
            consumer_id=CONSUMER,
            queue=QUEUE,
            resolve=lambda _: (mortal.filesystem(attempts=1), "bucket/spool"),  # by a URI it is tried for 10 s
        )
        spool.open()
        written = write(spool)
    with pytest.raises(SpoolError, match=r"s3://bucket/spool cannot take batch 0 .*none of its messages is accepted"):
        write(spool)
    with pytest.raises(SpoolError, match="s3://bucket/spool cannot read"):
        spool.read(written.file, written.checksum)


# --- whose it is


def test_another_consumer(spool: Spool, tmp_path: Path) -> None:
    write(spool)
    before = remains(tmp_path / "spool")
    other = local(tmp_path / "spool", consumer_id="another")
    for start in (other.open, other.look):
        with pytest.raises(
            SpoolError, match=r"belongs to consumer 'orders-loader', not to 'another'. Give each consumerId its own"
        ):
            start()
    assert remains(tmp_path / "spool") == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no readable file amqp-spark-spool.json"),
        (b"\xff\0", "has no readable file amqp-spark-spool.json"),
        (b"[1]", "has no readable file amqp-spark-spool.json"),
        (b"{}", "has no readable file amqp-spark-spool.json"),
        (b" " * 100_000 + b"{}", "has no readable file amqp-spark-spool.json"),
        (b'{"version": 2, "consumerId": "orders-loader"}', "of version 2, but this amqp_spark knows version 1"),
        (b'{"version": "' + b"x" * 1000 + b'"}', "of version x{20},"),
        (b'{"version": 1}', "belongs to consumer 'None'"),
    ],
)
def test_an_identity_that_is_not_ours(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / IDENTITY).write_bytes(content)
    with pytest.raises(SpoolError, match=told):
        local(tmp_path).open()
    assert (tmp_path / IDENTITY).read_bytes() == content
    assert remains(tmp_path) == [IDENTITY]


def test_two_consumers_that_start_at_once(tmp_path: Path) -> None:
    for attempt in range(30):
        outcomes = at_once(*(local(tmp_path / str(attempt), consumer_id=name) for name in ("one", "two", "three")))
        assert [outcome is None for outcome in outcomes].count(True) == 1
        assert all(
            "Give each consumerId its own spoolLocation" in str(outcome) for outcome in outcomes if outcome is not None
        )
        assert remains(tmp_path / str(attempt)) == [IDENTITY]


@KINDS
def test_two_consumers_that_start_at_once_elsewhere(type_name: str, tmp_path: Path) -> None:
    for attempt in range(30):
        spools = [
            faulty_spool(tmp_path / str(attempt), consumer_id=name, type_name=type_name)[0] for name in ("one", "two")
        ]
        (tmp_path / str(attempt)).mkdir()
        outcomes = at_once(*spools)
        assert [outcome is None for outcome in outcomes].count(True) <= 1
        assert all(
            "Give each consumerId its own spoolLocation" in str(outcome) for outcome in outcomes if outcome is not None
        )
        assert set(remains(tmp_path / str(attempt) / "spool")) <= {IDENTITY}


@pytest.mark.parametrize("type_name", ["local", "remote", "s3"])
@pytest.mark.parametrize("over", [True, False])
def test_threads_of_one_consumer_that_start_at_once(type_name: str, over: bool, tmp_path: Path) -> None:
    # Each queue of a query opens its spool in a thread of its own. Not every file system moves a file over another.
    for attempt in range(10):
        root = tmp_path / str(attempt)
        root.mkdir()
        spools = [local(root / "spool", queue=queue) for queue in "abc"]
        if type_name != "local":
            spools = [faulty_spool(root, queue=queue, type_name=type_name, moves_over=over)[0] for queue in "abc"]
        assert at_once(*spools) == [None] * 3
        assert remains(root / "spool") == [IDENTITY]


@pytest.mark.parametrize(
    ("type_name", "moment"),  # an object store moves nothing
    [("remote", "write"), ("remote", "list"), ("remote", "info"), ("remote", "move"),
     ("s3", "write"), ("s3", "list"), ("s3", "info")],
)  # fmt: skip
def test_a_rival_at_the_worst_moment(moment: str, type_name: str, tmp_path: Path) -> None:
    # Whatever the operation of the first one before which the second one comes, goes all the way and ends.
    came: list[bool] = []
    for nth in range(12):
        root = tmp_path / str(nth)
        root.mkdir()
        first, faulty = faulty_spool(root, consumer_id="first", type_name=type_name)
        second, _ = faulty_spool(root, consumer_id="second", type_name=type_name)
        outcomes: list[SpoolError | None] = []
        calls = iter(range(1000))

        def come(_path: str, nth: int = nth, calls: Any = calls, outcomes: Any = outcomes, rival: Any = second) -> None:
            if next(calls) == nth:
                outcomes.append(outcome_of(rival.open))

        faulty.before[moment] = come
        outcomes.append(outcome_of(first.open))
        came.append(len(outcomes) == 2)
        assert outcomes.count(None) <= 1, f"both succeed when the rival comes at {moment} {nth}"
        assert all(
            "Give each consumerId its own spoolLocation" in str(outcome) for outcome in outcomes if outcome is not None
        )
        assert came[-1] or outcomes == [None], "who is alone succeeds"
    assert came[-1] is False, "every operation had its turn"
    assert any(came), f"the rival never came at {moment}"


def test_a_claim_of_a_dead_consumer_is_named(tmp_path: Path) -> None:
    spool, _ = faulty_spool(tmp_path)
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / f"{IDENTITY}.other{CLAIM}").write_text("x")
    with pytest.raises(SpoolError, match=r"if no query runs, delete amqp-spark-spool.json.other.claim"):
        spool.open()
    (tmp_path / "spool" / f"{IDENTITY}.other{CLAIM}").unlink()
    spool.open()
    assert remains(tmp_path / "spool") == [IDENTITY]


# --- full in the middle


@KINDS
@pytest.mark.parametrize("room", [0, 1, 150, 1_500_000])
def test_full_in_the_middle(type_name: str, room: int, tmp_path: Path) -> None:
    spool, faulty = faulty_spool(tmp_path, type_name=type_name)
    spool.open()
    kept = write(spool)
    before = remains(tmp_path / "spool")
    faulty.room = room
    with pytest.raises(SpoolError, match=r"cannot take batch 5 of queue 'orders' .*No space left on device. Make room"):
        write(spool, [b"x" * 2_000_000], sequence=5)
    assert remains(tmp_path / "spool") == before
    faulty.room = None
    again = write(spool, [b"x" * 2_000_000], sequence=5)
    assert spool.files() == [kept.file, again.file]
    spool.check(owned(spool, kept))


FULL = """
import resource, sys
from amqp_spark.spool.spool import Spool
from amqp_spark.errors import SpoolError
spool = Spool(sys.argv[1], consumer_id="orders-loader", queue="orders")
spool.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
body = b"x" * 3_000_000
try:
    spool.write(epoch=1, sequence=0, begin=0, parts=[memoryview(body)], ends=[len(body)])
except SpoolError as error:
    print(error)
small = spool.write(epoch=1, sequence=0, begin=0, parts=[memoryview(b"small")], ends=[5])
print(spool.files() == [small.file])
"""


def test_full_for_the_system_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    told, small = done.stdout.splitlines()
    assert "cannot take batch 0 of queue 'orders' (3,000,000 bytes): File too large. Make room there" in told
    assert small == "True"
    assert len(remains(tmp_path)) == 2


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_what_fails_at_the_end_leaves_nothing(
    failing: str, spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    owner: object = os if failing == "fsync" else Path
    monkeypatch.setattr(owner, failing, fail)
    with pytest.raises(SpoolError, match="Input/output error"):
        write(spool)
    assert remains(tmp_path / "spool") == [IDENTITY]


def test_a_move_that_fails_leaves_nothing(tmp_path: Path) -> None:
    spool, faulty = faulty_spool(tmp_path)
    spool.open()
    faulty.fails["move"] = OSError("no moves today")
    with pytest.raises(SpoolError, match="no moves today"):
        write(spool)
    assert remains(tmp_path / "spool") == [IDENTITY]


def test_a_spool_that_vanishes(spool: Spool, tmp_path: Path) -> None:
    written = write(spool)
    batch = owned(spool, written)
    for each in (tmp_path / "spool").iterdir():
        each.unlink()
    (tmp_path / "spool").rmdir()
    asks: list[Callable[[], object]] = [
        lambda: spool.read(written.file, written.checksum),
        lambda: spool.check(batch),
    ]
    for ask in asks:
        with pytest.raises(SpoolError, match=f"AMQP_SPOOL_BATCH_LOST.* {written.file}, which does not exist"):
            ask()
    asks = [spool.files, lambda: spool.rubbish((), ""), lambda: write(spool)]
    for ask in asks:
        with pytest.raises(SpoolError, match="No such file or directory"):
            ask()
    spool.delete(written.file)


def test_a_file_system_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount of a dead server: the query waits, and its user sees why."""
    monkeypatch.setattr("amqp_spark.spool.location.SLOW_SECONDS", 0.01)
    warned = threading.Event()
    texts: list[str] = []

    class Log(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())
            warned.set()

    log, handler = logging.getLogger("amqp_spark.spool.location"), Log()
    log.addHandler(handler)
    try:
        with Location("s3://key:secret@bucket/spool?secret=x").spool_errors("cannot be read"):
            assert warned.wait(30)
    finally:
        log.removeHandler(handler)
    assert len(texts) == 1
    assert texts[0].startswith("spool s3://")
    assert "secret" not in texts[0]
    assert texts[0].endswith("check that its file system can be reached")
