"""A blocking client for AMQP 0-10: one connection, one session, every wait with a deadline."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

from amqp_core.api import EMBEDDED_PRODUCT, Capabilities
from amqp_core.error_conditions import CoreCondition, reason
from amqp_core.errors import (
    AmqpError,
    ConnectionFailed,
    DeadlineExceeded,
    DecodeError,
    MessageRejected,
    OutcomeUnknown,
    ProtocolError,
    RejectedUnexpectedly,
    SessionDetached,
    UsageError,
)
from amqp_core.failover import connect_any
from amqp_core.publisher_window import Window
from amqp_core.sequence_numbers import unwrap_ranges, wire_ranges
from amqp_core.server_version import version_of
from amqp_core.transport import tls_context
from amqp_core.v0_10 import rights, spec
from amqp_core.v0_10._codec import encode_command, encode_header
from amqp_core.v0_10.driver import CHANNEL, Driver
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, TRACK_COMMAND, encode_assembly
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.producer_credit import ProducerCredit
from amqp_core.v0_10.publisher import MAX_BYTES_IN_FLIGHT, MAX_BYTES_WITHHELD, MAX_IN_FLIGHT, Publisher, Transfers
from amqp_core.v0_10.redelivery import first_is_redelivered
from amqp_core.v0_10.routing import by_destination, destination_of
from amqp_core.v0_10.subscription import Subscription, UnsettledLimit
from amqp_core.v0_10.topology import Topology
from amqp_core.v0_10.transactions import Transactions
from amqp_core.write_primitives import cut_short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Block as AnyBlock
    from amqp_core.blocks import Block

DEFAULT_CALL_TIMEOUT_S = 60.0
QPIDD_WITH_SELECTORS = (0, 22)
"""The first version of qpidd that reads a selector; earlier ones ignore it, and send all messages."""
_JMS_SELECTORS = "qpid.jms-selector"
# Bytes of a command's frame besides the ranges of ids.
_ROOM_BESIDES_RANGES = 512


class Client(Topology):
    """A connected client. Make one with :meth:`connect`; use it as a context manager to close it.

    It is one *incarnation*: after an error it is unusable, and another one must be connected. Every call raises the
    error that ended the connection or session, now or before: ConnectionLost, ConnectionClosed, SessionDetached,
    ProtocolError, or CommandFailed for a command that the broker refused. Calls that wait for an answer raise
    DeadlineExceeded after the call timeout. Not thread-safe: one thread uses it, except for :meth:`wake`.

    Attributes:
        transactions: local and distributed transactions (0-10 sections tx and dtx).
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._subscriptions: dict[str, Subscription] = {}
        self._subscribed = 0
        self.transactions = Transactions(driver)
        rejects = self.capabilities.rejects_unroutable
        accept_mode = spec.MessageAcceptMode.EXPLICIT if rejects else spec.MessageAcceptMode.NONE
        window = Window(MAX_IN_FLIGHT, self._most_bytes, small=self.is_qpidd)
        self._publisher = Publisher(
            driver, accept_mode=accept_mode, trusting=self._says_qpidd, window=window, credit=ProducerCredit()
        )
        endpoint = driver.endpoint
        endpoint.on_block = self._deliver
        endpoint.on_begun = self._begun
        endpoint.on_command = self._command
        while endpoint.early:
            self._command(endpoint.early.pop(0))

    @classmethod
    def connect(cls, options: ConnectOptions, *, call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S) -> Client:
        """Connect, log in and attach a session; try each host of the list once and follow redirects.

        Args:
            options: hosts, login and TLS.
            call_timeout_s: seconds that any later call may wait for its answer.

        Raises:
            AuthenticationFailed, VirtualHostRefused, UsageError: at once, since another host would answer the same.
            ConnectionFailed: none of several hosts could be used; names each with its reason.
            TlsError, VersionRefused, DeadlineExceeded, ...: the error of the only host, or of the first one if a retry
                cannot help with any of them.
        """
        context = tls_context(options) if options.tls else None

        def dial(host: str, port: int) -> Client:
            driver = Driver.dial(options, host, port, context, call_timeout_s)
            try:
                return cls(driver)
            except AmqpError:
                driver.abort()
                raise

        return connect_any(options.hosts, dial)

    @property
    def protocol(self) -> str:
        """``0-10``."""
        return "0-10"

    @property
    def features(self) -> frozenset[str]:
        """The broker's ``qpid.features``."""
        features = self.server_properties.get("qpid.features")
        return frozenset(str(feature) for feature in features) if isinstance(features, list) else frozenset()

    @property
    def is_qpidd(self) -> bool:
        """Whether the broker is Apache Qpid C++, or may be: early ones say ``qpidc``, or no product. Early Qpid Java
        brokers name no product, either; most of them have the feature of selectors, which an early qpidd has not."""
        properties = self.server_properties
        may_be = "qpid.federation_tag" in properties and _JMS_SELECTORS not in self.features
        return self._says_qpidd or (not properties.get("product") and may_be)

    @property
    def _says_qpidd(self) -> bool:
        """Whether it says that it is: then a completion counts, without the answer to a sync behind it."""
        return str(self.server_properties.get("product", "")).startswith(("qpid-cpp", "qpidc"))

    @cached_property
    def capabilities(self) -> Capabilities:
        """Capabilities of AMQP 0-10, and the behaviour of this broker.

        Broker-J and the embedded broker reject unroutable messages (with accept-mode explicit). qpidd drops them
        silently, counts only messages that no consumer holds, cannot send the answer of dtx.recover in several frames,
        and expires a branch with a timeout of 0 seconds at once. An argument of a subscription that a broker does not
        know it ignores, so a selector needs one that announces selectors, or a qpidd that has them.
        """
        product = str(self.server_properties.get("product", "")).lower()
        is_known = "broker-j" in product or product == EMBEDDED_PRODUCT
        reads_selectors = self.is_qpidd and version_of(self.server_properties) >= QPIDD_WITH_SELECTORS
        return Capabilities(
            selectors=_JMS_SELECTORS in self.features or reads_selectors,
            counts_held_messages=not self.is_qpidd,
            rejects_unroutable=is_known,
            lists_branches_in_one_frame=self.is_qpidd,
            zero_timeout_is_none=is_known,
            checks_rights_first=product == EMBEDDED_PRODUCT,
        )

    def service(self) -> None:
        """Read arrived data and send a heartbeat if one is due, without waiting; for a client that is not in use.

        Raises:
            AmqpError: the connection or session has ended.
        """
        self._fill()
        super().service()

    def may_read(self, queue: str) -> bool:
        """Whether the login has the right to consume from a queue, on a broker that checks rights first.

        It asks for a consumer that the broker refuses in any case, so nothing is consumed. The client has
        ended afterwards.

        Raises:
            UsageError: the broker is not known to do so (:attr:`Capabilities.checks_rights_first`); nothing was sent.
            NotFound: no such queue.
        """
        self._check_rights_first()
        return rights.may_read(self._driver, queue)

    def may_write(self, exchange: str) -> bool:
        """Whether the login has the right to publish to an exchange, on a broker that checks rights first.

        It sends a message that the broker refuses in any case, so nothing is published. The client has
        ended afterwards.

        Raises:
            UsageError, NotFound: as :meth:`may_read`.
        """
        self._check_rights_first()
        return rights.may_write(self._publisher, exchange)

    def subscribe(
        self,
        queue: str,
        *,
        destination: str | None = None,
        accept: bool = True,
        acquire: bool = True,
        exclusive: bool = False,
        selector: str | None = None,
        max_unsettled: int | None = None,
        arguments: dict[str, object] | None = None,
    ) -> Subscription:
        """Subscribe to a queue in credit mode (message.subscribe, message.set-flow-mode).

        No message arrives before :meth:`Subscription.grant`. With ``max_unsettled`` messages arrive without it, and
        further ones as they are settled, whenever the program waits for messages of this client or calls
        :meth:`service`. A rollback makes messages unsettled again, which are then more than the limit.

        Args:
            queue: name of the queue.
            destination: name of the subscription in this session; generated if absent.
            accept: accept-mode explicit; else none: the broker removes each message when it sends it.
            acquire: acquire-mode pre-acquired; else not-acquired: to browse.
            exclusive: refuse other subscriptions of the queue.
            selector: message selector; it is sent as the argument that this broker reads.
            max_unsettled: most messages that have arrived or may arrive, and are not settled; ``None``: only the
                credit limits them.
            arguments: further arguments of message.subscribe.

        Raises:
            UsageError: ``max_unsettled`` is less than 1, or set without ``accept``.
            NotFound, ResourceLocked, UnauthorizedAccess, ...: the broker refused the subscription.
        """
        if max_unsettled is not None and (max_unsettled < 1 or not accept):
            reason = "it must be at least 1" if max_unsettled < 1 else "messages are not settled without accept"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=f"max_unsettled={max_unsettled}", reason=reason))
        self._subscribed += 1
        destination = destination or f"s{self._subscribed}"
        merged = dict(arguments or {})
        if selector is not None:
            # each broker reads its own key and silently ignores the other's
            if _JMS_SELECTORS in self.features or not self.is_qpidd:
                merged["x-filter-jms-selector"] = selector
            if self.is_qpidd or _JMS_SELECTORS not in self.features:
                merged["x-apache-selector"] = selector
        limit = None if max_unsettled is None else UnsettledLimit(max_unsettled)
        subscription = Subscription(self._driver, destination, self._forget, self._fill, limit)
        self._subscriptions[destination] = subscription
        try:
            self._driver.call(
                spec.MessageSubscribe(
                    queue=queue,
                    destination=destination,
                    accept_mode=spec.MessageAcceptMode.EXPLICIT if accept else spec.MessageAcceptMode.NONE,
                    acquire_mode=(
                        spec.MessageAcquireMode.PRE_ACQUIRED if acquire else spec.MessageAcquireMode.NOT_ACQUIRED
                    ),
                    exclusive=exclusive,
                    arguments=merged,
                )
            )
            # Broker-J accepts the mode only before any credit
            self._driver.send(spec.MessageSetFlowMode(destination=destination, flow_mode=spec.MessageFlowMode.CREDIT))
            subscription.fill()
        except AmqpError:
            del self._subscriptions[destination]
            raise
        return subscription

    def fetcher(self, queue: str) -> Subscription:
        """Return a subscription of a queue, for single messages: what is granted may arrive at once.

        Raises:
            NotFound, UnauthorizedAccess, ...: those of :meth:`subscribe`.
        """
        return self.subscribe(queue)

    def accept(self, ranges: Sequence[tuple[int, int]], *, sync: bool = False, silence_timeout_s: float = 0.0) -> None:
        """Accept transfers by inclusive ranges of command ids (message.accept): the broker removes them.

        Args:
            ranges: may include ids of other commands, which the broker ignores. If empty, no command is sent.
            sync: wait until the broker has completed it.
            silence_timeout_s: seconds for which the broker may be silent while it works on it, if that is longer than
                two heartbeats. Broker-J removes durable messages from its store on the thread that sends heartbeats.

        Raises:
            ConnectionLost, SessionDetached, CommandFailed: the connection or session has ended.
            DeadlineExceeded: ``sync`` is set, and the broker does not complete it in time.
        """
        commands = [spec.MessageAccept(transfers=part) for part in self._parts(ranges)]
        self._settle(ranges, commands, sync=sync, silence_timeout_s=silence_timeout_s)

    def reject(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        code: int = 0,
        text: str = "",
        sync: bool = False,
        silence_timeout_s: float = 0.0,
    ) -> None:
        """Reject transfers (message.reject): to the queue's alternate exchange, or dropped if it has none.

        Args:
            ranges, sync, silence_timeout_s: as in :meth:`accept`.
            code: the reason (domain reject-code).
            text: the reason as text; it is cut to 255 bytes of UTF-8 (str8).

        Raises:
            ConnectionLost, SessionDetached, CommandFailed, DeadlineExceeded: as :meth:`accept`.
        """
        text = cut_short(text)
        commands = [spec.MessageReject(transfers=part, code=code, text=text) for part in self._parts(ranges)]
        self._settle(ranges, commands, sync=sync, silence_timeout_s=silence_timeout_s)

    def first_is_redelivered(self, block: AnyBlock) -> bool:
        """Return whether the first transfer of a block is marked as delivered before."""
        return first_is_redelivered(block)

    def release(self, ranges: Sequence[tuple[int, int]], *, set_redelivered: bool = False, sync: bool = False) -> None:
        """Return transfers to their queue (message.release).

        Args:
            ranges, sync: as in :meth:`accept`.
            set_redelivered: mark them as delivered before.

        Raises:
            ConnectionLost, SessionDetached, CommandFailed, DeadlineExceeded: as :meth:`accept`.
        """
        parts = self._parts(ranges)
        commands = [spec.MessageRelease(transfers=part, set_redelivered=set_redelivered) for part in parts]
        self._settle(ranges, commands, sync=sync)

    def acquire(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Acquire browsed transfers (message.acquire); return the ranges that this session has acquired.

        Raises:
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`Client`.
        """
        acquired: list[tuple[int, int]] = []
        for part in self._parts(ranges):
            result = self._driver.ask(spec.MessageAcquire(transfers=part), spec.MessageAcquired)
            acquired += unwrap_ranges(result.transfers or [], self._driver.session.received_next)
        return acquired

    def sync(self, *, silence_timeout_s: float = 0.0) -> None:
        """Wait until the broker has completed all commands sent (execution.sync).

        Args:
            silence_timeout_s: seconds for which it may be silent meanwhile, if that is longer than two heartbeats.

        Raises:
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`Client`.
        """
        self._driver.call(spec.ExecutionSync(), silence_timeout_s=silence_timeout_s)

    def _parts(self, ranges: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Split into lists of wire ranges that each fit one frame: qpidd takes no command of several frames."""
        most = (self._driver.connection.max_frame_size - _ROOM_BESIDES_RANGES) // 8
        return [wire_ranges(ranges[at : at + most]) for at in range(0, len(ranges), most)]

    def _settle(
        self,
        ranges: Sequence[tuple[int, int]],
        commands: Sequence[spec.Command],
        *,
        sync: bool,
        silence_timeout_s: float = 0.0,
    ) -> None:
        if not commands:
            return
        for command in commands[:-1]:
            self._driver.send(command)
        if sync:
            self._driver.call(commands[-1], silence_timeout_s=silence_timeout_s)
        else:
            # qpidd reports the completion of a command only if its sync bit is set
            command_id = self._driver.send(commands[-1], sync=silence_timeout_s > 0)
            if silence_timeout_s > 0:
                self._driver.expect_silence(command_id, silence_timeout_s)
        for subscription in self._subscriptions.values():
            subscription.settled(ranges)

    def publish(
        self, message: Message, exchange: str = "", routing_key: str | None = None, *, accept_mode: int | None = None
    ) -> int:
        """Send a message (message.transfer); it is safe only once :meth:`confirm` has returned.

        Args:
            message: body and properties.
            exchange: name of the exchange; empty is the default exchange, which routes by queue name.
            routing_key: overrides the message's own.
            accept_mode: explicit makes Broker-J reject unroutable messages; the default is the most informative mode
                of the connected broker (qpidd accepts even messages that it drops).

        Returns:
            The command id.

        Raises:
            EncodeError: a property does not fit its wire type.
            DeadlineExceeded: window, flow control or socket stayed full for the call timeout.
            PublisherStopped: the broker has stopped the publisher for longer than the ``blocked_timeout_s`` that was
                given to :meth:`publisher`; this message was not sent, and the client goes on.
            ConnectionLost, SessionDetached, CommandFailed: the connection or session has ended.
        """
        self._driver.check()
        delivery = message.delivery
        if routing_key is not None and delivery.routing_key != routing_key:
            delivery = spec.DeliveryProperties(
                **{name: getattr(delivery, name) for name in spec.DeliveryProperties.__slots__}
                | {"routing_key": routing_key}
            )
        transfer = spec.MessageTransfer(
            destination=exchange,
            accept_mode=self._publisher.accept_mode if accept_mode is None else accept_mode,
            acquire_mode=spec.MessageAcquireMode.PRE_ACQUIRED,
        )
        segments = [(COMMAND, encode_command(transfer, False)), (HEADER, encode_header(delivery, message.properties))]
        if message.body:
            segments.append((BODY, message.body))
        frames = b"".join(encode_assembly(CHANNEL, TRACK_COMMAND, segments, self._publisher.max_frame_size))
        return self._publisher.send_one(Transfers(frames, (len(frames),)), timeout_s=self._driver.call_timeout_s)

    def publish_to_queue(self, queue: str, body: bytes, *, content_type: str) -> None:
        """Send a durable message to a queue through the default exchange. Errors: as :meth:`publish`."""
        delivery = spec.DeliveryProperties(routing_key=queue, delivery_mode=spec.MessageDeliveryMode.PERSISTENT)
        self.publish(Message(body, delivery, spec.MessageProperties(content_type=content_type)))

    def confirm(self) -> None:
        """Wait until the broker has taken responsibility for everything published so far.

        Raises:
            MessageRejected: the broker rejected some (unroutable, or a full queue).
            OutcomeUnknown: the connection or session ended before the broker completed them; they may or may not be
                enqueued.
            CommandFailed: the broker refused one (unknown exchange, a full queue); messages published after it, and
                perhaps before, are not enqueued.
            RejectedUnexpectedly: the broker rejected a message that counted as completed.
        """
        publisher = self._publisher
        try:
            publisher.finish(timeout_s=self._driver.call_timeout_s)
        except RejectedUnexpectedly:
            raise
        except (ConnectionFailed, ProtocolError, SessionDetached, DeadlineExceeded) as error:
            if publisher.in_flight:
                count = publisher.in_flight
                text = CoreCondition.OUTCOME_UNKNOWN(count=count, reason=reason(error))
                raise OutcomeUnknown(text) from error
        rejected = publisher.take_rejected()
        if rejected:
            raise MessageRejected(len(rejected), rejected[-1].code, rejected[-1].text)

    @property
    def _most_bytes(self) -> int:
        """Most bytes in flight: qpidd withholds completions first, then refuses transfers beyond a queue's limit."""
        return MAX_BYTES_WITHHELD if self.is_qpidd else MAX_BYTES_IN_FLIGHT

    def publisher(
        self,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_bytes_in_flight: int | None = None,
        blocked_timeout_s: float = math.inf,
    ) -> Publisher:
        """Return a new publisher of runs of encoded transfers; it replaces the previous one.

        :meth:`publish` and :meth:`confirm` use it, too.

        Args:
            max_in_flight: most transfers that may be sent and not completed (see :mod:`amqp_core.publisher_window`).
            max_bytes_in_flight: bytes, likewise; a larger transfer is sent alone. By default 32 MiB; 4 MiB for qpidd,
                which refuses transfers under way to a full queue.
            blocked_timeout_s: seconds for which a broker is waited for that has stopped the publisher (message.stop).

        Raises:
            UsageError: the previous publisher is not finished, or the window is empty.
        """
        before = self._publisher
        publisher = Publisher(
            self._driver,
            accept_mode=before.accept_mode,
            trusting=self._says_qpidd,
            window=before.window.within(
                max_in_flight, self._most_bytes if max_bytes_in_flight is None else max_bytes_in_flight
            ),
            credit=before.credit,
            blocked_timeout_s=blocked_timeout_s,
        )
        before.retire()
        self._publisher = publisher
        return publisher

    def _check_rights_first(self) -> None:
        if not self.capabilities.checks_rights_first:
            what, why = "To ask for a right without using it", "the broker may look at arguments first"
            raise UsageError(
                CoreCondition.NOT_SUPPORTED(what=what, protocol=self.protocol, reason=why, action="Leave it out")
            )

    def _command(self, command: spec.Command) -> None:
        self._publisher.receive(command)

    def _fill(self) -> None:
        """Grant what the limits of unsettled messages allow, to every subscription that has one."""
        for subscription in self._subscriptions.values():
            subscription.fill()

    def _forget(self, destination: str) -> None:
        self._subscriptions.pop(destination, None)

    def _begun(self, frames: bytes) -> None:
        """Raise ProtocolError if there is no credit for a large transfer, before all of it has arrived."""
        try:
            destination = destination_of(frames, 0)
        except DecodeError:  # its command has several frames: it is checked when it is complete
            possible = list(self._subscriptions.values())
        else:
            possible = [each for each in self._subscriptions.values() if each.destination == destination]
        if not any(each.may_receive for each in possible):
            raise ProtocolError(
                "the broker sends a large message to a destination that has no subscription here, or no credit"
            )

    def _deliver(self, block: Block) -> None:
        """Pass each run of transfers to the subscription of its destination, up to one that is not allowed."""
        for destination, part in by_destination(block):
            subscription = self._subscriptions.get(destination)
            if subscription is None:
                raise ProtocolError(
                    f"the broker sent {len(part.ends)} message(s) to destination {destination!r}, "
                    "where this session has no subscription"
                )
            subscription.receive_block(part)
