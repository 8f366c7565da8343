"""A local transaction of a session: what was published and accepted, until commit or rollback (0-10 section tx)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqp_core.broker.v0_10.transfer_ids import ids_among

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Queue


class Undone(NamedTuple):
    """What was accepted, after a rollback.

    Args:
        held: with their command ids; the session holds them again.
        released: go back to their queues, since the session has released them meanwhile.
        redelivered: likewise, and a consumer may have seen them.
    """

    held: list[tuple[int, Entry]]
    released: list[Entry]
    redelivered: list[Entry]


class Transaction:
    """Work that is not done yet. Not thread-safe."""

    def __init__(self) -> None:
        self.published: list[tuple[Message, Sequence[Queue]]] = []
        """Messages, and the queues that they go to."""
        self._accepted: dict[int, Entry] = {}
        self._released: dict[int, bool] = {}
        """Of those that are accepted: which are released by a rollback, and whether as redelivered."""

    def publish(self, message: Message, queues: Sequence[Queue]) -> None:
        """Let the commit put a message into queues."""
        self.published.append((message, queues))

    def accept(self, taken: Iterable[tuple[int, Entry]]) -> None:
        """Transfers, with their command ids, that are accepted when it commits."""
        self._accepted.update(taken)

    def release(self, ranges: Iterable[tuple[int, int]], *, redelivered: bool) -> None:
        """Let a rollback release what is accepted; for the commit nothing changes.

        The messaging API of qpid-python sends accept, release and rollback in this order when it rolls back.
        """
        if self._accepted:
            self._released.update(dict.fromkeys(ids_among(self._accepted, ranges), redelivered))

    def take_accepted(self) -> list[Entry]:
        """Return what was accepted, and forget it."""
        accepted = list(self._accepted.values())
        self._accepted.clear()
        self._released.clear()
        return accepted

    def roll_back(self) -> Undone:
        """Forget all; return what was accepted."""
        self.published.clear()
        released = self._released
        held = [each for each in self._accepted.items() if each[0] not in released]
        undone = Undone(
            held,
            [self._accepted[each] for each, redelivered in released.items() if not redelivered],
            [self._accepted[each] for each, redelivered in released.items() if redelivered],
        )
        self.take_accepted()
        return undone
