"""Distinct exchanges and routing keys of many rows, with their counts and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa
    from numpy.typing import NDArray

    Values = str | pa.Array[Any]
    """One string for all rows, or a string column; null is the empty string."""


class Targets:
    """The distinct pairs of exchange and routing key in a range of rows.

    Args:
        exchange, routing_key: of every row.
        start, stop: range of rows.

    Attributes:
        names: the pairs.
        counts: number of rows of each pair.
        firsts: first row of each pair.
    """

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
        found, firsts, which, counts = np.unique(
            exchange_of * len(keys) + key_of, return_index=True, return_inverse=True, return_counts=True
        )
        self.names = [(exchanges[code // len(keys)], keys[code % len(keys)]) for code in found.tolist()]
        self.counts, self.firsts = counts.tolist(), (firsts + start).tolist()
        self._which = which.reshape(-1)

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
    return [_text(value) for value in encoded.dictionary.to_pylist()], encoded.indices.to_numpy().astype(np.int64)


def _text(value: str | bytes | None) -> str:
    return "" if value is None else value.decode() if isinstance(value, bytes) else value
