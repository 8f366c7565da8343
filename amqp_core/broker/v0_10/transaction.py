"""A local transaction of a session: what was published and accepted, until commit or rollback (0-10 section tx)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Queue


class Transaction:
    """Work that is not done yet. Not thread-safe."""

    def __init__(self) -> None:
        self.published: list[tuple[Message, Sequence[Queue]]] = []
        """Messages, and the queues that they go to."""
        self._accepted: list[tuple[int, Entry]] = []

    def publish(self, message: Message, queues: Sequence[Queue]) -> None:
        """Let the commit put a message into queues."""
        self.published.append((message, queues))

    def accept(self, taken: Iterable[tuple[int, Entry]]) -> None:
        """Transfers, with their command ids, that are accepted when it commits."""
        self._accepted += taken

    def take_accepted(self) -> list[tuple[int, Entry]]:
        """Return what was accepted, and forget it."""
        accepted, self._accepted = self._accepted, []
        return accepted
