"""The protocol of a broker, for jobs to which it makes a difference."""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from amqp_core.address import AUTO_PROTOCOL
from amqp_core.errors import AmqpError
from amqp_spark.connect import connect
from amqp_spark.retry import RetryPolicy

if TYPE_CHECKING:
    from amqp_core.address import ConnectOptions
    from amqp_spark.cli.running import Signals
    from amqp_spark.options import SinkOptions, SourceOptions

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5


def protocol_of(options: SourceOptions | SinkOptions, signals: Signals) -> str:
    """What the option ``protocol`` says; with ``auto`` what the broker speaks, which a short connection shows.

    A connection that fails is tried again as ``retry.*`` say, until a signal comes.

    Raises:
        Stopped: a signal came before the answer.
        AmqpError: that of the last attempt.
    """
    if options.protocol != AUTO_PROTOCOL:
        return options.protocol
    policy = RetryPolicy(options.url, options.retry_max_attempts, options.retry_max_delay, _log)
    while True:
        try:
            return _asked(options.connect_options(), signals)
        except AmqpError as error:
            pause = policy.pause_after(error)
            if pause is None or not _waited(pause, signals):
                raise


def _asked(options: ConnectOptions, signals: Signals) -> str:
    """The protocol that a connection shows. A thread makes it: silent hosts take ``connectTimeout`` each, and one that
    a signal finds under way is left to the end of the process, since nothing depends on it."""
    answers: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            with connect(options) as client:
                protocol = client.protocol
            answers.put(protocol)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            answers.put(error)

    signals.check()
    threading.Thread(target=ask, name="amqp-spark-protocol", daemon=True).start()
    answer: str | BaseException | None = None
    while answer is None:
        with suppress(queue.Empty):
            answer = answers.get(timeout=_POLL_SECONDS)
        signals.check()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _waited(seconds: float, signals: Signals) -> bool:
    """Wait; return whether no signal came."""
    until = time.monotonic() + seconds
    while signals.received is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_SECONDS))
    return signals.received is None
