"""Exactly-once, the task's side: all rows in one transaction branch (0-10 section dtx), prepared and not committed.

A marker is published in the same branch: it is in the queue of markers exactly if the branch was committed. The driver
commits once it has decided (:mod:`amqp_spark.sink.decision`). A connection that breaks takes the branch with it: Spark
runs the task again.
"""

from __future__ import annotations

import hashlib
import logging
import time
from typing import TYPE_CHECKING, Final, NoReturn

from amqp_core.errors import (
    AmqpError,
    CommandFailed,
    IllegalState,
    InvalidArgument,
    MessageRejected,
    NotFound,
    TransactionFailed,
)
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import DeliveryProperties, DtxXaStatus, MessageDeliveryMode, MessageProperties
from amqp_spark import crashpoints
from amqp_spark.backoff import pause_before
from amqp_spark.errors import PublishFailed, StateError, place_text
from amqp_spark.sink.connections import shared
from amqp_spark.sink.patience import patience_with
from amqp_spark.sink.prepared import BATCH_WRITES, Prepared
from amqp_spark.sink.publishing import Publishing, link_of
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import allowed
from amqp_spark.state.xids import new_branch, xid_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.spec import Xid
    from amqp_spark.options import SinkOptions
    from amqp_spark.sink.connections import Connections, Lease
    from amqp_spark.sink.encoding.messages import EncodedBlock, MessagePlan, Place
    from amqp_spark.sink.publishing import Link

_log = logging.getLogger("amqp_spark.sink")

POOL: Final = "branches"
"""Connections of their own: a session that has taken part in branches takes part in nothing else."""
ROLL_BACK_ATTEMPTS: Final = 4
"""How often a task whose connection broke tries to roll its branch back on another one."""
_SELECTED: Final = "dtx"


class BranchDelivery(Publishing):
    """Publishes the rows of one task into a branch and prepares it; see :class:`Publishing`.

    Parameters:
        plan, options, place, connections, sleep: as there; the place needs a batch id.
        attempt: Spark's number of this attempt at the task.

    Attributes:
        prepared: after ``run``: what is to be told to the driver.

    ``run`` also raises StateError: the login may not what this takes, or the broker does not take the timeout.
    """

    def __init__(
        self,
        plan: MessagePlan,
        options: SinkOptions,
        place: Place,
        *,
        attempt: int = 0,
        connections: Connections | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(plan, options, place, connections=connections or shared(POOL), sleep=sleep)
        assert options.transactional_id is not None
        assert place.batch_id is not None
        self._writer = options.transactional_id
        self._batch = place.batch_id
        self._attempt = attempt
        self._lineage = place.query_id or BATCH_WRITES
        self._digest = hashlib.sha256(usedforsecurity=False)
        self._xid: Xid | None = None
        """The branch, as long as it is this task's to roll back."""
        self._is_ended = False
        self.prepared = Prepared(self._lineage, self._batch, place.partition)

    def _encoded(self, batch: pa.RecordBatch) -> Iterator[EncodedBlock]:
        for block in super()._encoded(batch):
            self._digest.update(block.frames)
            yield block

    def _drive(self, *, finish: bool = False) -> None:
        if self._link is None:
            self._link = self._open()
        try:
            self._send_waiting(self._link, finish=finish)
            while self._waiting:  # what may be discarded goes out once more
                self._send_waiting(self._link, finish=finish)
        except PublishFailed:
            raise
        except CommandFailed as error:
            self._refused(error, self._link.publisher)
        except AmqpError as error:
            self._gone(error)

    def _complete(self, link: Link) -> None:
        """Marker, end, prepare: then the branch is the driver's."""
        client, xid = link.lease.client, self._xid
        assert xid is not None
        self.prepared = Prepared(
            self._lineage, self._batch, self._place.partition, xid_text(xid), self._rows, self._digest.hexdigest()
        )
        try:
            self._publish_marker(client)
            client.transactions.patience_s = patience_with(self._rows, self._nbytes)
            self._is_ended = True  # also if it ends with another status
            client.transactions.end(xid)
            crashpoints.reached(crashpoints.ENDED)
            client.transactions.prepare(xid)
        except TransactionFailed as error:
            self._rolled_back(error)
        except MessageRejected as error:
            raise self._failure(f"its marker is not taken by the queue {self._names.markers!r}: {error}") from error
        except (CommandFailed, StateError) as error:
            raise self._failure(str(error)) from error
        except AmqpError as error:
            self._gone(error)
        self._xid = None
        crashpoints.reached(crashpoints.PREPARED)
        link.lease.give_back()

    def _abandon(self, link: Link) -> None:
        xid, self._xid = self._xid, None
        done = xid is None or link.lease.client.transactions.abandon(xid, ended=self._is_ended)
        super()._abandon(link)
        if xid is not None and not done:  # the session is over: a broken connection, or a command that was refused
            self._roll_back_elsewhere(xid)

    def _roll_back_elsewhere(self, xid: Xid) -> None:
        """As well as it goes: Broker-J keeps a branch whose session ended, with all its rows, until its timer ends."""
        for attempt in range(1, ROLL_BACK_ATTEMPTS + 1):
            try:
                lease = self._connections.lease(self._options.connect_options())
            except AmqpError:
                return
            try:
                lease.client.transactions.patience_s = patience_with(self._rows, self._nbytes)
                lease.client.transactions.rollback_branch(xid)
            except IllegalState:
                lease.abort()  # the broker has not seen that the other session has ended
                self._sleep(pause_before(attempt, self._options.retry_max_delay))
            except AmqpError:
                lease.abort()  # it is gone (404), or the broker is
                return
            except BaseException:
                lease.abort()
                raise
            else:
                lease.give_back()
                return

    # --- beginning

    @property
    def _names(self) -> Names:
        return Names(WRITER, self._writer)

    def _open(self) -> Link:
        """A connection with an open branch. Nothing was sent yet, so that it is tried as often as the options say."""
        failed = 0
        while True:
            lease: Lease | None = None
            try:
                lease = self._connections.lease(self._options.connect_options())
                link = link_of(lease, self._options.max_in_flight)
                self._begin(lease)
            except BaseException as error:
                if lease is not None:
                    lease.abort()
                xid, self._xid = self._xid, None
                if xid is not None:  # begun, perhaps without its timer
                    self._roll_back_elsewhere(xid)
                if not isinstance(error, AmqpError) or not error.retryable:
                    raise
                failed += lease is None or not lease.reused  # a kept one may have broken while nobody used it
                if failed > self._options.retry_max_attempts:
                    raise
                delay = pause_before(failed, self._options.retry_max_delay) if failed else 0.0
                _log.warning(
                    "%s: %s; attempt %d of %d to connect again follows in %.1f s",
                    place_text(self._place.partition, self._batch), error, failed, self._options.retry_max_attempts,
                    delay,
                )  # fmt: skip
                self._retries += 1
                self._sleep(delay)
            else:
                crashpoints.reached(crashpoints.BRANCH_OPEN)
                return link

    def _begin(self, lease: Lease) -> None:
        client, transactions = lease.client, lease.client.transactions
        markers, timeout = self._names.markers, self._options.transaction_timeout
        transactions.patience_s = patience_with(0)  # the task before had its own
        with allowed(f"declare the queue {markers!r}", f"transactionalId {self._writer!r}"):
            client.declare_queue(markers, durable=True)
        xid = new_branch(self._writer, self._lineage, self._batch, self._place.partition, self._attempt)
        try:
            if not lease.notes.get(_SELECTED):
                transactions.dtx_select()
                lease.notes[_SELECTED] = True
            self._xid, self._is_ended = xid, False
            transactions.start(xid)
        except CommandFailed as error:
            self._xid = None
            raise StateError(
                "the broker does not let this login take part in distributed transactions (dtx), which "
                f"deliveryGuarantee=exactly-once needs: {error}. Without them the sink can do at-least-once"
            ) from error
        try:
            transactions.set_timeout(xid, timeout)
        except (InvalidArgument, NotFound) as error:
            raise StateError(
                f"option 'transactionTimeout' is {timeout}, which the broker does not take ({error}): allowed is what "
                "its administrator allows (qpidd: option dtx-max-timeout, 3600 s unless changed)"
            ) from error

    def _publish_marker(self, client: Client) -> None:
        marker = Message(
            self.prepared.dump(),
            DeliveryProperties(routing_key=self._names.markers, delivery_mode=MessageDeliveryMode.PERSISTENT),
            MessageProperties(content_type="application/json"),
        )
        with allowed(f"publish to the queue {self._names.markers!r}", f"transactionalId {self._writer!r}"):
            client.publish(marker)
            client.confirm()

    # --- failing

    def _gone(self, error: AmqpError) -> NoReturn:
        raise self._failure(
            f"the connection was lost in the middle of the transaction, which will never be committed ({error}); "
            "nothing of it is in doubt: the task has to start again"
        ) from error

    def _rolled_back(self, error: TransactionFailed) -> NoReturn:
        why = "a queue may be full"
        if error.status == DtxXaStatus.XA_RBTIMEOUT:
            why = (
                f"it took longer than option transactionTimeout={self._options.transaction_timeout} s: raise it, or "
                "let batches be smaller"
            )
        if (error.operation, error.status) == ("dtx.prepare", DtxXaStatus.XA_RBTIMEOUT):
            self._xid = None  # the broker has forgotten it: asking again would end the session
        raise self._failure(f"the broker has rolled the transaction back ({error}): {why}") from error

    def _failure(self, reason: str) -> PublishFailed:
        return PublishFailed(reason, partition=self._place.partition, batch_id=self._batch)
