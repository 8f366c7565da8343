"""Fixtures of the tests with a fake broker. What they import is imported in them: most tests here do without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.fake_client import FakeBroker
    from tests.spark.reader_support import Readers
    from tests.spark.sink_fakes import FakeBroker as SinkBroker
    from tests.spark.transactional_state_support import Consumers


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """A broker without a network that has the queues q and r, both empty."""
    from amqp_spark.datasource.exactly_once import recovery, transactional_state  # noqa: PLC0415
    from tests.spark.fake_client import FakeBroker  # noqa: PLC0415
    from tests.spark.fake_owner import FakeOwner  # noqa: PLC0415

    for module in (recovery, transactional_state):
        monkeypatch.setattr(module, "StateQueue", FakeOwner)
    return FakeBroker("q", "r")


@pytest.fixture
def fake_sink() -> SinkBroker:
    """A broker without a network that takes what is published."""
    from tests.spark.sink_fakes import FakeBroker  # noqa: PLC0415

    return FakeBroker()


@pytest.fixture
def readers(fake: FakeBroker) -> Iterator[Readers]:
    """Builds stream readers of that broker; stops them after the test."""
    from tests.spark.reader_support import Readers  # noqa: PLC0415

    readers = Readers(fake)
    yield readers
    readers.stop()


@pytest.fixture
def consumers(fake: FakeBroker, tmp_path: Path) -> Iterator[Consumers]:
    """Builds readers of that broker with exactly-once, one consumer with one spool; stops them after the test."""
    from tests.spark.transactional_state_support import Consumers  # noqa: PLC0415

    consumers = Consumers(fake)
    consumers.spool = tmp_path / "spool"
    yield consumers
    consumers.stop()
