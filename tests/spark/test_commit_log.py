"""A query that is stopped between two batches: what the checkpoint says to be committed is accepted, and no more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import pytest

from amqp_spark.datasource import at_least_once, driver_env
from amqp_spark.errors import OptionError
from tests.spark.driver import Driver
from tests.spark.reader_support import Readers, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.driver import Offset
    from tests.support.fake_broker import FakeBroker


@pytest.fixture(autouse=True)
def _own_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Checkpoint:
    """Writes what Spark writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("offsets", "commits"):
            (directory / name).mkdir()

    def log(self, batch: int, *ends: Offset | str, version: str = "v1") -> None:
        lines = [version, '{"batchWatermarkMs":0}', *(e if isinstance(e, str) else json.dumps(e) for e in ends)]
        (self.directory / "offsets" / str(batch)).write_text("\n".join(lines))

    def commit(self, batch: int | str) -> None:
        (self.directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


def stopped_after(fake: FakeBroker, readers: Readers, checkpoint: Checkpoint, *, batches: int = 1) -> Driver:
    """So many batches of 10 were run, and Spark has made no call since."""
    fake.publish("q", *numbers(50))
    driver = Driver(readers(maxMessagesPerTrigger=10, queryCheckpoint=str(checkpoint.directory)))
    for _ in range(batches):
        driver.trigger_until_rows()
    return driver


@pytest.mark.parametrize("as_uri", [False, True])
def test_a_batch_that_is_committed_is_accepted_at_the_stop(
    fake: FakeBroker, readers: Readers, checkpoint: Checkpoint, as_uri: bool
) -> None:
    fake.publish("q", *numbers(50))
    location = checkpoint.directory.as_uri() if as_uri else str(checkpoint.directory)
    driver = Driver(readers(maxMessagesPerTrigger=10, queryCheckpoint=location))
    for batch in range(2):
        driver.trigger_until_rows()
        checkpoint.log(batch, "-", {"other": {"source": 1}}, driver.offsets[-1])
        checkpoint.commit(batch)
    driver.reader.stop()
    committed = driver.offsets[-1]["q"]["position"]
    assert committed > 10, "both batches"
    assert fake.accepted == numbers(committed)
    assert fake.depth("q") == 50 - committed


def test_without_the_option_nothing_is_accepted_at_the_stop(fake: FakeBroker, readers: Readers) -> None:
    before = signal.getsignal(signal.SIGTERM)
    fake.publish("q", *numbers(10))
    driver = Driver(readers())
    driver.rows(10)
    driver.reader.stop()
    assert fake.accepted == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_is_not_certain_is_not_accepted(fake: FakeBroker, readers: Readers, checkpoint: Checkpoint) -> None:
    driver = stopped_after(fake, readers, checkpoint, batches=2)
    first, second = driver.offsets
    checkpoint.log(0, first)
    checkpoint.commit(0)
    checkpoint.log(1, second)
    for name in (".1.crc", ".1.f0a2.tmp", "1.compact", "x"):  # being written, or not a commit
        checkpoint.commit(name)
    (checkpoint.directory / "commits" / "2").mkdir()
    driver.reader.stop()
    assert fake.accepted == numbers(10)


def test_the_end_of_another_run_is_not_accepted(fake: FakeBroker, readers: Readers, checkpoint: Checkpoint) -> None:
    driver = stopped_after(fake, readers, checkpoint)
    other = {"q": driver.offsets[0]["q"] | {"epoch": "another"}}
    checkpoint.log(0, other, {"q": {"epoch": 1}}, "{", json.dumps([1]), json.dumps("text"))
    checkpoint.commit(0)
    driver.reader.stop()
    assert fake.accepted == []


def test_a_commit_that_is_older_than_its_batch_is_not_believed(
    fake: FakeBroker, readers: Readers, checkpoint: Checkpoint
) -> None:
    driver = stopped_after(fake, readers, checkpoint)
    checkpoint.commit(0)  # of a query whose offsets were deleted
    os.utime(checkpoint.directory / "commits" / "0", (1, 1))
    checkpoint.log(0, driver.offsets[0])
    driver.reader.stop()
    assert fake.accepted == []


@pytest.mark.parametrize("source", ["0", "ticks"])
def test_the_second_version_of_the_offset_log_names_the_sources(
    fake: FakeBroker, readers: Readers, checkpoint: Checkpoint, source: str
) -> None:
    driver = stopped_after(fake, readers, checkpoint)
    checkpoint.log(0, "1:5", f"{source}:{json.dumps(driver.offsets[0])}", version="v2")
    checkpoint.commit(0)
    driver.reader.stop()
    assert len(fake.accepted) == 10


def test_another_version_of_the_offset_log_accepts_nothing_and_says_so(
    fake: FakeBroker, readers: Readers, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    driver = stopped_after(fake, readers, checkpoint)
    checkpoint.log(0, driver.offsets[0], version="v3")
    checkpoint.commit(0)
    driver.reader.stop()
    assert fake.accepted == []
    assert "option queryCheckpoint) cannot be read: version 'v3' of the offset log is not known" in caplog.text


@pytest.mark.parametrize("missing", ["commits", "offsets/0"])
def test_a_checkpoint_that_is_not_there_accepts_nothing_and_says_so(
    fake: FakeBroker, readers: Readers, checkpoint: Checkpoint, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = stopped_after(fake, readers, checkpoint)
    checkpoint.log(0, driver.offsets[0])
    checkpoint.commit(0)
    (checkpoint.directory / missing).rename(checkpoint.directory / "elsewhere")
    driver.reader.stop()
    assert fake.accepted == []
    assert fake.depth("q") == 50
    assert ("option queryCheckpoint) cannot be read" in caplog.text) == (missing == "commits")


def test_a_file_system_that_does_not_answer_does_not_keep_a_query_from_stopping(
    fake: FakeBroker,
    readers: Readers,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(at_least_once, "READ_SECONDS", 0.05)
    driver = stopped_after(fake, readers, checkpoint)
    checkpoint.log(0, driver.offsets[0])
    checkpoint.commit(0)
    answered = threading.Event()
    monkeypatch.setattr(at_least_once, "_read_commit_log", lambda _location: [answered.wait(60)])
    driver.reader.stop()
    answered.set()
    assert "no answer within" in caplog.text
    assert fake.accepted == []


def test_spark_stops_a_query_with_two_signals_and_no_call(checkpoint: Checkpoint) -> None:
    program = textwrap.dedent(
        """
        import json, select, sys
        from tests.spark.driver import Driver
        from tests.support.fake_broker import FakeBroker
        from tests.spark.reader_support import Readers, numbers
        fake = FakeBroker("q")
        fake.publish("q", *numbers(50))
        driver = Driver(Readers(fake)(maxMessagesPerTrigger=10, queryCheckpoint=sys.argv[1]))
        driver.trigger_until_rows()
        try:
            print(json.dumps(driver.offsets[-1]), flush=True)
            while True:  # as Spark's reader process waits for the next call; a signal just before it is not missed
                select.select([sys.stdin], [], [], 0.1)
        finally:
            driver.reader.stop()
            print(len(fake.accepted), fake.depth("q"), flush=True)
        """
    )
    command = [sys.executable, "-c", program, str(checkpoint.directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        checkpoint.log(0, json.loads(process.stdout.readline()))
        checkpoint.commit(0)
        process.terminate()
        process.terminate()
        assert process.stdout.read().split() == ["10", "40"]
    assert process.returncode == 0


@pytest.mark.parametrize("value", ["checkpoints/q", "s3://key:secret@bucket/x"])
def test_a_location_that_cannot_be_one_is_refused(readers: Readers, value: str) -> None:
    with pytest.raises(OptionError, match=r"'queryCheckpoint'.*an absolute path, or a URI") as caught:
        readers(queryCheckpoint=value)
    assert "secret" not in str(caught.value)


def test_the_signal_of_spark_ends_the_process_as_an_exception_does_and_only_once() -> None:
    driver_env.stop_in_order()
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
