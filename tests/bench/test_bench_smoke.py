"""The benchmarks run and say what they must; how fast anything was is not looked at."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_core.v0_10 import spec
from amqp_spark.arrow.encode import FrameFormat, MessagePlan, TaskId
from amqp_spark.options import SinkOptions
from tests.bench import __main__ as bench
from tests.bench import bench_box, bench_encode, bench_scale, preload, rawpublish
from tests.bench.environment import Environment, Sizes
from tests.bench.rabbitmq import RabbitMQEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from amqp_core.v0_10.messages import Message
    from tests.support.fixtures import Broker, Connect
    from tests.support.rabbitmq import RabbitMQNode

EXPLICIT = spec.MessageAcceptMode.EXPLICIT
UNITS = {
    "drain_ratio": ("ratio", True),
    "growth": ("ratio", False),
    "many_queues": ("ratio", False),
    "latency_ratio": ("ratio", False),
    "large_message_ratio": ("ratio", True),
    "reader_rss_mb": ("MB", False),
    "reader_rss_mixed_mb": ("MB", False),
    "idle_cpu": ("cores", False),
    "publish_ratio": ("ratio", True),
    "bridge_ratio": ("ratio", True),
    "publish_rss_mb": ("MB", False),
    "small_batch_ms": ("ms", False),
    "eo_source_ratio": ("ratio", True),
    "eo_sink_ratio": ("ratio", True),
    "recovery_s": ("s", False),
    "peer_jms_ratio": ("ratio", True),
}
# Those with a broker of their own, which need what make test does not fetch, or another Spark.
OWN_UNITS = {
    "peer_ratio": ("ratio", True),
    "scale": ("rows/s", True),
    "sizing": ("rows/s", True),
    "kafka_drain_ratio": ("ratio", True),
    "kafka_latency_ratio": ("ratio", False),
}
SEPARATE = ("three_frames", "box")

RABBITMQ_UNITS = {
    "rabbitmq_quorum_drain_ratio": ("ratio", True),
    "rabbitmq_publish_ratio": ("ratio", True),
    "rabbitmq_latency_ratio": ("ratio", False),
    "rabbitmq_reader_rss_mixed_mb": ("MB", False),
    "rabbitmq_peer_ratio": ("ratio", True),
    "rabbitmq_eo_ratio": ("ratio", True),
    "rabbitmq_stream_drain_ratio": ("ratio", True),
    "rabbitmq_stream_scale": ("ratio", True),
}


@pytest.fixture
def env(broker: Broker, spark: SparkSession) -> Iterator[Environment]:
    with Environment(sizes=Sizes.quick(), given_broker=broker, given_spark=spark, quiet=True) as env:
        yield env


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("name", UNITS)
def test_a_benchmark_runs(env: Environment, name: str, tmp_path: Path) -> None:
    results = bench.run(name, env)
    bench.write(results, tmp_path / "build" / "bench.json")
    (found,) = json.loads((tmp_path / "build" / "bench.json").read_text(encoding="utf-8"))
    assert list(found) == ["name", "value", "unit", "higher_is_better", "detail"]
    assert (found["name"], found["unit"], found["higher_is_better"]) == (name, *UNITS[name])
    assert isinstance(found["value"], float)
    assert name in bench.table(results)
    if name == "reader_rss_mb":
        assert found["detail"]["bufferBytes"] == 128 << 20


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1800)  # the first with Kafka makes an environment with another Spark
@pytest.mark.parametrize("name", OWN_UNITS)
def test_a_benchmark_with_a_broker_of_its_own_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    with Environment(sizes=Sizes.quick(), given_spark=spark, quiet=True) as env:
        (found,) = bench.run(name, env)
    assert (found["name"], found["unit"], found["higher_is_better"]) == (name, *OWN_UNITS[name])
    assert found["value"] > 0
    assert name in bench.BOUNDS


def test_every_benchmark_has_a_test() -> None:
    tested = {*UNITS, *OWN_UNITS, *SEPARATE, *bench.ALONE}
    assert tested >= bench.BENCHMARKS.keys()


def test_more_cores_help_until_each_reader_fills_one() -> None:
    row = bench_scale.Row(
        readers=1, rows_per_s=1.0, parts_us={"reader": 0.5, "workers": 1.0, "jvms": 2.5}, broker_us=9.0
    )
    assert row.bound(1) == 250_000
    assert row.bound(4) == 1_000_000
    assert row.bound(32) == row.reader_rows_per_s == 2_000_000
    assert replace(row, readers=4).bound(32) == 8_000_000


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.parametrize("name", RABBITMQ_UNITS)
def test_a_benchmark_of_rabbitmq_runs(rabbitmq: RabbitMQNode, spark: SparkSession, name: str) -> None:
    with RabbitMQEnvironment(sizes=Sizes.quick(), given_broker=rabbitmq, given_spark=spark, quiet=True) as env:
        (found,) = bench.run(name, env)
    assert (found["name"], found["unit"], found["higher_is_better"]) == (name, *RABBITMQ_UNITS[name])
    assert isinstance(found["value"], float)


def test_every_benchmark_of_rabbitmq_that_needs_it_runs() -> None:
    assert list(RABBITMQ_UNITS) == [name for name in bench.RABBITMQ if name not in bench.ALONE]


@pytest.mark.thorough
@pytest.mark.spark
def test_the_replayed_drain_runs(spark: SparkSession) -> None:
    with Environment(sizes=Sizes.quick(), given_spark=spark, quiet=True) as env:
        results = bench.run("three_frames", env)
    assert [(found["name"], found["unit"], found["higher_is_better"]) for found in results] == [
        ("three_frame_reader_us", "us", False),
        ("three_frame_workers_us", "us", False),
        ("three_frame_us", "us", False),
        ("three_frame_ratio", "ratio", True),
    ]
    reader, workers, together, ratio = (found["value"] for found in results)
    assert 0 < max(reader, workers) <= together
    assert ratio > 0


def test_the_benchmarks_of_the_embedded_broker_run() -> None:
    results = [
        *bench_box.rates(messages=2000, rounds=1),
        *bench_box.durable(messages=2000, rounds=1),
        *bench_box.starts(rounds=1),
    ]
    assert [(found["name"], found["unit"], found["higher_is_better"]) for found in results] == [
        ("box_publish_rate", "messages/s", True),
        ("box_drain_rate", "messages/s", True),
        ("box_message_bytes", "B", False),
        ("box_durable_rate", "messages/s", True),
        ("box_start_s", "s", False),
    ]
    assert all(found["value"] > 0 for found in results)
    assert {found["name"] for found in results} <= bench.BOUNDS.keys()


@pytest.mark.broker
def test_preloaded_messages_are_what_they_say(broker: Broker, connect: Connect, queue: str) -> None:
    count = preload.BLOCK_MESSAGES + 7
    with Environment(sizes=Sizes.quick(), given_broker=broker, quiet=True) as env:
        env.fill(queue, count, body_bytes=300)
    subscription = connect().subscribe(queue)
    messages: list[Message] = []
    while len(messages) < count:
        messages += subscription.take(count - len(messages))
    assert [message.headers["qty"] for message in messages] == list(range(count))
    assert len({message.properties.message_id for message in messages}) == count
    for message in messages:
        assert len(message.body) == 300
        assert message.routing_key == queue
        assert message.headers == {"symbol": preload.SYMBOL, "qty": message.headers["qty"], "price": preload.PRICE}
        assert message.delivery.timestamp


def test_the_sink_makes_the_frames_that_the_raw_loop_sends() -> None:
    """Else ``publish_ratio`` would compare two different things."""
    count, key = preload.BLOCK_MESSAGES + 7, "bench"
    head = str(preload.MESSAGE_ID)[:18]
    rows = [
        {
            "body": preload.body_of(256),
            "routing_key": key,
            "message_id": f"{head}-{number >> 48:04x}-{number:012x}",
            "application_headers": {"symbol": preload.SYMBOL, "qty": number, "price": preload.PRICE},
        }
        for number in range(count)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(bench_encode.SCHEMA, timezone="UTC"))
    options = SinkOptions.parse({"url": "amqp://localhost/default", "deliveryMode": "non-persistent"})
    plan = MessagePlan.build(bench_encode.SCHEMA, options)
    encoder = plan.encoder(FrameFormat(accept_mode=EXPLICIT, max_frame_size=65_535), TaskId(None, None, 0))
    ours = b"".join(bytes(block.frames) for block in encoder.blocks(batch, 0))
    assert ours == b"".join(rawpublish.ready_made(key, count, body_bytes=256, accept_mode=EXPLICIT))


@pytest.mark.broker
def test_the_raw_loop_publishes_everything(broker: Broker, queue: str) -> None:
    with Environment(sizes=Sizes.quick(), given_broker=broker, quiet=True) as env:
        blocks = rawpublish.ready_made(queue, 40_007, body_bytes=256, accept_mode=EXPLICIT)
        with env.driver() as driver:
            assert rawpublish.publish(driver, blocks, 40_007) > 0
        env.take_all(queue, 40_007)
        assert env.depth(queue) == 0


@pytest.mark.broker
def test_the_raw_loop_takes_and_accepts_everything(broker: Broker, queue: str) -> None:
    with Environment(sizes=Sizes.quick(), given_broker=broker, quiet=True) as env:
        env.fill(queue, 40_000, body_bytes=64)  # more than its credit
        assert env.drain_raw(queue, 40_000) > 0
        assert env.depth(queue) == 0


@pytest.mark.parametrize("kind", [Environment, RabbitMQEnvironment])
def test_the_broker_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, kind: type[Environment]) -> None:
    for name, value in {"URL": "amqp://broker.example:5673/market", "USERNAME": "bench", "PASSWORD": "secret"}.items():
        monkeypatch.setenv(f"AMQP_{name}", value)
    with kind(sizes=Sizes.quick(), quiet=True, warms=False) as env:
        options = env.connect_options
    assert (options.hosts, options.virtual_host) == ((("broker.example", 5673),), "market")
    assert (options.username, options.password) == ("bench", "secret")


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["drain_rato"]) == 2
    said = capsys.readouterr().err
    assert "drain_rato" in said
    assert "drain_ratio" in said
