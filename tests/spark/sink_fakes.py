"""An in-memory broker behind the client and publisher that the sink uses, for tests without a network.

It can be told to break a connection after some transfers, to complete only some of them, to reject or refuse some, and
to miss exchanges. What it has taken is in ``taken``, row by row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amqp_core.api import Capabilities, Route
from amqp_core.errors import AmqpError, ConnectionLost, NotFound, ResourceLimitExceeded
from amqp_core.transfer_ledger import Rejected, Transfers
from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Target


@dataclass
class Script:
    """What happens on one connection."""

    breaks_after: int | None = None
    """So many transfers are sent, then the connection is lost."""
    completes: int = 0
    """So many of them are complete by then."""
    error: AmqpError = field(default_factory=lambda: ConnectionLost("the connection was cut"))
    breaks_at_finish: bool = False
    breaks_at_question: int | None = None
    """The connection is lost when so many rounds of questions were answered."""
    rejects: dict[int, int] = field(default_factory=dict)
    """Transfer of this connection, counted from 0: reject code."""
    refuses: int | None = None
    """This transfer gets an execution.exception."""
    full: bool = False
    """What is rejected with code 1 is so because of a full queue, as Broker-J does."""


class FakeBroker:
    """What clients connect to; every connection follows its script, those after the last one go well."""

    def __init__(self, *scripts: Script, qpidd: bool = False) -> None:
        self.scripts = list(scripts)
        self.qpidd = qpidd
        self.max_frame_size = 65535
        self.refuse: list[AmqpError] = []
        """Errors of the next attempts to connect."""
        self.exchanges = {"amq.direct": "direct", "amq.topic": "topic", "other": "direct"}
        self.bound = {("amq.direct", "k"), ("other", "k")}
        self.queues = {"q"}
        self.asked: Counter[str] = Counter()
        self.rounds = 0
        """How many times questions were sent together."""
        self.arrives = True
        """Whether answers are there before they are waited for."""
        self.on_taken: Callable[[], None] = lambda: None
        """Called before each transfer is taken."""
        self.clients: list[FakeClient] = []
        self.taken: list[bytes] = []
        """Every transfer that was sent, duplicates and rejected ones included, in order."""
        self.modes: list[int] = []
        """The accept-mode of each of them, which go to amq.direct."""

    def connect(self, options: ConnectOptions) -> Any:
        if self.refuse:
            raise self.refuse.pop(0)
        client = self.client(self.scripts.pop(0) if self.scripts else Script(), options)
        self.clients.append(client)
        return client

    def client(self, script: Script, options: ConnectOptions) -> FakeClient:
        """Make a client of this broker."""
        return FakeClient(self, script, options)


class FakeClient:
    """One connection."""

    def __init__(self, broker: FakeBroker, script: Script, options: ConnectOptions) -> None:
        self.broker = broker
        self.script = script
        self.options = options
        self.error: AmqpError | None = None
        self.ended = ""
        self.services = 0
        self.on_service: Callable[[], None] = lambda: None
        self.publishers: list[FakePublisher] = []

    @property
    def peer(self) -> str:
        return "fake:5672"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            rejects_unroutable=not self.broker.qpidd,
            lists_branches_in_one_frame=self.broker.qpidd,
            zero_timeout_is_none=not self.broker.qpidd,
        )

    def publisher(self, *, max_in_flight: int) -> FakePublisher:
        self.publishers.append(FakePublisher(self, max_in_flight))
        return self.publishers[-1]

    def service(self) -> None:
        self.services += 1
        self.on_service()
        self.check()

    def query_routes(self, targets: Sequence[Target]) -> FakeQueries:
        if self.script.breaks_at_question == self.broker.rounds:
            self.error, self.script.breaks_at_question = self.script.error, None
        self.check()
        self.broker.rounds += 1
        return FakeQueries(self, [self.route(*target) for target in targets])

    def route(self, exchange: str, key: str | None) -> Route:
        broker = self.broker
        if key is None:
            broker.asked[f"exchange {exchange}"] += 1
            kind = broker.exchanges.get(exchange)
            return Route(kind is not None, kind or "")
        if not exchange:
            broker.asked[f"queue {key}"] += 1
            return Route(key in broker.queues)
        broker.asked[f"bound {exchange} {key}"] += 1
        # qpidd takes an empty key for none: is anything bound at all?
        return Route(exchange in broker.exchanges and (not key or (exchange, key) in broker.bound))

    def query_queue(self, queue: str) -> spec.QueueQueryResult | None:
        self.check()
        return spec.QueueQueryResult(queue=queue) if queue in self.broker.queues else None

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.end("closed")

    def discard(self) -> None:
        self.end("discarded")

    def abort(self) -> None:
        self.end("aborted")

    def end(self, how: str) -> None:
        self.ended = self.ended or how
        self.error = self.error or ConnectionLost(f"the client is {how}")


class FakeQueries:
    """See :class:`amqp_core.api.RouteQueries`."""

    def __init__(self, client: FakeClient, found: list[Route]) -> None:
        self.client = client
        self.found = found

    @property
    def arrived(self) -> bool:
        return self.client.broker.arrives

    def answers(self) -> list[Route]:
        self.client.check()
        return self.found


@dataclass
class Count:
    transfers: int = 0
    nbytes: int = 0


class FakePublisher:
    """See :class:`amqp_core.v0_10.publisher.Publisher`."""

    def __init__(self, client: FakeClient, max_in_flight: int) -> None:
        self.client = client
        self.max_in_flight = max_in_flight
        self.accept_mode = 1 if client.broker.qpidd else 0
        self.max_frame_size = client.broker.max_frame_size
        self.sent, self.completed = Count(), Count()
        self.runs: list[Transfers] = []
        self.rejected: list[Rejected] = []

    @property
    def in_flight(self) -> int:
        return self.sent.transfers - self.completed.transfers

    def send(self, transfers: Transfers) -> None:
        self.runs.append(transfers)
        self.client.check()
        script = self.client.script
        for index in range(len(transfers)):
            if self.sent.transfers == script.breaks_after:
                self.fail(script.error)
            self.client.broker.on_taken()
            self.client.broker.taken.append(bytes(transfers.cut(index, index + 1).frames))
            self.client.broker.modes.append(self.client.broker.taken[-1][19 + len("amq.direct")])
            code = script.rejects.get(self.sent.transfers)
            if self.client.broker.modes[-1] and not self.client.broker.qpidd:
                if script.full:
                    self.fail(ResourceLimitExceeded(506, None, "Maximum depth exceeded"))
            elif code is not None:
                self.rejected.append(Rejected(transfers.tag, transfers.first + index, code, "so it is"))
            if self.sent.transfers == script.refuses:
                self.sent.transfers += 1
                self.fail(NotFound(404, self.sent.transfers - 1, "gone", "message.transfer"))
            self.sent.transfers += 1

    def finish(self) -> None:
        if not self.runs:
            return
        self.client.check()
        if self.client.script.breaks_at_finish:
            self.fail(self.client.script.error)
        self.completed.transfers = self.sent.transfers
        self.runs.clear()

    def fail(self, error: AmqpError) -> None:
        self.completed.transfers = min(self.client.script.completes, self.sent.transfers)
        self.client.error = error
        raise error

    def unfinished(self) -> list[Transfers]:
        skip, found = self.completed.transfers, []
        for run in self.runs:
            if skip < len(run):
                found.append(run.cut(skip, len(run)))
            skip = max(0, skip - len(run))
        return found

    def take_rejected(self) -> list[Rejected]:
        rejected, self.rejected = self.rejected, []
        return rejected

    def locate(self, command_id: int) -> tuple[object, int] | None:
        for run in self.runs:
            if command_id < len(run):
                return run.tag, run.first + command_id
            command_id -= len(run)
        return None

    @property
    def finished(self) -> bool:
        return not self.runs
