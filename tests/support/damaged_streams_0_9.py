"""Damaged streams of deliveries, from the socket to Arrow columns: for a test, and for long runs by hand.

Usage: python -m tests.support.damaged_streams_0_9 [COUNT [SEED]]
"""

from __future__ import annotations

import random
import struct
import sys
from typing import Final, NamedTuple

from pyspark.sql import types as t

from amqp_core.blocks import Block
from amqp_core.errors import DecodeError, LimitExceeded
from amqp_core.v0_9.framing import parse_frame
from amqp_core.v0_9.scanner import Scanner
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan
from amqp_spark.errors import MessageFormatError
from tests.support import wire_0_9 as wire
from tests.support.mutations_0_9 import mutated
from tests.support.received import batches_of_random_chunk

FRAME_LIMIT: Final = 4096
MESSAGE_LIMIT: Final = 1 << 16
_PROPERTIES: Final = (
    wire.properties(
        content_type=wire.short(b"text/plain"),
        headers=wire.table(
            (b"symbol", b"S" + wire.long(b"EURUSD")), (b"x-delivery-count", b"l" + struct.pack(">q", 3))
        ),
        delivery_mode=b"\x02",
        correlation_id=wire.short(b"correlated"),
        expiration=wire.short(b"60000"),
        message_id=wire.short(b"any text"),
        timestamp=struct.pack(">Q", 1_700_000_000),
    ),
    wire.properties(),
    wire.properties(
        headers=wire.table((b"a", b"A" + wire.long(b"I" + struct.pack(">i", 1))), (b"t", b"F" + wire.long(b"")))
    ),
)
_TYPED: Final = t.StructType(
    [
        t.StructField("body", t.StringType()),
        t.StructField("ttl", t.LongType()),
        t.StructField("delivery_count", t.LongType()),
        t.StructField("application_headers", t.StructType([t.StructField("symbol", t.StringType())])),
    ]
)


class Outcome(NamedTuple):
    """How many streams were read to their end, how many were refused, and how many rows came of all of them."""

    read: int
    refused: int
    rows: int


def damaged(chance: random.Random) -> bytes:
    """Four deliveries, some in several frames, with one to four damages: in the frames, or in properties alone."""
    bodies = (b"", b"text \xff", bytes(9000), b"x" * 40)
    inside, at = chance.random() < 0.7, chance.randrange(4)
    deliveries = []
    for tag in range(1, 5):
        properties = chance.choice(_PROPERTIES)
        if inside and tag == at + 1:
            properties = mutated(properties, chance)
        deliveries.append(wire.delivery(tag, chance.choice(bodies), properties=properties, limit=FRAME_LIMIT))
    if not inside:
        deliveries[at] = mutated(deliveries[at], chance)
    return b"".join(deliveries)


def scanned(data: bytes, chance: random.Random) -> tuple[list[Block], bool]:
    """The blocks of a stream that arrives in random parts, and whether it was refused."""
    scanner, blocks = Scanner(1, MESSAGE_LIMIT), []
    while data and scanner.error is None:
        cut = chance.randrange(1, len(data) + 1)
        for item in scanner.feed(data[:cut], FRAME_LIMIT):
            if isinstance(item, Block):
                blocks.append(item)
                continue
            try:
                parse_frame(item, 0, FRAME_LIMIT)
            except DecodeError:
                return blocks, True
        data = data[cut:]
    assert scanner.error is None or isinstance(scanner.error, DecodeError | LimitExceeded)
    return blocks, scanner.error is not None


def run(count: int, seed: int) -> Outcome:
    """Scan and decode so many damaged streams; anything but a documented error leaves."""
    chance = random.Random(seed)
    plans = [
        ColumnPlan.build(schema, mode=mode, timestamp_unit="auto")
        for schema in (DEFAULT_SCHEMA, _TYPED)
        for mode in ("PERMISSIVE", "FAILFAST")
    ]
    refused = rows = 0
    for _ in range(count):
        blocks, failed = scanned(damaged(chance), chance)
        plan = chance.choice(plans)
        for block in blocks:
            chunk = Chunk.of(bytes(block.frames), list(block.ends), protocol="0-9-1")
            try:
                for batch in batches_of_random_chunk(plan, chunk):
                    rows += batch.num_rows
            except MessageFormatError:
                failed = True
        refused += failed
    return Outcome(count - refused, refused, rows)


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(run(total, int(sys.argv[2]) if len(sys.argv) > 2 else 1))
