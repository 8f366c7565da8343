"""Fixtures of the tests with a fake broker. What they import is imported in them: most tests here do without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.fake_client import FakeBroker
    from tests.spark.reader_support import Readers


@pytest.fixture
def fake() -> FakeBroker:
    """A broker without a network that has the queues q and r, both empty."""
    from tests.spark.fake_client import FakeBroker  # noqa: PLC0415

    return FakeBroker("q", "r")


@pytest.fixture
def readers(fake: FakeBroker) -> Iterator[Readers]:
    """Builds stream readers of that broker; stops them after the test."""
    from tests.spark.reader_support import Readers  # noqa: PLC0415

    readers = Readers(fake)
    yield readers
    readers.stop()
