"""``peer_ratio``: rows/s of a query from a queue into Parquet over those of a careful script with pika.

Both start with the same full queue and end with an empty one and the rows in files; see :mod:`tests.bench.peer_script`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from tests.bench import peer_script, processor, queries
from tests.bench.bench_drain import BODY_BYTES
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from tests.bench.environment import Environment

WARM_QUERIES = 3
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Side:
    """One drain: seconds, and seconds of processor time, of everything on that side and of the broker."""

    seconds: float
    processor_s: float
    broker_s: float


def run(env: Environment) -> list[Result]:
    """Alternate script and query; the ratio is that of the medians."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    script: list[Side] = []
    query: list[Side] = []
    with env.queue() as queue, env.progress("peer_ratio", 1 + 2 * rounds) as step:
        for _ in range(WARM_QUERIES if rounds > 1 else 1):
            env.fill(queue, env.sizes.warm_messages, body_bytes=BODY_BYTES)
            run_query(env, queue, env.sizes.warm_messages)
        step("warm")
        for _ in range(rounds):
            env.fill(queue, count, body_bytes=BODY_BYTES)
            script.append(run_script(env, queue, count))
            step(f"script {count / script[-1].seconds:,.0f}/s")
            env.fill(queue, count, body_bytes=BODY_BYTES)
            query.append(run_query(env, queue, count))
            step(f"query {count / query[-1].seconds:,.0f}/s")
    script_us, query_us = (middle([side.processor_s for side in sides]) / count * 1e6 for sides in (script, query))
    return [
        Result(
            name="peer_ratio",
            value=middle([side.seconds for side in script]) / middle([side.seconds for side in query]),
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "script_s": rounded([side.seconds for side in script]),
                "query_s": rounded([side.seconds for side in query]),
                "script_processor_us_per_message": round(script_us, 2),
                "query_processor_us_per_message": round(query_us, 2),
                "broker_us_per_message": [
                    round(middle([side.broker_s for side in sides]) / count * 1e6, 2) for sides in (script, query)
                ],
                "processor_ratio": round(query_us / script_us, 3),
            },
        )
    ]


def run_script(env: Environment, queue: str, count: int) -> Side:
    """Run the script in a process of its own, and count its rows."""
    options = env.connect_options
    host, port = options.hosts[0]
    directory = _new_directory(env)
    directory.mkdir()
    command = [sys.executable, peer_script.__file__, host, str(port), options.virtual_host or "/"]
    command += [str(options.username), str(options.password), queue, str(count), str(directory)]
    broker: list[float] = []
    with processor.of_broker(env, broker):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S)
    found = json.loads(done.stdout)
    _check(env, queue, directory, count)
    return Side(found["seconds"], found["processor_s"], broker[0])


def run_query(env: Environment, queue: str, count: int) -> Side:
    """Run an AvailableNow query into Parquet, and count its rows; the clock starts with its first micro-batch."""
    directory = _new_directory(env)
    writer = queries.source(env, queue).writeStream.format("parquet").option("path", str(directory))
    broker: list[float] = []
    with processor.of_broker(env, broker), processor.Watch() as watch:
        query = writer.option("checkpointLocation", env.checkpoint()).trigger(availableNow=True).start()
        query.awaitTermination()
        end = time.time()
    first = datetime.fromisoformat(queries.progress(query)[0]["timestamp"]).timestamp()
    spent = watch.since(first)
    _check(env, queue, directory, count)
    return Side(end - first, spent.reader + spent.workers + spent.jvm, broker[0])


def _new_directory(env: Environment) -> Path:
    return Path(env.directory) / f"parquet-{uuid.uuid4().hex[:8]}"


def _check(env: Environment, queue: str, directory: Path, count: int) -> None:
    rows = ds.dataset(sorted(map(str, directory.glob("*.parquet"))), format="parquet").count_rows()
    left = env.depth(queue)
    if rows != count or left:
        raise RuntimeError(f"{rows} rows of {count} are in the files, and {left} messages in the queue")
