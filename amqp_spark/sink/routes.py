"""Whether messages have somewhere to go, asked before they are sent.

Broker-J takes a transfer to an exchange that is not there and routes it by queue name; so every exchange is asked for
once per task, on every broker (exchange.query). qpidd completes what it drops; so there it is asked, too, whether
anything is bound that the message would reach, as far as that can be asked. What was found out is kept for the task,
not longer: somebody may delete a queue.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from amqp_core.v0_10.client import Client

    Values = str | pa.Array[Any]

MOST_KNOWN: Final = 100_000
"""Most answers that are kept: every row of a large partition may have a routing key of its own."""


class Routes:
    """What one task knows about exchanges and bindings of the broker that it is connected to.

    Exchanges and routing keys are given as one for all rows, or as a column of text; null is the empty text.

    Parameters:
        client: the connection; each new question is one round trip on it.
        settle: waits, however long, until the broker has done what was sent: an answer comes after that, and waits for
            answers have a deadline.
    """

    def __init__(self, client: Client, settle: Callable[[], None]) -> None:
        self._client = client
        self._settle = settle
        self._kinds: dict[str, str | None] = {"": ""}
        """Type of every exchange that was asked for; ``None``: there is none of that name."""
        self._bound: dict[tuple[str, str], bool] = {}

    def missing(self, exchange: Values, start: int, stop: int) -> tuple[int, str] | None:
        """The first of the rows whose exchange is not there, and its name; ``None`` when all are.

        Raises:
            AmqpError: the connection ended while the broker was asked.
        """
        absent = [(row, name) for name, row in _distinct(exchange, start, stop) if self._kind(name) is None]
        return min(absent) if absent else None

    def unbound(self, exchange: Values, routing_key: Values, start: int, stop: int) -> list[int]:
        """The rows that would reach no queue, as far as that can be asked; for a broker that says nothing (qpidd).

        The default exchange needs a queue of that name, a direct exchange a binding with that key. Other exchanges
        cannot be asked.

        Raises:
            AmqpError: the connection ended while the broker was asked.
        """
        if isinstance(exchange, str) and isinstance(routing_key, str):
            return [] if self._is_bound(exchange, routing_key) else list(range(start, stop))
        if isinstance(exchange, str) and exchange and self._kind(exchange) != "direct":
            return []
        pairs = zip(_texts(exchange, start, stop), _texts(routing_key, start, stop), strict=True)
        return [row for row, pair in enumerate(pairs, start) if not self._is_bound(*pair)]

    def _kind(self, exchange: str) -> str | None:
        if exchange not in self._kinds:
            self._settle()
            answer = self._client.query_exchange(exchange)
            self._kinds[exchange] = None if answer is None else answer.type or ""
        return self._kinds[exchange]

    def _is_bound(self, exchange: str, key: str) -> bool:
        known = self._bound.get((exchange, key))
        if known is None:
            if not exchange:
                self._settle()
                known = self._client.query_queue(key) is not None
            elif self._kind(exchange) == "direct":
                self._settle()
                known = not self._client.bound(exchange, binding_key=key).key_not_matched
            else:
                known = True
            if len(self._bound) >= MOST_KNOWN:
                self._bound.clear()
            self._bound[exchange, key] = known
        return known


def value_at(values: Values, row: int) -> str:
    """The value of one row."""
    return values if isinstance(values, str) else _text(values[row].as_py())


def _distinct(values: Values, start: int, stop: int) -> Iterator[tuple[str, int]]:
    """Every value with the first row that has it."""
    if isinstance(values, str):
        yield values, start
        return
    part = values.slice(start, stop - start)
    for value in pc.unique(part):
        row = pc.index(part.is_null(), pa.scalar(True)) if not value.is_valid else pc.index(part, value)
        yield _text(value.as_py()), start + row.as_py()


def _texts(values: Values, start: int, stop: int) -> Iterable[str]:
    if isinstance(values, str):
        return repeat(values, stop - start)
    return map(_text, values.slice(start, stop - start).to_pylist())


def _text(value: str | bytes | None) -> str:
    return "" if value is None else value.decode() if isinstance(value, bytes) else value
