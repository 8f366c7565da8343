"""The place of a message in a stream of RabbitMQ, also of one whose properties cannot be decoded."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest

from amqp_core.blocks import Block
from amqp_core.v0_9.log_messages import DIGEST_BYTES, log_entry
from tests.support import wire_0_9 as wire

if TYPE_CHECKING:
    from amqp_core.api import LogEntry

OFFSET = (b"x-stream-offset", b"l" + struct.pack(">q", 41))
TEXT = (b"a", b"S" + wire.long(b"text"))
NESTED = wire.table((b"\xff", b"t\1"))
NOT_UTF8 = wire.short(b"\xff\xfe")


def entry(properties: dict[str, bytes], body: bytes = b"body", tag: int = 7) -> LogEntry | None:
    frames = [wire.delivery(tag, b"first"), wire.delivery(tag + 1, body, properties=wire.properties(**properties))]
    return log_entry(Block(b"".join(frames), list(accumulate(map(len, frames))), tag), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "malformed",
    [
        {"headers": wire.table(OFFSET, TEXT), "message_id": NOT_UTF8},
        {"headers": wire.table(TEXT, OFFSET), "content_type": NOT_UTF8, "content_encoding": NOT_UTF8},
        {"headers": wire.table(OFFSET, (b"\xff", b"t\1"))},
        {"headers": wire.table((b"\xff", b"t\1"), OFFSET)},
        {"headers": wire.table((b"F", b"F" + NESTED), (b"A", b"A" + wire.long(b"t\1")), OFFSET)},
    ],
)
def test_a_message_that_cannot_be_decoded_has_its_offset(malformed: dict[str, bytes]) -> None:
    found = entry(malformed)
    assert found is not None
    assert found.offset == 41
    assert len(found.digest) == DIGEST_BYTES
    assert found == entry(malformed, tag=70), "each delivery of a message has the same digest"
    assert found != entry(malformed, b"another")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"message_id": NOT_UTF8},
        {"headers": wire.table(TEXT), "message_id": NOT_UTF8},
        {"headers": wire.table((OFFSET[0], TEXT[1])), "message_id": NOT_UTF8},
        {"headers": wire.long(b"\x20a"), "message_id": NOT_UTF8},
        {"headers": wire.table((b"a", b"?"), OFFSET), "message_id": NOT_UTF8},
    ],
)
def test_a_message_of_a_queue_has_none(properties: dict[str, bytes]) -> None:
    assert entry(properties) is None
