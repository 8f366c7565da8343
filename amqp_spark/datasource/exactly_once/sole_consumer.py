"""Whether our consumer is the only one of a quorum queue: then all that an earlier session held is returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.datasource.consumer_setup import DYING_SECONDS
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError

if TYPE_CHECKING:
    from amqp_core.api import Client
    from amqp_spark.datasource.exactly_once.recovery import Consumer
    from amqp_spark.datasource.exactly_once.state_locks import StateLocks

PATIENCE_SECONDS: Final = 90.0
"""How long a second consumer is put up with, which may be a lost session of ours; and how long messages are withheld at
most. RabbitMQ 4.3 returns what was held on a node that is down after 60 s (consumer_disconnected_timeout)."""
DOWN_PATIENCE_SECONDS: Final = 180.0
"""The same for a second consumer that may be one of ours on a node that is down."""
DOWN_SECONDS: Final = 75.0
"""After so long, RabbitMQ has returned what consumers on a node that is down held."""
CERTAIN_SECONDS: Final = 0.5
"""Time between two counts of consumers that are believed: a replica may lag behind the leader of the queue."""
RABBITMQ_HEARTBEATS: Final = 3
"""After so many heartbeats without a sign of life RabbitMQ gives a connection up."""


def dying_seconds(consumer: Consumer) -> float:
    """How long RabbitMQ may take a lost session for a live one, on a node that lives."""
    return RABBITMQ_HEARTBEATS * consumer.heartbeat + DYING_SECONDS


class SoleConsumer:
    """Asks for the number of consumers of the queue until ours is the only one; begins anew with each session."""

    def __init__(self, consumer: Consumer, locks: StateLocks) -> None:
        self._consumer = consumer
        self._locks = locks
        self._begun_at = 0.0
        self._since: float | None = None
        """Since when the broker has counted one consumer."""
        self._is_known = False

    def restart(self, now: float) -> None:
        """A session has begun."""
        self._begun_at, self._since, self._is_known = now, None, False

    def is_known(self, session: Client, now: float) -> bool:
        """Whether the broker counts one consumer for :data:`CERTAIN_SECONDS`. Once it does, it is not asked again.

        Raises:
            StateError: another consumer has been there for too long: it may hold messages in doubt.
        """
        if self._is_known:
            return True
        info = session.query_queue(self._consumer.queue)
        count = 0 if info is None else info.subscriber_count or 0
        # Not with 0: so RabbitMQ counts the consumers of a queue whose leader does not answer.
        only = count == 1 or (1 < count <= 1 + self._locks.stuck and self._are_down(session, now))
        self._is_known = only and self._since is not None and now >= self._since + CERTAIN_SECONDS
        if not only or self._since is None:
            self._since = now if only else None
        patience = max(dying_seconds(self._consumer), DOWN_PATIENCE_SECONDS if self._locks.stuck else PATIENCE_SECONDS)
        if not only and count > 1 and now >= self._begun_at + patience:
            raise StateError(SparkCondition.QUEUE_SHARED(owner=self._consumer.shown, count=count - 1))
        return self._is_known

    def _are_down(self, session: Client, now: float) -> bool:
        """Whether the nodes of lost sessions are down, so that their consumers, which are still counted, hold nothing.

        RabbitMQ 4.3 returns the messages of consumers on a node that is down after 60 seconds, and counts the consumers
        until the node is back. A session that was lost on a node that lives is given up after three heartbeats,
        and releases its lock.
        """
        if now < self._begun_at + max(DOWN_SECONDS, dying_seconds(self._consumer)):
            return False
        return self._locks.are_stuck(session)
