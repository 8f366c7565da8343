"""``kafka_latency_ratio``: median time from publishing to ``foreachBatch``, from a queue over that from a Kafka topic.

As ``latency_ratio``, with body, key and headers on both sides, on Spark 4.2.0.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message
from tests.bench import kafka, queries
from tests.bench.bench_kafka_drain import SCHEMA
from tests.bench.bench_latency import measure as measure_stream
from tests.bench.environment import Result, middle, rounded
from tests.bench.preload import PRICE, SYMBOL
from tests.support.kafka import KafkaNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.environment import Environment

settings = kafka.settings


def run(env: Environment) -> list[Result]:
    """In a process with the Spark that the Kafka source is for."""
    return kafka.run(__name__, env)


def measure(env: Environment) -> list[Result]:
    """Alternate Kafka and queue; the ratio is that of the medians over all rounds."""
    theirs: list[list[float]] = []
    ours: list[list[float]] = []
    with (
        KafkaNode(partitions=kafka.PARTITIONS) as node,
        env.progress("kafka_latency_ratio", 2 * env.sizes.rounds) as step,
    ):
        for number in range(env.sizes.rounds):
            topic = f"latency-{number}"
            with kafka.sending(env, node, topic) as publish:
                theirs.append(measure_stream(env, kafka.source(env, node, topic), publish))
            step(f"Kafka {middle(theirs[-1]) * 1e3:.0f} ms")
            with env.queue() as queue, _sending(env, queue) as publish:
                ours.append(measure_stream(env, queries.source(env, queue, SCHEMA), publish))
            step(f"AMQP {middle(ours[-1]) * 1e3:.0f} ms")
    their_s, our_s = (middle([middle(each) for each in found]) for found in (theirs, ours))
    return [
        Result(
            name="kafka_latency_ratio",
            value=our_s / their_s,
            unit="ratio",
            higher_is_better=False,
            detail={
                "spark": env.spark.version,
                "amqp_ms": round(our_s * 1e3, 1),
                "kafka_ms": round(their_s * 1e3, 1),
                "amqp_ms_by_round": rounded([middle(each) * 1e3 for each in ours], 1),
                "kafka_ms_by_round": rounded([middle(each) * 1e3 for each in theirs], 1),
                "messages_per_round": env.sizes.latency_messages,
            },
        )
    ]


@contextmanager
def _sending(env: Environment, queue: str) -> Iterator[Callable[[bytes], object]]:
    """As ``env.sending``, with headers, and confirmed as Kafka's producer waits for its node."""
    headers = spec.MessageProperties(application_headers={"symbol": SYMBOL, "qty": 1, "price": PRICE})
    with env.client() as client:

        def send(body: bytes) -> None:
            client.publish(Message(body=body, properties=headers), routing_key=queue)
            client.confirm()

        yield send
