"""When a consumer connects again after an error, and when it gives up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from amqp_core.errors import ResourceLocked
from amqp_spark.backoff import pause_before

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.errors import AmqpError
    from amqp_spark.datasource.receive_buffer import ConsumerOptions

_log = logging.getLogger(__name__)

LOCK_RETRY_SECONDS: Final = 0.5
"""Between two attempts to get what another session has."""


class Retries:
    """The attempts of one consumer.

    Parameters:
        queue: its name.
        options: its options ``retry.*``.
        clock: seconds.
    """

    def __init__(self, queue: str, options: ConsumerOptions, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._options = options
        self._clock = clock
        self._attempt = 0
        """Incarnations in a row that did not work: these are counted."""
        self._short = 0
        """Incarnations in a row that were of no use: pauses grow with them."""
        self._refused_since: float | None = None

    def subscribed(self) -> None:
        """The subscription was not refused."""
        self._refused_since = None

    def pause_after(self, error: AmqpError, *, worked: bool, lasted: bool, dying_s: float) -> float | None:
        """Say what follows on the error that ended an incarnation: seconds until the next one; None to give up.

        Parameters:
            error: what ended it.
            worked: whether nothing in it speaks against the next one.
            lasted: whether it was of use.
            dying_s: how long a session that was lost may be seen by the broker.
        """
        if isinstance(error, ResourceLocked):
            return self._pause_refused(dying_s)
        self._refused_since = None
        self._attempt = 1 if worked else self._attempt + 1
        self._short = 1 if lasted else self._short + 1
        if not error.retryable or self._attempt > self._options.max_attempts:
            return None
        delay = pause_before(self._short, self._options.max_delay)
        _log.warning(
            "queue %r: %s; attempt %d of %d to connect again follows in %.1f s",
            self._queue, error, self._attempt, self._options.max_attempts, delay,
        )  # fmt: skip
        return delay

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
