"""The denominator of ``publish_ratio``: what a bare socket loop in Python brings into the same queue.

It writes frames that were made before the clock started, reads what the broker says (else both would wait for room in
the sockets between them), and ends with one ``execution.sync``. It encodes nothing and bounds nothing.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from amqp_core.v0_10 import spec
from tests.bench.preload import BLOCK_MESSAGES, Frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.v0_10.driver import Driver

_READ_BYTES = 1 << 18
_POLL_MS = 60_000


def ready_made(queue: str, count: int, *, body_bytes: int, accept_mode: spec.MessageAcceptMode) -> list[bytes]:
    """Frames of the messages that ``queries.messages`` has as rows, ``BLOCK_MESSAGES`` in each block."""
    frames = Frames(queue, body_bytes=body_bytes, accept_mode=accept_mode, stamped=False)
    return [frames.block(first, min(BLOCK_MESSAGES, count - first)) for first in range(0, count, BLOCK_MESSAGES)]


def publish(driver: Driver, blocks: Sequence[bytes], count: int) -> float:
    """Send ``blocks``, which hold ``count`` messages; return seconds until the broker has completed them all.

    The driver is used up: close it.

    Raises:
        ConnectionError: the broker ended the connection, or takes nothing for a minute.
    """
    sock = driver.transport._sock
    ready = select.poll()
    ready.register(sock, select.POLLIN | select.POLLOUT)
    begin = time.perf_counter()
    for block in blocks:
        view = memoryview(block)
        while view:
            events = ready.poll(_POLL_MS)
            if not events:
                raise ConnectionError("the broker has taken nothing for a minute")
            if events[0][1] & ~select.POLLOUT:
                driver._receive(sock.recv(_READ_BYTES))
                driver.check()
            if events[0][1] & select.POLLOUT:
                view = view[sock.send(view) :]
    driver.session.next_id += count
    driver.call(spec.ExecutionSync())
    return time.perf_counter() - begin
