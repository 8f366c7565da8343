"""Small chunks are joined in memory that is used again: no batch sees the bytes of another."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from amqp_core.errors import DecodeError
from amqp_spark.arrow.columns import gathering
from amqp_spark.arrow.decode import Chunk, ColumnPlan
from tests.support import wire
from tests.support.received import chunk_of

SCHEMA = t.StructType([t.StructField("routing_key", t.StringType()), t.StructField("body", t.BinaryType())])
ROWS = 12_000
"""More than one record batch has."""


def chunks(text: bytes) -> list[Chunk]:
    message = wire.transfer(wire.delivery(routing_key=wire.str8(text)), text)
    return [chunk_of(message * (ROWS // 4))] * 4


def plan() -> ColumnPlan:
    return ColumnPlan.build(SCHEMA, mode="FAILFAST", timestamp_unit="auto")


def test_calls_that_are_under_way_at_the_same_time() -> None:
    columns = plan()
    texts = (b"first", b"second")
    both = [columns.batches(chunks(text), queue="q", first_position=0) for text in texts]
    found = [next(both[0]), next(both[1]), *both[0], *both[1]]
    assert [batch.num_rows for batch in found] == [10_000, 10_000, 2000, 2000]
    for batch, text in zip(found, texts * 2, strict=True):
        assert set(batch["body"].to_pylist()) == {text}
        assert set(batch["routing_key"].to_pylist()) == {text.decode()}


def test_batches_keep_their_bytes_when_the_memory_is_used_again() -> None:
    columns = plan()
    for text in (b"long text", b"short", b"x"):  # what a later group does not fill has bytes of an earlier one
        batches = list(columns.batches(chunks(text), queue="q", first_position=0))
        kept = batches[0]["body"], batches[0]["routing_key"]
        list(columns.batches(chunks(b"another"), queue="q", first_position=0))
        assert set(kept[0].to_pylist()) == {text}
        assert set(kept[1].to_pylist()) == {text.decode()}


def test_the_memory_is_given_back_and_taken_again() -> None:
    rooms = []
    for _ in range(3):
        (chunk,) = gathering.gathered(chunks(b"text"))
        rooms.append(chunk.frames)
    assert rooms[0] is rooms[1] is rooms[2]
    assert [type(chunk.frames) for chunk in gathering.gathered(chunks(b"text")[:1])] == [bytes]


def test_ends_beyond_the_frames_are_an_error_wherever_the_frames_are() -> None:
    good = chunks(b"text")[0]
    wrong = Chunk.of(wire.transfer(b"", b"x"), [1000])
    with pytest.raises(DecodeError, match="do not fit the frames"):
        list(plan().batches([good, wrong], queue="q", first_position=0))
