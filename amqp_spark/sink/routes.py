"""Checks that messages are routable, before they are sent and again after the broker has completed them.

Broker-J accepts a transfer to a missing exchange and routes it by queue name, so every exchange is queried on every
broker (exchange.query). Broker-J rejects unroutable messages; other brokers may complete them, as qpidd does. There the
task also queries the binding that the message needs, if the protocol has such a query. A success therefore rests on
these answers, and queues can be deleted after an answer. So the task repeats each query about once a second, and once
more after the broker has completed everything. A target that still exists then existed for the messages before.

With 0-9-1 every broker returns unroutable messages before it confirms them, so only exchanges are queried. A publish to
a missing one closes the channel, which leaves all its messages in doubt; Broker-J may route it by queue name, as above.

A broker that rejects does so when it receives the transfer. In a transaction the messages reach their queues later, so
bindings are queried on every broker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from amqp_spark.arrow.without_pandas import from_numpy, to_numpy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from amqp_core.api import Client, Route, RouteQueries, Target

    Values = str | pa.Array[Any]
    """One string for all rows, or a string column; null is the empty string."""

MOST_KNOWN: Final = 100_000
"""Maximum answers kept, as every row of a large partition may have its own routing key. A transaction keeps all: its
messages reach their queues at the commit, so only the last answers are conclusive.
"""
ASKED_TOGETHER: Final = 1000
"""Maximum queries per round trip."""
AGAIN_SECONDS: Final = 1.0
"""Seconds between two rounds that repeat the queries while rows are sent."""
DIRECT: Final = "direct"


class Gone(NamedTuple):
    """An exchange, or a binding of one, that existed and is missing now; without ``routing_key`` the exchange itself is
    missing, or has another type. ``rows`` messages were sent for it since it was last seen (one that was sent twice
    counts twice), from position ``first`` in the partition on."""

    exchange: str
    routing_key: str | None
    rows: int
    first: int


@dataclass(slots=True)
class _Known:
    """The latest answer for a target, and the messages sent since it was last seen."""

    there: bool
    kind: str = ""
    rows: int = 0
    first: int = 0
    covered: int = 0
    """Part of ``rows`` sent before the query that waits for its answer."""
    first_after: int = 0
    """The first row sent after that query."""

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
    """Known exchanges and bindings of one task; outlives connections, see :meth:`connected`.

    Exchanges and routing keys are one value for all rows, or a string column; null is the empty string. In a
    ``transaction`` messages reach their queues at the commit, later than the broker receives them.
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
        self._next = Targets("", "", 0, 0)
        """Targets of the rows that are sent next."""

    def connected(self, client: Client, settle: Callable[[], object]) -> None:
        """Use this connection for queries from now on. Answers of another one are queried again before they count.

        ``settle`` waits without limit until the broker has completed all transfers: it answers queries only after them,
        and the waits for answers have a deadline.
        """
        self._client, self._settle = client, settle
        self._rejects = client.capabilities.rejects_unroutable
        self._asks_bindings = self._transaction or not self._rejects
        self._is_stale = bool(self._known)
        self._again = None
        self._again_at = self._clock() + AGAIN_SECONDS

    def missing(self, exchange: Values, start: int, stop: int) -> tuple[int, str] | None:
        """The first row whose exchange is missing, and the name of the exchange; ``None`` if all exist."""
        targets = Targets(exchange, "", start, stop)
        self._learn({(name, None) for name, _ in targets.names if name})
        absent = [
            (first, name)
            for (name, _), first in zip(targets.names, targets.firsts, strict=True)
            if name and not self._known[name, None].there
        ]
        return min(absent) if absent else None

    def unbound(self, exchange: Values, routing_key: Values, start: int, stop: int) -> list[int]:
        """The unroutable rows, as far as queries can find them; none at brokers that reject such rows.

        The default exchange needs a queue of that name, a direct exchange a binding with that key. Other exchange types
        cannot be queried. An empty key is never queried, since qpidd reads the query as "is anything bound?"; as
        nothing shows that a queue is bound with it, the row counts as unroutable.
        """
        asks = self._asks_bindings and not self._is_elsewhere(exchange)
        targets = self._next = Targets(exchange, routing_key if asks else "", start, stop)
        if not asks:
            return []
        self._learn({(name, None) for name, _ in targets.names if name})
        keyed = [pair for pair in targets.names if self._needs_key(pair[0])]
        self._learn({pair for pair in keyed if pair[1]})
        if self._rejects:
            return []
        return targets.rows_of({pair for pair in keyed if not pair[1] or not self._known[pair].there})

    def sent(self, first_row: int) -> None:
        """Record that the rows of the latest call of :meth:`unbound` are sent now, so that they rest on the known
        answers for their targets. ``first_row``: position in the partition of row 0."""
        targets = self._next
        for (name, key), rows, first in zip(targets.names, targets.counts, targets.firsts, strict=True):
            for target in ((name, None), (name, key)):
                known = self._known.get(target)
                if known is not None and known.there:
                    known.sent(rows, first_row + first)

    def look_again(self) -> None:
        """Repeat the queries about once a second; answers are processed when they arrive. With very many targets each
        call repeats a part of them, in turn."""
        if self._is_stale:
            self.verify()
        if self._again is not None:
            if self._again[1].arrived:
                self._take_again()
        elif self._clock() >= self._again_at and self._known:
            assert self._client is not None
            targets = [target for target, known in self._known.items() if known.there][:ASKED_TOGETHER]
            for target in targets:  # move to the end: the others are next
                known = self._known[target] = self._known.pop(target)
                known.asked()
            self._again = targets, self._client.query_routes(targets)

    def verify(self) -> None:
        """Repeat all queries and wait for the answers; :meth:`take_gone` returns the missing targets."""
        if self._again is not None:
            self._settle()
            self._take_again()
        self._compare([target for target, known in self._known.items() if known.there])
        self._is_stale = False

    def take_gone(self) -> list[Gone]:
        """Take the missing targets found since the last call."""
        gone, self._gone = self._gone, []
        return gone

    # --- internals

    def _is_elsewhere(self, exchange: Values) -> bool:
        """Whether all rows go to one exchange of a type that cannot be queried."""
        return isinstance(exchange, str) and not self._needs_key(exchange)

    def _needs_key(self, exchange: str) -> bool:
        """Whether a routing key reaches only queues that are bound with exactly this key."""
        known = self._known.get((exchange, None))
        return not exchange or known is None or known.kind == DIRECT

    def _learn(self, targets: Iterable[Target]) -> None:
        """Query the unknown targets."""
        targets = list(targets)
        if not self._transaction:
            fresh = sum(target not in self._known for target in targets)
            if len(self._known) + fresh > MOST_KNOWN:
                self._forget_bindings()
        for target, route in self._asked([target for target in targets if target not in self._known]):
            self._known[target] = _Known(route.exists, route.exchange_type)

    def _forget_bindings(self) -> None:
        """Drop the bindings to make room, after a last query for each, as sent messages rely on them."""
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
            if not self._transaction:  # in a transaction they reach the queue only at the commit
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


class Targets:
    """The distinct pairs of exchange and routing key in a range of rows, each with its number of rows (``counts``) and
    its first row (``firsts``)."""

    def __init__(self, exchange: Values, routing_key: Values, start: int, stop: int) -> None:
        self._rows = range(start, stop)
        self._which: NDArray[np.int64] | None = None
        """Index of the pair of every row; ``None``: all rows have the same pair."""
        self.names: list[tuple[str, str]]
        self.counts: list[int]
        self.firsts: list[int]
        if isinstance(exchange, str) and isinstance(routing_key, str):
            self.names, self.counts, self.firsts = [(exchange, routing_key)], [stop - start], [start]
            return
        exchanges, exchange_of = _encoded(exchange, start, stop)
        keys, key_of = _encoded(routing_key, start, stop)
        # sorting them would take much longer
        pairs: Any = from_numpy(exchange_of * len(keys) + key_of).dictionary_encode()
        which = self._which = to_numpy(pairs.indices)
        self.names = [(exchanges[code // len(keys)], keys[code % len(keys)]) for code in pairs.dictionary.to_pylist()]
        firsts = np.empty(len(self.names), np.int64)
        firsts[which[::-1]] = np.arange(stop - 1, start - 1, -1)  # of several values for one place the last one stays
        self.counts, self.firsts = np.bincount(which).tolist(), firsts.tolist()

    def rows_of(self, names: Collection[tuple[str, str]]) -> list[int]:
        """The rows that have one of these pairs, in order."""
        if not names:
            return []
        if self._which is None:
            return list(self._rows) if self.names[0] in names else []
        wanted = np.array([name in names for name in self.names])
        return (np.flatnonzero(wanted[self._which]) + self._rows.start).tolist()


def value_at(values: Values, row: int) -> str:
    """The value of one row."""
    return values if isinstance(values, str) else _text(values[row].as_py())


def _encoded(values: Values, start: int, stop: int) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct strings, and the index of its string for every row."""
    if isinstance(values, str):
        return [values], np.zeros(stop - start, np.int64)
    encoded: Any = values.slice(start, stop - start).dictionary_encode(null_encoding="encode")
    return [_text(value) for value in encoded.dictionary.to_pylist()], to_numpy(encoded.indices).astype(np.int64)


def _text(value: str | bytes | None) -> str:
    return "" if value is None else value.decode() if isinstance(value, bytes) else value
