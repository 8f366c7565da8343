"""``scale``: what each part of a query costs per message, from 1, 2 and 4 queues, with executors in JVMs of their own.

From that follows how many rows/s more cores can have, with the broker elsewhere: the parts together cannot use more
than all cores, and the reader process, one Python, not more than one. Measured with Broker-J, and with a broker that
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

QUEUES: Final = (1, 2, 4)
CORES: Final = (8, 32)
WARM_QUERIES: Final = 3
_ROLES: Final = {"reader": "reader", "workers": "workers", "executors": "executor_jvms", "jvm": "driver_jvm"}


@dataclass(frozen=True)
class Row:
    """Medians of one number of queues on one broker: rows/s, and microseconds of processor time per message."""

    rows_per_s: float
    parts_us: dict[str, float]
    broker_us: float

    @property
    def reader_rows_per_s(self) -> float:
        """The most that one reader process can pass on, if it uses one core."""
        return 1e6 / self.parts_us["reader"]

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
    """Measure all rows; the value is what one reader process can pass on from most queues if the broker never waits."""
    rounds = env.sizes.rounds
    table: dict[str, dict[int, Row]] = {}
    with replay.ReplayBroker() as broker, env.progress("scale", 2 * (1 + rounds * len(QUEUES))) as step:
        replaying = Environment(sizes=env.sizes, given_broker=broker, given_spark=env.spark, quiet=True, warms=False)
        with replaying:
            table["replay"] = _rows(replaying, step, replays=True)
        table["Broker-J"] = _rows(env, step, replays=False)
    most = QUEUES[-1]
    return [
        Result(
            name="scale",
            value=table["replay"][most].reader_rows_per_s,
            unit="rows/s",
            higher_is_better=True,
            detail={"messages": env.sizes.messages}
            | {
                f"{name}, {queues} queue(s)": row.shown()
                for name, rows in table.items()
                for queues, row in rows.items()
            },
        )
    ]


def _rows(env: Environment, step: Step, *, replays: bool) -> dict[int, Row]:
    """Alternate the numbers of queues."""
    count, rounds = env.sizes.messages, env.sizes.rounds
    for _ in range(WARM_QUERIES if rounds > 1 else 1):
        _drain(env, 1, env.sizes.warm_messages, [], replays=replays)
    step("warm")
    drained: dict[int, list[Drained]] = {queues: [] for queues in QUEUES}
    broker: dict[int, list[float]] = {queues: [] for queues in QUEUES}
    for _ in range(rounds):
        for queues in QUEUES:
            found = _drain(env, queues, count, broker[queues], replays=replays)
            drained[queues].append(found)
            step(f"{queues} queue(s) {found.rows / found.query_s:,.0f}/s")

    def row(queues: int) -> Row:
        found = drained[queues]
        rows = found[0].rows
        return Row(
            rows_per_s=rows / middle([each.query_s for each in found]),
            parts_us={
                name: middle([getattr(each.spent, role) for each in found]) / rows * 1e6
                for role, name in _ROLES.items()
            },
            broker_us=middle(broker[queues]) / rows * 1e6,
        )

    return {queues: row(queues) for queues in QUEUES}


def _drain(env: Environment, queues: int, count: int, broker: list[float], *, replays: bool) -> Drained:
    """Drain ``count`` messages from so many queues together."""
    each = count // queues
    with ExitStack() as stack:
        if replays:
            names = [replay.queue_name(each) for _ in range(queues)]
        else:
            names = [stack.enter_context(env.queue()) for _ in range(queues)]
            for name in names:
                env.fill(name, each, body_bytes=BODY_BYTES)
        with processor.of_broker(env, broker):
            found = queries.drain(env, ",".join(names), each * queues, removes=False)
        for name in names:
            if left := env.depth(name):
                raise RuntimeError(f"the query left {left} messages in {name}")
    return found
