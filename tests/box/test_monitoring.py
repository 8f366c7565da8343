"""Metrics of a real query on the embedded broker, source and sink in one, against what was sent."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_10.messages import Message
from amqp_spark.monitoring import Metrics, show
from amqp_spark.monitoring.history import COLUMNS, QUEUE_COLUMNS
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.box.conftest import Connect, Connect010

COUNT, BATCH = 100, 40


def scraped(metrics: Metrics) -> dict[str, float]:
    """The samples as Prometheus gets them, over HTTP."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] not in {"", "#"})
    }


def test_the_first_message_of_a_block_tells_whether_it_was_delivered_before(
    connect: Connect, connect_0_10: Connect010
) -> None:
    """Over both protocols; the second client gets what the first one has not accepted."""
    publisher = connect_0_10()
    publisher.declare_queue("q")
    for made in (connect, connect_0_10):
        publisher.publish(Message(b"body"), routing_key="q")
        publisher.confirm()
        seen = []
        for _ in range(2):
            client = made(heartbeat=0)
            subscription = client.subscribe("q", max_unsettled=1)
            blocks = subscription.take_blocks(60)
            seen.append(client.first_is_redelivered(blocks[0]))
            last = blocks[0].first_id
            if len(seen) == 2:
                client.accept([(last, last)])
            client.close()
        assert seen == [False, True]


@pytest.mark.spark
def test_metrics_of_a_query_agree_with_what_was_sent(
    spark: SparkSession, amqp_url: str, connect_0_10: Connect010, tmp_path: Path
) -> None:
    client = connect_0_10(virtual_host=amqp_url.rpartition("/")[2], heartbeat=0)
    for queue in ("in", "out"):
        client.declare_queue(queue, durable=True)
    for number in range(COUNT):
        client.publish(Message(b"%d" % number), routing_key="in")
    client.confirm()
    login = {"url": amqp_url, "username": "guest", "password": "guest"}
    source = {**login, "queue": "in", "maxMessagesPerTrigger": str(BATCH)}
    frame = spark.readStream.format("amqp").options(**source).schema("body BINARY").load()
    sink = {**login, "routingKey": "out", "checkpointLocation": str(tmp_path / "checkpoint")}

    with Metrics(prometheus_port=0) as metrics:
        spark.streams.addListener(metrics)
        try:
            writing = frame.writeStream.queryName("copied").format("amqp").options(**sink)
            query = writing.trigger(availableNow=True).start()
            query.awaitTermination()
            ended = 'amqp_spark_query_active{query="copied"}'
            wait_until(lambda: scraped(metrics).get(ended) == 0.0, "the listener has seen the end of the query")
        finally:
            spark.streams.removeListener(metrics)
        samples = scraped(metrics)
        history = metrics.history()
        queues = metrics.history(by_queue=True)

    out = client.query_queue("out")
    assert out is not None
    assert out.message_count == COUNT
    rows = history[history["rows_in"] > 0]
    assert rows["rows_in"].sum() == COUNT
    assert rows["rows_in"].max() <= BATCH  # so there are three at least; a slow machine makes more of them
    assert rows["rows_in"].tolist() == rows["rows_out"].tolist() == rows["published"].tolist()
    assert rows["backlog"].tolist() == (COUNT - rows["rows_in"].cumsum()).tolist()
    assert rows["drain_s"].iloc[-1] == 0.0
    assert rows["drain_s"].iloc[1] > 0.0  # it shrinks
    assert rows["backlog_per_s"].iloc[1] < 0.0
    assert history["received"].sum() == COUNT
    assert (rows["work_s"] <= rows["batch_s"]).all()
    assert (rows[["rejected", "discarded", "retries", "duplicates_possible", "lost_sessions"]].fillna(0) == 0).all(None)
    assert {name: str(kind) for name, kind in history.dtypes.items()} == {
        name: column.dtype for name, column in COLUMNS.items()
    }
    assert list(queues.columns) == list(QUEUE_COLUMNS)
    assert set(queues["queue"]) == {"in"}
    label = '{query="copied"}'
    assert samples[f"amqp_spark_rows_in_total{label}"] == samples[f"amqp_spark_rows_out_total{label}"] == COUNT
    assert samples[f"amqp_spark_sink_messages_total{label}"] == COUNT
    received = 'amqp_spark_source_received_messages_total{query="copied",queue="in"}'
    assert samples[received] == COUNT
    assert 'amqp_spark_source_backlog_messages{query="copied",queue="in"}' not in samples  # the query has ended
    assert history["buffer_bytes"].iloc[-1] > 0

    drawn = show(query)
    assert [axes.get_ylabel() for axes in drawn.figure.axes] == ["rows/s", "messages", "s"]
    assert drawn._repr_png_().startswith(b"\x89PNG")
    assert show(history).figure.get_suptitle() == "copied"
