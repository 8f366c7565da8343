"""The protocol of a broker, for jobs to which it makes a difference."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from amqp_core.address import AUTO_PROTOCOL
from amqp_core.errors import AmqpError
from amqp_spark.connect import connect
from amqp_spark.retry import RetryPolicy

if TYPE_CHECKING:
    from amqp_spark.cli.running import Signals
    from amqp_spark.options import SinkOptions, SourceOptions

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5


def protocol_of(options: SourceOptions | SinkOptions, signals: Signals) -> str:
    """What the option ``protocol`` says; with ``auto`` what the broker speaks, which a short connection shows.

    A connection that fails is tried again as ``retry.*`` say, until a signal comes.

    Raises:
        AmqpError: that of the last attempt.
    """
    if options.protocol != AUTO_PROTOCOL:
        return options.protocol
    policy = RetryPolicy(options.url, options.retry_max_attempts, options.retry_max_delay, _log)
    while True:
        try:
            with connect(options.connect_options()) as client:
                return client.protocol
        except AmqpError as error:
            pause = policy.pause_after(error)
            if pause is None or not _waited(pause, signals):
                raise


def _waited(seconds: float, signals: Signals) -> bool:
    """Wait; return whether no signal came."""
    until = time.monotonic() + seconds
    while signals.received is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_SECONDS))
    return signals.received is None
