"""The part of a client that publishes, on a channel of its own with confirms (0-9-1 section basic.publish).

A refusal closes that channel only: the call that meets it raises, and the next one publishes on the channel anew.
Messages of a local transaction go on the channel of the transaction, without confirms.
"""

from __future__ import annotations

import logging
import math
import secrets
from typing import TYPE_CHECKING, Final

from amqp_core.api import EMBEDDED_PRODUCT
from amqp_core.error_conditions import CoreCondition, reason
from amqp_core.errors import (
    CommandFailed,
    ConnectionClosed,
    ConnectionFailed,
    DeadlineExceeded,
    MessageRejected,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
    PublishingBlocked,
    ReturnedUnexpectedly,
    UnauthorizedAccess,
    UnroutableDropped,
    UsageError,
)
from amqp_core.publisher_window import Window
from amqp_core.publishing import MAX_BYTES_IN_FLIGHT, MAX_IN_FLIGHT
from amqp_core.transfer_ledger import Transfers
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.connection import CONSUMING
from amqp_core.v0_9.driver import PUBLISHING
from amqp_core.v0_9.framing import encode_content
from amqp_core.v0_9.messages import Message
from amqp_core.v0_9.publisher import Publisher
from amqp_core.v0_9.settlement import Unsettled
from amqp_core.v0_9.topology import Topology
from amqp_core.v0_9.transactions import Transactions

if TYPE_CHECKING:
    from amqp_core.v0_9.channel import Content
    from amqp_core.v0_9.driver import Driver

_PERSISTENT = 2
RETURNING: Final = ("rabbitmq", "broker-j", EMBEDDED_PRODUCT.lower())
"""Parts of the names of products that are known to return a mandatory message which they cannot route."""

_log = logging.getLogger(__name__)


class PublishingClient(Topology):
    """Publishes messages, and waits for their confirms. Not thread-safe."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._unsettled = Unsettled()
        self.transactions = Transactions(driver, self._unsettled)
        self._in_transaction = 0
        product = str(self.server_properties.get("product", "")).lower()
        self._may_drop = not any(name in product for name in RETURNING)
        """Whether the broker may drop what it cannot route, and was not asked yet."""
        self._publisher = Publisher(driver, window=Window(MAX_IN_FLIGHT, MAX_BYTES_IN_FLIGHT))
        driver.endpoint.on_method[PUBLISHING] = self._published
        driver.endpoint.on_blocked = self._blocked

    def publish(
        self,
        message: Message,
        exchange: str | None = None,
        routing_key: str | None = None,
        *,
        mandatory: bool = True,
    ) -> int:
        """Send a message (basic.publish); it is safe only once :meth:`confirm` has returned.

        In a local transaction it is safe once that is committed.

        Args:
            message: body, properties, exchange and routing key.
            exchange, routing_key: override the message's own. The empty exchange routes by queue name.
            mandatory: whether an unroutable message is rejected; else the broker drops it, and confirms.

        Returns:
            Its sequence number among those published on the channel, from 1.

        Raises:
            EncodeError: a property does not fit its wire type, or the properties do not fit one frame.
            CommandFailed: the broker refused an earlier one (unknown exchange, too large), so that messages since the
                last :meth:`confirm` are in doubt; the next call publishes again.
            DeadlineExceeded: window, flow control or socket stayed full for the call timeout.
            PublishingBlocked: likewise, since the broker has blocked the connection; this message was not sent, and the
                client goes on.
            ConnectionLost, ...: the connection has ended.
        """
        method = spec.BasicPublish(
            exchange=message.exchange if exchange is None else exchange,
            routing_key=message.routing_key if routing_key is None else routing_key,
            mandatory=mandatory,
        )
        if self.transactions.is_local:
            self._driver.send(CONSUMING, method, message.properties, message.body)
            self._in_transaction += 1
            return self._in_transaction
        try:
            return self._publisher.send_one(self._run_of(method, message), timeout_s=self._driver.call_timeout_s)
        except CommandFailed:
            self._replace()
            raise

    def publish_to_queue(self, queue: str, body: bytes, *, content_type: str) -> None:
        """Send a durable message to a queue through the default exchange. Errors: as :meth:`publish`."""
        properties = spec.BasicProperties(content_type=content_type, delivery_mode=_PERSISTENT)
        self.publish(Message(body, properties, routing_key=queue))

    def confirm(self) -> None:
        """Wait until the broker has confirmed everything published so far (basic.ack).

        In a local transaction, which has no confirms, it waits until the broker has processed them, so that it refuses
        none of them later.

        Raises:
            MessageRejected: the broker rejected some: unroutable (code 312), or no queue has taken them (code 0). In a
                local transaction Broker-J ends the client with it; of others the commit raises it.
            OutcomeUnknown: the connection ended before the broker confirmed them, or the broker blocks it or is silent
                for too long; they may or may not be enqueued.
            ReturnedUnexpectedly: the broker returned a message as unroutable that it had confirmed.
            CommandFailed: the broker refused one (unknown exchange, too large); messages published after it, and
                perhaps before, are not enqueued. The next call of :meth:`publish` works again.
        """
        if self.transactions.is_local:
            self._process_transaction()
        publisher = self._publisher
        try:
            publisher.finish(timeout_s=self._driver.call_timeout_s)
        except CommandFailed:
            self._replace()
            raise
        except ReturnedUnexpectedly:
            raise
        except (ConnectionFailed, ProtocolError, DeadlineExceeded, PublishingBlocked) as error:
            if publisher.in_flight:
                count = publisher.in_flight
                text = CoreCondition.OUTCOME_UNKNOWN(count=count, reason=reason(error))
                raise OutcomeUnknown(text) from error
        rejected = publisher.take_rejected()
        if rejected:
            raise MessageRejected(len(rejected), rejected[-1].code, rejected[-1].text)

    def publisher(
        self,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_bytes_in_flight: int = MAX_BYTES_IN_FLIGHT,
        blocked_timeout_s: float = math.inf,
    ) -> Publisher:
        """Return a new publisher of runs of encoded messages; it replaces the previous one.

        :meth:`publish` and :meth:`confirm` use it, too. A broker that is not known to return what it cannot route gets
        a message to a queue with a random name first, once on each connection (0-9-1 section basic.publish, mandatory).

        Args:
            max_in_flight: most messages that may be sent and not confirmed (see :mod:`amqp_core.publisher_window`).
            max_bytes_in_flight: bytes, likewise; a larger message is sent alone.
            blocked_timeout_s: seconds for which a broker is waited for that has blocked the connection.

        Raises:
            UsageError: the previous publisher is not finished, and its channel is open; or the window is empty; or the
                client has local transactions, of which such messages would not be a part.
            UnroutableDropped: the broker confirmed a message that no queue got, and has not returned it.
            PublishingBlocked, ConnectionLost, ...: that message could not be sent.
        """
        if self.transactions.is_local:
            why = "a publisher with confirms takes no part in local transactions, which this client has selected"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=why))
        window = self._publisher.window.within(max_in_flight, max_bytes_in_flight)
        self._publisher = self._publisher.succeeded(window, blocked_timeout_s)
        if self._may_drop:
            self._ask_for_return(self._publisher)
            self._publisher = self._publisher.succeeded(window, blocked_timeout_s)
        return self._publisher

    def _run_of(self, method: spec.BasicPublish, message: Message) -> Transfers:
        header = encode_header(message.properties, len(message.body))
        size = self._driver.connection.max_frame_size
        frames = b"".join(encode_content(PUBLISHING, encode_method(method), header, message.body, size))
        return Transfers(frames, (len(frames),))

    def _ask_for_return(self, publisher: Publisher) -> None:
        """Check that a message which no queue can get comes back: a broker might confirm and drop it."""
        nowhere = spec.BasicPublish(routing_key=f"amqp-spark.no-queue.{secrets.token_hex(8)}", mandatory=True)
        try:
            publisher.send_one(self._run_of(nowhere, Message()), timeout_s=math.inf)
            publisher.finish()
        except (NotFound, UnauthorizedAccess) as error:
            self._replace()
            if isinstance(error, UnauthorizedAccess):
                _log.warning("whether %s returns unroutable messages is not known: %s", self.peer, error)
        else:
            if not publisher.take_rejected():
                raise UnroutableDropped(self.peer)
        self._may_drop = False

    def _process_transaction(self) -> None:
        """Wait until the broker has processed what the transaction has (channel.flow, which changes nothing)."""
        try:
            self._driver.call(CONSUMING, spec.ChannelFlow(active=True), spec.ChannelFlowOk)
        except ConnectionClosed as error:
            if error.reply_code != spec.ReplyCode.NO_ROUTE:
                raise
            raise MessageRejected(1, error.reply_code, error.reply_text) from error

    def _replace(self) -> None:
        """Replace a publisher whose channel the broker has closed."""
        if self._publisher.has_ended:
            self._publisher = self._publisher.succeeded()

    def _published(self, method: spec.Method, content: Content | None) -> None:
        self._publisher.receive(method, content)

    def _blocked(self, reason: str | None) -> None:
        self._publisher.blocked(reason)
