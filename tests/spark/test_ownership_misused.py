"""Exactly-once on a fake broker: options that were changed or shared, places that fail for a moment, bad timing."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.datasource import spool, spool_files
from amqp_spark.errors import OffsetError, SpoolError, StateError
from tests.spark.driver import Driver, bodies
from tests.spark.fake_client import FakeBroker
from tests.spark.reader_support import Readers
from tests.spark.test_ownership import Consumers, files, fresh, idle_until, numbers, planned, states, stopped

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker("q", "r")


@pytest.fixture
def readers(fake: FakeBroker, tmp_path: Path) -> Iterator[Consumers]:
    readers = Consumers(fake)
    readers.spool = tmp_path / "spool"
    yield readers
    readers.stop()


@pytest.fixture
def elsewhere(readers: Consumers) -> Iterator[Consumers]:
    """The same consumer with the same spool, on another broker."""
    others = Consumers(FakeBroker("q"))
    others.spool = readers.spool
    yield others
    others.stop()


def test_a_spool_is_not_shared_by_the_consumers_of_two_brokers(
    fake: FakeBroker, readers: Consumers, elsewhere: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    idle = fresh(elsewhere)
    idle.latest()
    stopped(idle)
    fake.publish("q", *numbers(30))
    first = planned(readers)
    owned = [batch.file for state in states(fake) for batch in state.owned]
    again = Driver(elsewhere(), idle)
    with pytest.raises(StateError, match=r"1 batch\(es\) of another state of this consumer.*another broker"):
        again.latest()
    stopped(again)
    assert files(readers) == owned
    adopted = Driver(elsewhere(adoptState="true"), idle)
    adopted.latest()
    stopped(adopted)
    assert "1 batch(es) of another state stay in the spool" in caplog.text
    assert files(readers) == owned
    second = Driver(readers(), first)
    assert bodies(second.restart_batch() or []) == numbers(10, 10)
    assert sorted(bodies([*first.batches[0], *second.batches[0], *second.rows(20)[10:]])) == numbers(30)
    idle_until(second, lambda: not files(readers))


def test_a_file_that_cannot_be_read_at_the_moment_is_not_given_up(
    fake: FakeBroker, readers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("q", *numbers(30))
    first = planned(readers)
    (owned,) = files(readers)
    real = spool_files.LocalDirectory.open

    def failing(self: spool_files.LocalDirectory, name: str) -> contextlib.AbstractContextManager[Any]:
        if name == owned:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(spool_files.LocalDirectory, "open", failing)
        second = Driver(readers(adoptState="true"), first)
        with pytest.raises(SpoolError, match="Input/output error"):
            second.restart_batch()
        stopped(second)
    assert files(readers) == [owned]
    third = Driver(readers(adoptState="true"), first)
    assert bodies(third.restart_batch() or []) == numbers(10, 10)


def test_a_damaged_file_that_was_given_up_stays_for_one_start(fake: FakeBroker, readers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = planned(readers)
    (owned,) = files(readers)
    (readers.spool / owned).write_bytes(b"AMQPSPOL")
    second = Driver(readers(adoptState="true"), first)
    assert second.restart_batch() == []
    assert owned in files(readers)
    stopped(second)
    third = Driver(readers(adoptState="true"), second)
    third.latest()
    assert owned not in files(readers)


def test_a_spool_that_is_moved_without_its_files_is_not_given_up(
    fake: FakeBroker, readers: Consumers, tmp_path: Path
) -> None:
    fake.publish("q", *numbers(30))
    first = planned(readers)
    old, readers.spool = readers.spool, tmp_path / "moved"
    second = Driver(readers(adoptState="true"), first)
    with pytest.raises(SpoolError, match="has no file") as raised:
        second.restart_batch()
    assert f"which was in {str(old)!r}: bring all files from there" in "".join(raised.value.__notes__)
    stopped(second)
    for name in old.iterdir():
        name.rename(readers.spool / name.name)
    third = Driver(readers(adoptState="true"), first)
    assert bodies(third.restart_batch() or []) == numbers(10, 10)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_another_guarantee_does_not_go_on_with_the_checkpoint(
    fake: FakeBroker, readers: Consumers, guarantee: str
) -> None:
    fake.publish("q", *numbers(30))
    first = planned(readers)
    others = Readers(fake)
    second = Driver(others(deliveryGuarantee=guarantee), first)
    with pytest.raises(OffsetError, match=r"written with deliveryGuarantee=exactly-once.*in the spool and nowhere"):
        second.restart_batch()
    with pytest.raises(OffsetError, match="Set the option back"):
        second.latest()
    others.stop()
    third = Driver(readers(), first)
    assert bodies(third.restart_batch() or []) == numbers(10, 10)


def test_available_now_does_not_end_because_a_batch_was_not_owned(
    fake: FakeBroker, readers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("q", *numbers(60))
    write = spool.Spool.write
    cuts: list[int] = []

    def reconnected(self: spool.Spool, **arguments: Any) -> spool.Written:
        written = write(self, **arguments)
        if not cuts:  # the new session has what waits again before this batch is to be owned
            cuts.append(fake.connects)
            fake.cut()
            fake.wait(lambda: fake.connects > cuts[0] and fake.held() > 0)
        return written

    monkeypatch.setattr(spool.Spool, "write", reconnected)
    driver = Driver(readers(maxMessagesPerTrigger=10), available_now=True)
    while driver.trigger() is not None:
        pass
    assert sorted(bodies([row for batch in driver.batches for row in batch])) == numbers(60)
    assert cuts
