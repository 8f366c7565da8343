"""Encodes rows as the sink does and decodes the frames with the core, frame by frame and strictly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_command, decode_header
from amqp_core.v0_10._scan import OUTSIDE, scan
from amqp_core.v0_10.frames import parse_frame
from amqp_core.v0_10.segments import Assembler
from amqp_spark.options import SinkOptions
from amqp_spark.sink.encoding.messages import MessagePlan, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.types import StructType

    from amqp_spark.sink.encoding.messages import EncodedBlock

HERE = Place(query_id=None, batch_id=12, partition=3)


@dataclass(frozen=True)
class Received:
    """One transfer as a peer sees it."""

    command: spec.MessageTransfer
    header: bytes
    delivery: spec.DeliveryProperties
    message: spec.MessageProperties
    body: bytes
    frames: tuple[int, ...]
    """Size of every frame."""


def sink_options(**options: object) -> SinkOptions:
    """Options by their public names, with ``__`` for a dot."""
    given = {"url": "amqp://localhost/default"} | {key.replace("__", "."): value for key, value in options.items()}
    return SinkOptions.parse(given)


def to_batch(
    schema: StructType, rows: Sequence[dict[str, Any]], *, large: bool = False, skip: int = 0
) -> pa.RecordBatch:
    """Rows as Spark hands them over; ``skip`` of them are cut off in front, so that the arrays are slices."""
    arrow = to_arrow_schema(schema, timezone="UTC", prefers_large_types=large)
    return pa.RecordBatch.from_pylist(list(rows), arrow).slice(skip)


def blocks_of(
    schema: StructType,
    batch: pa.RecordBatch,
    options: SinkOptions | None = None,
    *,
    max_frame_size: int = 65535,
    accept_mode: int = spec.MessageAcceptMode.NONE,
    place: Place = HERE,
    first_row: int = 0,
) -> list[EncodedBlock]:
    """All blocks of a batch."""
    plan = MessagePlan.build(schema, options or sink_options(exchange="amq.topic"))
    encoder = plan.encoder(accept_mode=accept_mode, max_frame_size=max_frame_size, place=place)
    return list(encoder.blocks(batch, first_row))


def received(blocks: Iterable[EncodedBlock], *, max_frame_size: int = 65535) -> list[Received]:
    """Decode blocks; every frame and segment has to be as the specification says, and ``ends`` the boundaries."""
    out: list[Received] = []
    for block in blocks:
        data = bytes(memoryview(block.frames))
        found = scan(data, 0, 0, max_frame_size, OUTSIDE)
        assert found.error is None
        assert found.others == []
        assert found.ends == list(block.ends)
        assert found.next == len(data)
        begin = 0
        for end in block.ends:
            out.append(_transfer(data[begin:end], max_frame_size))
            begin = end
    return out


def _transfer(data: bytes, max_frame_size: int) -> Received:
    assembler = Assembler()
    at = 0
    sizes = []
    while True:
        parsed = parse_frame(data, at, max_frame_size)
        assert parsed is not None
        frame, after = parsed
        sizes.append(after - at)
        at = after
        assembly = assembler.receive(frame)
        if assembly is not None:
            break
    assert at == len(data)
    assert assembly.channel == 0
    command, sync = decode_command(assembly.operation)
    assert isinstance(command, spec.MessageTransfer)
    assert not sync
    assert assembly.header is not None
    assert assembly.body != b""  # an empty body has no segment
    delivery, message, others = decode_header(assembly.header)
    assert delivery is not None
    assert message is not None
    assert others == []
    return Received(command, assembly.header, delivery, message, assembly.body or b"", tuple(sizes))
