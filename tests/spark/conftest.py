"""Fixtures of the tests with a fake broker. What they import is imported in them: most tests here do without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.reader_support import Readers
    from tests.spark.transactional_state_support import Consumers
    from tests.support.fake_broker import FakeBroker


@pytest.fixture
def fake() -> FakeBroker:
    """A broker without a network that has the queues q and r, both empty."""
    from tests.support.fake_broker import FakeBroker  # noqa: PLC0415

    return FakeBroker("q", "r")


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks for its routes again after a lost connection only: without this, also when one second has passed."""
    monkeypatch.setattr("amqp_spark.sink.routes.AGAIN_SECONDS", 1e6)


@pytest.fixture
def fake_sink() -> FakeBroker:
    """A broker without a network that takes what is published."""
    from tests.support.fake_broker import FakeBroker  # noqa: PLC0415

    return FakeBroker()


@pytest.fixture
def readers(fake: FakeBroker) -> Iterator[Readers]:
    """Builds stream readers of that broker; stops them after the test."""
    from tests.spark.reader_support import Readers  # noqa: PLC0415

    readers = Readers(fake)
    yield readers
    readers.stop()


@pytest.fixture
def fast_recounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times after which the source counts a queue again and replaces a stalled consumer."""
    from amqp_spark.datasource import available_now, consumer_watch, drain_detector, unsettled  # noqa: PLC0415

    monkeypatch.setattr(drain_detector, "SETTLING_SECONDS", 0.2)
    monkeypatch.setattr(available_now, "SETTLING_SECONDS", 0.2)
    monkeypatch.setattr(consumer_watch, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(drain_detector, "STALLED_SECONDS", 0.3)
    monkeypatch.setattr(consumer_watch, "CERTAIN_SECONDS", 0.05)
    monkeypatch.setattr(unsettled, "IDLE_SECONDS", 0.02)


@pytest.fixture
def whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is planned when it is full or has all that there is, however long this machine takes to receive it."""
    from amqp_spark.datasource import receiver  # noqa: PLC0415

    for name in ("BEGIN_SECONDS", "GROWTH_SECONDS", "TRICKLE_SECONDS"):
        monkeypatch.setattr(receiver, name, 1e6)


@pytest.fixture
def consumers(fake: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumers]:
    """Builds readers of that broker with exactly-once, one consumer with one spool; stops them after the test.

    The messages that a test has published together arrive together: no batch is small because the rest comes later.
    """
    from amqp_spark.datasource import credit  # noqa: PLC0415
    from tests.spark.transactional_state_support import Consumers  # noqa: PLC0415

    monkeypatch.setattr(credit, "FIRST_CREDIT", 1000)
    consumers = Consumers(fake)
    consumers.spool = tmp_path / "spool"
    yield consumers
    consumers.stop()
