"""``sizing``: rows/s of a query by size of the messages, columns that it reads, and cores that Spark has.

The table of docs/performance.md. Broker, reader and Spark share the machine; ``cores`` are those that Spark may use for
its tasks, so one of two leaves the other to broker and reader.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from amqp_spark.arrow.decode import DEFAULT_SCHEMA
from tests.bench import apart, queries
from tests.bench.environment import Result

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tests.bench.environment import Environment

CORES: Final = (1, 2)
BODY_BYTES: Final = (64, 256, 1024, 4096, 65_536, 1_000_000)
COLUMNS: Final[dict[str, str | StructType]] = {
    "body": "body BINARY",
    "five": queries.SCHEMA,
    "default": DEFAULT_SCHEMA,
}
WARM_QUERIES: Final = 3
BATCH_BYTES: Final = 256 << 20
"""Most bytes of bodies of a drain."""
_CORES_VARIABLE: Final = "BENCH_SIZING_CORES"


def settings() -> dict[str, str]:
    """As many cores as this process is to have."""
    return {"spark.master": f"local[{os.environ[_CORES_VARIABLE]}]"}


def run(env: Environment) -> list[Result]:
    """One process, with its own Spark and broker, for each number of cores; the value is that of most cores."""
    found = [apart.run(__name__, env, variables=os.environ | {_CORES_VARIABLE: str(cores)})[0] for cores in CORES]
    rates: dict[str, float] = {}
    for each in found:
        assert isinstance(each["detail"], dict)
        rates |= each["detail"]
    return [Result(name="sizing", value=found[-1]["value"], unit="rows/s", higher_is_better=True, detail=rates)]


def measure(env: Environment) -> list[Result]:
    """All sizes and columns, each once."""
    cores = os.environ[_CORES_VARIABLE]
    rates: dict[str, float] = {}
    total = 1 + len(BODY_BYTES) * len(COLUMNS)
    with env.queue() as queue, env.progress(f"sizing, {cores} core(s)", total) as step:
        for _ in range(WARM_QUERIES if env.sizes.rounds > 1 else 1):
            env.fill(queue, env.sizes.warm_messages)
            queries.drain(env, queue, env.sizes.warm_messages)
        step("warm")
        for size in BODY_BYTES:
            count = max(1, min(env.sizes.messages // 2, BATCH_BYTES // size))
            for name, schema in COLUMNS.items():
                env.fill(queue, count, body_bytes=size)
                rate = round(count / queries.drain(env, queue, count, schema=schema).query_s)
                step(f"{size} B, {name} {rate:,}/s")
                rates[f"{size} B, {name}, {cores} core(s)"] = rate
    value = rates[f"256 B, five, {cores} core(s)"]
    return [Result(name="sizing", value=value, unit="rows/s", higher_is_better=True, detail=rates)]
