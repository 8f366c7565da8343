"""Fills a queue as fast as this machine can: ready-made frames, patched by the thousand and written in blocks.

How long it takes is not measured by any benchmark; it only has to be over soon.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import numpy as np

from amqp_core.transport import monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_header
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, TRACK_COMMAND, encode_assembly

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_10.driver import Driver

BLOCK_MESSAGES = 1000
# Broker-J keeps what it has not completed; a round trip for so many messages costs nothing that matters.
SYNC_MESSAGES = 20_000
MOST_BLOCK_BYTES = 4 << 20
_PENDING_BYTES = 1 << 20
_WRITE_TIMEOUT_S = 60.0

SYMBOL = "EURUSD.SPOT"
PRICE = 1.0842
_QTY = 0x51AB37C5
MESSAGE_ID = uuid.UUID("8c2f7a4e-61d3-4b95-a0f7-d5e36b19c842")
"""Of every message the first eight bytes; the others are its number."""
_STAMP = 0x17A9E4D20F6B35
HEADERS_DDL = "STRUCT<symbol STRING, qty INT, price DOUBLE>"


def publish(
    driver: Driver, queue: str, count: int, *, body_bytes: int, told: Callable[[int], object] | None = None
) -> None:
    """Publish ``count`` messages to ``queue`` through the default exchange and wait until the broker has them all.

    Each has a body of ``body_bytes``, routing key, message id, timestamp and three headers (``HEADERS_DDL``), and is
    not durable. ``qty`` counts from 0; so do the last eight bytes of the message id.

    Args:
        driver: of a session that does nothing else.
        queue: its name.
        count: how many.
        body_bytes: size of every body.
        told: called with the number of messages that went out since the last call.
    """
    block = max(1, min(BLOCK_MESSAGES, MOST_BLOCK_BYTES // max(1, body_bytes)))
    sync_messages = SYNC_MESSAGES * block // BLOCK_MESSAGES or block
    frames = Frames(queue, body_bytes=body_bytes, accept_mode=spec.MessageAcceptMode.NONE, stamped=True, rows=block)
    sent = synced = 0
    while sent < count:
        size = min(block, count - sent)
        _write(driver, frames.block(sent, size))
        driver.session.next_id += size
        sent += size
        if sent - synced >= sync_messages or sent == count:
            synced = sent
            driver.call(spec.ExecutionSync())
        if told is not None:
            told(size)


def body_of(size: int) -> bytes:
    """The body of every message."""
    return bytes(i * 7 & 0xFF for i in range(size))


class Frames:
    """Blocks of messages that are equal except for their number (and, if ``stamped``, the time of sending).

    Args:
        queue: the routing key, for the default exchange.
        body_bytes: size of every body.
        accept_mode: of the transfers.
        stamped: whether delivery-properties have a timestamp.
        destination: of the transfers: an exchange, or what a broker that delivers them calls its subscription.
        exchange: in delivery-properties, where brokers write it.
        rows: most messages of a block.
    """

    def __init__(
        self,
        queue: str,
        *,
        body_bytes: int,
        accept_mode: spec.MessageAcceptMode,
        stamped: bool,
        destination: str = "",
        exchange: str | None = None,
        rows: int = BLOCK_MESSAGES,
    ) -> None:
        header = encode_header(
            spec.DeliveryProperties(
                delivery_mode=spec.MessageDeliveryMode.NON_PERSISTENT,
                timestamp=_STAMP if stamped else None,
                exchange=exchange,
                routing_key=queue,
            ),
            spec.MessageProperties(
                content_length=body_bytes,
                message_id=MESSAGE_ID,
                application_headers={"symbol": SYMBOL, "qty": _QTY, "price": PRICE},
            ),
        )
        command = encode_command(
            spec.MessageTransfer(
                destination=destination, accept_mode=accept_mode, acquire_mode=spec.MessageAcquireMode.PRE_ACQUIRED
            )
        )
        segments = [(COMMAND, command), (HEADER, header)] + ([(BODY, body_of(body_bytes))] if body_bytes else [])
        message = b"".join(encode_assembly(0, TRACK_COMMAND, segments, 65535))
        self._rows = np.frombuffer(message * rows, dtype=np.uint8).reshape(rows, len(message)).copy()
        self._message_id = _find(message, MESSAGE_ID.bytes) + 8
        self._qty = _find(message, _QTY.to_bytes(4, "big"))
        self._stamp = _find(message, _STAMP.to_bytes(8, "big")) if stamped else None

    def block(self, first: int, size: int) -> bytes:
        """The frames of messages ``first`` to ``first + size - 1``; at most ``rows``."""
        rows, at_id, qty = self._rows, self._message_id, self._qty
        numbers = np.arange(first, first + len(rows), dtype=np.int64)
        rows[:, at_id : at_id + 8] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
        rows[:, qty : qty + 4] = numbers.astype(">i4").view(np.uint8).reshape(-1, 4)
        if (stamp := self._stamp) is not None:
            rows[:, stamp : stamp + 8] = np.frombuffer(int(time.time() * 1000).to_bytes(8, "big"), dtype=np.uint8)
        return rows[:size].tobytes()


def _write(driver: Driver, frames: bytes) -> None:
    driver.check()
    driver.transport.write(frames)
    deadline = monotonic() + _WRITE_TIMEOUT_S
    while driver.transport.pending_bytes > _PENDING_BYTES:
        driver.pump_until(deadline, "room to write")


def _find(message: bytes, sample: bytes) -> int:
    if message.count(sample) != 1:
        raise RuntimeError("the sample value is not there, or not only once")
    return message.index(sample)
