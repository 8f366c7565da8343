"""``recovery_s``: from the first call of Spark in a new reader to the first new batch in the commit log.

A driver is killed when it has planned a batch of 100,000 messages, which are accepted then, and in the spool only. The
query is started again, from the same checkpoint, by a Spark that runs already.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp_spark import crashpoints
from amqp_spark.state.names import CONSUMER, Names
from tests.bench import bench_drain, bench_eo_source, guarantees, queries, timed_source
from tests.bench.environment import Result, middle, rounded
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints, Query, QueryProcess

if TYPE_CHECKING:
    from tests.bench.environment import Environment

WARM_QUERIES = 2
LEAST = "minMessagesPerTrigger"
"""For the driver that is killed only: a first batch is smaller otherwise, and grows with what commits cost."""
_EVERY_S = 12
"""Seconds between the triggers of the driver that is killed: it shall have everything when it plans."""
_TRIES = 5
"""On a busy machine it may not have; such a round says nothing."""


def run(env: Environment) -> list[Result]:
    """Kill and start again, some rounds; the value is the median."""
    rounds = env.sizes.rounds
    env.spark.dataSource.register(timed_source.TimedSource)
    found: list[dict[str, Any]] = []
    points = CrashPoints()
    with env.queue() as queue, env.progress("recovery_s", 1 + rounds) as step:
        try:
            for _ in range(WARM_QUERIES if rounds > 1 else 1):
                bench_eo_source.drain_once(env, queue, env.sizes.owned_messages)
            step("warm")
            with QueryProcess(points=points) as process:
                for number in range(rounds):
                    if number:
                        process.start()
                    found.append(recover(env, queue, process, points))
                    step(f"{found[-1]['seconds']:.2f} s")
        finally:
            points.close()
    seconds = [each.pop("seconds") for each in found]
    return [
        Result(
            name="recovery_s",
            value=middle(seconds),
            unit="s",
            higher_is_better=False,
            detail={
                "owned_messages": env.sizes.owned_messages,
                "new_messages": env.sizes.new_messages,
                "seconds": rounded(seconds),
                "last": found[-1],
            },
        )
    ]


def recover(env: Environment, queue: str, process: QueryProcess, points: CrashPoints) -> dict[str, Any]:
    """Plan in a driver that is killed then, and go on here."""
    for _ in range(_TRIES):
        with guarantees.consumer(env) as options:
            query = planned_and_killed(env, queue, process, points, options)
            spooled = guarantees.spooled_bytes(options)
            took = restart(env, query)
        if took["owned"] == env.sizes.owned_messages:
            return {"spooled_bytes": spooled, **took}
        process.start()
    raise RuntimeError(f"no batch of {env.sizes.owned_messages} messages in {_TRIES} tries: the machine is too busy")


def planned_and_killed(
    env: Environment, queue: str, process: QueryProcess, points: CrashPoints, options: dict[str, str]
) -> Query:
    """A query whose driver was killed when it had planned its first batch: all that there may be in one."""
    owned, new = env.sizes.owned_messages, env.sizes.new_messages
    directory = env.directory / f"recovery-{uuid.uuid4().hex[:8]}"
    query = Query(
        name=directory.name,
        options={**env.source_options(queue), **options, "maxMessagesPerTrigger": str(owned), LEAST: str(owned)},
        directory=directory,
        schema=queries.SCHEMA,
    )
    process.start_query(query, processingTime=f"{_EVERY_S} seconds")
    wait_until(lambda: bool(process.progress(query)), "the first, empty trigger", 120.0)
    # triggers come at whole multiples of their interval: all is received before the next one
    wait_until(lambda: 1.0 < time.time() % _EVERY_S < _EVERY_S / 4, "the time after a trigger", 2.0 * _EVERY_S)
    point = crashpoints.LOGGED_BEFORE_PARTITIONS
    points.arm(point)
    env.fill(queue, owned + new, body_bytes=bench_drain.BODY_BYTES)
    wait_until(lambda: points.take(point) is not None, "the plan", 120.0)
    process.kill_driver()
    lock = Names(CONSUMER, options["consumerId"]).lock
    with env.client() as client:
        wait_until(lambda: client.query_queue(lock) is None, "the end of the killed driver's reader", 60.0)
    return query


def restart(env: Environment, query: Query) -> dict[str, Any]:
    """Start the query again, and read on until all is committed; say how long that took, and how much was owned.

    Raises:
        RuntimeError: messages were lost or doubled.
    """
    total = env.sizes.owned_messages + env.sizes.new_messages
    log = query.directory / "calls"
    options = {name: value for name, value in query.options.items() if name != LEAST}
    frame = env.spark.readStream.format("bench_timed").options(**options).option("path", str(log))
    stream = frame.schema(queries.SCHEMA).load().writeStream.format("noop")
    running = stream.option("checkpointLocation", str(query.checkpoint)).start()

    def batches() -> dict[int, int]:
        events = queries.progress(running)
        return {event["batchId"]: event["numInputRows"] for event in events if event["numInputRows"]}

    def done() -> bool:
        if (error := running.exception()) is not None:
            raise error
        return sum(batches().values()) >= total and env.depth(query.options["queue"]) == 0

    try:
        wait_until(done, "all messages", 120.0)
        rows = batches()
        replayed, first_new, *_ = sorted(rows)
        if sum(rows.values()) != total:
            raise RuntimeError(f"batches of {rows} rows instead of {total} in all")
        # what is processed is dropped from the spool when the query is idle
        spool = Path(query.options["spoolLocation"])
        wait_until(lambda: not list(spool.glob("*.spool")), "an empty spool", 60.0)
    finally:
        running.stop()
    calls = timed_source.calls_of(log)
    committed = [(query.checkpoint / "commits" / str(batch)).stat().st_mtime for batch in (replayed, first_new)]
    return {
        "owned": rows[replayed],
        "seconds": committed[1] - calls[0]["at"],
        "to_the_replayed_batch_s": round(committed[0] - calls[0]["at"], 3),
        "calls": [[each["call"], round(each["at"] - calls[0]["at"], 3), each["s"]] for each in calls[:8]],
    }
