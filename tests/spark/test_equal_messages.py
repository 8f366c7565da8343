"""Equal messages without a message_id are found in a batch, wherever they stand, and nothing else is taken for them."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from amqp_spark.arrow.decode import EqualMessages
from tests.support import wire_0_9

if TYPE_CHECKING:
    from collections.abc import Sequence

BODY = b"x" * 200


def message(tag: int, body: bytes, *, name: int | None = None, key: bytes = b"k", redelivered: bool = False) -> bytes:
    known = {} if name is None else {"message_id": wire_0_9.short(b"id-%d" % name)}
    method = wire_0_9.deliver_method(tag, key=key, redelivered=redelivered)
    header = wire_0_9.content_header(len(body), wire_0_9.properties(**known))
    return wire_0_9.content(method, header, wire_0_9.cut(body, 4096))


def are_in(found: EqualMessages, messages: Sequence[bytes], parts: int = 3) -> bool:
    ends = np.cumsum([len(each) for each in messages]).astype(np.uint64)
    joined = memoryview(b"".join(messages))
    cuts = [0, *(int(ends[len(messages) * part // parts - 1]) for part in range(1, parts)), len(joined)]
    return found.are_in([joined[begin:end] for begin, end in pairwise(cuts)], ends)


@pytest.mark.parametrize("distinct", [1, 50, 999])
def test_bodies_that_repeat_far_apart_are_found(distinct: int) -> None:
    messages = [message(tag, BODY + b"%d" % (tag % distinct)) for tag in range(1, 1001)]
    assert are_in(EqualMessages(), messages)


def test_messages_that_differ_somewhere_are_not_equal() -> None:
    rng = random.Random(1)
    found = EqualMessages()
    for _ in range(20):
        bodies: set[bytes] = set()
        while len(bodies) < 300:
            body = bytearray(4000)
            body[rng.randrange(4000)] = rng.randrange(256)
            bodies.add(bytes(body))
        name = rng.randbytes(8)
        assert not are_in(found, [message(tag, body + name) for tag, body in enumerate(bodies, 1)])


def test_messages_with_a_message_id_can_be_told_apart() -> None:
    assert not are_in(EqualMessages(), [message(tag, BODY, name=tag) for tag in range(1, 1001)])
    mixed = [message(tag, BODY, name=tag) for tag in range(1, 1001)]
    mixed[10] = message(11, BODY)
    assert not are_in(EqualMessages(), mixed)
    mixed[900] = message(901, BODY)
    assert are_in(EqualMessages(), mixed)


def test_other_routing_keys_tell_messages_apart() -> None:
    assert not are_in(EqualMessages(), [message(tag, BODY, key=b"k%d" % tag) for tag in range(1, 301)])


def test_empty_bodies_are_equal() -> None:
    assert are_in(EqualMessages(), [message(1, b""), message(2, b""), message(3, b"a")])


def test_a_body_in_several_frames() -> None:
    body = bytes(10_000)
    assert not are_in(EqualMessages(), [message(1, body + b"a"), message(2, body + b"b"), message(3, body + b"c")])
    assert are_in(EqualMessages(), [message(1, body + b"a"), message(2, body + b"b"), message(3, body + b"a")])


def test_small_batches_are_compared_with_earlier_ones() -> None:
    found = EqualMessages()
    assert not any(are_in(found, [message(tag, b"%d" % tag)], 1) for tag in range(50))
    assert are_in(found, [message(99, b"7")], 1)


def test_a_message_that_comes_again_is_not_equal_to_itself() -> None:
    found = EqualMessages()
    assert not are_in(found, [message(1, b"a")], 1)
    assert not are_in(found, [message(1, b"a", redelivered=True)], 1)


@pytest.mark.parametrize("damage", [b"", bytes(8), wire_0_9.heartbeat()])
def test_what_is_no_message_is_left_out(damage: bytes) -> None:
    messages = [message(1, b"a"), damage + message(2, b"a"), message(3, b"b")[:12], b"\xff" * 11]
    assert are_in(EqualMessages(), messages) is (damage == b"")
