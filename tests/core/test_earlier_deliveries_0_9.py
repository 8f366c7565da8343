"""How often the messages of a block were delivered before, as the header of quorum queues says."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest

from amqp_core.blocks import Block
from amqp_core.v0_9.messages import earlier_deliveries
from tests.support import wire_0_9 as wire


def counted(value: bytes) -> bytes:
    """Properties with headers that have this count, type letter included."""
    return b"\x20\0" + wire.long(wire.short(b"a") + b"t\1" + wire.short(b"x-delivery-count") + value)


THREE, TEN = (counted(b"l" + struct.pack(">q", count)) for count in (3, 10))


def block(*deliveries: tuple[bool, bytes]) -> Block:
    frames = [
        wire.delivery(tag, b"body", redelivered=redelivered, properties=properties)
        for tag, (redelivered, properties) in enumerate(deliveries, 1)
    ]
    return Block(b"".join(frames), list(accumulate(map(len, frames))), 1)  # type: ignore[arg-type]  # a list will do


@pytest.mark.parametrize(
    ("deliveries", "expected"),
    [
        ([(True, THREE)], 3),
        ([(True, THREE), (False, TEN), (True, TEN)], 10),
        ([(True, TEN), (True, THREE)], 10),
        ([(False, TEN)], 0),
        ([(True, THREE), (True, TEN), (True, THREE)], 3),
        ([(True, b"\0\0")], 0),
        ([(True, counted(b"S" + wire.long(b"10")))], 0),
        ([(True, counted(b"?"))], 0),
    ],
)
def test_the_greatest_count_of_the_first_and_the_last_message(
    deliveries: list[tuple[bool, bytes]], expected: int
) -> None:
    assert earlier_deliveries(block(*deliveries)) == expected
