"""The data of a case: published messages, the query over them, received messages and leftovers."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from amqp_core.errors import AmqpError
from amqp_spark.options.sink import SHORTEST_TRANSACTION_SECONDS
from amqp_spark.state.names import CONSUMER, WRITER, Names
from tests.broker.sink_scenarios import put_file
from tests.broker.stream_support import depth
from tests.matrix import leftovers
from tests.matrix.cases import (
    ABSENCE,
    BROKER,
    COMMITTER,
    CONNECTION,
    DRIVER,
    EO,
    EXPIRE,
    FREEZE,
    LAPSE,
    MEMORY_BROKER,
    ORPHAN,
    PAUSE,
    POINTS,
    SOURCE,
    WORKER,
    Case,
)
from tests.matrix.judging import BODY_SQL, body_of, counted
from tests.matrix.servers import SAME, publish, take_all
from tests.support.query_process import AnyQuery, Chain, Publishing, Query

if TYPE_CHECKING:
    import random
    from collections import Counter
    from pathlib import Path

    from amqp_core.api import Client
    from tests.matrix.servers import Server

HEARTBEAT_S = 2
ORPHAN_HEARTBEAT_S = 6
SHORT_TIMEOUT_S = SHORTEST_TRANSACTION_SECONDS
_LONG_TIMEOUT_S = 300
_SURVIVING = frozenset({WORKER, COMMITTER, CONNECTION, EXPIRE, BROKER, MEMORY_BROKER, FREEZE, PAUSE})


@dataclass(frozen=True)
class Plan:
    """Parameters that vary between runs of a case; derived from the seed."""

    messages: int
    per_batch: int
    partitions: int
    durable: bool
    late: int
    skip_written: bool
    transfer: str
    available_now: bool
    after: tuple[int, ...]
    heartbeat_s: int
    at_once: bool
    """Whether a process kills itself at its point where that is possible; otherwise it waits there to be killed."""
    named: bool
    """Whether the messages have equal bodies, and a message_id each; where messages are recognised."""

    @classmethod
    def of(cls, case: Case, seed: int) -> Plan:
        """Make the plan of a run."""
        draw = case.random(seed)
        per_batch = draw.randint(20, 40)
        victims = set(case.victims)
        first = case.steps[0].point
        pull = first in {"fetch-mid", "read-started"}
        points = [POINTS.get(step.point) for step in case.steps]
        at_end = any(point is not None and point.at_end for point in points)
        plan = cls(
            messages=per_batch * draw.randint(4, 5) - draw.randint(0, 10),
            per_batch=per_batch,
            partitions=1 if not case.writes and draw.random() < 0.3 else draw.randint(2, 3),
            durable=BROKER in victims or (MEMORY_BROKER not in victims and draw.random() < 0.25),
            late=draw.choice([0, 0, 15, 30]) or (MEMORY_BROKER in victims or PAUSE in victims) * 20,
            skip_written=draw.random() < 0.5,
            transfer="pull" if pull or draw.random() < 0.15 else "inline",
            available_now=at_end or bool(_SURVIVING & victims) or draw.random() < 0.5,
            after=tuple(0 if point is None else draw.randint(point.least, point.most) for point in points),
            heartbeat_s=_heartbeat_s(victims, draw),
            at_once=draw.random() < 0.5,
            named=draw.random() < 0.5,
        )
        # each worker counts for itself, and may run too seldom: only the end of the query shows that
        workers = [point is not None and point.where == "worker" for point in points]
        if any(count and shared for count, shared in zip(plan.after, workers, strict=True)):
            plan = replace(plan, available_now=True)
        return plan


def _heartbeat_s(victims: set[str], draw: random.Random) -> int:
    """A thread that waits at a point sends no heartbeats: some connections are lost before their process is."""
    if ORPHAN in victims:
        return ORPHAN_HEARTBEAT_S
    if {FREEZE, ABSENCE, LAPSE, PAUSE, EXPIRE} & victims:  # some have a short transactionTimeout
        return HEARTBEAT_S
    return draw.choice([HEARTBEAT_S, 15, 30])


@dataclass
class Subject:
    """A running case.

    Attributes:
        held: the process that waits at the point of the current step.
        reader: the reader process of the query.
        errors: of the query, one for every failure.
        started, ending: whether it was started and its end not yet seen, and whether it ends by itself.
        behind: whether there are files that its run cannot see, since they are younger.
        restarts: number of restarts after a strike.
        missed: points that were not reached.
    """

    case: Case
    plan: Plan
    name: str
    directory: Path
    server: Server
    url: str
    username: str
    password: str
    step: int = 0
    held: int | None = None
    reader: int | None = None
    started: bool = False
    ending: bool = False
    struck: bool = False
    late_sent: bool = False
    behind: bool = False
    errors: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    restarts: int = 0
    begun_s: float = 0.0
    recover_s: float | None = None
    sent: int = 0
    declared_at: float = 0.0

    def __post_init__(self) -> None:
        self.query = self._query()

    # -- names -------------------------------------------------------------------------------------------------

    @property
    def source_queue(self) -> str:
        """The queue to read."""
        return self.name

    @property
    def target_queue(self) -> str:
        """The queue to write."""
        return f"{self.name}-out"

    @property
    def vhost(self) -> str:
        """The virtual host of its queues."""
        return "durable" if self.plan.durable else "default"

    @property
    def exactly_once(self) -> bool:
        """Whether there is exactly-once state to check besides the messages."""
        return self.case.guarantee == EO and not self.server.log

    @property
    def named(self) -> bool:
        """Whether messages differ by their ids, and not by their bodies."""
        return self.plan.named and self.exactly_once and self.server.recognises

    @property
    def spool(self) -> Path:
        """Directory of planned batches."""
        return self.directory / "spool"

    @property
    def abort_flag(self) -> Path:
        """While this file exists, every task of partition 0 fails."""
        return self.directory / "fail-while-this-is-here"

    @property
    def consumer(self) -> Names:
        """Names of the source's state on the broker."""
        return Names(CONSUMER, self.name)

    @property
    def writer(self) -> Names:
        """Names of the sink's state on the broker."""
        return Names(WRITER, self.name)

    # -- the query ---------------------------------------------------------------------------------------------

    @property
    def timeout_s(self) -> int:
        """Option transactionTimeout."""
        return SHORT_TIMEOUT_S if {ABSENCE, LAPSE, PAUSE, EXPIRE} & set(self.case.victims) else _LONG_TIMEOUT_S

    def _common(self) -> dict[str, str]:
        return {
            "url": self.url,
            "protocol": self.server.protocol,
            "username": self.username,
            "password": self.password,
            "heartbeat": str(self.plan.heartbeat_s),
            "retry.maxAttempts": "200",
            "retry.maxDelay": "0.5",
            "deliveryGuarantee": self.case.guarantee,
        }

    def _source_options(self) -> dict[str, str]:
        options = self._common() | {
            "queue": self.source_queue,
            "maxMessagesPerTrigger": str(self.plan.per_batch),
            "numPartitions": str(self.plan.partitions),
        }
        if self.server.log:
            return options | {"queueType": "stream", "startingOffsets": "earliest"}
        options["transfer"] = self.plan.transfer
        if self.exactly_once:
            options |= {"consumerId": self.name, "spoolLocation": str(self.spool)}
        return options

    def _sink_options(self) -> dict[str, str]:
        options = self._common() | {"routingKey": self.target_queue}
        if self.exactly_once:
            options |= {"transactionalId": self.name, "transactionTimeout": str(self.timeout_s)}
        return options

    def _query(self) -> AnyQuery:
        case = self.case
        if case.kind == SOURCE:
            return Query(
                name=self.name,
                options=self._source_options(),
                directory=self.directory,
                schema="body BINARY, message_id STRING" if self.named else "body BINARY",
                sink_options={"skip_written": self.plan.skip_written},
            )
        if case.reads:
            return Chain(
                name=self.name,
                entry=case.entry,
                source=self._source_options(),
                options=self._sink_options(),
                directory=self.directory,
            )
        aborts = any(step.point == "abort-entered" for step in case.steps) and len(case.steps) == 1
        lose = {"after": 1, "fail": "this task fails, as it was told to", "while": str(self.abort_flag)}
        return Publishing(
            name=self.name,
            entry=case.entry,
            options=self._sink_options(),
            directory=self.directory,
            files_per_batch=max(2, self.plan.partitions),
            body=BODY_SQL,
            lose=lose if aborts else None,
        )

    def kills_itself(self, index: int) -> bool:
        """Whether the process at the point of a step is the victim, and kills itself there.

        A driver does not: it is killed when the other queries of the group are at their points, too.
        """
        step = self.case.steps[index]
        return self.plan.at_once and step.victim != DRIVER and step.victim == POINTS[step.point].where

    @property
    def trigger(self) -> dict[str, Any]:
        """Trigger of the runs that are struck."""
        return {"availableNow": True} if self.plan.available_now else {"processingTime": "0 seconds"}

    # -- data --------------------------------------------------------------------------------------------------

    def prepare(self, client: Client) -> None:
        """Create queues and directories, and publish the messages or write the files."""
        self.directory.mkdir(parents=True)
        if isinstance(self.query, Publishing) and self.query.lose is not None:
            self.abort_flag.touch()
        self.declare(client)
        self.send(client, self.plan.messages)

    def declare(self, client: Client) -> None:
        """Create missing queues."""
        names = [self.source_queue] * self.case.reads + [self.target_queue] * self.case.writes
        for name in names:
            client.declare_queue(name, durable=self.plan.durable, arguments=dict(self.server.arguments) or None)
        self.declared_at = time.monotonic()

    def send(self, client: Client, count: int) -> None:
        """Publish this many more messages, or write files with this many more rows."""
        begin, self.sent = self.sent, self.sent + count
        if not self.case.reads:
            assert isinstance(self.query, Publishing)
            size = max(1, self.plan.per_batch // self.query.files_per_batch)
            for first in range(begin, self.sent, size):
                put_file(self.query.rows, first, min(first + size, self.sent))
            return
        bodies = map(body_of, range(begin, self.sent))
        publish(client, self.source_queue, bodies, durable=self.plan.durable, named=self.named)

    def send_late(self, client: Client) -> None:
        """Publish the messages that arrive while the query is down."""
        if not self.late_sent:
            self.late_sent = True
            if self.plan.late:
                self.send(client, self.plan.late)

    # -- the end -----------------------------------------------------------------------------------------------

    def copies(self, client: Client) -> Counter[int]:
        """How often each message has arrived; -1 stands for bodies that were not published."""
        if self.named:
            assert isinstance(self.query, Query)
            return counted(row["message_id"].encode() for row in self.query.rows() if row["body"] == SAME)
        if isinstance(self.query, Query):
            return counted(row["body"] for row in self.query.rows())
        return counted(take_all(client, self.target_queue))

    def dirt(self, client: Client) -> list[str]:
        """Leftovers on the broker and in the spool."""
        found: list[str] = []
        if self.case.reads:
            left = 0 if self.server.log else depth(client, self.source_queue)
            if left:
                found.append(f"{left} messages are left on the queue")
            if self.exactly_once and self.server.recognises:
                orphaned = any(step.victim == ORPHAN for step in self.case.steps)
                found += leftovers.of_spooled_state(client, self.consumer, self.spool, orphaned=orphaned)
            elif self.exactly_once:
                found += leftovers.of_consumer(client, self.consumer)
                found += leftovers.of_spool(self.spool)
        if self.case.writes and self.exactly_once:
            found += leftovers.of_writer(client, self.writer)
            found += leftovers.of_branches(client, self.name)
        return found

    def remove(self, client: Client) -> None:
        """Delete queues and directories."""
        names = [self.source_queue, self.target_queue]
        names += [self.consumer.state, self.writer.state, self.writer.markers]
        for name in names:
            try:
                if client.query_queue(name) is not None:
                    client.delete_queue(name)
            except AmqpError:
                return  # another session holds it: it goes with the broker
        shutil.rmtree(self.directory, ignore_errors=True)
