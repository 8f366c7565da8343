"""How often the messages of a block were delivered before, as the header of quorum queues says."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest

from amqp_core.blocks import Block
from amqp_core.v0_9.messages import earlier_deliveries
from amqp_core.v0_9.redelivery import identities, returned
from tests.support import wire_0_9 as wire


def counted(value: bytes, header: bytes = b"x-delivery-count") -> bytes:
    """Properties with headers that have this count, type letter included."""
    return b"\x20\0" + wire.long(wire.short(b"a") + b"t\1" + wire.short(header) + value)


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
        ([(True, THREE), (True, TEN), (True, THREE)], 10),
        ([(True, b"\0\0")], 0),
        ([(True, counted(b"S" + wire.long(b"10")))], 0),
        ([(True, counted(b"?"))], 0),
    ],
)
def test_the_greatest_count_of_redelivered_messages(deliveries: list[tuple[bool, bytes]], expected: int) -> None:
    assert earlier_deliveries(block(*deliveries)) == expected


@pytest.mark.parametrize("header", [b"x-delivery-count", b"x-acquired-count"])
def test_messages_that_a_queue_has_taken_back_without_a_word_are_returned_ones(header: bytes) -> None:
    """RabbitMQ 4.3 counts in the second header what it takes back after consumer_timeout: that has no limit."""
    again = counted(b"l" + struct.pack(">q", 1), header)
    taken_back = block((False, TEN), (True, again), (True, again))
    assert returned(taken_back) == [1, 2]
    assert earlier_deliveries(taken_back) == (header == b"x-delivery-count")


def test_what_a_queue_marks_and_does_not_count_is_not_known_to_be_returned() -> None:
    assert returned(block((False, TEN), (True, b"\0\0"))) == []


def test_a_count_that_the_publisher_has_set_is_none_of_the_queue() -> None:
    """RabbitMQ 4 leaves it as it is at the first delivery, and puts its own count in its place when it comes again."""
    one = counted(b"l" + struct.pack(">q", 1))
    first, again = identities(block((False, TEN), (True, one)))
    assert first is not None
    assert again is not None
    assert first.digest == again.digest
    assert (first.deliveries, again.deliveries) == (0, 1)


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 34, 65, 1000])
def test_a_large_block_is_looked_at_evenly(count: int) -> None:
    """The first and the last message, and one of each 32 between."""
    deliveries = [(True, THREE)] * count
    for place in {0, count - 1}:
        assert earlier_deliveries(block(*deliveries[:place], (True, TEN), *deliveries[place + 1 :])) == 10
    for place in range(0, count - 31, 100):
        several = [(True, TEN)] * 32
        assert earlier_deliveries(block(*deliveries[:place], *several, *deliveries[place + 32 :])) == 10


def test_a_frame_of_another_channel_before_the_last_message_does_no_harm() -> None:
    first, last = (wire.delivery(tag, b"", redelivered=True, properties=TEN) for tag in (1, 2))
    between = wire.frame(1, bytes((0, 10, 0, 61)), channel=0)  # connection.unblocked
    frames = first + between + last
    assert earlier_deliveries(Block(frames, [len(first), len(frames)], 1)) == 10  # type: ignore[arg-type]
