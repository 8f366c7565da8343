"""Messages of a log (a stream of RabbitMQ): their offsets, and what identifies one of them.

The broker adds the offset to the headers of each delivery (an extension of RabbitMQ). Offsets of one log are
consecutive, and each has the same message for ever.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from amqp_core.api import LogEntry
from amqp_core.blocks import Block
from amqp_core.errors import UndecodableMessage
from amqp_core.v0_9.messages import each_message

if TYPE_CHECKING:
    from amqp_core.api import Block as AnyBlock

OFFSET: Final = "x-stream-offset"
"""The header of a delivery, and the argument of a consumer, with an offset."""
DIGEST_BYTES: Final = 20


def log_entry(block: AnyBlock, index: int) -> LogEntry | None:
    """The place of a message of a block in its log; ``None`` if it comes from no log, or cannot be decoded.

    The digest covers what every version of the broker delivers alike: exchange, routing key, some properties, body.
    """
    assert isinstance(block, Block)
    begin = block.ends[index - 1] if index else 0
    (message,) = each_message(block.part(index, index + 1, begin, block.ends[index]))
    if isinstance(message, UndecodableMessage):
        return None
    offset = message.headers.get(OFFSET)
    if not isinstance(offset, int) or isinstance(offset, bool):
        return None
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    properties = message.properties
    names = (message.exchange, message.routing_key, properties.message_id, properties.correlation_id, properties.app_id)
    texts = ["" if each is None else str(each) for each in (*names, properties.timestamp)]
    for part in (*(text.encode(errors="backslashreplace") for text in texts), message.body):
        digest.update(len(part).to_bytes(8) + part)
    return LogEntry(offset, digest.digest())
