"""The dashboard for Grafana and the alerts: they name what is exported, and a real Prometheus takes them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.v0_10.messages import Message
from amqp_spark.monitoring import Metrics
from amqp_spark.monitoring.prometheus import METRICS, PREFIX
from amqp_spark.sink import AmqpBatchSink
from tests.support.process import wait_until
from tests.support.prometheus import programs, scraping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.box.conftest import Connect010

DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana" / "amqp_spark.json").read_text())
DOCUMENT = (DOCS / "monitoring.md").read_text()
EXPORTED = {PREFIX + name for name in METRICS}


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for each in value.values() for text in strings(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in strings(each))


def names(*texts: str) -> set[str]:
    return {name for text in texts for name in re.findall(rf"\b{PREFIX}\w+", text)}


def targets() -> list[dict[str, Any]]:
    return [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def alerts() -> str:
    (text,) = re.findall(r"```yaml\n(groups:.*?)```", DOCUMENT, re.DOTALL)
    return str(text)


def test_the_dashboard_shows_what_is_exported() -> None:
    shown = names(*strings(targets()))
    assert shown == EXPORTED
    assert names(*strings(DASHBOARD["templating"])) <= EXPORTED


def test_every_metric_is_documented_and_alerts_name_no_others() -> None:
    table = {line.split("`")[1] for line in DOCUMENT.splitlines() if line.startswith(f"| `{PREFIX}")}
    assert table == EXPORTED
    assert names(alerts()) <= EXPORTED


def test_panels_have_places_of_their_own() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


LOSSES = {
    "AmqpRejects": (
        'source_rejected_messages_total{query="q", queue="a"}',
        {"query": "q", "queue": "a"},
        "q: messages of a do not fit the schema",
    ),
    "AmqpDiscards": (
        'sink_discarded_messages_total{query="q"}',
        {"query": "q"},
        "q: the sink discards messages that no queue takes",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("values", ["_x5 1+0x60", "0+0x5 1+0x60"], ids=["appears with it", "appears before"])
def test_the_first_loss_is_an_alert(tmp_path: Path, values: str) -> None:
    """Also where it is of the first batch, with which the counter appears; and it ends."""
    (tmp_path / "rules.yml").write_text(alerts())
    expected = {
        name: {"exp_labels": labels, "exp_annotations": {"summary": text}} for name, (_, labels, text) in LOSSES.items()
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": PREFIX + series, "values": values} for series, _, _ in LOSSES.values()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [alert] if fires else []}
            for name, alert in expected.items()
            for minute, fires in ((3, False), (7, True), (15, True), (40, False))
        ],
    }
    rules = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yml").write_text(json.dumps(rules))  # JSON is YAML
    tool = [str(programs() / "promtool"), "test", "rules", str(tmp_path / "test.yml")]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.thorough
def test_a_real_prometheus_runs_every_expression(
    spark: SparkSession, amqp_url: str, connect_0_10: Connect010, tmp_path: Path
) -> None:
    """On what it has scraped of a running query; the test of the names runs every time."""
    client = connect_0_10(virtual_host=amqp_url.rpartition("/")[2], heartbeat=0)
    for queue in ("in", "out"):
        client.declare_queue(queue, durable=True)

    def publish() -> None:
        for number in range(10):
            client.publish(Message(b"%d" % number), routing_key="in")
        client.confirm()

    login = {"url": amqp_url, "username": "guest", "password": "guest"}
    once = {"deliveryGuarantee": "exactly-once", "consumerId": "watched", "spoolLocation": str(tmp_path / "spool")}
    frame = spark.readStream.format("amqp").options(**login, **once, queue="in").schema("body BINARY").load()
    sink = AmqpBatchSink(login, routingKey="out")
    rules = tmp_path / "rules.yml"
    rules.write_text(alerts())
    subprocess.run([programs() / "promtool", "check", "rules", str(rules)], check=True, capture_output=True)

    with Metrics(prometheus_port=0) as metrics:
        spark.streams.addListener(metrics)
        writing = frame.writeStream.queryName("watched").foreachBatch(sink)
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            with scraping(f"127.0.0.1:{metrics.port}", tmp_path) as prometheus:

                def flows(name: str) -> bool:
                    publish()
                    return any(float(each["value"][1]) > 0 for each in prometheus.query(f"rate({PREFIX}{name}[1m])"))

                for name in ("rows_in_total", "sink_messages_total", "source_received_messages_total"):
                    wait_until(lambda name=name: flows(name), f"Prometheus has a rate of {name}", 120.0, 0.5)  # type: ignore[misc]
                for target in targets():
                    expression = target["expr"].replace("$query", ".*").replace("$__rate_interval", "1m")
                    found = prometheus.query(expression)
                    assert found, expression
                for expression in re.findall(r"expr: (.*)", alerts()):
                    assert not prometheus.query(expression), f"it fires: {expression}"
        finally:
            query.stop()
            spark.streams.removeListener(metrics)
