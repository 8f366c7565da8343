"""Rows/s of a query from a queue into Parquet over those of what a user has instead (:mod:`tests.bench.peers`).

Both start with the same full queue and end with an empty one and the rows in files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from tests.bench import processor, queries
from tests.bench.bench_drain import BODY_BYTES
from tests.bench.environment import Result, middle, rounded
from tests.support.java_source import broker_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.bench.environment import Environment

    Command = Callable[[Environment, str, int, Path], "Program"]
    """Of a peer, for a queue, a number of messages and an empty directory for the files."""

ROOT = Path(__file__).parents[2]
WARM_QUERIES = 3
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Program:
    """A peer that is ready to be run.

    Attributes:
        command: with all arguments.
        variables: further ones of its environment, which has broker and login as ``PEER_HOST`` and so on.
    """

    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One drain: seconds, and seconds of processor time, of everything on that side and of the broker."""

    seconds: float
    processor_s: float
    broker_s: float


def script(module: str, *arguments: object, path: Path | None = None) -> Program:
    """A peer in Python.

    Args:
        module: its name.
        arguments: of its command line.
        path: further directory of packages.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return Program(command, {} if path is None else {"PYTHONPATH": str(path)})


def compare(env: Environment, name: str, peer: Command) -> list[Result]:
    """Alternate peer and query; the ratio is that of the medians."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    peers: list[Side] = []
    query: list[Side] = []
    with env.queue() as queue, env.progress(name, 1 + 2 * rounds) as step:
        for _ in range(warm_drains(env)):
            env.fill(queue, env.sizes.warm_messages, body_bytes=BODY_BYTES)
            run_query(env, queue, env.sizes.warm_messages)
        step("warm")
        for _ in range(rounds):
            env.fill(queue, count, body_bytes=BODY_BYTES)
            peers.append(run_peer(env, queue, count, peer))
            step(f"peer {count / peers[-1].seconds:,.0f}/s")
            env.fill(queue, count, body_bytes=BODY_BYTES)
            query.append(run_query(env, queue, count))
            step(f"query {count / query[-1].seconds:,.0f}/s")
    peer_us, query_us = (middle([side.processor_s for side in sides]) / count * 1e6 for sides in (peers, query))
    peer_s, query_s = (middle([side.seconds for side in sides]) for sides in (peers, query))
    return [
        Result(
            name=name,
            value=peer_s / query_s,
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "rows_per_s": round(count / query_s),
                "peer_per_s": round(count / peer_s),
                "peer_s": rounded([side.seconds for side in peers]),
                "query_s": rounded([side.seconds for side in query]),
                "peer_processor_us_per_message": round(peer_us, 2),
                "query_processor_us_per_message": round(query_us, 2),
                "broker_us_per_message": [
                    round(middle([side.broker_s for side in sides]) / count * 1e6, 2) for sides in (peers, query)
                ],
                "processor_ratio": round(query_us / peer_us, 3),
            },
        )
    ]


def warm_drains(env: Environment) -> int:
    """How many queues of ``warm_messages`` are drained before anything counts."""
    return WARM_QUERIES if env.sizes.rounds > 1 else 1


def run_peer(env: Environment, queue: str, count: int, peer: Command) -> Side:
    """Run the peer in a process of its own, and count its rows.

    Raises:
        RuntimeError: it failed, or did not write every message; the text has the end of what it said.
    """
    directory = new_directory(env)
    program = peer(env, queue, count, directory)
    broker: list[float] = []
    with processor.of_broker(env, broker):
        done = subprocess.run(
            program.command,
            cwd=ROOT,
            env=_broker(env) | dict(program.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"the peer ended with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    _check(env, queue, directory, count)
    return Side(found["seconds"], found["processor_s"], broker[0])


def run_query(env: Environment, queue: str, count: int) -> Side:
    """Run an AvailableNow query into Parquet, and count its rows; the clock starts with its first micro-batch."""
    directory = new_directory(env)
    writer = queries.source(env, queue).writeStream.format("parquet").option("path", str(directory))
    broker: list[float] = []
    with processor.of_broker(env, broker), processor.Watch() as watch:
        query = writer.option("checkpointLocation", env.checkpoint()).trigger(availableNow=True).start()
        query.awaitTermination()
        end = time.time()
    first = datetime.fromisoformat(queries.progress(query)[0]["timestamp"]).timestamp()
    spent = watch.since(first)
    _check(env, queue, directory, count)
    return Side(end - first, spent.total, broker[0])


def _broker(env: Environment) -> dict[str, str]:
    options = env.connect_options
    host, port = options.hosts[0]
    return broker_variables(
        host=host,
        port=port,
        vhost=options.virtual_host or "/",
        username=env.broker.username,
        password=env.broker.password,
    )


def new_directory(env: Environment) -> Path:
    """An empty directory."""
    directory = env.directory / f"parquet-{uuid.uuid4().hex[:8]}"
    directory.mkdir()
    return directory


def _check(env: Environment, queue: str, directory: Path, count: int) -> None:
    rows = ds.dataset(sorted(map(str, directory.glob("*.parquet"))), format="parquet").count_rows()
    left = env.depth(queue)
    if rows != count or left:
        raise RuntimeError(f"{rows} rows of {count} are in the files, and {left} messages in the queue")
