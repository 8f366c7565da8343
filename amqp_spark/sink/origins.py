"""Runs of transfers and the rows that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from amqp_core.transfer_ledger import Transfers
from amqp_spark.arrow.encode import clear_accept_mode
from amqp_spark.sink.routes import value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_core.transfer_ledger import Rejected
    from amqp_spark.arrow.encode import EncodedBlock
    from amqp_spark.options import SinkOptions


class Origin(NamedTuple):
    """Origin of the transfers of a run; the publisher carries it as their tag."""

    first_row: int
    """Position in the partition of the first transfer of the block."""
    exchange: str | pa.Array[Any]
    routing_key: str | pa.Array[Any]
    frames: memoryview | None
    """Frames of the whole block, if they may be needed after completion."""
    ends: Sequence[int]

    def alone(self) -> Origin:
        """The same, without frames and without views of the columns: those keep all of a batch of Spark in memory."""
        return self._replace(frames=None, exchange=_copied(self.exchange), routing_key=_copied(self.routing_key))

    def row(self, index: int) -> int:
        """Position in the partition of transfer ``index``."""
        return self.first_row + index

    def target(self, index: int) -> tuple[str, str]:
        """Exchange and routing key of transfer ``index``."""
        return value_at(self.exchange, index), value_at(self.routing_key, index)


def _copied(values: str | pa.Array[Any]) -> str | pa.Array[Any]:
    return values if isinstance(values, str) else pa.concat_arrays([values])


def run_of(block: EncodedBlock, options: SinkOptions, *, keep: bool) -> Transfers:
    """The transfers of a block; ``keep``: its origin keeps the frames as long as they can be rejected."""
    exchange = options.exchange if block.exchanges is None else block.exchanges
    key = (options.routing_key or "") if block.routing_keys is None else block.routing_keys
    frames = memoryview(block.frames)
    origin = Origin(block.first_row, exchange, key, frames if keep else None, block.ends)
    return Transfers(frames, block.ends, origin)


def origin_of(tagged: Transfers | Rejected) -> Origin:
    """Origin of transfers that :func:`run_of` has made."""
    assert isinstance(tagged.tag, Origin)
    return tagged.tag


def without_accept(rejected: Sequence[Rejected]) -> list[Transfers]:
    """The rejected transfers again, with accept-mode none, so that the broker reports the reason differently.

    Broker-J rejects unroutable transfers and transfers to a full queue with the same code and text. With accept-mode
    none it drops unroutable ones and ends the session for a full queue (506 resource-limit-exceeded).
    """
    return [_without_accept(origin, first, last) for origin, first, last in _ranges(rejected)]


def _ranges(rejected: Sequence[Rejected]) -> Iterator[tuple[Origin, int, int]]:
    """Group neighbours of one block: origin, first and last index."""
    run: tuple[Origin, int, int] | None = None
    for origin, index in ((origin_of(one), one.index) for one in rejected):
        if run is not None and run[0] is origin and run[2] + 1 == index:
            run = origin, run[1], index
            continue
        if run is not None:
            yield run
        run = origin, index, index
    if run is not None:
        yield run


def _without_accept(origin: Origin, first: int, last: int) -> Transfers:
    assert origin.frames is not None
    base = int(origin.ends[first - 1]) if first else 0
    ends = [int(end) - base for end in origin.ends[first : last + 1]]
    frames = bytearray(origin.frames[base : base + ends[-1]])
    clear_accept_mode(frames, ends)
    return Transfers(frames, ends, origin._replace(frames=None), first)
