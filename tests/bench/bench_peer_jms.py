"""``peer_jms_ratio``: the peer is a Java program with Apache Qpid's JMS client for AMQP 0-10.

It is given what Spark has: the same Parquet library (the jars of pyspark), a warm virtual machine, and as much heap.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.bench.bench_drain import BODY_BYTES
from tests.bench.bench_peer import Program, compare, new_directory, warm_drains
from tests.support import javapeer
from tests.support.java_source import java_command

if TYPE_CHECKING:
    from tests.bench.environment import Environment, Result

PREFETCH = 5000
HEAP = "2g"
_SOURCE = Path(__file__).parent / "peers" / "JmsPeer.java"
_FACTORY = "org.apache.qpid.client.AMQConnectionFactory"
_KEY = "x-amqp-0-10.routing-key"


def run(env: Environment) -> list[Result]:
    """Compare."""
    return compare(env, "peer_jms_ratio", _peer)


def _peer(env: Environment, queue: str, count: int, directory: Path) -> Program:
    options = env.connect_options
    host, port = options.hosts[0]
    url = f"amqp://:@bench/{options.virtual_host}?brokerlist='tcp://{host}:{port}'&maxprefetch='{PREFETCH}'"
    warm, warm_count = f"{queue}-warm", env.sizes.warm_messages * warm_drains(env)
    with env.client() as client:
        client.declare_queue(warm, auto_delete=True)  # when its only consumer has left
    env.fill(warm, warm_count, body_bytes=BODY_BYTES)
    arguments = [_FACTORY, url, _KEY, warm, warm_count, new_directory(env), queue, count, directory]
    jars = [javapeer.jars(), Path(pyspark.__file__).parent / "jars"]  # the first one's slf4j counts
    command = java_command(_SOURCE, jars, *map(str, arguments), heap=HEAP, options=["-Dqpid.amqp.version=0-10"])
    return Program(command)
