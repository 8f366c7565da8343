"""Examples of the README run as they stand; only their names, addresses, paths and trigger are replaced."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from amqp_core import ConnectOptions, Message, parse_url
from amqp_core import connect as connect_to
from tests.support.documents import README, blocks
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


def examples() -> list[str]:
    return [block.code for block in blocks(README, "python") if not block.runs_here]


@pytest.mark.spark
def test_the_first_example_on_the_embedded_broker(
    spark: SparkSession, amqp_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts, virtual_host, _ = parse_url(amqp_url)
    options = ConnectOptions(hosts=hosts, virtual_host=virtual_host, username="guest", password="guest")
    with connect_to(options) as client:
        client.declare_queue("hello")
        code = examples()[0].replace('"amqp://localhost:5672"', f'"{amqp_url}"')
        exec(compile(code, "README.md", "exec"), {})
        shown = re.findall(r"\|\s*(\w+)\|\s*(\w+)\|", capsys.readouterr().out)
        assert sorted(shown) == [("body", "routing_key"), ("hello", "hello"), ("world", "hello")]
        left = client.query_queue("hello")
        assert left is not None
        assert left.message_count == 0
    spark.catalog.dropTempView("received")


@pytest.mark.spark
def test_the_example_of_a_real_broker_reads_and_writes(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str], tmp_path: Path
) -> None:
    code = examples()[1]
    ticks, seen = next(fresh_names), next(fresh_names)
    client = connect()
    client.declare_queue(ticks)
    client.declare_queue(seen)
    client.bind(seen, "amq.topic", f"seen.{ticks}")
    code = code.replace('"ticks")', f'"{ticks}")').replace("/data/", f"{tmp_path}/")
    code = code.replace("amqp://localhost:5672/default", broker.url("default")).replace(
        '"guest"', f'"{broker.username}"', 1
    )
    code = code.replace('"guest"', f'"{broker.password}"').replace(".start(", ".trigger(availableNow=True).start(")
    read, write = code.split("# or into an exchange")
    names: dict[str, Any] = {}
    for part, body in ((read, b"one"), ("#" + write, b"two")):
        client.publish(Message(body=body), routing_key=ticks)
        client.confirm()
        exec(compile(part, "README.md", "exec"), names)
        try:
            assert names["query"].awaitTermination(120)
        finally:
            names["query"].stop()
    wanted = spark.createDataFrame([("one", ticks)], "body STRING, routing_key STRING")
    assert_df_equality(spark.read.parquet(f"{tmp_path}/ticks").select("body", "routing_key"), wanted)
    assert [message.body for message in client.subscribe(seen).take(1, timeout=10.0)] == [b"two"]


def without_spark(name: str, node: Broker, queue: str) -> str:
    """The first example that imports from a module, for a broker and a queue."""
    code = next(code for code in examples() if f"from {name} import" in code)
    hosts, _, _ = parse_url(node.url())
    code = code.replace('("localhost", 5672)', repr(hosts[0]))
    code = re.sub('"(greetings|letters)"', repr(queue), code)
    return code.replace('username="guest", password="guest"', f"username={node.username!r}, password={node.password!r}")


def test_the_example_without_spark(
    broker: Broker, connect: Connect, fresh_names: Iterator[str], capsys: pytest.CaptureFixture[str]
) -> None:
    queue = next(fresh_names)
    code = without_spark("amqp_core", broker, queue)
    assert code.count("\n") <= 14
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "b'hello'\n"
    left = connect().query_queue(queue)
    assert left is not None
    assert left.message_count == 0


def test_the_examples_without_spark_follow_each_other_on_one_broker(
    amqp_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (host, *_), _, _ = parse_url(amqp_url)
    for code in (code for code in examples() if "amqp_core" in code):
        exec(compile(code.replace('("localhost", 5672)', repr(host)), "README.md", "exec"), {})
    assert capsys.readouterr().out == "b'hello'\nb'hello' {'language': 'en'}\nb'?' {'language': None}\n"


def test_the_example_with_rabbitmq(rabbitmq: RabbitMQNode, capsys: pytest.CaptureFixture[str]) -> None:
    queue = f"test-{uuid.uuid4().hex[:12]}"
    code = without_spark("amqp_core.amqp_0_9_1", rabbitmq, queue)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out == "b'hello' {'language': 'en'}\nb'?' {'language': None}\n"
    options = ConnectOptions(
        hosts=((rabbitmq.host, rabbitmq.port),), username=rabbitmq.username, password=rabbitmq.password
    )
    with names["Client"].connect(options) as client:

        def is_idle() -> bool:
            info = client.query_queue(queue)
            return (info.message_count, info.subscriber_count) == (0, 0)

        wait_until(is_idle, "no message and no consumer")
        client.delete_queue(queue)
