"""``decode_rate``: messages per second of one core from raw frames of transfers to Arrow columns.

The columns are body, routing_key, message_id (as text), timestamp and one header as BIGINT. Measured is the whole way
that a task goes: chunks of transfers as the receiver hands them on, with the ends that its scanner has found, record
batches out. Finding the ends is ``rate_of_finding_boundaries``. No broker, no Spark session, nothing compiled of ours.
The clock is processor time of all threads together, so that "of one core" holds whatever else runs; nothing here waits
for anything, and the wall clock is in ``detail``.
"""

from __future__ import annotations

import os
import random
import struct
import time
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from amqp_core.v0_10._scan import scan
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan
from tests.bench.environment import Result, middle, rounded
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Callable

BODY_BYTES = 256
BLOCK_MESSAGES = 600  # about what one read of the receiver's socket holds
ROUNDS = 7
SCHEMA = t.StructType(
    [
        t.StructField("body", t.BinaryType()),
        t.StructField("routing_key", t.StringType()),
        t.StructField("message_id", t.StringType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("application_headers", t.StructType([t.StructField("qty", t.LongType())])),
    ]
)
SYMBOLS = (b"EURUSD", b"GBPUSD", b"USDJPY", b"AAPL", b"MSFT.O")


def message(number: int, source: random.Random) -> bytes:
    """One transfer: five delivery properties, four message properties, three headers, a body."""
    symbol = source.choice(SYMBOLS)
    delivery = wire.delivery(
        priority=b"\x04",
        delivery_mode=b"\x02",
        timestamp=struct.pack(">Q", 1_700_000_000_000 + number),
        exchange=wire.str8(b"amq.topic"),
        routing_key=wire.str8(b"ticks." + symbol),
    )
    headers = wire.map_(
        [
            (b"symbol", 0x95, wire.vbin16(symbol)),
            (b"price", 0x33, struct.pack(">d", 1 + number / 1000)),
            (b"qty", 0x31, struct.pack(">q", number)),
        ]
    )
    properties = wire.message(
        content_length=struct.pack(">Q", BODY_BYTES),
        message_id=source.randbytes(16),
        content_type=wire.str8(b"application/octet-stream"),
        application_headers=headers,
    )
    return wire.transfer(delivery + properties, source.randbytes(BODY_BYTES))


def blocks(messages: int) -> list[bytes]:
    """Blocks of frames, every message another one."""
    source = random.Random(5)
    every = [message(number, source) for number in range(messages)]
    return [b"".join(every[i : i + BLOCK_MESSAGES]) for i in range(0, messages, BLOCK_MESSAGES)]


def run() -> list[Result]:
    """Decode the same blocks again and again; the value is that of the median round."""
    return [measured("decode_rate", blocks, lambda block: scan(block, 0, 0, 65535).ends)]


def measured(
    name: str, made: Callable[[int], list[bytes]], ends: Callable[[bytes], list[int]], protocol: str = "0-10"
) -> Result:
    """The rate of decoding; ``made`` makes blocks of so many messages, ``ends`` finds the ends in a block."""
    quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
    messages = 3_000 if quick else 120_000
    frames = made(messages)
    chunks = [Chunk.of(block, ends(block), protocol=protocol) for block in frames]
    plan = ColumnPlan.build(SCHEMA, mode="FAILFAST", timestamp_unit="auto")
    everything = ColumnPlan.build(DEFAULT_SCHEMA, mode="FAILFAST", timestamp_unit="auto")

    def decode(plan: ColumnPlan) -> int:
        return sum(batch.num_rows for batch in plan.batches(chunks, queue="ticks", first_position=0))

    def walk() -> int:
        return sum(len(ends(block)) for block in frames)

    def rate(seconds: list[float]) -> float:
        return messages / middle(seconds)

    cpu, wall = _time(lambda: decode(plan), messages)
    return Result(
        name=name,
        value=rate(cpu),
        unit="messages/s",
        higher_is_better=True,
        detail={
            "messages": messages,
            "bytes_per_message": sum(map(len, frames)) // messages,
            "rates": rounded([messages / seconds for seconds in cpu], 0),
            "rate_by_wall_clock": round(rate(wall)),
            "rate_of_default_schema": round(rate(_time(lambda: decode(everything), messages)[0])),
            "rate_of_finding_boundaries": round(rate(_time(walk, messages)[0])),
        },
    )


def _time(work: Callable[[], int], expected: int) -> tuple[list[float], list[float]]:
    """Processor seconds and seconds of each round; a round before them does not count."""
    assert work() == expected
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(ROUNDS):
        started, spent = time.perf_counter(), time.process_time()
        work()
        cpu.append(time.process_time() - spent)
        wall.append(time.perf_counter() - started)
    return cpu, wall
