"""Encodes rows as the sink does for 0-9-1; the frames are decoded by pika, and the tables of headers by hand."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pika.frame import Body, Header, Method, decode_frame
from pika.spec import Basic, BasicProperties

from amqp_spark.arrow.encode import FrameFormat, MessagePlan
from amqp_spark.errors import RowError
from tests.spark.message_support import HERE, sink_options, to_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import types as t

    from amqp_spark.arrow.encode import EncodedBlock, TaskId
    from amqp_spark.options import SinkOptions

FRAME_MAX = 131_072
_NUMBERS = {"t": "?", "b": "b", "s": "h", "I": "i", "l": "q", "f": "f", "d": "d"}


@dataclass(frozen=True)
class Published:
    """One message as a broker sees it."""

    method: Basic.Publish
    properties: BasicProperties
    headers: dict[str, Any] | None
    """Each value with its type letter."""
    table: bytes | None
    """The headers as they are on the wire, with their size."""
    body: bytes
    frames: tuple[int, ...]
    """Size of every frame."""


def encoded(
    schema: t.StructType,
    rows: Sequence[dict[str, Any]] | pa.RecordBatch,
    options: SinkOptions | None = None,
    *,
    max_frame_size: int = FRAME_MAX,
    absolute: bool = False,
    place: TaskId = HERE,
    first_row: int = 0,
) -> list[EncodedBlock]:
    """All blocks of these rows."""
    batch = rows if isinstance(rows, pa.RecordBatch) else to_batch(schema, rows)
    plan = MessagePlan.build(schema, options or sink_options())
    frame_format = FrameFormat(protocol="0-9-1", max_frame_size=max_frame_size, expiration_is_absolute=absolute)
    return list(plan.encoder(frame_format, place).blocks(batch, first_row))


def published(
    schema: t.StructType, rows: Sequence[dict[str, Any]], options: SinkOptions | None = None, **more: Any
) -> list[Published]:
    """These rows, encoded and decoded."""
    return decoded(encoded(schema, rows, options, **more), max_frame_size=more.get("max_frame_size", FRAME_MAX))


def one(schema: t.StructType, row: dict[str, Any], options: SinkOptions | None = None, **more: Any) -> Published:
    """One row, encoded and decoded."""
    (message,) = published(schema, [row], options, **more)
    return message


def refusal(schema: t.StructType, *rows: dict[str, Any], options: SinkOptions | None = None, **more: Any) -> str:
    """The text of the error of rows of which one cannot be sent."""
    with pytest.raises(RowError) as caught:
        encoded(schema, [*rows], options, **more)
    return str(caught.value)


def decoded(blocks: Iterable[EncodedBlock], *, max_frame_size: int = FRAME_MAX) -> list[Published]:
    """Decode blocks; ``ends`` have to be the boundaries of messages, and every frame within the limit."""
    out: list[Published] = []
    for block in blocks:
        data = bytes(memoryview(block.frames))
        begin = 0
        for end in block.ends:
            out.append(_message(data[begin:end], max_frame_size))
            begin = end
        assert begin == len(data)
    return out


def _message(data: bytes, max_frame_size: int) -> Published:
    frames: list[Any] = []
    raw: list[bytes] = []
    at = 0
    while at < len(data):
        used, frame = decode_frame(data[at:])
        assert 0 < used <= max_frame_size
        assert frame is not None
        assert frame.channel_number == 2
        frames.append(frame)
        raw.append(data[at : at + used])
        at += used
    method, header, *bodies = frames
    assert isinstance(method, Method)
    assert isinstance(method.method, Basic.Publish)
    assert isinstance(header, Header)
    assert all(isinstance(body, Body) and body.fragment for body in bodies)
    body = b"".join(body.fragment for body in bodies)
    assert header.body_size == len(body)
    table = None
    if header.properties.headers is not None:
        table = _table_of(raw[1])
    return Published(
        method.method,
        header.properties,
        None if table is None else read_table(table),
        table,
        body,
        tuple(map(len, raw)),
    )


def _table_of(frame: bytes) -> bytes:
    """The bytes of the headers in a header frame: content type and encoding are before them."""
    flags = struct.unpack_from(">H", frame, 19)[0]
    at = 21
    for flag in (0x8000, 0x4000):
        if flags & flag:
            at += 1 + frame[at]
    return frame[at : at + 4 + struct.unpack_from(">I", frame, at)[0]]


def read_table(raw: bytes) -> dict[str, Any]:
    """Every value of an encoded table with its letter, as 0-9-1 section 4.2.5.5 has it."""
    assert struct.unpack_from(">I", raw)[0] == len(raw) - 4
    out: dict[str, Any] = {}
    at = 4
    while at < len(raw):
        begin = at + 1
        at = begin + raw[at]
        key = raw[begin:at].decode()
        assert key not in out
        out[key], at = _value(raw, at)
    assert at == len(raw)
    return out


def _value(raw: bytes, at: int) -> tuple[tuple[str, Any], int]:
    letter, at = chr(raw[at]), at + 1
    if letter == "V":
        return (letter, None), at
    if letter in _NUMBERS:
        form = ">" + _NUMBERS[letter]
        return (letter, struct.unpack_from(form, raw, at)[0]), at + struct.calcsize(form)
    end = at + 4 + struct.unpack_from(">I", raw, at)[0]
    assert end <= len(raw)
    content = raw[at + 4 : end]
    if letter == "F":
        return (letter, read_table(raw[at:end])), end
    if letter == "A":
        items, inner = [], 0
        while inner < len(content):
            item, inner = _value(content, inner)
            items.append(item)
        return (letter, items), end
    assert letter in "Sx"
    return (letter, content.decode() if letter == "S" else content), end
