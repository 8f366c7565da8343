"""Publisher confirms of one channel: acks and nacks in the order of the messages, many with one method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.v0_9 import spec

if TYPE_CHECKING:
    from collections.abc import Iterator


class Confirms:
    """Numbers the messages of a channel from 1, and says which to confirm. Not thread-safe."""

    def __init__(self) -> None:
        self._last = self._confirmed = 0
        self._nacked: list[int] = []

    def published(self, *, taken: bool) -> None:
        """Record the next message: whether it reached every queue that it was routed to."""
        self._last += 1
        if not taken:
            self._nacked.append(self._last)

    def take(self) -> Iterator[spec.Method]:
        """The methods that confirm what was published since the last call."""
        for number in self._nacked:
            yield from self._acks(number - 1)
            self._confirmed = number
            yield spec.BasicNack(delivery_tag=number)
        self._nacked.clear()
        yield from self._acks(self._last)

    def _acks(self, upto: int) -> Iterator[spec.Method]:
        if upto > self._confirmed:
            yield spec.BasicAck(delivery_tag=upto, multiple=upto > self._confirmed + 1)
            self._confirmed = upto
