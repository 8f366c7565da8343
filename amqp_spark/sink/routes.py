"""Whether messages have somewhere to go: asked before they are sent, and again after the broker has taken them.

Broker-J takes a transfer to an exchange that is not there and routes it by queue name; so every exchange is asked for
on every broker (exchange.query). Broker-J rejects what it cannot route; any other broker may complete it all the same,
as qpidd does. There the task also queries the binding that the message needs, where the protocol has such a query.
A success therefore rests on these answers, and queues can be deleted after an answer. So the task repeats each query
about once a second, and once more after the broker has completed everything. A target that is still there then was
there for the messages before.

A broker that rejects does so when it takes the transfer. In a transaction the messages reach their queues later, so
bindings are queried there on every broker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_spark.sink.targets import Targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from amqp_core.api import Client, Route, RouteQueries, Target
    from amqp_spark.sink.targets import Values

MOST_KNOWN: Final = 100_000
"""Most answers that are kept, since every row of a large partition may have a routing key of its own. In a transaction
all are kept: its messages reach their queues at the commit, so that no answer before the last one says enough."""
ASKED_TOGETHER: Final = 1000
"""Most questions of one round trip."""
AGAIN_SECONDS: Final = 1.0
"""Time between two rounds that repeat the queries while rows are sent."""
DIRECT: Final = "direct"


class Gone(NamedTuple):
    """An exchange, or a binding of one, that was there and is not there any more.

    Attributes:
        exchange: name of the exchange.
        routing_key: of the binding; ``None``: the exchange itself is gone, or has another type.
        rows: messages that were sent for it since it was last seen; a message that was sent twice counts twice.
        first: place in the partition of the first of them.
    """

    exchange: str
    routing_key: str | None
    rows: int
    first: int


@dataclass(slots=True)
class _Known:
    """What the broker has said of a target, and the messages that rest on it since it was last seen."""

    there: bool
    kind: str = ""
    rows: int = 0
    first: int = 0
    covered: int = 0
    """Of ``rows``: sent before the question that waits for its answer."""
    first_after: int = 0
    """The first of those that were sent after it."""

    def sent(self, rows: int, first: int) -> None:
        if not self.rows:
            self.first = first
        if self.rows == self.covered:
            self.first_after = first
        self.rows += rows

    def asked(self) -> None:
        self.covered = self.rows

    def seen(self) -> None:
        self.rows, self.first, self.covered = self.rows - self.covered, self.first_after, 0


class Routes:
    """What one task knows about exchanges and bindings; it outlives connections, see :meth:`connected`.

    Exchanges and routing keys are given as one for all rows, or as a column of text; null is the empty text.

    Parameters:
        transaction: messages reach their queues later than the broker takes them.
        clock: monotonic seconds.
    """

    def __init__(self, *, transaction: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._transaction = transaction
        self._clock = clock
        self._client: Client | None = None
        self._settle: Callable[[], object] = lambda: None
        self._rejects = True
        self._asks_bindings = False
        self._is_stale = False
        self._known: dict[Target, _Known] = {}
        self._again: tuple[list[Target], RouteQueries] | None = None
        self._again_at = 0.0
        self._gone: list[Gone] = []

    def connected(self, client: Client, settle: Callable[[], object]) -> None:
        """Use this connection for queries from now on. Answers of another one are queried again before they count.

        Parameters:
            client: the connection.
            settle: waits, however long, until the broker has done what was sent: an answer that is waited for comes
                after that, and waits for answers have a deadline.
        """
        self._client, self._settle = client, settle
        self._rejects = client.capabilities.rejects_unroutable
        self._asks_bindings = self._transaction or not self._rejects
        self._is_stale = bool(self._known)
        self._again = None
        self._again_at = self._clock() + AGAIN_SECONDS

    def missing(self, exchange: Values, start: int, stop: int) -> tuple[int, str] | None:
        """The first of the rows whose exchange is not there, and its name; ``None`` when all are.

        Raises:
            AmqpError: the connection ended while the broker was asked.
        """
        targets = Targets(exchange, "", start, stop)
        self._learn({(name, None) for name, _ in targets.names if name})
        absent = [
            (first, name)
            for (name, _), first in zip(targets.names, targets.firsts, strict=True)
            if name and not self._known[name, None].there
        ]
        return min(absent) if absent else None

    def unbound(self, exchange: Values, routing_key: Values, start: int, stop: int) -> list[int]:
        """The rows that would reach no queue, as far as that can be asked; none where the broker rejects those.

        The default exchange needs a queue of that name, a direct exchange a binding with that key. Other exchanges
        cannot be asked. An empty key is never asked for, since qpidd takes the question for "is anything bound?": as
        nothing shows that a queue is bound with it, it reaches none.

        Raises:
            AmqpError: the connection ended while the broker was asked.
        """
        if not self._asks_bindings or self._is_elsewhere(exchange):
            return []
        targets = Targets(exchange, routing_key, start, stop)
        self._learn({(name, None) for name, _ in targets.names if name})
        keyed = [pair for pair in targets.names if self._needs_key(pair[0])]
        self._learn({pair for pair in keyed if pair[1]})
        if self._rejects:
            return []
        return targets.rows_of({pair for pair in keyed if not pair[1] or not self._known[pair].there})

    def sent(self, exchange: Values, routing_key: Values, start: int, stop: int, first_row: int) -> None:
        """Note that these rows are sent now, so that they rest on what was said of their targets.

        Parameters:
            exchange, routing_key, start, stop: as of :meth:`unbound`, which was asked before.
            first_row: place in the partition of row 0.
        """
        keys = "" if not self._asks_bindings or self._is_elsewhere(exchange) else routing_key
        targets = Targets(exchange, keys, start, stop)
        for (name, key), rows, first in zip(targets.names, targets.counts, targets.firsts, strict=True):
            for target in ((name, None), (name, key)):
                known = self._known.get(target)
                if known is not None and known.there:
                    known.sent(rows, first_row + first)

    def look_again(self) -> None:
        """About once a second ask for what is known once more; answers are taken when they are there.

        Of very many targets it asks for a part each time, in turn.

        Raises:
            AmqpError: the connection ended.
        """
        if self._is_stale:
            self.verify()
        if self._again is not None:
            if self._again[1].arrived:
                self._take_again()
        elif self._clock() >= self._again_at and self._known:
            assert self._client is not None
            targets = [target for target, known in self._known.items() if known.there][:ASKED_TOGETHER]
            for target in targets:  # to the end: the others are next
                known = self._known[target] = self._known.pop(target)
                known.asked()
            self._again = targets, self._client.query_routes(targets)

    def verify(self) -> None:
        """Ask for everything that is known once more, and wait for the answers; :meth:`take_gone` says what is gone.

        Raises:
            AmqpError: the connection ended while the broker was asked.
        """
        if self._again is not None:
            self._settle()
            self._take_again()
        self._compare([target for target, known in self._known.items() if known.there])
        self._is_stale = False

    def take_gone(self) -> list[Gone]:
        """What was found to be gone and was not taken before."""
        gone, self._gone = self._gone, []
        return gone

    # --- inside

    def _is_elsewhere(self, exchange: Values) -> bool:
        """Whether all rows go to one exchange of a type that cannot be asked."""
        return isinstance(exchange, str) and not self._needs_key(exchange)

    def _needs_key(self, exchange: str) -> bool:
        """Whether a routing key reaches only queues that are bound with this very key."""
        known = self._known.get((exchange, None))
        return not exchange or known is None or known.kind == DIRECT

    def _learn(self, targets: Iterable[Target]) -> None:
        """Ask for those that are not known."""
        targets = list(targets)
        if not self._transaction:
            fresh = sum(target not in self._known for target in targets)
            if len(self._known) + fresh > MOST_KNOWN:
                self._forget_bindings()
        for target, route in self._asked([target for target in targets if target not in self._known]):
            self._known[target] = _Known(route.exists, route.exchange_type)

    def _forget_bindings(self) -> None:
        """Drop the bindings to make room, after a last query for each: messages were sent that need them."""
        self.verify()
        self._known = {target: known for target, known in self._known.items() if target[1] is None}

    def _take_again(self) -> None:
        assert self._again is not None
        targets, queries = self._again
        self._again = None
        self._again_at = self._clock() + AGAIN_SECONDS
        for target, route in zip(targets, queries.answers(), strict=True):
            self._judge(target, route)

    def _compare(self, targets: Sequence[Target]) -> None:
        for target in targets:
            self._known[target].asked()
        for target, route in self._asked(targets):
            self._judge(target, route)

    def _judge(self, target: Target, route: Route) -> None:
        known = self._known[target]
        if route.exists and route.exchange_type == known.kind:
            if not self._transaction:  # there they reach the queue at the commit only
                known.seen()
        elif known.there:
            self._gone.append(Gone(*target, known.rows, known.first))
            known.there = False

    def _asked(self, targets: Sequence[Target]) -> Iterable[tuple[Target, Route]]:
        """Each target with its answer."""
        if not targets:
            return
        assert self._client is not None
        self._settle()
        for at in range(0, len(targets), ASKED_TOGETHER):
            part = targets[at : at + ASKED_TOGETHER]
            routes = self._client.query_routes(part).answers()
            yield from zip(part, routes, strict=True)
