"""What a store has to know of a virtual host, so that it comes back after the end of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amqp_core.broker.model.branches import Branch
    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.exchanges import Binding, Exchange
    from amqp_core.broker.model.queues import Queue


class Journal(Protocol):
    """Takes note of durable changes as the model makes them; it must not call the model, and writes nothing yet.

    Whoever owns it writes all that it has noted at once, before a client hears of any of it.
    """

    def exchange_added(self, exchange: Exchange) -> None:
        """A durable exchange was declared."""

    def exchange_removed(self, exchange: Exchange) -> None:
        """A durable exchange is gone."""

    def queue_added(self, queue: Queue) -> None:
        """A queue was declared that outlives the process."""

    def queue_removed(self, queue: Queue) -> None:
        """Such a queue is gone; its messages are removed one by one, those that are held when they are settled.

        If it ``passes_on`` what is held, that has to be known after a restart, too, until ``queue_left``.
        """

    def queue_left(self, queue: Queue) -> None:
        """Nothing of a queue that is gone is held any more."""

    def binding_added(self, binding: Binding) -> None:
        """A binding of a durable exchange was made to a queue or exchange that outlives the process."""

    def binding_removed(self, binding: Binding) -> None:
        """Such a binding is gone."""

    def message_added(self, entry: Entry) -> None:
        """A persistent message is in a queue that outlives the process; the journal gives ``entry`` its record."""

    def message_removed(self, entry: Entry) -> None:
        """A message that has a record has left its queue for good."""

    def message_returned(self, entry: Entry) -> None:
        """A message that has a record came back and counts one return more."""

    def branch_prepared(self, branch: Branch) -> None:
        """A branch is prepared; it does not change any more until it ends."""

    def branch_ended(self, branch: Branch) -> None:
        """A prepared branch was committed or rolled back: what that changed has been noted before."""
