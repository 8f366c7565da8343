"""Runs of transfers and the rows that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from amqp_core.transfer_ledger import Transfers
from amqp_spark.arrow.encode import clear_accept_mode
from amqp_spark.sink.targets import value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from amqp_core.transfer_ledger import Rejected
    from amqp_spark.arrow.encode import EncodedBlock
    from amqp_spark.options import SinkOptions


class Origin(NamedTuple):
    """Where the transfers of a run come from; the tag that they carry through the publisher."""

    first_row: int
    """Place in the partition of the first transfer of the block."""
    exchange: str | pa.Array[Any]
    routing_key: str | pa.Array[Any]
    frames: memoryview | None
    """The frames of the whole block, where they may be needed after they were completed."""
    ends: Sequence[int]

    def row(self, index: int) -> int:
        """Place in the partition of a transfer."""
        return self.first_row + index

    def target(self, index: int) -> tuple[str, str]:
        """Exchange and routing key of a transfer."""
        return value_at(self.exchange, index), value_at(self.routing_key, index)


def run_of(block: EncodedBlock, options: SinkOptions, *, keep: bool) -> Transfers:
    """The transfers of a block; ``keep``: its origin keeps the frames as long as they can be rejected."""
    exchange = options.exchange if block.exchanges is None else block.exchanges
    key = (options.routing_key or "") if block.routing_keys is None else block.routing_keys
    frames = memoryview(block.frames)
    origin = Origin(block.first_row, exchange, key, frames if keep else None, block.ends)
    return Transfers(frames, block.ends, origin)


def origin_of(tagged: Transfers | Rejected) -> Origin:
    """Of what :func:`run_of` has made."""
    assert isinstance(tagged.tag, Origin)
    return tagged.tag


def without_accept(rejected: Sequence[Rejected]) -> list[Transfers]:
    """The rejected transfers once more, now with accept-mode none: the broker then says in another way what it thinks.

    Broker-J rejects what it cannot route and what a full queue does not take with one code and one text. With
    accept-mode none it drops the one and ends the session because of the other (506 resource-limit-exceeded).
    """
    return [_without_accept(origin, first, last) for origin, first, last in _ranges(rejected)]


def _ranges(rejected: Sequence[Rejected]) -> Iterator[tuple[Origin, int, int]]:
    """Neighbours of one block together: origin, first and last index."""
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
