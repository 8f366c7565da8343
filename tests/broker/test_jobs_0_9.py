"""The jobs on RabbitMQ: market_data, ingest, publish and drain, one after the other."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.broker.job_support import Here, login
from tests.broker.source_0_9_support import Place
from tests.support.jobs import load

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.spark, pytest.mark.broker]
COUNT = 500


@pytest.mark.thorough
def test_messages_go_through_all_jobs(
    spark: SparkSession,  # the jobs use it
    rabbitmq: RabbitMQNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = Place(rabbitmq.url("durable"), rabbitmq.username, rabbitmq.password, "quorum")
    variables = login(rabbitmq, vhost="durable")
    run = {name: Here(name, variables, monkeypatch) for name in ("ingest", "publish", "drain")}
    exchange, ticks = f"test-{uuid.uuid4().hex[:12]}", tmp_path / "ticks"
    try:
        with place.connect() as client:
            client.declare_exchange(exchange, "topic")
        ingest = [
            "--queue",
            place.queue,
            "--output",
            str(ticks),
            "--checkpoint",
            str(tmp_path / "ck"),
            "--available-now",
        ]
        for option in ("declare=ifMissing", "queueType=quorum", f"bind={exchange}/ticks.#"):
            ingest += ["--option", option]
        assert run["ingest"](*ingest) == 0  # declares and binds
        assert load("market_data").main(["--exchange", exchange, "--count", str(COUNT)]) == 0
        assert json.loads(capfd.readouterr().out.splitlines()[-1])["published"] == COUNT
        assert run["ingest"](*ingest) == 0
        rows = pq.read_table(ticks)
        assert rows.num_rows == COUNT
        assert len(set(rows["message_id"].to_pylist())) == COUNT
        place.wait_for_count(0, 0)

        again = ["--input", str(ticks), "--column", "body=body", "--column", "message_id=message_id"]
        assert run["publish"](*again, "--routing-key", place.queue) == 0
        report = tmp_path / "report.json"
        files = ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "ck2"), "--report", str(report)]
        assert run["drain"]("--queue", place.queue, *files) == 0
        assert json.loads(report.read_text())["messages"] == COUNT
        drained = pq.read_table(tmp_path / "out")
        assert set(drained["message_id"].to_pylist()) == set(rows["message_id"].to_pylist())
    finally:
        place.close()
        with place.connect() as client:
            client.delete_exchange(exchange)
