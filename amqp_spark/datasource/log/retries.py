"""Which errors of a log are worth another attempt, and when that follows."""

from __future__ import annotations

import logging
import re
from time import monotonic
from typing import TYPE_CHECKING, Final

from amqp_core.errors import CommandFailed, NotFound, ResourceDeleted
from amqp_spark.errors import LogTooShort
from amqp_spark.retry import LOCK_RETRY_SECONDS, RetryPolicy

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)


RECOVERY_SECONDS: Final = 30.0
"""Longest time for which attempts go on while the broker does not know a log, or nodes have no replica of it, or one
that lags behind."""
_NO_REPLICA: Final = re.compile(r"does not have a (running )?(local )?replica")
"""In the text of a node on which a stream has not started yet, or not any more: 406 of RabbitMQ 4.3; 3.10 leaves out
the first word, and has a 506 with both."""


def _another_node_may_help(error: AmqpError) -> bool:
    """The node has no replica of the log, or one that lags behind the others."""
    no_replica = isinstance(error, CommandFailed) and _NO_REPLICA.search(str(error)) is not None
    return no_replica or isinstance(error, LogTooShort)


class LogRetries:
    """Attempts of one user of logs. A log that was there may be unknown for some seconds: RabbitMQ restarts, or another
    of its nodes becomes the leader, for which it also cancels consumers. A node without a running replica of the log,
    or whose replica lags behind, cannot read it: then each other host of the URL is tried at once.

    ``known``: whether the logs were there before. A node without a replica says so itself.
    """

    def __init__(self, user: str, options: SourceOptions, *, known: bool) -> None:
        self.known = known
        self._user = user
        self._others = self._untried = len(options.hosts) - 1
        """Hosts that may have a replica although the one before has none, or one that lags behind."""
        self._policy = RetryPolicy(user, options.retry_max_attempts, options.retry_max_delay, _log)
        self._missing_since: float | None = None

    def pause_after(self, error: AmqpError, *, worked: bool = False) -> float | None:
        """The seconds until the next attempt; ``None``: give up. ``worked``: something was received before."""
        if worked:
            self._untried = self._others
        elsewhere = _another_node_may_help(error)
        if elsewhere and self._untried:
            self._untried -= 1
            _log.info("%s: %s; the next host of the URL follows", self._user, error)
            return 0.0
        if not (elsewhere or (self.known and isinstance(error, NotFound | ResourceDeleted))):
            self._missing_since = None
            return self._policy.pause_after(error, worked=worked)
        now = monotonic()
        if self._missing_since is None or worked:
            self._missing_since = now
            _log.warning("%s: %s; trying again for %.0f s", self._user, error, RECOVERY_SECONDS)
        return LOCK_RETRY_SECONDS if now - self._missing_since < RECOVERY_SECONDS else None
