"""``rabbitmq_decode_rate``: messages per second of one core from frames of 0-9-1 deliveries to Arrow columns.

As :mod:`.bench_decode`, with the same columns. The messages are those of RabbitMQ: a quorum queue adds the header
``x-delivery-count``.
"""

from __future__ import annotations

import random
import struct
import uuid
from typing import TYPE_CHECKING

from amqp_core.v0_9._scan import scan
from tests.bench.bench_decode import BLOCK_MESSAGES, BODY_BYTES, SYMBOLS, measured
from tests.support import wire_0_9 as wire

if TYPE_CHECKING:
    from tests.bench.environment import Result


def message(number: int, source: random.Random) -> bytes:
    """One delivery: six properties, four headers, a body."""
    symbol = source.choice(SYMBOLS)
    headers = wire.table(
        (b"symbol", b"S" + wire.long(symbol)),
        (b"price", b"d" + struct.pack(">d", 1 + number / 1000)),
        (b"qty", b"l" + struct.pack(">q", number)),
        (b"x-delivery-count", b"l" + bytes(8)),
    )
    properties = wire.properties(
        content_type=wire.short(b"application/octet-stream"),
        headers=headers,
        delivery_mode=b"\x02",
        priority=b"\x04",
        message_id=wire.short(str(uuid.UUID(bytes=source.randbytes(16))).encode()),
        timestamp=struct.pack(">Q", 1_700_000_000 + number),
    )
    body = source.randbytes(BODY_BYTES)
    return wire.delivery(
        number + 1, body, consumer=b"amqp", exchange=b"amq.topic", key=b"ticks." + symbol, properties=properties
    )


def blocks(messages: int) -> list[bytes]:
    """Blocks of frames, every message another one."""
    source = random.Random(5)
    every = [message(number, source) for number in range(messages)]
    return [b"".join(every[i : i + BLOCK_MESSAGES]) for i in range(0, messages, BLOCK_MESSAGES)]


def run() -> list[Result]:
    """Decode the same blocks again and again; the value is that of the median round."""
    return [measured("rabbitmq_decode_rate", blocks, lambda block: scan(block, 0, 1, 131072)[0].ends, "0-9-1")]
