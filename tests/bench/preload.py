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
from amqp_core.v0_10.frames import BODY, COMMAND, HEADER, TRACK_COMMAND, encode_assembly

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_10.driver import Driver

BLOCK_MESSAGES = 1000
# Broker-J keeps what it has not completed; a round trip for so many messages costs nothing that matters.
SYNC_MESSAGES = 20_000
_PENDING_BYTES = 1 << 20
_WRITE_TIMEOUT_S = 60.0

SYMBOL = "EURUSD.SPOT"
PRICE = 1.0842
_QTY = 0x51AB37C5
_MESSAGE_ID = uuid.UUID("8c2f7a4e-61d3-4b95-a0f7-d5e36b19c842")
_STAMP = 0x17A9E4D20F6B35
HEADERS_DDL = "STRUCT<symbol STRING, qty INT, price DOUBLE>"


def publish(
    driver: Driver, queue: str, count: int, *, body_bytes: int, told: Callable[[int], object] | None = None
) -> None:
    """Publish ``count`` messages to ``queue`` through the default exchange and wait until the broker has them all.

    Each has a body of ``body_bytes``, routing key, message id, timestamp and three headers (``HEADERS_DDL``), and is
    not durable. ``qty`` counts from 0; so do the last eight bytes of the message id.

    Parameters:
        driver: of a session that does nothing else.
        queue: its name.
        count: how many.
        body_bytes: size of every body.
        told: called with the number of messages that went out since the last call.
    """
    block, columns = _template(queue, body_bytes)
    sent = 0
    while sent < count:
        size = min(BLOCK_MESSAGES, count - sent)
        _patch(block, columns, sent)
        _write(driver, block[:size].tobytes())
        driver.session.next_id += size
        sent += size
        if sent % SYNC_MESSAGES == 0 or sent == count:
            driver.call(spec.ExecutionSync())
        if told is not None:
            told(size)


def _write(driver: Driver, frames: bytes) -> None:
    driver.check()
    driver.transport.write(frames)
    deadline = monotonic() + _WRITE_TIMEOUT_S
    while driver.transport.pending_bytes > _PENDING_BYTES:
        driver.pump_until(deadline, "room to write")


def _template(queue: str, body_bytes: int) -> tuple[np.ndarray, dict[str, int]]:
    """A block of equal messages, one per row, and where in a row the fields lie that change."""
    header = encode_header(
        spec.DeliveryProperties(
            delivery_mode=spec.MessageDeliveryMode.NON_PERSISTENT, timestamp=_STAMP, routing_key=queue
        ),
        spec.MessageProperties(
            content_length=body_bytes,
            message_id=_MESSAGE_ID,
            application_headers={"symbol": SYMBOL, "qty": _QTY, "price": PRICE},
        ),
    )
    command = encode_command(
        spec.MessageTransfer(
            destination="",
            accept_mode=spec.MessageAcceptMode.NONE,
            acquire_mode=spec.MessageAcquireMode.PRE_ACQUIRED,
        )
    )
    body = bytes(i * 7 & 0xFF for i in range(body_bytes))
    segments = [(COMMAND, command), (HEADER, header)] + ([(BODY, body)] if body else [])
    message = b"".join(encode_assembly(0, TRACK_COMMAND, segments, 65535))
    columns = {
        "timestamp": _find(message, _STAMP.to_bytes(8, "big")),
        "message_id": _find(message, _MESSAGE_ID.bytes),
        "qty": _find(message, _QTY.to_bytes(4, "big")),
    }
    rows = np.frombuffer(message * BLOCK_MESSAGES, dtype=np.uint8).reshape(BLOCK_MESSAGES, len(message)).copy()
    return rows, columns


def _patch(block: np.ndarray, columns: dict[str, int], first: int) -> None:
    numbers = np.arange(first, first + BLOCK_MESSAGES, dtype=np.int64)
    stamp, at_id, qty = columns["timestamp"], columns["message_id"] + 8, columns["qty"]
    block[:, at_id : at_id + 8] = numbers.astype(">i8").view(np.uint8).reshape(-1, 8)
    block[:, qty : qty + 4] = numbers.astype(">i4").view(np.uint8).reshape(-1, 4)
    block[:, stamp : stamp + 8] = np.frombuffer(int(time.time() * 1000).to_bytes(8, "big"), dtype=np.uint8)


def _find(message: bytes, sample: bytes) -> int:
    if message.count(sample) != 1:
        raise RuntimeError("the sample value is not there, or not only once")
    return message.index(sample)
