"""The locks of a state in a spool: queues that are exclusive to the connection that acknowledges.

RabbitMQ releases a lock when its connection has died; a file of the state that was written before an acknowledgement is
visible to the next owner of the lock in any case. But in a cluster, RabbitMQ from 4 on keeps an exclusive queue whose
node has died until that node is back. So there are spare locks. Every process that uses the state holds at least one;
only with all of them, so when no other process lives, it may begin, and it releases the spare ones when it has raised
the epoch. After the loss of a connection it goes on with any lock that it gets: none of the others can begin from then
on, and if another one had begun before, the epoch would say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import ResourceLocked
from amqp_spark.state.queue import allowed

if TYPE_CHECKING:
    from amqp_core.api import Client
    from amqp_spark.state.names import Names


class StateLocks:
    """The locks of one process on the state of one queue; they outlive sessions."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._held: list[str] = []
        """Of the present session, or of the one before."""
        self._stuck: set[str] = set()
        """Those that lost sessions of this process held, and that were not released since."""

    @property
    def stuck(self) -> int:
        """Number of locks of lost sessions that the broker may keep."""
        return len(self._stuck)

    def take(self, session: Client, *, begins: bool) -> None:
        """Take all locks if the process ``begins``, else any one.

        Raises:
            ResourceLocked: another connection has one that is needed.
        """
        before, self._held = self._held, []
        names = sorted(self._names.locks, key=lambda name: name not in before)
        for name in names:
            try:
                with allowed(f"declare the queue {name!r}", self._names.owner):
                    session.declare_lock(name)
            except ResourceLocked:
                if name in before:
                    self._stuck.add(name)
                if begins or name == names[-1]:
                    self._held = self._held or before
                    raise
            else:
                self._stuck.discard(name)
                self._held.append(name)
                if not begins:
                    return

    def release_spares(self, session: Client) -> None:
        """Keep one lock only."""
        for name in self._held[1:]:
            session.delete_queue(name)
        del self._held[1:]

    def are_stuck(self, session: Client) -> bool:
        """Whether the broker keeps each lock of a lost session; one that it has released counts no longer."""
        return all(self._is_stuck(session, name) for name in tuple(self._stuck))

    def _is_stuck(self, session: Client, name: str) -> bool:
        try:  # a question about a queue on a node that is down would not be answered
            session.declare_lock(name)
        except ResourceLocked:
            return True
        session.delete_queue(name)
        self._stuck.discard(name)
        return False
