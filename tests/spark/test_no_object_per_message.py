"""From received bytes to columns no function of Python runs for each message, and no object is made of each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as t

from amqp_core.blocks import Block
from amqp_core.v0_9.scanner import Scanner as Scanner09
from amqp_core.v0_10.scanner import Scanner as Scanner010
from amqp_spark.arrow.decode import Chunk, ColumnPlan
from tests.support import wire, wire_0_9

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

COLUMNS = t.StructType(
    [
        t.StructField(name, kind)
        for name, kind in (
            ("position", t.LongType()),
            ("routing_key", t.StringType()),
            ("message_id", t.StringType()),
            ("priority", t.ByteType()),
            ("body", t.BinaryType()),
        )
    ]
)


def of_0_10(number: int) -> bytes:
    return wire.transfer(b"", b"%d" % number * (1 + number % 7))


def of_0_9(number: int) -> bytes:
    properties = wire_0_9.properties(priority=b"\x04", message_id=wire_0_9.short(b"id-%d" % number))
    return wire_0_9.delivery(number + 1, b"%d" % number * (1 + number % 7), properties=properties)


def calls(work: Callable[[], object]) -> int:
    """How many functions of Python were called."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("scanner", "message", "protocol"), [(Scanner010, of_0_10, "0-10"), (Scanner09, of_0_9, "0-9-1")]
)
def test_calls_do_not_grow_with_the_number_of_messages(scanner: Any, message: Any, protocol: str) -> None:
    def received(count: int) -> int:
        data = b"".join(map(message, range(count)))
        plan = ColumnPlan.build(COLUMNS, mode="PERMISSIVE", timestamp_unit="auto")
        rows = 0

        def work() -> None:
            nonlocal rows
            for block in scanner(0 if protocol == "0-10" else 1).feed(data, 1 << 16):
                assert isinstance(block, Block)
                chunk = Chunk.of(bytes(block.frames), list(block.ends), protocol=protocol)
                rows += sum(batch.num_rows for batch in plan.batches([chunk], queue="q", first_position=0))

        found = calls(work)
        assert rows == count
        return found

    received(100)  # imports, caches
    # Each batch of rows costs some calls, and so does each new shape of messages, but no message does.
    assert 50 * (received(30_000) - received(12_000)) < 18_000
