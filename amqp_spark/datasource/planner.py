"""Divide a batch fairly between the queues that have messages, within the bounds of the batch.

No I/O, no threads, no clock: the receiver calls these functions under its lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_spark.datasource.queue_buffer import QueueBuffer


def plan_batch(buffers: Sequence[QueueBuffer], *, max_messages: int | None, max_bytes: int, turn: int) -> int:
    """Plan one batch, as :func:`measure_batch` measures it; return its number of messages."""
    count = 0
    for buffer, end, size in measure_batch(buffers, max_messages=max_messages, max_bytes=max_bytes, turn=turn):
        count += end - buffer.planned
        buffer.fix(end, size)
    return count


def measure_batch(
    buffers: Sequence[QueueBuffer], *, max_messages: int | None, max_bytes: int, turn: int
) -> list[tuple[QueueBuffer, int, int]]:
    """Measure the next batch fairly over the queues that have messages, within both bounds: end and bytes per queue.

    ``turn`` selects the queue that gets at least one message, so that no queue waits forever behind the others. A
    message larger than ``max_bytes`` makes up a batch of its own.
    """
    ready = [buffer for buffer in buffers if buffer.waiting]
    if not ready:
        return []
    head = ready[turn % len(ready)]
    first = head.first_waiting_bytes()
    if first > max_bytes:
        return [(head, head.planned + 1, first)]
    reach = {buffer.queue: (buffer.planned, 0) for buffer in ready}
    reach[head.queue] = (head.planned + 1, first)
    messages = sum(buffer.waiting for buffer in ready) if max_messages is None else max_messages
    messages, room = messages - 1, max_bytes - first
    # Serve small queues first and redistribute unused quota. The second round distributes the rest of the first, where
    # a share ended inside a message or the other bound was reached.
    ready.sort(key=lambda buffer: buffer.waiting_bytes)
    for _round in range(2):
        for index, buffer in enumerate(ready):
            sharing = len(ready) - index
            begin, size = reach[buffer.queue]
            end, more = buffer.measure(begin, -(-messages // sharing), room // sharing)
            reach[buffer.queue] = end, size + more
            messages -= end - begin
            room -= more
    return [(buffer, *reach[buffer.queue]) for buffer in ready if reach[buffer.queue][0] > buffer.planned]
