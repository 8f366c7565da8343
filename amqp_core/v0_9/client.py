"""A blocking client for AMQP 0-9-1 and 0-9: one connection with three channels, every wait with a deadline."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from amqp_core.api import EMBEDDED_PRODUCT, Capabilities, Ready
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AmqpError, DecodeError, ProtocolError, UndecodableMessage, UsageError
from amqp_core.failover import connect_any
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.server_version import version_of
from amqp_core.transport import tls_context
from amqp_core.v0_9 import rights, spec
from amqp_core.v0_9.connection import CONSUMING
from amqp_core.v0_9.driver import ASKING, Driver
from amqp_core.v0_9.fetcher import Fetcher
from amqp_core.v0_9.log_messages import log_entry
from amqp_core.v0_9.messages import Message, earlier_deliveries
from amqp_core.v0_9.publishing_client import PublishingClient
from amqp_core.v0_9.redelivery import first_is_redelivered, identities, identity, redelivered, returned
from amqp_core.v0_9.routing import by_consumer_tag, consumer_tag_of
from amqp_core.v0_9.subscription import Subscription
from amqp_core.v0_9.topology import not_supported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Block as AnyBlock
    from amqp_core.api import Identity, LogEntry
    from amqp_core.blocks import Block
    from amqp_core.v0_9.channel import Content

DEFAULT_CALL_TIMEOUT_S = 60.0
DEFAULT_PREFETCH = 2000
"""Unsettled messages of a subscription without a limit: what a quorum queue of RabbitMQ sends without one."""
MOST_PREFETCH = 65535
"""The largest prefetch-count (0-9-1 section basic.qos: a short)."""


class Client(PublishingClient):
    """A connected client. Make one with :meth:`connect`; use it as a context manager to close it.

    It is one *incarnation*: after an error of the connection, or of the channel that consumes, it is unusable, and
    another one must be connected: every call raises that error, ConnectionLost, ConnectionClosed, ProtocolError, or
    CommandFailed for a method that the broker refused. A refusal of a question or declaration ends nothing. Calls that
    wait for an answer raise DeadlineExceeded after the call timeout. Not thread-safe: one thread uses it, except for
    :meth:`wake`.

    Attributes:
        transactions: local transactions; distributed ones are refused.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._subscriptions: dict[str, Subscription] = {}
        self._subscribed = 0
        self._prefetch: int | None = None
        self._under_way: Subscription | None = None
        """That of the large message which has begun to arrive last."""
        driver.on_wait = self._look_at_under_way
        driver.endpoint.on_block = self._deliver
        driver.endpoint.on_begun = self._begun
        driver.endpoint.on_method[CONSUMING] = self._method

    @classmethod
    def connect(cls, options: ConnectOptions, *, call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S) -> Client:
        """Connect, log in and open the virtual host; try each host of the list once and follow redirects (0-9).

        Args:
            options: hosts, protocol (0-9-1 if it is neither 0-9-1 nor 0-9), login and TLS.
            call_timeout_s: seconds that any later call may wait for its answer.

        Raises:
            AuthenticationFailed, VirtualHostRefused, UsageError: at once, since another host would answer the same.
            ConnectionFailed: none of several hosts could be used; names each with its reason.
            TlsError, VersionRefused, DeadlineExceeded, ...: the error of the only host, or of the first one if a retry
                cannot help with any of them.
        """
        context = tls_context(options) if options.tls else None
        version = options.protocol if options.protocol in HEADERS_0_9 else "0-9-1"

        def dial(host: str, port: int) -> Client:
            return cls(Driver.dial(options, host, port, context, call_timeout_s, version=version))

        return connect_any(options.hosts, dial)

    @property
    def protocol(self) -> str:
        """``0-9-1`` or ``0-9``."""
        return self._driver.connection.version

    @cached_property
    def capabilities(self) -> Capabilities:
        """Capabilities of AMQP 0-9-1, and the behaviour of this broker.

        RabbitMQ counts only messages that are ready, and has delivery limits that can be turned off from version 4 on.
        If it is killed, a transaction of several queues may remain in part, or come undone after its commit; those of
        Broker-J stay whole, and of other brokers it is not known.
        Broker-J takes the expiration of a message for a time; one that is rejected without requeue it delivers again
        (basic.reject), or keeps until the channel ends (basic.nack).
        """
        properties, announced = self.server_properties, self._driver.connection.peer_capabilities
        product = str(properties.get("product", ""))
        is_rabbitmq, is_brokerj = product == "RabbitMQ", "broker-j" in product.lower()
        return Capabilities(
            credit=False,
            max_unsettled=True,
            browse=False,
            selectors=False,
            exchange_queries=True,
            binding_queries=is_brokerj,
            confirms=bool(announced.get(spec.Capability.PUBLISHER_CONFIRMS))
            or _says(properties, "qpid.confirmed_publish_supported"),
            local_transactions=is_brokerj,
            distributed_transactions=False,
            counts_held_messages=is_brokerj,
            rejects_unroutable=True,
            consumer_priorities=bool(announced.get(spec.Capability.CONSUMER_PRIORITIES)),
            counts_deliveries=is_rabbitmq,
            unlimited_deliveries=is_rabbitmq and version_of(properties) >= (4,),
            queue_types=is_rabbitmq,
            compares_declarations=is_rabbitmq,
            consumer_timeouts=is_rabbitmq,
            returns_unroutable=True,
            rejections=not is_brokerj,
            logs=is_rabbitmq,
            expiration_is_absolute=is_brokerj,
            checks_rights_first=is_rabbitmq or product == EMBEDDED_PRODUCT,
        )

    def update_secret(self, secret: str, reason: str = "") -> None:
        """Replace the secret of the login, such as a token that expires (an extension of RabbitMQ).

        Raises:
            UsageError: the broker does not have it.
            ConnectionClosed, DeadlineExceeded, ...: the broker refuses it: the connection has ended.
        """
        # no capability names it; a broker without RabbitMQ's other extensions drops the connection
        if not self._driver.connection.peer_capabilities.get(spec.Capability.CONNECTION_BLOCKED):
            raise not_supported("To replace a secret", self.protocol, "Connect again with the new one")
        self._driver.update_secret(secret.encode(), reason)

    def is_bound(self, exchange: str, binding_key: str) -> bool:
        """Whether any queue is bound to the exchange with this key (exchange.bound, an extension of Qpid).

        Raises:
            UsageError: the broker does not have it (:attr:`Capabilities.binding_queries`).
        """
        if not self.capabilities.binding_queries:
            raise not_supported(f"A query about the binding {binding_key!r} of exchange {exchange!r}", self.protocol)
        method = spec.ExchangeBound(exchange=exchange, routing_key=binding_key)
        return self._driver.call(ASKING, method, spec.ExchangeBoundOk).reply_code == 0

    def may_read(self, queue: str) -> bool:
        """Whether the login has the right to consume from a queue, on a broker that checks rights first.

        It asks for a consumer that the broker refuses in any case, so nothing is consumed.

        Raises:
            UsageError: the broker is not known to do so (:attr:`Capabilities.checks_rights_first`); nothing was sent.
            NotFound: no such queue.
        """
        self._check_rights_first()
        return rights.may_read(self._driver, queue)

    def may_write(self, exchange: str) -> bool:
        """Whether the login has the right to publish to an exchange, on a broker that checks rights first.

        It sends a message that the broker refuses in any case, so nothing is published.

        Raises:
            UsageError, NotFound: as :meth:`may_read`.
            UnauthorizedAccess: the broker limits this login by topics, so that it depends on the routing key.
        """
        self._check_rights_first()
        return rights.may_write(self._driver, exchange)

    def subscribe(
        self,
        queue: str,
        *,
        accept: bool = True,
        acquire: bool = True,
        exclusive: bool = False,
        selector: str | None = None,
        max_unsettled: int | None = None,
        arguments: dict[str, object] | None = None,
    ) -> Subscription:
        """Subscribe to a queue (basic.qos, basic.consume); messages arrive at once.

        With several subscriptions of one client the limit of each holds for itself on RabbitMQ; Broker-J has one limit
        for all of them, the latest.

        Args:
            queue: name of the queue.
            accept: the messages must be settled; else the broker removes each when it sends it (no-ack), and only the
                socket limits them.
            acquire: must be true: messages cannot be browsed.
            exclusive: refuse other subscriptions of the queue. RabbitMQ ignores it on quorum queues.
            selector: must be absent.
            max_unsettled: the prefetch: most unsettled messages, 1 to 65,535; ``None``: 2,000.
            arguments: arguments of the broker, such as ``x-priority`` or ``x-consumer-timeout`` in ms.

        Raises:
            UsageError: an argument that this protocol does not have, or ``max_unsettled`` is outside its limits.
            NotFound, ResourceLocked, UnauthorizedAccess, ...: the broker refused the subscription, and the client has
                ended.
        """
        if not acquire:
            raise not_supported("Browsing", self.protocol, "Read with acquire")
        if selector is not None:
            raise not_supported("A selector", self.protocol, "Leave the selector out, and filter what arrives")
        if max_unsettled is not None and (not 1 <= max_unsettled <= MOST_PREFETCH or not accept):
            reason = f"1 to {MOST_PREFETCH} are allowed" if accept else "messages are not settled without accept"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=f"max_unsettled={max_unsettled}", reason=reason))
        driver = self._driver
        most = (max_unsettled or DEFAULT_PREFETCH) if accept else None
        if most is not None and most != self._prefetch:
            driver.call(CONSUMING, spec.BasicQos(prefetch_count=most), spec.BasicQosOk)
            self._prefetch = most
        self._subscribed += 1
        tag = f"s{self._subscribed}"
        subscription = Subscription(driver, tag, queue, self._forget, most)
        self._subscriptions[tag] = subscription
        method = spec.BasicConsume(
            queue=queue, consumer_tag=tag, no_ack=not accept, exclusive=exclusive, arguments=arguments or {}
        )
        try:
            driver.call(CONSUMING, method, spec.BasicConsumeOk)
        except AmqpError:
            del self._subscriptions[tag]
            raise
        return subscription

    def get(self, queue: str) -> Message | None:
        """Return the first message of a queue (basic.get); ``None`` if there is none. It must be settled.

        A subscription is far faster.

        Raises:
            NotFound: no such queue: the client has ended.
            UndecodableMessage: its properties cannot be decoded; it can be settled by its ``command_id``.
        """
        received = self._driver.ask(CONSUMING, spec.BasicGet(queue=queue))
        method, content = received
        if not isinstance(method, spec.BasicGetOk) or content is None:
            return None
        self._unsettled.arrived(method.delivery_tag, 1)
        try:
            properties = content.properties
        except ProtocolError as error:
            raise UndecodableMessage(method.delivery_tag, error.cause) from error
        return Message(
            body=content.body,
            properties=properties,
            exchange=method.exchange,
            routing_key=method.routing_key,
            redelivered=method.redelivered,
            delivery_tag=method.delivery_tag,
        )

    def fetcher(self, queue: str) -> Fetcher:
        """Return what receives single messages of a queue, whatever the prefetch of subscriptions is (basic.get)."""
        return Fetcher(self._driver, lambda: self.get(queue))

    def accept(self, ranges: Sequence[tuple[int, int]], *, sync: bool = False, silence_timeout_s: float = 0.0) -> None:
        """Accept messages by inclusive ranges of delivery tags (basic.ack): the broker removes them.

        The broker does not answer, and may lose it if it is killed: see :meth:`sync`. In a local transaction they are
        accepted by the commit.

        Args:
            ranges: tags that are settled already are left out. If none is left, nothing is sent.
            sync: wait until the broker has processed it, as :meth:`sync`.
            silence_timeout_s: seconds for which the broker may be silent while it works on it, if that is longer than
                two heartbeats.

        Raises:
            ConnectionLost, CommandFailed, ...: the connection or channel has ended.
            DeadlineExceeded: ``sync`` is set, and the broker does not answer in time.
        """
        settlements = self._unsettled.settle(ranges)
        methods = [spec.BasicAck(tag, multiple) for tag, multiple in settlements]
        self._settle(ranges, methods, sync=sync, silence_timeout_s=silence_timeout_s)

    def reject(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        text: str = "",
        sync: bool = False,
        silence_timeout_s: float = 0.0,
    ) -> None:
        """Reject messages (basic.reject, basic.nack without requeue): to the dead-letter exchange of the queue.

        Without one the broker drops them.

        Args:
            ranges, sync, silence_timeout_s: as in :meth:`accept`.
            text: the reason, which this protocol does not send.

        Raises:
            UsageError: the broker cannot (:attr:`Capabilities.rejections`).
            ConnectionLost, CommandFailed, DeadlineExceeded, ...: as :meth:`accept`.
        """
        if not self.capabilities.rejections:
            raise not_supported("To reject a message", self.protocol, "Use AMQP 0-10")
        methods = self._refusals(ranges, requeue=False)
        self._settle(ranges, methods, sync=sync, silence_timeout_s=silence_timeout_s)

    def release(self, ranges: Sequence[tuple[int, int]], *, sync: bool = False) -> None:
        """Return messages to their queue (basic.reject, basic.nack with requeue); the broker marks them as redelivered.

        Args:
            ranges, sync: as in :meth:`accept`.

        Raises:
            ConnectionLost, CommandFailed, DeadlineExceeded, ...: as :meth:`accept`.
        """
        self._settle(ranges, self._refusals(ranges, requeue=True), sync=sync)

    def sync(self, *, silence_timeout_s: float = 0.0) -> None:
        """Wait until the broker has processed all settlements sent (channel.flow, which changes nothing).

        It proves that the channel has processed them, so that none is refused later. It does not prove that they are
        durable: RabbitMQ may answer first, and a killed broker may deliver accepted messages again.

        Args:
            silence_timeout_s: seconds for which it may be silent meanwhile, if that is longer than two heartbeats.

        Raises:
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`Client`.
        """
        self._driver.call(
            CONSUMING, spec.ChannelFlow(active=True), spec.ChannelFlowOk, silence_timeout_s=silence_timeout_s
        )

    def log_entry(self, block: AnyBlock, index: int) -> LogEntry | None:
        """Return offset and digest of a message of a block from a stream of RabbitMQ; ``None`` if it is from none."""
        return log_entry(block, index)

    def earlier_deliveries(self, block: AnyBlock) -> int:
        """Return the greatest ``x-delivery-count`` of a sample of the messages of a block (quorum queues)."""
        return earlier_deliveries(block)

    def redelivered(self, block: AnyBlock) -> list[int]:
        """Return the indices of the messages of a block that are marked as redelivered."""
        return redelivered(block)

    def returned(self, block: AnyBlock) -> list[int]:
        """Return the indices of the redelivered messages of a block, if a sample of them has a count of returns."""
        return returned(block)

    def first_is_redelivered(self, block: AnyBlock) -> bool:
        """Return whether the first message of a block is marked as redelivered; it costs the same for every block."""
        return first_is_redelivered(block)

    def identities(self, block: AnyBlock, indices: Sequence[int] | None = None) -> list[Identity | None]:
        """Return what identifies messages of a block (quorum queues): see :mod:`amqp_core.v0_9.redelivery`."""
        return list(identities(block, indices))

    def pass_barrier(self, queue: str) -> Ready | None:
        """Wait until a quorum queue has logged all settlements that this client has sent (basic.get).

        The queue processes basic.get after everything that came before on the same channel, in one log that survives
        kill -9. A message that it brings is returned at once, which marks it as redelivered. If no subscription of this
        client could get it then, it is kept until the client ends: the next barrier would bring it again, and a queue
        drops a message that is returned too often.

        Raises:
            NotFound: no such queue: the client has ended.
        """
        method, content = self._driver.ask(CONSUMING, spec.BasicGet(queue=queue))
        if not isinstance(method, spec.BasicGetOk) or content is None:
            return None
        self._unsettled.arrived(method.delivery_tag, 1)
        if any(each.queue == queue and each.goes_on for each in self._subscriptions.values()):
            self.release([(method.delivery_tag, method.delivery_tag)])
        try:
            message = Message(
                content.body, content.properties, method.exchange, method.routing_key, redelivered=method.redelivered
            )
        except DecodeError:
            return Ready(method.redelivered, None)
        return Ready(method.redelivered, identity(message))

    def _refusals(self, ranges: Sequence[tuple[int, int]], *, requeue: bool) -> list[spec.Method]:
        """The methods that settle without accepting; basic.nack only if the broker knows it (an extension)."""
        methods: list[spec.Method] = []
        if self._driver.connection.peer_capabilities.get(spec.Capability.BASIC_NACK):
            methods += [spec.BasicNack(tag, multiple, requeue) for tag, multiple in self._unsettled.settle(ranges)]
        else:
            methods += [spec.BasicReject(tag, requeue) for tag in self._unsettled.take(ranges)]
        return methods

    def _settle(
        self,
        ranges: Sequence[tuple[int, int]],
        methods: Sequence[spec.Method],
        *,
        sync: bool,
        silence_timeout_s: float = 0.0,
    ) -> None:
        driver = self._driver
        driver.check()
        for subscription in self._subscriptions.values():
            subscription.settled(ranges)
        if methods:
            driver.send_all(CONSUMING, methods)
            if silence_timeout_s > 0 and not sync:
                driver.expect_silence(silence_timeout_s)
        if sync:
            self.sync(silence_timeout_s=silence_timeout_s)

    def _check_rights_first(self) -> None:
        if not self.capabilities.checks_rights_first:
            raise not_supported("To ask for a right without using it", self.protocol)

    @property
    def is_blocked(self) -> bool:
        """See :attr:`.BaseClient.is_blocked`."""
        return self._driver.endpoint.blocked is not None

    def _forget(self, tag: str) -> None:
        self._subscriptions.pop(tag, None)

    def _method(self, method: spec.Method, _: Content | None) -> None:
        """Handle a method of the consuming channel that answers nothing."""
        if isinstance(method, spec.BasicReturn):
            self.transactions.returned(method)
            return
        if not isinstance(method, spec.BasicCancel):
            raise ProtocolError(f"{method.NAME} arrived on the channel that consumes")
        subscription = self._subscriptions.get(method.consumer_tag)
        if subscription is not None:  # else it was cancelled here at the same time
            subscription.cancelled_by_broker()

    def _begun(self, frames: bytes) -> None:
        """Note whose message has begun to arrive; that there is such a subscription is checked when it is complete."""
        self._under_way = self._subscriptions.get(consumer_tag_of(frames, 0))
        self._look_at_under_way()

    def _look_at_under_way(self) -> None:
        """Drop the message under way, unless its subscription has room for it."""
        connection = self._driver.connection
        under_way = connection.under_way_bytes
        if self._under_way is not None and under_way and not self._under_way.admits_under_way(under_way):
            connection.drop_under_way()

    def _deliver(self, block: Block) -> None:
        """Pass each run of deliveries to the subscription of its consumer tag."""
        for tag, part in by_consumer_tag(block):
            subscription = self._subscriptions.get(tag)
            if subscription is None:
                raise ProtocolError(
                    f"the broker sent {len(part.ends)} message(s) to consumer {tag!r}, which does not exist here"
                )
            if subscription.settles:
                self._unsettled.arrived(part.first_id, len(part.ends))
            else:
                self._unsettled.passed(part.first_id, len(part.ends))
            subscription.receive_block(part)


def _says(properties: dict[str, object], name: str) -> bool:
    """Whether a property is set; Broker-J writes ``true`` as text."""
    return str(properties.get(name, "")).lower() == "true"
