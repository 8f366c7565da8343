"""What has arrived for a subscription and was not taken yet: blocks, and messages decoded from them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from amqp_core.errors import UndecodableMessage

if TYPE_CHECKING:
    from amqp_core.blocks import Block

MessageT = TypeVar("MessageT")


class Arrivals(Generic[MessageT]):
    """Blocks that arrived, and decoded messages, in order; the base of subscriptions. Not thread-safe."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._messages: deque[MessageT | UndecodableMessage] = deque()

    def take_arrived(self) -> list[Block]:
        """Return the blocks that other calls of the client have read; do not read."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def _next(self) -> MessageT:
        """Remove and return the first decoded message; raise it if it is undecodable. There must be one."""
        message = self._messages.popleft()
        if isinstance(message, UndecodableMessage):
            raise message
        return message

    def _next_up_to(self, count: int) -> list[MessageT]:
        """Remove and return up to ``count`` decoded messages, up to an undecodable one; raise that if it is first."""
        found: list[MessageT] = []
        while self._messages and len(found) < count:
            if found and isinstance(self._messages[0], UndecodableMessage):
                break
            found.append(self._next())
        return found
