"""Decide when a consumer reconnects after an error, and when it gives up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from amqp_core.errors import ResourceLocked
from amqp_spark.retry import LOCK_RETRY_SECONDS, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.errors import AmqpError
    from amqp_spark.datasource.receive_buffer import ConsumerOptions

_log = logging.getLogger(__name__)


class Retries:
    """Connection attempts of one consumer.

    Args:
        queue: its name.
        options: its options ``retry.*``.
        clock: seconds.
    """

    def __init__(self, queue: str, options: ConsumerOptions, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._options = options
        self._clock = clock
        self._policy = RetryPolicy(f"queue {queue!r}", options.max_attempts, options.max_delay, _log)
        self._refused_since: float | None = None

    def subscribed(self) -> None:
        """Record a successful subscription."""
        self._refused_since = None

    def pause_after(self, error: AmqpError, *, worked: bool, lasted: bool, dying_s: float) -> float | None:
        """Return the seconds from the error that ended an incarnation until the next one; None to give up.

        Args:
            error: the error that ended it.
            worked: whether it does not count as a failed attempt.
            lasted: whether it was useful.
            dying_s: seconds for which the broker may keep a lost session.
        """
        if isinstance(error, ResourceLocked):
            return self._pause_refused(dying_s)
        self._refused_since = None
        return self._policy.pause_after(error, worked=worked, lasted=lasted)

    def _pause_refused(self, dying_s: float) -> float | None:
        now = self._clock()
        if self._refused_since is None:
            self._refused_since = now
            _log.warning(
                "queue %r has a consumer, so that an exclusive subscription is refused, or is in exclusive use; trying "
                "again for %.0f s, in case that is a session which was lost",
                self._queue, dying_s,
            )  # fmt: skip
        if now - self._refused_since >= dying_s:
            return None
        return min(LOCK_RETRY_SECONDS, self._options.max_delay)
