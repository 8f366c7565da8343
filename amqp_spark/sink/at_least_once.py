"""At-least-once, task side: resend transfers that the broker has not completed when a connection breaks."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, NoReturn

from amqp_core.error_conditions import reason
from amqp_core.errors import (
    AmqpError,
    ChannelClosed,
    CommandFailed,
    ConnectionClosed,
    OutcomeUnknown,
    PublisherStopped,
    PublishingBlocked,
    given,
)
from amqp_spark import crashpoints
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import PublishFailed
from amqp_spark.retry import RetryPolicy, pause_before
from amqp_spark.sink.connections import shared
from amqp_spark.sink.origins import origin_of
from amqp_spark.sink.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.transfer_ledger import Transfers
    from amqp_spark.arrow.encode import TaskId
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections
    from amqp_spark.sink.sender import Link

MOST_REFUSALS = 6
"""Attempts to send nacked messages again: about ten seconds. A quorum queue has a new leader after one."""

MOST_SYNTAX_ERRORS = 2
"""Connections in a row that the broker may close for the form of what was sent: it would close the next one, too."""
_SYNTAX_ERRORS = frozenset({501, 502})
"""Framing error, syntax error, of both protocols."""

_log = logging.getLogger("amqp_spark.sink")


class AtLeastOnce:
    """The :class:`CommitPolicy` of at-least-once: a task ends when the broker has completed every transfer."""

    def __init__(
        self,
        options: SinkOptions,
        task_id: TaskId,
        *,
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.sender = Sender(options, task_id, connections or shared())
        self._sleep = sleep
        self._retry = RetryPolicy(str(self.sender.place), options.retry_max_attempts, options.retry_max_delay, _log)
        self._refusals = 0
        """Attempts in a row after which the broker nacked all messages that it had nacked before."""
        self._refused = 0
        """Number of messages nacked at the last attempt."""
        self._syntax_errors = 0
        """Connections in a row that ended with one, and confirmed nothing."""
        self._unknown = 0
        """Transfers at the front of ``waiting`` that were sent before and not completed."""

    def connect(self) -> Link:
        """See :class:`CommitPolicy`."""
        self._drive()
        assert self.sender.link is not None
        return self.sender.link

    def send(self, transfers: Transfers) -> None:
        """See :class:`CommitPolicy`."""
        self.sender.add(transfers)
        self._drive()

    def finish(self) -> None:
        """See :class:`CommitPolicy`."""
        self._drive(finish=True)

    def commit(self) -> None:
        """See :class:`CommitPolicy`."""
        assert self.sender.link is not None
        self.sender.link.lease.give_back()

    def abandon(self) -> None:
        """See :class:`CommitPolicy`."""
        if self.sender.link is not None:
            self.sender.link.lease.abort()

    def _drive(self, *, finish: bool = False) -> None:
        while True:
            try:
                if self.sender.link is None:
                    self.sender.link = self.sender.open()
                self.sender.send_waiting(finish=finish)
            except PublishFailed:
                raise
            except PublishingBlocked as error:
                self.sender.blocked(error)
            except AmqpError as error:
                self._lost(error)
            else:
                if finish and not self.sender.nacked:
                    self._refusals = self._refused = 0
                if self.sender.nacked:
                    self._try_again()
                    finish = True  # to see the answer before the next row
                elif not self.sender.waiting:
                    return

    def _try_again(self) -> None:
        """Put nacked messages in front of those that wait, after a pause; raise if no attempt has helped any of them.

        A queue is full and rejects, or has lost its leader: RabbitMQ 3.10 nacks then what it cannot pass on. A channel
        that has met a queue without its leader nacks until that node is back, so that a later attempt has another one.
        """
        sender, most = self.sender, min(MOST_REFUSALS, self.sender.options.retry_max_attempts)
        self._refusals = 1 if len(sender.nacked) < self._refused else self._refusals + 1
        self._refused = len(sender.nacked)
        if self._refusals > most:
            sender.reject(sender.nacked)
        delay = pause_before(self._refusals, sender.options.retry_max_delay)
        _log.warning(
            "%s: no queue took %d message(s) (%s); attempt %d of %d to send them again follows in %.1f s",
            sender.place, len(sender.nacked), given(sender.nacked[0].text), self._refusals, most, delay,
        )  # fmt: skip
        link = sender.link
        if link is not None and self._refusals > 1:  # all others are confirmed
            link.lease.abort()
            link = sender.link = None
            self._unknown = 0
            sender.hosts.lost()
            sender.retries += 1
        with link.lease.resting() if link is not None else nullcontext():
            self._sleep(delay)
        sender.waiting.extendleft(reversed(sender.take_nacked()))

    def _lost(self, error: AmqpError) -> None:
        """Take back uncompleted transfers; wait for the next attempt, or raise if none is left."""
        sender, link = self.sender, self.sender.link
        progress, reused = sender.was_replaced, False
        if progress:
            self._unknown, sender.was_replaced = 0, False
        stopped = isinstance(error, PublisherStopped)
        sender.was_stopped = stopped or (sender.was_stopped and link is None)
        sender.hosts.lost()
        if link is not None:
            if isinstance(error, CommandFailed) and not isinstance(error, ChannelClosed):
                sender.refused(error)  # a closed channel that was for no message may be opened anew
            publisher, sender.link = link.publisher, None
            again = publisher.unfinished()
            in_doubt = publisher.in_doubt
            link.lease.abort()
            sender.judge(publisher.take_rejected())
            sender.waiting.extendleft(reversed(again))
            sender.resent += in_doubt
            # transfers of an earlier connection are resent first
            self._unknown = in_doubt + max(0, self._unknown - publisher.sent.transfers)
            progress, reused = progress or bool(publisher.completed.transfers), link.lease.reused
        delay = self._retry.pause_after(
            error,
            worked=progress,
            # a stop is no failure; a kept connection may have broken while idle: that shows at its first use
            counts=not stopped and (progress or not reused),
            note=f"; {self._unknown} transfers are sent and not completed",
        )
        is_syntax_error = isinstance(error, ConnectionClosed) and error.reply_code in _SYNTAX_ERRORS
        if progress or not is_syntax_error:
            self._syntax_errors = 0
        self._syntax_errors += is_syntax_error
        if delay is None or self._syntax_errors >= MOST_SYNTAX_ERRORS:
            self._give_up(error)
        sender.retries += 1
        crashpoints.reached(crashpoints.CONNECTION_LOST)
        self._sleep(delay)

    def _give_up(self, error: AmqpError) -> NoReturn:
        if not self._unknown:
            raise error
        first = self.sender.waiting[0]
        row = origin_of(first).row(first.first)
        raise OutcomeUnknown(
            SparkCondition.PUBLISH_OUTCOME_UNKNOWN(
                count=f"{self._unknown:,}",
                place=self.sender.place,
                row=row,
                failures=self._retry.failures,
                reason=reason(error),
                most=self.sender.options.retry_max_attempts,
            )
        ) from error
