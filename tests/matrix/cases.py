"""Cases of the matrix: kinds of queries, points, victims, and their meaningful combinations."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from amqp_spark import crashpoints as at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

EO: Final = "exactly-once"
ALO: Final = "at-least-once"
AMO: Final = "at-most-once"

SOURCE: Final = "source"
"""Queue to files, which are idempotent by batch id."""
SINKS: Final = ("sink-stream", "sink-foreachBatch")
"""Files to a queue, by the stream writer or ``AmqpBatchSink``."""
CHAINS: Final = ("chain-stream", "chain-foreachBatch")
"""Queue to a queue, exactly-once on both sides."""
KINDS: Final = (SOURCE, *SINKS, *CHAINS)

Where = Literal["reader", "worker", "committer", "driver"]


@dataclass(frozen=True)
class Point:
    """A crash point, with the properties that the matrix needs.

    Attributes:
        where: the process that passes it. ``committer`` is the Python worker in which Spark commits a stream writer,
            and the driver's own Python for ``AmqpBatchSink``.
        guarantees: under which it is passed.
        least, most: range of the number of passes before it strikes; a seed decides.
        at_end: whether it is passed for sure only at the end of AvailableNow.
    """

    name: str
    where: Where
    guarantees: tuple[str, ...] = (EO, ALO, AMO)
    least: int = 0
    most: int = 0
    at_end: bool = False


def _named(*points: Point) -> dict[str, Point]:
    return {point.name: point for point in points}


# Batch 0 is empty if nothing was received before Spark's first request. Workers are shared by all queries: each
# has passed a point more or less often.
SOURCE_POINTS: Final = _named(
    Point(at.RECEIVED_UNPLANNED, "reader"),
    Point(at.END_RETURNED_UNLOGGED, "reader", least=0, most=2),
    Point(at.LOGGED_BEFORE_PARTITIONS, "reader", least=1, most=2),
    Point(at.PARTITIONS_RETURNED, "reader", least=1, most=2),
    Point(at.FETCH_MID, "reader"),
    Point(at.READ_STARTED, "worker"),
    Point(at.READ_MID, "worker"),
    Point(at.BATCH_DONE_UNCOMMITTED, "driver", least=1, most=2),
    Point(at.COMMIT_LOGGED, "reader", least=0, most=1),
    Point(at.ACCEPT_UNSENT, "reader", (ALO,), least=0, most=1),
    Point(at.ACCEPT_SENT, "reader", (ALO,), least=0, most=1),
    Point(at.ACCEPT_CONFIRMED, "reader", (ALO,), at_end=True),
    Point(at.LOCK_TAKEN, "reader", (EO,)),
    Point(at.EPOCH_RAISED, "reader", (EO,)),
    Point(at.RECOVERY_MID, "reader", (EO,)),
    Point(at.SPOOL_PARTIAL, "reader", (EO,), most=2),
    Point(at.SPOOL_SYNCED, "reader", (EO,), most=2),
    Point(at.SPOOL_RENAMED, "reader", (EO,), most=2),
    Point(at.TX_SENT, "reader", (EO,), most=2),
    Point(at.TX_COMMITTED, "reader", (EO,), most=2),
    Point(at.FINISH_SENT, "reader", (EO,), at_end=True),
    Point(at.FINISH_CONFIRMED, "reader", (EO,), at_end=True),
    Point(at.SPOOL_DELETED, "reader", (EO,), at_end=True),
)
SINK_POINTS: Final = _named(
    Point(at.TASK_STARTED, "worker", (ALO, EO), most=1),
    Point(at.BLOCK_SENT, "worker", (ALO, EO), most=1),
    Point(at.CONNECTION_LOST, "worker", (ALO,)),
    Point(at.ALL_SENT, "worker", (ALO, EO), most=1),
    Point(at.SYNCED, "worker", (ALO, EO), most=1),
    Point(at.BRANCH_OPEN, "worker", (EO,), most=1),
    Point(at.ENDED, "worker", (EO,), most=1),
    Point(at.PREPARED, "worker", (EO,), most=1),
    Point(at.MESSAGE_RETURNED, "committer", (ALO, EO), most=1),
    Point(at.SINK_LOCK_TAKEN, "committer", (EO,)),
    Point(at.VERIFIED, "committer", (EO,), most=1),
    Point(at.DECISION_SENT, "committer", (EO,), most=1),
    Point(at.DECISION_COMMITTED, "committer", (EO,), most=1),
    Point(at.SOME_COMMITTED, "committer", (EO,), most=1),
    Point(at.ALL_COMMITTED, "committer", (EO,), most=1),
    Point(at.DONE_SWAPPED, "committer", (EO,), most=1),
    Point(at.MID_SWEEP, "committer", (EO,)),
    Point(at.ABORT_ENTERED, "committer", (EO,)),
)
QUORUM_POINTS: Final = _named(
    Point(at.SPOOLED_UNACKED, "reader", (EO,), most=2),
    Point(at.ACKED_WITHOUT_BARRIER, "reader", (EO,), most=2),
    Point(at.BARRIER_UNNOTED, "reader", (EO,), most=2),
    Point(at.RECOGNISED_UNACKED, "reader", (EO,)),
    Point(at.REACKED_WITHOUT_BARRIER, "reader", (EO,)),
)
"""Points that a query over a quorum queue passes besides all others of the source: its state is in the spool."""
POINTS: Final = SOURCE_POINTS | SINK_POINTS | QUORUM_POINTS
LOG_POINTS: Final = frozenset(
    {
        at.END_RETURNED_UNLOGGED, at.LOGGED_BEFORE_PARTITIONS, at.PARTITIONS_RETURNED, at.READ_STARTED, at.READ_MID,
        at.BATCH_DONE_UNCOMMITTED,
    }
)  # fmt: skip
"""Points that a query over a log passes: it accepts nothing, and has no spool."""
ELSEWHERE: Final = frozenset({at.COMMIT_DENIED})
"""None of our code runs at this point, so no process can be struck; tests of the sink cause it by speculation."""

DRIVER: Final = "driver"
"""SIGKILL for the JVM, then for the driver's Python."""
ABSENCE: Final = "absence"
"""Like ``DRIVER``, and the restart comes after every timer of the broker has ended."""
LAPSE: Final = "lapse"
"""Like ``DRIVER``, and every prepared transaction has ended: also decided ones, which Broker-J alone would keep."""
READER: Final = "reader"
"""SIGKILL for the reader process, whichever process is at the point."""
WORKER: Final = "worker"
"""SIGKILL for the executor's worker that is at the point."""
COMMITTER: Final = "committer"
"""SIGKILL for the worker in which Spark commits."""
CONNECTION: Final = "connection"
"""All connections of the query are reset; the process at the point goes on."""
BROKER: Final = "broker"
"""SIGKILL for a broker with a BDB store, which then starts again."""
MEMORY_BROKER: Final = "memory-broker"
"""Like ``BROKER``, for a virtual host in memory, which loses everything."""
EXPIRE: Final = "expire"
"""No process is killed: the process continues when the timers of the prepared transactions have ended."""
FREEZE: Final = "freeze"
"""SIGSTOP for the reader until the broker has dropped it, then SIGCONT."""
ORPHAN: Final = "orphan"
"""SIGSTOP for the reader, SIGKILL for its driver, and SIGCONT when the successor works."""
PAUSE: Final = "pause"
"""At the end of AvailableNow: nothing runs until every timer has ended; then more messages arrive."""
VICTIMS: Final = (
    DRIVER, ABSENCE, LAPSE, READER, WORKER, COMMITTER, CONNECTION, EXPIRE, BROKER, MEMORY_BROKER, FREEZE, ORPHAN,
    PAUSE,
)  # fmt: skip
TOGETHER: Final = (DRIVER, ABSENCE, LAPSE, BROKER, MEMORY_BROKER, FREEZE, ORPHAN, PAUSE)
"""Victims that strike several queries at once: each is held at its point until all have arrived."""
END: Final = "end"
"""No point: the query has ended (victim ``PAUSE``)."""


@dataclass(frozen=True)
class Step:
    """A victim and the point where it is struck."""

    point: str
    victim: str


@dataclass(frozen=True)
class Case:
    """One run: a query is struck one or more times, each time at a point, and must drain in the end.

    After a step that the query survives (victims worker, connection, ...) the next one happens in the same run,
    otherwise during the recovery.
    """

    kind: str
    guarantee: str
    steps: tuple[Step, ...]
    round: int = 0

    def __str__(self) -> str:
        steps = "+".join(f"{step.point}@{step.victim}" for step in self.steps)
        return f"{self.kind}:{self.guarantee}:{steps}#{self.round}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The inverse of ``str``."""
        found = re.fullmatch(r"([a-zA-Z-]+):([a-z-]+):([a-z+@-]+)#([0-9]+)", text)
        if found is None:
            raise ValueError(f"{text!r} is no case: kind:guarantee:point@victim[+point@victim]#round")
        steps = tuple(Step(*step.split("@")) for step in found[3].split("+"))
        return cls(found[1], found[2], steps, int(found[4]))

    @property
    def point(self) -> str:
        """All points, for the table."""
        return " > ".join(step.point for step in self.steps)

    @property
    def victim(self) -> str:
        """All victims, for the table."""
        return " > ".join(step.victim for step in self.steps)

    @property
    def victims(self) -> tuple[str, ...]:
        """All victims; cases with the same victims can be run together."""
        return tuple(step.victim for step in self.steps)

    @property
    def reads(self) -> bool:
        """Whether the query reads from a queue."""
        return self.kind not in SINKS

    @property
    def writes(self) -> bool:
        """Whether the query publishes."""
        return self.kind != SOURCE

    @property
    def entry(self) -> str:
        """The entry point by which it publishes."""
        return self.kind.partition("-")[2]

    def random(self, seed: int) -> random.Random:
        """Random generator of this run, derived from the seed."""
        return random.Random(f"{seed}/{self}")


def points_of(kind: str, guarantee: str) -> list[Point]:
    """The points that a query passes, in the order of a batch's life."""
    known: dict[str, Point] = {}
    if kind not in SINKS:
        known |= SOURCE_POINTS
    if kind != SOURCE:
        known |= SINK_POINTS
    return [point for point in known.values() if guarantee in point.guarantees]


def left_out(case: Case) -> str | None:
    """Why a combination of one step is not run; ``None`` if it is run."""
    (step,) = case.steps
    point = POINTS[step.point]
    if case.writes and case.reads and point.name == at.BATCH_DONE_UNCOMMITTED:
        return "reached by the sink of files only"
    if point.name in {at.MID_SWEEP, at.ABORT_ENTERED, at.CONNECTION_LOST, *at.RECOGNITION_POINTS}:
        return "needs something that went wrong before: see pairs"
    if step.victim in {READER, FREEZE, ORPHAN} and not case.reads:
        return "only a query that reads from a queue has a reader process"
    if step.victim in {FREEZE, ORPHAN} and point.where != "reader":
        return "what other processes do while the reader sleeps is the same at every such point"
    if step.victim == WORKER and point.where != "worker":
        return "no worker is at the point"
    if step.victim == COMMITTER and (point.where != "committer" or case.entry != "stream"):
        return "Spark commits in a worker for stream writers only; AmqpBatchSink commits in the driver"
    if step.victim == LAPSE and not case.writes:
        return "the source has no prepared transactions"
    if step.victim in {ABSENCE, LAPSE, PAUSE, MEMORY_BROKER} and case.guarantee != EO:
        return "only exactly-once has something on the broker that a timer or a restart could end"
    if step.victim in {PAUSE, EXPIRE}:
        return "where that matters: see pairs"
    if case.guarantee == AMO and step.victim in {BROKER, CONNECTION, FREEZE, ORPHAN, WORKER}:
        return "at-most-once: what the broker has sent is forgotten there; killed processes are enough to show it"
    if step.victim == MEMORY_BROKER and case.kind in CHAINS:
        return "nothing of either queue is left: the source and the sink alone show what they say"
    return None


def pairs(kind: str) -> Iterator[tuple[Step, ...]]:
    """Crashes during the recovery from a crash, and points that are passed only after a failure."""
    if kind not in SINKS:
        for second in (at.LOCK_TAKEN, at.EPOCH_RAISED, at.RECOVERY_MID, at.LOGGED_BEFORE_PARTITIONS, at.FINISH_SENT):
            yield Step(at.PARTITIONS_RETURNED, DRIVER), Step(second, DRIVER)
        yield Step(at.TX_SENT, DRIVER), Step(at.LOCK_TAKEN, DRIVER)
        yield Step(at.TX_COMMITTED, DRIVER), Step(at.RECOVERY_MID, DRIVER)
        yield Step(at.END_RETURNED_UNLOGGED, DRIVER), Step(at.END_RETURNED_UNLOGGED, DRIVER)
        yield Step(at.SPOOL_RENAMED, DRIVER), Step(at.RECOVERY_MID, DRIVER)
        yield Step(at.TX_SENT, READER), Step(at.EPOCH_RAISED, READER)
        yield Step(at.TX_COMMITTED, READER), Step(at.TX_SENT, READER)
        yield Step(at.COMMIT_LOGGED, READER), Step(at.FINISH_SENT, READER)
        yield Step(at.TX_SENT, CONNECTION), Step(at.LOCK_TAKEN, READER)
        yield Step(at.TX_SENT, CONNECTION), Step(at.LOCK_TAKEN, DRIVER)
        yield Step(at.TX_COMMITTED, CONNECTION), Step(at.LOCK_TAKEN, CONNECTION)
        yield Step(at.TX_SENT, BROKER), Step(at.LOCK_TAKEN, BROKER)
        yield Step(at.TX_SENT, BROKER), Step(at.TX_SENT, DRIVER)
        yield Step(at.TX_SENT, FREEZE), Step(at.LOCK_TAKEN, READER)
    if kind != SOURCE:
        yield Step(at.PREPARED, WORKER), Step(at.MID_SWEEP, DRIVER)
        yield Step(at.PREPARED, WORKER), Step(at.MID_SWEEP, CONNECTION)
        yield Step(at.PREPARED, WORKER), Step(at.MID_SWEEP, BROKER)
        yield Step(at.PREPARED, DRIVER), Step(at.MID_SWEEP, DRIVER)
        yield Step(at.DECISION_COMMITTED, DRIVER), Step(at.SINK_LOCK_TAKEN, DRIVER)
        yield Step(at.DECISION_COMMITTED, DRIVER), Step(at.SOME_COMMITTED, DRIVER)
        yield Step(at.SOME_COMMITTED, DRIVER), Step(at.ALL_COMMITTED, DRIVER)
        yield Step(at.DECISION_SENT, DRIVER), Step(at.VERIFIED, DRIVER)
        yield Step(at.DECISION_SENT, BROKER), Step(at.DECISION_COMMITTED, BROKER)
        yield Step(at.ALL_COMMITTED, DRIVER), Step(at.DONE_SWAPPED, DRIVER)
        yield Step(at.DECISION_COMMITTED, CONNECTION), Step(at.SINK_LOCK_TAKEN, DRIVER)
        yield Step(at.DECISION_COMMITTED, LAPSE), Step(at.DECISION_COMMITTED, LAPSE)
        yield (Step(at.MESSAGE_RETURNED, EXPIRE),)
        yield (Step(at.DECISION_COMMITTED, EXPIRE),)
        yield Step(at.MESSAGE_RETURNED, EXPIRE), Step(at.ABORT_ENTERED, DRIVER)
        yield Step(at.MESSAGE_RETURNED, EXPIRE), Step(at.ABORT_ENTERED, CONNECTION)
        if kind == "sink-stream" or kind == "chain-stream":
            yield Step(at.DECISION_COMMITTED, COMMITTER), Step(at.ABORT_ENTERED, DRIVER)
            yield Step(at.SOME_COMMITTED, COMMITTER), Step(at.SINK_LOCK_TAKEN, DRIVER)
        if kind == "sink-stream":  # Spark also calls abort for these when tasks fail
            for victim in (DRIVER, CONNECTION, BROKER, COMMITTER):
                yield (Step(at.ABORT_ENTERED, victim),)
    yield (Step(END, PAUSE),)
    yield Step(END, PAUSE), Step(END, PAUSE)


def quorum_pairs() -> Iterator[tuple[Step, ...]]:
    """Crashes while messages come again whose acknowledgement was lost, and before or after that."""
    for again in at.RECOGNITION_POINTS:
        for victim in (DRIVER, READER, CONNECTION, BROKER):
            yield Step(at.SPOOLED_UNACKED, victim), Step(again, victim)
        yield Step(at.SPOOLED_UNACKED, CONNECTION), Step(again, DRIVER)
        yield Step(at.SPOOLED_UNACKED, CONNECTION), Step(again, READER)
        yield Step(at.SPOOLED_UNACKED, CONNECTION), Step(again, BROKER)
        yield Step(at.SPOOLED_UNACKED, READER), Step(again, CONNECTION)
        yield Step(at.SPOOLED_UNACKED, READER), Step(again, BROKER)
        yield Step(at.SPOOLED_UNACKED, READER), Step(again, FREEZE)
        yield Step(at.SPOOLED_UNACKED, READER), Step(again, ORPHAN)
        yield Step(at.SPOOLED_UNACKED, FREEZE), Step(again, READER)
        yield Step(at.SPOOLED_UNACKED, BROKER), Step(again, DRIVER)
    for again in (at.LOCK_TAKEN, at.RECOVERY_MID, at.EPOCH_RAISED):
        yield Step(at.SPOOLED_UNACKED, DRIVER), Step(again, DRIVER)
    yield Step(at.ACKED_WITHOUT_BARRIER, BROKER), Step(at.LOCK_TAKEN, BROKER)
    for second in at.QUORUM_POINTS:
        yield Step(at.SPOOLED_UNACKED, READER), Step(second, READER)
        yield Step(at.ACKED_WITHOUT_BARRIER, BROKER), Step(second, BROKER)
    yield tuple(Step(point, READER) for point in (at.SPOOLED_UNACKED, *at.RECOGNITION_POINTS))
    yield tuple(Step(point, DRIVER) for point in (at.SPOOLED_UNACKED, *at.RECOGNITION_POINTS))
    yield Step(at.SPOOLED_UNACKED, READER), Step(at.READ_MID, WORKER)
    yield Step(at.ACKED_WITHOUT_BARRIER, READER), Step(at.READ_STARTED, WORKER)


def lost_connection_pairs() -> Iterator[tuple[Step, ...]]:
    """At-least-once writers have their own point after their connection broke."""
    for victim in (WORKER, DRIVER):
        yield Step(at.BLOCK_SENT, CONNECTION), Step(at.CONNECTION_LOST, victim)


# Of the chains, cases that the source or the sink alone does not cover: both sides at work in one batch.
_CHAIN_SKIPS: Final = frozenset({(at.FETCH_MID, CONNECTION), (at.READ_STARTED, CONNECTION)})
_FREEZE_POINTS: Final = frozenset(
    {at.LOCK_TAKEN, at.EPOCH_RAISED, at.SPOOL_SYNCED, at.TX_SENT, at.TX_COMMITTED, at.END_RETURNED_UNLOGGED,
     at.COMMIT_LOGGED, at.RECEIVED_UNPLANNED, at.PARTITIONS_RETURNED, at.FINISH_SENT, *at.QUORUM_POINTS}
)  # fmt: skip
_ORPHAN_POINTS: Final = frozenset(
    {at.TX_SENT, at.TX_COMMITTED, at.SPOOL_RENAMED, at.COMMIT_LOGGED, at.RECEIVED_UNPLANNED, *at.QUORUM_POINTS}
)
_ABSENCE_POINTS: Final = frozenset(
    {at.TX_SENT, at.TX_COMMITTED, at.PARTITIONS_RETURNED, at.PREPARED, at.VERIFIED, at.DECISION_COMMITTED,
     at.SOME_COMMITTED, at.ALL_COMMITTED, at.SPOOLED_UNACKED, at.ACKED_WITHOUT_BARRIER}
)  # fmt: skip
_LAPSE_POINTS: Final = frozenset({at.MESSAGE_RETURNED, at.VERIFIED, at.DECISION_COMMITTED, at.SOME_COMMITTED})
_MEMORY_POINTS: Final = frozenset(
    {at.TX_COMMITTED, at.SPOOL_RENAMED, at.COMMIT_LOGGED, at.PREPARED, at.DECISION_COMMITTED}
)
_FEW: Final = {
    FREEZE: _FREEZE_POINTS,
    ORPHAN: _ORPHAN_POINTS,
    ABSENCE: _ABSENCE_POINTS,
    LAPSE: _LAPSE_POINTS,
    MEMORY_BROKER: _MEMORY_POINTS,
}


def all_cases(rounds: int = 1, *, quorum: bool = False) -> list[Case]:
    """The whole matrix; ``quorum``: with the cases of quorum queues.

    Chain cases already covered by source and sink alone alternate from round to round.
    """
    found = [replace(case, round=number) for number in range(rounds) for case in _one_round(number)]
    return found + [replace(case, round=number) for number in range(rounds) if quorum for case in quorum_cases()]


def quorum_cases() -> Iterator[Case]:
    """What is struck on quorum queues besides everything else."""
    singles = [Case(SOURCE, EO, (Step(point, victim),)) for point in QUORUM_POINTS for victim in VICTIMS]
    yield from (case for case in singles if left_out(case) is None and _is_wanted(case))
    yield from (Case(SOURCE, EO, steps) for steps in quorum_pairs())


def _one_round(number: int) -> Iterator[Case]:
    for kind in KINDS:
        guarantees = {SOURCE: (EO, ALO, AMO)}.get(kind, (EO, ALO) if kind in SINKS else (EO,))
        for guarantee in guarantees:
            for index, point in enumerate(points_of(kind, guarantee)):
                cases = [Case(kind, guarantee, (Step(point.name, victim),)) for victim in VICTIMS]
                cases = [case for case in cases if left_out(case) is None and _is_wanted(case)]
                if kind in CHAINS and len(cases) > 1:
                    turn = index + number + CHAINS.index(kind)
                    cases = [cases[0], cases[1 + turn % (len(cases) - 1)]]
                yield from cases
            if guarantee == EO:
                yield from (Case(kind, guarantee, steps) for steps in pairs(kind))
            elif kind in SINKS:
                yield from (Case(kind, guarantee, steps) for steps in lost_connection_pairs())


def _is_wanted(case: Case) -> bool:
    """Whether the case is one of the few for a slow victim, or adds to the coverage of another kind."""
    (step,) = case.steps
    few = _FEW.get(step.victim)
    if few is not None and step.point not in few:
        return False
    return not (case.kind in CHAINS and (step.point, step.victim) in _CHAIN_SKIPS)


def counts_for(case: Case, point: str) -> bool:
    """Whether a case tests the purpose of a point: under exactly-once, where exactly-once passes it."""
    return any(step.point == point for step in case.steps) and (
        case.guarantee == EO or EO not in POINTS[point].guarantees
    )


def sample(seed: int = 1) -> list[Case]:
    """A few cases in which every point is passed by a victim, under exactly-once where that passes it.

    The victims are spread over the points, and every guarantee occurs.
    """
    spread = random.Random(seed)
    quick = [case for case in all_cases() if set(case.victims) <= {DRIVER, READER, WORKER, COMMITTER, CONNECTION}]
    spread.shuffle(quick)
    chosen: list[Case] = []
    used: Counter[str] = Counter()

    def take(able: Iterable[Case]) -> None:
        best = min(able, key=lambda case: (len(case.steps), sum(used[victim] for victim in case.victims)))
        chosen.append(best)
        used.update(best.victims)

    for point in SOURCE_POINTS | SINK_POINTS:
        if not any(counts_for(case, point) for case in chosen):
            take(case for case in quick if counts_for(case, point))
    for guarantee in (EO, ALO, AMO):
        if all(case.guarantee != guarantee for case in chosen):
            take(case for case in quick if case.guarantee == guarantee)
    return chosen


def groups(cases: Sequence[Case], size: int, seed: int) -> list[list[Case]]:
    """Cases that are struck together, in an order derived from the seed."""
    by_victims: dict[tuple[object, ...], list[Case]] = {}
    order = random.Random(seed)
    shuffled = list(cases)
    order.shuffle(shuffled)
    for case in shuffled:
        # a surviving query approaches its next point, which can be armed for one query only
        alone = str(case) if len(case.steps) > 1 and case.steps[0].victim in {BROKER, FREEZE} else ""
        by_victims.setdefault((case.round, case.victims, alone), []).append(case)
    found = [some[begin : begin + size] for some in by_victims.values() for begin in range(0, len(some), size)]
    order.shuffle(found)
    return sorted(found, key=lambda group: group[0].round)
