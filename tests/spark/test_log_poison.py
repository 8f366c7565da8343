"""A message of a stream that cannot be decoded is treated by the option mode, wherever it stands."""

from __future__ import annotations

import json
import struct
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import types as t

from amqp_core.blocks import Block
from amqp_core.v0_9.log_messages import log_entry
from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.datasource.log.range_reader import LogPartition, RangeReader
from amqp_spark.errors import MessageFormatError
from amqp_spark.options import SourceOptions
from tests.support import wire_0_9 as wire

if TYPE_CHECKING:
    from amqp_core.api import LogEntry

OPTIONS = SourceOptions.parse({"url": "amqp://localhost", "queue": "s", "queueType": "stream"})
BODY = t.StructField("body", t.StringType())
MESSAGE_ID = t.StructField("message_id", t.StringType())
CORRUPT = t.StructField("_corrupt_record", t.StringType())


class Stream:
    """A client of a broker with a stream of messages ``m0``, ``m1``, ...: those in ``poisoned`` have a message_id of
    random octets. It is a subscription, too; each message arrives alone."""

    peer = "stream:5672"
    protocol = "0-9-1"
    heartbeat_s = 0
    under_way_bytes = 0

    def __init__(self, count: int, poisoned: set[int]) -> None:
        self.blocks = [self.block(offset, poisoned=offset in poisoned) for offset in range(count)]

    @staticmethod
    def block(offset: int, *, poisoned: bool) -> Block:
        properties = wire.properties(
            headers=wire.table((b"x-stream-offset", b"l" + struct.pack(">q", offset))),
            message_id=wire.short(b"\xff\x00\xfe" if poisoned else b"id"),
        )
        frames = [wire.delivery(offset + 1, f"m{offset}".encode(), properties=properties)]
        return Block(b"".join(frames), list(accumulate(map(len, frames))), offset + 1)  # type: ignore[arg-type]

    def subscribe(self, *_: object, **__: object) -> Stream:
        return self

    def take_blocks(self, _seconds: float) -> list[Block]:
        return [self.blocks.pop(0)]

    def accept(self, ranges: object) -> None:
        pass

    def pause_reading(self, paused: bool) -> None:
        pass

    def log_entry(self, block: Any, index: int) -> LogEntry | None:
        return log_entry(block, index)

    def close(self) -> None:
        pass


def rows(mode: str, *fields: t.StructField) -> list[dict[str, Any]]:
    columns = ColumnPlan.build(t.StructType(list(fields)), mode=mode, timestamp_unit="auto")
    client = Stream(3, {1})
    reader = RangeReader(LogPartition("s", 0, 3), OPTIONS, columns, lambda _: cast("Any", client))
    return [row for batch in reader.batches() for row in batch.to_pylist()]


def test_where_its_column_is_not_read_it_is_a_row_as_any_other() -> None:
    assert rows("FAILFAST", BODY) == [{"body": "m0"}, {"body": "m1"}, {"body": "m2"}]


def test_permissive_has_a_row_for_it() -> None:
    first, second, third = rows("PERMISSIVE", BODY, MESSAGE_ID, CORRUPT)
    assert (first["body"], first["message_id"], first["_corrupt_record"]) == ("m0", "id", None)
    assert (third["body"], third["message_id"], third["_corrupt_record"]) == ("m2", "id", None)
    assert second["message_id"] is None
    assert json.loads(second["_corrupt_record"])["reasons"]


def test_failfast_says_which_message_it_is() -> None:
    with pytest.raises(MessageFormatError, match=r"position 1 of queue 's'"):
        rows("FAILFAST", BODY, MESSAGE_ID)
