"""Queries that are killed at named points, and what must be true after they were restarted."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import DeliveryProperties
from amqp_spark import crashpoints
from tests.support.query_process import CrashPoints, Query, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.fixtures import Broker

MESSAGES = 120
PER_BATCH = 40

# How often a point is passed before it counts: a batch shall have been accepted before. Batch 0 is an empty one if
# nothing was received yet when Spark asked first. Workers are shared by all queries and see no order.
_AFTER = {
    crashpoints.END_RETURNED_UNLOGGED: 1,
    crashpoints.LOGGED_BEFORE_PARTITIONS: 2,
    crashpoints.PARTITIONS_RETURNED: 2,
    crashpoints.BATCH_DONE_UNCOMMITTED: 2,
    crashpoints.COMMIT_LOGGED: 1,
    crashpoints.ACCEPT_UNSENT: 1,
    crashpoints.ACCEPT_SENT: 1,
}
_ACCEPTS = frozenset({crashpoints.ACCEPT_UNSENT, crashpoints.ACCEPT_SENT})


@dataclass(frozen=True)
class Setting:
    """Where the queries run."""

    broker: Broker
    client: Client
    points: CrashPoints
    directory: Path
    vhost: str = "default"

    @property
    def durable(self) -> bool:
        """Whether queues and messages are to outlive the broker."""
        return self.vhost == "durable"


@contextmanager
def shared_setting(broker: Broker, directory: Path) -> Iterator[Setting]:
    """The setting of all tests of a module: one client, and the crash points of one driver."""
    hosts, vhost, tls = parse_url(broker.url())
    options = ConnectOptions(
        hosts=hosts,
        virtual_host=vhost,
        tls=tls,
        username=broker.username,
        password=broker.password,
        heartbeat=0,  # this client is idle for minutes, and sends none by itself
    )
    points = CrashPoints()
    with Client.connect(options) as client:
        yield Setting(broker, client, points, directory)
    points.close()


@dataclass(frozen=True)
class Scenario:
    """A query over a queue of its own that holds messages 0 to ``MESSAGES``."""

    point: str
    guarantee: str
    query: Query

    def __str__(self) -> str:
        return f"{self.guarantee} killed at {self.point}"


def points_of(guarantee: str) -> list[str]:
    """The points that a query of this guarantee passes: without accept there is nothing to send."""
    return [point for point in crashpoints.POINTS if guarantee == "at-least-once" or point not in _ACCEPTS]


def fill(client: Client, queue: str, begin: int, end: int, *, durable: bool = False) -> None:
    """Publish messages that say which they are."""
    delivery = DeliveryProperties(routing_key=queue, delivery_mode=2 if durable else 1)
    for number in range(begin, end):
        client.publish(Message(b"%d" % number, delivery))
    client.confirm()


def prepare(setting: Setting, name: str, point: str, guarantee: str, *, skip_written: bool) -> Scenario:
    """Make the queue, fill it, and say what the query is."""
    setting.client.declare_queue(name, durable=setting.durable)
    fill(setting.client, name, 0, MESSAGES, durable=setting.durable)
    options = {
        "url": setting.broker.url(setting.vhost),
        "username": setting.broker.username,
        "password": setting.broker.password,
        "queue": name,
        "deliveryGuarantee": guarantee,
        "maxMessagesPerTrigger": str(PER_BATCH),
        "transfer": "pull" if point in {crashpoints.FETCH_MID, crashpoints.READ_STARTED} else "inline",
    }
    query = Query(
        name=name,
        options=options,
        directory=setting.directory / name,
        schema="body STRING, redelivered BOOLEAN, position BIGINT",
        sink_options={"skip_written": skip_written},
    )
    return Scenario(point, guarantee, query)


def run_to_point(driver: QueryProcess, scenario: Scenario, *, available_now: bool = False) -> int:
    """Start the query and let it run to its point; returns the process that waits there."""
    trigger = {"availableNow": True} if available_now or scenario.point == crashpoints.ACCEPT_CONFIRMED else {}
    return driver.run_to_point(scenario.query, scenario.point, after=_AFTER.get(scenario.point, 0), **trigger)


@dataclass(frozen=True)
class Outcome:
    """Contents of sink and broker after the queries were drained."""

    scenario: Scenario
    copies: Counter[int]
    """How often each message is in the sink."""
    unflagged: Counter[int]
    """How often without the redelivered flag."""
    left: int
    """Messages on the broker."""
    messages: int = MESSAGES
    """How many were sent."""

    @property
    def lost(self) -> list[int]:
        """Messages that are not in the sink."""
        return [number for number in range(self.messages) if number not in self.copies]

    @property
    def repeated(self) -> list[int]:
        """Messages that are in the sink more than once."""
        return [number for number, count in self.copies.items() if count > 1]

    def problems(self) -> list[str]:
        """Violations of the guarantee."""
        found = []
        if self.scenario.guarantee == "at-least-once":
            if self.lost:
                found.append(f"lost {self.lost}")
            unflagged = [number for number in self.repeated if self.unflagged[number] > 1]
            if unflagged:
                found.append(f"repeated without the redelivered flag {unflagged}")
        elif self.repeated:
            found.append(f"repeated {self.repeated}")
        strange = [number for number in self.copies if not 0 <= number < self.messages]
        if strange:
            found.append(f"never sent {strange}")
        if self.left:
            found.append(f"{self.left} messages are left on the broker")
        return [f"{self.scenario}: {problem}" for problem in found]


def outcome(setting: Setting, scenario: Scenario, *, messages: int = MESSAGES) -> Outcome:
    """Look at sink and broker."""
    rows = scenario.query.rows()
    info = setting.client.query_queue(scenario.query.name)
    assert info is not None
    return Outcome(
        scenario,
        Counter(int(row["body"]) for row in rows),
        Counter(int(row["body"]) for row in rows if not row["redelivered"]),
        info.message_count or 0,
        messages,
    )


def drain(setting: Setting, driver: QueryProcess, scenarios: Sequence[Scenario]) -> dict[str, Outcome]:
    """Restart the queries from their checkpoints, to the end of their queues; what came of each, by its point.

    Every promise is checked here; the texts of all that are broken come at once.
    """
    setting.points.disarm()
    driver.drain([scenario.query for scenario in scenarios])
    outcomes = {scenario.point: outcome(setting, scenario) for scenario in scenarios}
    problems = [problem for each in outcomes.values() for problem in each.problems()]
    assert not problems, "\n".join(problems)
    return outcomes
