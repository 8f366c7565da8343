"""``kafka_drain_ratio``: rows/s of an AvailableNow query from a queue over those of one from a Kafka topic.

Both read body, key and headers of the same messages into the noop sink, on Spark 4.2.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench import kafka, processor, queries
from tests.bench.bench_drain import BODY_BYTES, WARM_QUERIES
from tests.bench.environment import Result, middle, rounded
from tests.bench.preload import HEADERS_DDL
from tests.support.kafka import KafkaNode

if TYPE_CHECKING:
    from tests.bench.environment import Environment
    from tests.bench.queries import Drained

SCHEMA = f"body BINARY, routing_key STRING, application_headers {HEADERS_DDL}"
settings = kafka.settings


def run(env: Environment) -> list[Result]:
    """In a process with the Spark that the Kafka source is for."""
    return kafka.run(__name__, env)


def measure(env: Environment) -> list[Result]:
    """Alternate Kafka and queue; the ratio is that of the medians. The topic is read again, the queue filled again."""
    count, rounds, warm = env.sizes.messages, env.sizes.rounds, env.sizes.warm_messages
    theirs: list[Drained] = []
    ours: list[Drained] = []
    brokers: tuple[list[float], list[float]] = [], []
    with (
        KafkaNode(partitions=kafka.PARTITIONS) as node,
        env.queue() as queue,
        env.progress("kafka_drain_ratio", 1 + 2 * rounds) as step,
    ):
        kafka.fill(env, node, "warm", warm)
        kafka.fill(env, node, "ticks", count)
        for _ in range(WARM_QUERIES if rounds > 1 else 1):
            _drain_topic(env, node, "warm", warm)
            env.fill(queue, warm, body_bytes=BODY_BYTES)
            queries.drain(env, queue, warm, schema=SCHEMA)
        step("warm")
        for _ in range(rounds):
            with processor.of_process(node.pid, brokers[0]):
                theirs.append(_drain_topic(env, node, "ticks", count))
            step(f"Kafka {count / theirs[-1].query_s:,.0f}/s")
            env.fill(queue, count, body_bytes=BODY_BYTES)
            with processor.of_broker(env, brokers[1]):
                ours.append(queries.drain(env, queue, count, schema=SCHEMA))
            step(f"AMQP {count / ours[-1].query_s:,.0f}/s")
    their_s, our_s = (middle([each.query_s for each in found]) for found in (theirs, ours))
    return [
        Result(
            name="kafka_drain_ratio",
            value=their_s / our_s,
            unit="ratio",
            higher_is_better=True,
            detail={
                "spark": env.spark.version,
                "messages": count,
                "amqp_per_s": round(count / our_s),
                "kafka_per_s": round(count / their_s),
                "amqp_s": rounded([each.query_s for each in ours]),
                "kafka_s": rounded([each.query_s for each in theirs]),
                "amqp_us_per_message": _each_us(ours, brokers[1], count),
                "kafka_us_per_message": _each_us(theirs, brokers[0], count),
                "amqp_batches": ours[-1].batches,
                "kafka_batches": theirs[-1].batches,
            },
        )
    ]


def _drain_topic(env: Environment, node: KafkaNode, topic: str, count: int) -> Drained:
    return queries.run_out(env, kafka.source(env, node, topic).writeStream.format("noop"), count)


def _each_us(drained: list[Drained], broker: list[float], count: int) -> dict[str, float]:
    """Microseconds of processor time per message, of each part."""
    found = {role: middle([getattr(each.spent, role) for each in drained]) for role in ("reader", "workers", "jvm")} | {
        "broker": middle(broker)
    }
    return {role: round(seconds / count * 1e6, 2) for role, seconds in found.items()}
