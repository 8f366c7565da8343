"""Fixtures of the tests against a real broker."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Connect


@pytest.fixture(params=["default", "durable"])
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A virtual host, in memory or with a store, and a fresh queue of it."""
    vhost: str = request.param
    return vhost, request.getfixturevalue("queue" if vhost == "default" else "durable_queue")


@pytest.fixture
def fresh_names(connect: Connect) -> Iterator[Iterator[str]]:
    """Names that nobody else uses; queues and exchanges so named are deleted after the test."""
    given: list[str] = []
    prefix = uuid.uuid4().hex[:12]

    def names() -> Iterator[str]:
        for number in itertools.count():
            given.append(f"test-{prefix}-{number}")
            yield given[-1]

    yield names()
    for vhost in ("default", "durable"):
        client = connect(vhost)
        for name in given:
            if client.query_queue(name) is not None:
                client.delete_queue(name)
        for name in given:
            if client.query_exchange(name) is not None:
                client.delete_exchange(name)


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Arrow batches of a thousand rows."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
