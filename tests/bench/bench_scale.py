"""``scale``: what each part of a query costs per message, from 1, 2 and 4 queues, with executors in JVMs of their own.

From that follows how many rows/s more cores can have, with the broker elsewhere: the parts together cannot use more
than all cores, and each reader process, one Python, not more than one. Measured with Broker-J, and with a broker that
only replays (:mod:`tests.bench.replay`), which leaves the machine to the query; it frames messages as qpidd does.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.bench import apart, processor, queries, replay
from tests.bench.bench_drain import BODY_BYTES
from tests.bench.environment import Environment, Result, middle

if TYPE_CHECKING:
    from tests.bench.environment import Step
    from tests.bench.queries import Drained

QUERIES: Final = ((1, 1), (2, 1), (4, 1), (4, 4))
"""Numbers of queues and of readers (option ``numReaders``)."""
CORES: Final = (8, 32)
WARM_QUERIES: Final = 3
_ROLES: Final = {"reader": "reader", "workers": "workers", "executors": "executor_jvms", "jvm": "driver_jvm"}


@dataclass(frozen=True)
class Row:
    """Medians of one number of queues and readers on one broker: rows/s, and microseconds of processor time per
    message, of all readers together."""

    readers: int
    rows_per_s: float
    parts_us: dict[str, float]
    broker_us: float

    @property
    def reader_rows_per_s(self) -> float:
        """The most that the reader processes can pass on, if each uses one core."""
        return self.readers * 1e6 / self.parts_us["reader"]

    def bound(self, cores: int) -> float:
        """The most rows/s that so many cores can have, besides those of the broker."""
        return min(self.reader_rows_per_s, cores * 1e6 / sum(self.parts_us.values()))

    def shown(self) -> dict[str, float]:
        """For the table."""
        parts = {f"{name}_us": round(value, 2) for name, value in self.parts_us.items()}
        bounds = {f"rows_per_s_of_{cores}_cores": round(self.bound(cores)) for cores in CORES}
        return {"rows_per_s": round(self.rows_per_s)} | parts | {"broker_us": round(self.broker_us, 2)} | bounds


def settings() -> dict[str, str]:
    """Two executors with one core each."""
    return {"spark.master": "local-cluster[2,1,2048]", "spark.executor.memory": "1g"}


def run(env: Environment) -> list[Result]:
    """In a process of its own, which has another Spark session."""
    return apart.run(__name__, env)


def measure(env: Environment) -> list[Result]:
    """Measure all rows; the value is what one reader can pass on from most queues if the broker never waits."""
    rounds = env.sizes.rounds
    table: dict[str, dict[tuple[int, int], Row]] = {}
    with replay.ReplayBroker() as broker, env.progress("scale", 2 * (1 + rounds * len(QUERIES))) as step:
        replaying = Environment(sizes=env.sizes, given_broker=broker, given_spark=env.spark, quiet=True, warms=False)
        with replaying:
            table["replay"] = _rows(replaying, step, replays=True)
        table["Broker-J"] = _rows(env, step, replays=False)
    most = max(query for query in QUERIES if query[1] == 1)
    return [
        Result(
            name="scale",
            value=table["replay"][most].reader_rows_per_s,
            unit="rows/s",
            higher_is_better=True,
            detail={"messages": env.sizes.messages}
            | {
                f"{name}, {queues} queue(s), {readers} reader(s)": row.shown()
                for name, rows in table.items()
                for (queues, readers), row in rows.items()
            },
        )
    ]


def _rows(env: Environment, step: Step, *, replays: bool) -> dict[tuple[int, int], Row]:
    """Alternate the numbers of queues and readers."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    for _ in range(WARM_QUERIES if rounds > 1 else 1):
        _drain(env, QUERIES[0], env.sizes.warm_messages, [], replays=replays)
    step("warm")
    drained: dict[tuple[int, int], list[Drained]] = {query: [] for query in QUERIES}
    broker: dict[tuple[int, int], list[float]] = {query: [] for query in QUERIES}
    for _ in range(rounds):
        for query in QUERIES:
            found = _drain(env, query, count, broker[query], replays=replays)
            drained[query].append(found)
            step(f"{query[0]} queue(s), {query[1]} reader(s) {found.rows / found.query_s:,.0f}/s")

    def row(query: tuple[int, int]) -> Row:
        found = drained[query]
        rows = found[0].rows
        return Row(
            readers=query[1],
            rows_per_s=rows / middle([each.query_s for each in found]),
            parts_us={
                name: middle([getattr(each.spent, role) for each in found]) / rows * 1e6
                for role, name in _ROLES.items()
            },
            broker_us=middle(broker[query]) / rows * 1e6,
        )

    return {query: row(query) for query in QUERIES}


def _drain(env: Environment, query: tuple[int, int], count: int, broker: list[float], *, replays: bool) -> Drained:
    """Drain ``count`` messages from so many queues together, by so many readers."""
    queues, readers = query
    options = {"numReaders": f"{readers}"}
    each = count // queues
    with ExitStack() as stack:
        if replays:
            names = [replay.queue_name(each) for _ in range(queues)]
        else:
            names = [stack.enter_context(env.queue()) for _ in range(queues)]
            for name in names:
                env.fill(name, each, body_bytes=BODY_BYTES)
        with processor.of_broker(env, broker):
            found = queries.drain(env, ",".join(names), each * queues, options=options, removes=False)
        for name in names:
            if left := env.depth(name):
                raise RuntimeError(f"the query left {left} messages in {name}")
    return found
