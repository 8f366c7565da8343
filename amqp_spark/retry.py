"""Decide whether and when to reconnect after an error (options ``retry.*``)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

    from amqp_core.errors import AmqpError

FIRST_DELAY_SECONDS: Final = 0.2
"""Longest pause before the first attempt to reconnect."""
SHORTEST_DELAY_SECONDS: Final = 0.1
"""A smaller ``retry.maxDelay`` counts as this: not all attempts are counted, and without pauses those would spin."""
LOCK_RETRY_SECONDS: Final = 0.5
"""Pause between two attempts to get a lock, or a queue, that another session holds."""


def pause_before(attempt: int, longest: float) -> float:
    """Seconds to wait before the ``attempt``-th attempt (from 1) to reconnect: growing, with jitter."""
    delay = _bounded(FIRST_DELAY_SECONDS * 2.0 ** min(attempt - 1, 30), longest)
    return delay * random.uniform(0.5, 1.0)  # noqa: S311  jitter, not a secret


def lock_pause(longest: float) -> float:
    """Seconds until a lock, or a queue, is asked for again, at most ``longest`` (``retry.maxDelay``)."""
    return _bounded(LOCK_RETRY_SECONDS, longest)


def _bounded(delay: float, longest: float) -> float:
    return min(delay, max(longest, SHORTEST_DELAY_SECONDS))


class RetryPolicy:
    """Counts the consecutive ``failures`` of one user of connections. Not thread-safe.

    After ``most`` of them (``retry.maxAttempts``) there is no further attempt; no pause has more than ``longest_s``
    seconds (``retry.maxDelay``). The log names the ``user``: a queue, a task, a transactionalId.
    """

    def __init__(self, user: str, most: int, longest_s: float, log: logging.Logger) -> None:
        self.failures = 0
        self._user = user
        self._most = most
        self._longest_s = longest_s
        self._log = log
        self._pauses = 0

    def pause_after(
        self, error: AmqpError, *, worked: bool = False, lasted: bool | None = None, counts: bool = True, note: str = ""
    ) -> float | None:
        """Log an error that ended the connection; return the seconds until the next attempt, ``None`` if there is none.

        Args:
            error: the error.
            worked: the connection was useful before: this is the first failure in a row.
            lasted: it was useful for long enough that the pause starts small again; default: ``worked``.
            counts: the error is a failure. A connection kept from an earlier use may have broken in the meantime: that
                is none, and the next attempt follows at once.
            note: text added to the log message.
        """
        if worked:
            self.failures = 0
        if worked if lasted is None else lasted:
            self._pauses = 0
        if counts:
            self.failures += 1
            self._pauses += 1
        if not error.retryable or self.failures > self._most:
            return None
        delay = pause_before(self._pauses, self._longest_s) if counts else 0.0
        self._log.warning(
            "%s: %s; attempt %d of %d to connect again follows in %.1f s%s",
            self._user, error, self.failures, self._most, delay, note,
        )  # fmt: skip
        return delay
