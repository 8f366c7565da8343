"""The marker queue of a writer: a visible marker proves a commit, even if the broker has no other record of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from amqp_core.error_conditions import reason
from amqp_core.errors import AmqpError
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.sink.prepared_transactions import PreparedBranch
from amqp_spark.state.queue import EXCHANGE, allowed
from amqp_spark.state.records import RecordUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqp_core.api import Client, Message, Subscription
    from amqp_spark.state.names import Names

_AT_ONCE: Final = 1000
"""Number of markers requested at a time."""


class MarkerLate(AmqpError):
    """A branch was committed, but its marker is missing or came after the wait: look again."""

    retryable = True


class Markers:
    """The markers that one client holds; use it only under the writer's lock, so that no other session acquires them.
    ``found``: markers received and not accepted, by xid."""

    def __init__(self, client: Client, names: Names) -> None:
        self.found: dict[str, PreparedBranch] = {}
        self._client = client
        self._queue = names.markers
        self._whose = names.owner
        self._mark = names.kept
        self._subscription: Subscription | None = None
        self._ids: dict[str, int] = {}

    def exist(self) -> bool:
        """Whether the marker queue exists (queue.query)."""
        return self._client.query_queue(self._queue) is not None

    def are_kept(self) -> bool:
        """Whether the queue is the one that existed when the state began: deleting a queue deletes its bindings."""
        return self._client.is_bound(EXCHANGE, self._mark)  # no other queue has that key

    def keep(self) -> None:
        """Bind the queue so that :meth:`are_kept` recognises it from now on."""
        self._subscribed()
        with allowed(f"bind to {EXCHANGE} the queue {self._queue!r}", self._whose):
            self._client.bind(self._queue, EXCHANGE, self._mark)

    def look(self) -> None:
        """Receive all markers that are visible now (message.flush)."""
        subscription = self._subscribed()
        more = True
        while more:
            subscription.grant(_AT_ONCE - subscription.credit)
            subscription.flush()
            before = len(self._ids)
            while (message := subscription.take_one(timeout=0.0)) is not None:
                self._receive(message)
            more = len(self._ids) - before >= _AT_ONCE

    def wait_for(self, xids: Iterable[str], timeout: float) -> None:
        """Receive until all of these are found, but no longer than ``timeout`` seconds."""
        missing = set(xids) - self.found.keys()
        subscription = self._subscribed()
        deadline = time.monotonic() + timeout
        while missing:
            if not subscription.credit:
                subscription.grant(_AT_ONCE)
            message = subscription.take_one(timeout=max(0.0, deadline - time.monotonic()))
            if message is None:
                return
            missing.discard(self._receive(message))

    def ranges(self, xids: Iterable[str]) -> list[tuple[int, int]]:
        """Command ids of the given markers that were found, as inclusive ranges."""
        return _ranges(self._ids[xid] for xid in xids if xid in self._ids)

    def accepted(self, xids: Iterable[str]) -> None:
        """Forget these markers: they were accepted."""
        for xid in xids:
            self.found.pop(xid, None)
            self._ids.pop(xid, None)

    def close(self) -> None:
        """Release the markers that were not accepted, and end the subscription."""
        if self._subscription is None:
            return
        subscription, self._subscription = self._subscription, None
        subscription.cancel()  # all transfers under way have arrived now
        held = list(self._ids.values())
        while (message := subscription.take_one(timeout=0.0)) is not None:
            held.append(message.transfer_id)
        self._client.release(_ranges(held), sync=True)
        self.found.clear()
        self._ids.clear()

    def _subscribed(self) -> Subscription:
        if self._subscription is None:
            with allowed(f"declare and consume the queue {self._queue!r}", self._whose):
                # It may have been deleted. Broker-J needs ten times as long to declare a queue as to query it.
                if not self.exist():
                    self._client.declare_queue(self._queue, durable=True)
                self._subscription = self._client.subscribe(self._queue)
        return self._subscription

    def _receive(self, message: Message) -> str:
        try:
            marker = PreparedBranch.load(message.body)
        except RecordUnreadable as error:
            raise StateError(SparkCondition.MARKER_QUEUE_FOREIGN(queue=self._queue, reason=reason(error))) from error
        self._ids[marker.xid] = message.transfer_id
        self.found[marker.xid] = marker
        return marker.xid


def _ranges(ids: Iterable[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for command_id in sorted(ids):
        if ranges and ranges[-1][1] + 1 == command_id:
            ranges[-1] = ranges[-1][0], command_id
        else:
            ranges.append((command_id, command_id))
    return ranges
