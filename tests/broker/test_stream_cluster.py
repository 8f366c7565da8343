"""Executors in processes of their own (``local-cluster``): batches that they pull from the reader on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.stream_support import depth, numbers, publish
from tests.support.query_process import Query, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def cluster() -> Iterator[QueryProcess]:
    """Two executors with one core each."""
    settings = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m"}
    with QueryProcess(settings=settings) as process:
        yield process


@pytest.mark.parametrize("transfer", ["pull", "inline"])
def test_a_cluster_reads_every_message(
    cluster: QueryProcess, broker: Broker, connect: Connect, queue: str, tmp_path: Path, transfer: str
) -> None:
    client = connect(heartbeat=0)  # the test leaves it alone while queries run
    sent = [number + b"x" * 1000 for number in numbers(6000)]
    publish(client, queue, sent)
    options = {
        "url": broker.url(),
        "username": broker.username,
        "password": broker.password,
        "queue": queue,
        "transfer": transfer,
        "maxBytesPerTrigger": "2m",
    }
    query = Query(name=transfer, options=options, directory=tmp_path, schema="body BINARY, position BIGINT")
    cluster.drain([query])
    rows = sorted(query.rows(), key=lambda row: row["position"])
    assert [row["body"] for row in rows] == sent
    assert [row["position"] for row in rows] == list(range(6000))
    assert depth(client, queue) == 0
    assert len(query.batches()) >= 3
