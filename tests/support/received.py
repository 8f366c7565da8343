"""Frames with the ends of their transfers, as the receiver's scanner passes them on, and their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pytest

from amqp_core.errors import DecodeError
from amqp_core.v0_10._scan import scan
from amqp_spark.arrow.decode import Chunk, plan
from amqp_spark.errors import MessageFormatError
from tests.support.choice import all_cases

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from amqp_spark.arrow.decode import ColumnPlan


_DEFAULTS: dict[str, Any] = {"queue": "q", "first_position": 0}


def chunk_of(frames: bytes) -> Chunk:
    """Make a chunk of whole transfers on channel 0; bytes after the last one stay in the frames."""
    found = scan(frames, 0, 0, 65535)
    assert found.error is None
    return Chunk.of(frames, found.ends)


class Decoded(NamedTuple):
    """What became of some chunks."""

    batches: list[pa.RecordBatch]
    """The batches before the error, if there was one."""
    rejected: list[tuple[list[int], str]]
    error: MessageFormatError | DecodeError | None

    def content(self) -> tuple[object, ...]:
        """All of it, in a form that can be compared: NaN is like NaN."""
        rows = [(batch.schema, repr(batch.to_pylist())) for batch in self.batches]
        return rows, self.rejected, type(self.error), str(self.error)


def decoded(columns: ColumnPlan, chunks: Iterable[Chunk], *, least_rows: int, **arguments: Any) -> Decoded:
    """Decode in batches; those of ``least_rows`` and more by the shapes of their messages, if that is possible."""
    batches: list[pa.RecordBatch] = []
    rejected: list[tuple[list[int], str]] = []
    arguments = _DEFAULTS | arguments
    error = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "LEAST_ROWS", least_rows)
        patch.setattr(plan, "LEAST_KNOWN_ROWS", least_rows)
        try:
            batches.extend(columns.batches(chunks, on_reject=lambda *call: rejected.append(call), **arguments))
        except (MessageFormatError, DecodeError) as raised:
            error = raised
    return Decoded(batches, rejected, error)


def decoded_both_ways(columns: ColumnPlan, chunks: Iterable[Chunk], **arguments: Any) -> Decoded:
    """Decode in the general way and by shapes: the results must be equal."""
    chunks = list(chunks)
    general = decoded(columns, chunks, least_rows=1 << 32, **arguments)
    by_shapes = decoded(columns, chunks, least_rows=1, **arguments)
    assert by_shapes.content() == general.content()
    return by_shapes


def batches_both_ways(columns: ColumnPlan, chunks: Iterable[Chunk], **arguments: Any) -> list[pa.RecordBatch]:
    """The batches, of both ways; the error is raised, and ``on_reject`` called once."""
    on_reject = arguments.pop("on_reject", None)
    found = decoded_both_ways(columns, chunks, **arguments)
    if on_reject is not None:
        for call in found.rejected:
            on_reject(*call)
    if found.error is not None:
        raise found.error
    return found.batches


def batches_of_random_chunk(columns: ColumnPlan, chunk: Chunk, **arguments: Any) -> list[pa.RecordBatch]:
    """The batches, of both ways for some chunks (all with ``make test-all``): a small one costs seven times as much."""
    if all_cases() or crc32(chunk.frames) % 16 == 0:
        return batches_both_ways(columns, [chunk], **arguments)
    return list(columns.batches([chunk], **_DEFAULTS | arguments))
