"""Bodies of the sink: frames of every size, blocks of bounded size, encoded maps and lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._read import read_list, read_map
from amqp_spark.arrow.encode import FrameFormat, MessagePlan
from amqp_spark.arrow.rows.messages import MOST_BYTES, MOST_ROWS
from tests.spark.message_support import (
    FRAME,
    HERE,
    INT,
    LIST,
    LONG,
    OBJECT,
    OCTETS,
    TEXT,
    blocks_of,
    fields,
    one,
    received,
    refused,
    sink_options,
    to_batch,
    variant,
)

if TYPE_CHECKING:
    from tests.spark.message_support import Received


@pytest.mark.parametrize("limit", [4096, 65535])
@pytest.mark.parametrize("large", [False, True])
def test_bodies_are_cut_into_frames(limit: int, large: bool) -> None:
    room = limit - FRAME
    sizes = [0, 1, room - 1, room, room + 1, 2 * room, 2 * room + 1, 0, 5_000_000, 3]
    schema = fields(body=OCTETS, routing_key=TEXT)
    pattern = np.random.default_rng(1).bytes(5_000_000)
    rows = [{"body": pattern[:size], "routing_key": f"{size}"} for size in sizes]
    blocks = blocks_of(schema, to_batch(schema, rows, large=large), max_frame_size=limit, first_row=100)
    messages = received(blocks, max_frame_size=limit)
    assert [len(message.body) for message in messages] == sizes
    for message, row in zip(messages, rows, strict=True):
        assert message.body == row["body"]
        assert message.delivery.routing_key == row["routing_key"]
        assert message.message.content_length == len(row["body"])
        pieces = message.frames[2:]
        assert all(size == limit for size in pieces[:-1])
        assert len(pieces) == -(-len(row["body"]) // room)
    assert [block.first_row for block in blocks] == [100 + i for i in starts(blocks)]


def starts(blocks: list[Any]) -> list[int]:
    return [sum(len(block) for block in blocks[:index]) for index in range(len(blocks))]


def test_blocks_are_bounded_and_a_large_message_is_alone() -> None:
    schema = fields(body=OCTETS)
    sizes = [100] * (MOST_ROWS + 1000) + [MOST_BYTES - 1, 50, MOST_BYTES + 1, 3 * MOST_BYTES, 7] + [MOST_BYTES // 4] * 8
    blocks = blocks_of(schema, to_batch(schema, [{"body": bytes(size)} for size in sizes]))
    assert [len(message.body) for message in received(blocks)] == sizes
    assert len(blocks[0]) == MOST_ROWS
    for block in blocks:
        assert len(block) == 1 or len(block.frames) < MOST_BYTES * 1.5
    assert sum(len(block.frames) > MOST_BYTES for block in blocks) <= 6


def test_one_block_at_a_time_is_in_memory_and_a_body_is_copied_once() -> None:
    schema = fields(body=OCTETS)
    size = 8 << 20
    batch = to_batch(schema, [{"body": bytes(size)}] * 6)
    encoder = MessagePlan.build(schema, sink_options()).encoder(FrameFormat(accept_mode=1, max_frame_size=65535), HERE)
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        for block in encoder.blocks(batch, 0):
            assert len(block.frames) > size
            del block
            assert pool.bytes_allocated() < 1 << 20
        assert 0 < (pool.max_memory() or 0) < 1.1 * size
    finally:
        pa.set_memory_pool(usual)


BODIES: list[tuple[t.DataType, Any, str, Any]] = [
    (fields(symbol=TEXT, qty=INT), {"symbol": "EUR", "qty": 3}, "amqp/map", {"symbol": "EUR", "qty": 3}),
    (t.MapType(TEXT, LONG), [("a", 1), ("b", None)], "amqp/map", {"a": 1, "b": None}),
    (t.ArrayType(TEXT), ["a", None], "amqp/list", ["a", None]),
]


def decoded_body(message: Received) -> Any:
    read = {"amqp/map": read_map, "amqp/list": read_list}[message.message.content_type or ""]
    value, end = read(message.body, 0)
    assert end == len(message.body)
    return value


@pytest.mark.parametrize(("kind", "value", "content_type", "sent"), BODIES, ids=lambda item: str(item)[:12])
def test_a_nested_body_is_encoded_and_says_so(kind: t.DataType, value: Any, content_type: str, sent: Any) -> None:
    message = one(fields(body=kind), {"body": value})
    assert message.message.content_type == content_type
    assert message.message.content_length == len(message.body)
    assert decoded_body(message) == sent


@pytest.mark.parametrize("rows", [[OBJECT, LIST], [LIST, OBJECT, LIST], [OBJECT], [LIST, LIST]], ids=len)
def test_a_variant_body_is_a_map_or_a_list_by_its_value(rows: list[dict[str, bytes]]) -> None:
    schema = fields(body=t.VariantType())
    messages = received(blocks_of(schema, to_batch(schema, [{"body": row} for row in rows])))
    wanted = [("amqp/map", {"a": 1}) if row is OBJECT else ("amqp/list", ["x"]) for row in rows]
    assert [(message.message.content_type, decoded_body(message)) for message in messages] == wanted


def test_a_variant_body_that_is_a_scalar_cannot_be_sent() -> None:
    schema = fields(body=t.VariantType())
    error = refused(schema, {"body": OBJECT}, {"body": variant(5, code.INT32)})
    assert (error.row, error.column) == (1, "body")
    assert "amqp/map" in error.reason


@pytest.mark.parametrize("kind", [TEXT, OCTETS], ids=str)
def test_the_content_type_of_a_row_comes_before_that_of_its_nested_body(kind: t.DataType) -> None:
    schema = fields(body=t.ArrayType(INT), content_type=kind)
    own: Any = "my/list" if kind == TEXT else b"my/list"
    rows = [{"body": [1], "content_type": own}, {"body": [2], "content_type": None}]
    messages = received(blocks_of(schema, to_batch(schema, rows)))
    assert [message.message.content_type for message in messages] == ["my/list", "amqp/list"]
    (only,) = received(blocks_of(schema, to_batch(schema, rows[1:])))
    assert only.message.content_type == "amqp/list"
