"""At-least-once delivery of one task: resend transfers that the broker has not completed when a connection breaks."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NoReturn

from amqp_core.errors import AmqpError, CommandFailed, OutcomeUnknown
from amqp_spark import crashpoints
from amqp_spark.errors import PublishFailed
from amqp_spark.retry import RetryPolicy
from amqp_spark.sink.connections import shared
from amqp_spark.sink.origins import origin_of
from amqp_spark.sink.task_writer import Link, TaskWriter, link_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.arrow.encode import MessagePlan, TaskId
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections

_log = logging.getLogger("amqp_spark.sink")


class AtLeastOnceWriter(TaskWriter):
    """Publishes the rows of one task at least once; see :class:`TaskWriter`.

    ``run`` also raises OutcomeUnknown: the reconnection attempts are used up, and sent transfers may be enqueued. With
    any other connection error the outcome of every sent transfer is known.
    """

    def __init__(
        self,
        plan: MessagePlan,
        options: SinkOptions,
        task_id: TaskId,
        *,
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(plan, options, task_id, connections=connections or shared(), sleep=sleep)
        self._policy = RetryPolicy(self._where, options.retry_max_attempts, options.retry_max_delay, _log)
        self._unknown = 0
        """Transfers at the front of ``_waiting`` that were sent before and not completed."""

    def _drive(self, *, finish: bool = False) -> None:
        while True:
            try:
                self._send_waiting(self._linked(), finish=finish)
            except PublishFailed:
                raise
            except AmqpError as error:
                self._lost(error)
            else:
                if not self._waiting:
                    return

    def _complete(self, link: Link) -> None:
        link.lease.give_back()

    # --- connections

    def _linked(self) -> Link:
        if self._link is None:
            lease = self._connections.lease(self._options.connect_options())
            try:
                link = link_of(lease, self._options.max_in_flight, self._routes)
                self._check_same_kind(link.publisher)
            except BaseException:
                lease.abort()
                raise
            self._link = link
        return self._link

    def _lost(self, error: AmqpError) -> None:
        """Take back uncompleted transfers; wait for the next attempt, or raise if none is left."""
        link, self._link = self._link, None
        progress, reused = False, False
        if link is not None:
            publisher = link.publisher
            if isinstance(error, CommandFailed):
                self._link = link  # run() ends it
                self._refused(error, publisher)
            again = publisher.unfinished()
            in_doubt = publisher.in_flight
            link.lease.abort()
            self._judge(publisher.take_rejected())
            self._waiting.extendleft(reversed(again))
            self._resent += in_doubt
            # transfers of an earlier connection are resent first
            self._unknown = in_doubt + max(0, self._unknown - publisher.sent.transfers)
            progress, reused = bool(publisher.completed.transfers), link.lease.reused
        delay = self._policy.pause_after(
            error,
            worked=progress,
            counts=progress or not reused,  # a kept connection may have broken while idle: that shows at its first use
            note=f"; {self._unknown} transfers are sent and not completed",
        )
        if delay is None:
            self._give_up(error)
        self._retries += 1
        crashpoints.reached(crashpoints.CONNECTION_LOST)
        self._sleep(delay)

    def _give_up(self, error: AmqpError) -> NoReturn:
        if not self._unknown:
            raise error
        row = origin_of(self._waiting[0]).row(self._waiting[0].first)
        raise OutcomeUnknown(
            f"{self._where}: {self._unknown:,} messages were sent and not completed by the broker, so that they may be "
            f"in their queues or not (the first is row {row}); {self._policy.failures} connection(s) in a row were "
            f"lost or could not be made (retry.maxAttempts={self._options.retry_max_attempts}), the last one "
            f"because: {error}"
        ) from error
