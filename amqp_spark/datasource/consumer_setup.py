"""The first commands of every incarnation of a consumer, and when the next incarnation follows an error."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from amqp_core.api import DescribedQueue
from amqp_core.errors import (
    ConnectionClosed,
    ConnectionFailed,
    DeliveryTimedOut,
    IllegalArgument,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    given,
)
from amqp_spark.connect import require, require_for_option
from amqp_spark.datasource.queue_comparison import compare
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import ConsumerStalled, LogError, UnsupportedModeError
from amqp_spark.options import FAILFAST, PERMISSIVE, QUORUM, REJECT
from amqp_spark.retry import RetryPolicy, lock_pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Client, QueueInfo, Subscription
    from amqp_core.errors import AmqpError, ResourceDeleted
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

_STREAM: Final = re.compile("rabbit_stream_queue|stream queue|prefetch count is not set")
"""In the text with which RabbitMQ refuses a consumer of a stream that has no prefetch, or a priority."""
_DELIVERY_LIMIT: Final = "x-delivery-limit"
_UNLIMITED: Final[dict[str, object]] = {_DELIVERY_LIMIT: -1}
"""Each crash of a reader is a delivery: the default limit would drop messages that were never processed."""
_BROWSED: Final = ("qpid.browse-only", "qpid.ensure_nondestructive_consumers")
"""Arguments of a queue of which all consumers browse, whatever they ask for: of qpidd, and of Broker-J."""
_UNSET: Final = ("", "0", "false", "none")
DYING_SECONDS: Final = 5.0
"""How long a broker may keep a lost session beyond two heartbeats, after which it should give the session up."""


NOT_FOUND: Final = 404
"""Reply code of 0-9-1."""
CONSUMER_TIMEOUT_SECONDS: Final = 1800.0
"""The consumer_timeout that exactly-once asks RabbitMQ for, so that it is known: RabbitMQ's default."""
RECOVERY_SECONDS: Final = 10.0
"""How long a queue that was consumed may be unknown on the next connection: RabbitMQ may restart."""


def dying_seconds(client: Client) -> float:
    """Seconds from the next connection on for which a broker may still take a lost session for a live one."""
    return 2 * client.heartbeat_s + DYING_SECONDS


def longest_seconds(options: SourceOptions) -> float:
    """Seconds that the first subscription may take: each host in turn, plus the lost session of a killed query."""
    waits = 2 * options.heartbeat + DYING_SECONDS if options.exclusive else 0.0
    return options.connect_timeout * len(options.hosts) + waits


class AskedInVain(ConnectionFailed):
    """The broker has closed the connection because a queue that ``declare=ifMissing`` asks for does not exist.

    It should close the channel only (0-9-1 section queue.declare). On the next connection the queue is declared without
    a question.
    """


def prepare(client: Client, queue: str, options: SourceOptions, *, is_missing: bool = False) -> QueueInfo | None:
    """Check that the queue exists, or declare it if configured; bind it. Return the broker's answer from before.

    Args:
        client: the client, on which nothing was done before.
        queue: the queue.
        options: the options.
        is_missing: the queue did not exist on the connection before, which has answered nothing: declare it.

    Raises:
        AskedInVain: connect again, and set ``is_missing``.
        UnsupportedModeError: the broker lacks a capability that the options need, or the queue is none to consume;
            nothing was changed.
        NotFound: the queue, or the exchange of a binding, does not exist.
        PreconditionFailed: the queue exists without the arguments that the options name.
    """
    _check_capabilities(client, options)
    info = None if is_missing else _question(client, queue, options)
    if info is None:
        if options.declare != "ifMissing":
            alternative = ", or set declare=ifMissing"
            default = "(default)" if client.protocol == "0-10" else "/"
            text = SparkCondition.QUEUE_NOT_FOUND(
                queue=queue, vhost=options.virtual_host or default, alternative=alternative
            )
            raise NotFound(404, None, text, "queue.query")
        _declare(client, queue, options)
    else:
        _check_removes(queue, info, options)
    if info is not None and client.capabilities.compares_declarations:
        compare(client, queue, options, queue_arguments(client, options))
    _bind(client, queue, options)
    return info


def _check_removes(queue: str, info: QueueInfo, options: SourceOptions) -> None:
    """Refuse, or warn of, a queue from which nothing is removed."""
    arguments = (info.arguments or {}) if isinstance(info, DescribedQueue) else {}
    for argument in _BROWSED:
        if str(arguments.get(argument, "")).lower() in _UNSET:
            continue
        if options.exactly_once:
            raise UnsupportedModeError(SparkCondition.QUEUE_KEEPS_MESSAGES(queue=queue, argument=argument))
        _log.warning(
            "queue %r was declared with %s: the broker removes nothing that is accepted, so that this query reads all "
            "messages again after each start and each lost connection",
            queue, argument,
        )  # fmt: skip


def _question(client: Client, queue: str, options: SourceOptions) -> QueueInfo | None:
    """Ask for a queue; some brokers answer by closing the connection."""
    try:
        return client.query_queue(queue)
    except (NotFound, ConnectionClosed) as error:
        if isinstance(error, ConnectionClosed) and error.reply_code != NOT_FOUND:
            raise
        if options.declare == "ifMissing":
            raise AskedInVain(str(error)) from error
        return None


def _declare(client: Client, queue: str, options: SourceOptions) -> None:
    """Declare a queue, without a limit of deliveries also where quorum is the default type of the virtual host."""
    arguments = queue_arguments(client, options)
    named = arguments or {}
    if client.capabilities.unlimited_deliveries and named.keys().isdisjoint({"x-queue-type", _DELIVERY_LIMIT}):
        try:
            client.declare_queue(queue, durable=True, arguments=_UNLIMITED | named)
        except PreconditionFailed as error:
            if _DELIVERY_LIMIT not in str(error):
                raise  # else it is of another type, which has no such argument
        else:
            return
    client.declare_queue(queue, durable=True, arguments=arguments)


def _bind(client: Client, queue: str, options: SourceOptions) -> None:
    for exchange, key in options.bind:
        try:
            client.bind(queue, exchange, key)
        except NotFound as error:
            reason = given(error.description)
            text = SparkCondition.BIND_TARGET_NOT_FOUND(binding=f"{exchange}/{key}", queue=queue, reason=reason)
            raise NotFound(error.wire_code, error.command_id, text, error.command) from error


def _check_capabilities(client: Client, options: SourceOptions) -> None:
    if not client.capabilities.credit:
        require(client, "The source", "max_unsettled")
    if options.exactly_once and not client.capabilities.counts_deliveries:
        for capability in ("local_transactions", "binding_queries"):
            allowed = "at-least-once, at-most-once; exactly-once from Broker-J, with AMQP 0-10, or from RabbitMQ"
            require_for_option(client, "deliveryGuarantee", "exactly-once", capability, allowed)
    seconds = None if options.consumer_timeout is None else f"{options.consumer_timeout:g}s"
    for name, value, capability, allowed in (
        ("selector", options.selector, "selectors", "no selector; filter the rows in Spark"),
        ("consumerPriority", options.consumer_priority, "consumer_priorities", "no value"),
        ("consumerTimeout", seconds, "consumer_timeouts", "no value"),
        ("queueType", options.queue_type, "queue_types", "no value; queueArguments has the arguments of this broker"),
        ("mode", REJECT if options.mode == REJECT else None, "rejections", f"{FAILFAST}, {PERMISSIVE}"),
    ):
        if value is not None:
            require_for_option(client, name, value, capability, allowed)


def queue_arguments(client: Client, options: SourceOptions) -> dict[str, object] | None:
    """The arguments for the declaration of a queue; given ones are not changed."""
    given = dict(options.queue_arguments)
    arguments: dict[str, object] = {} if options.queue_type is None else {"x-queue-type": options.queue_type}
    arguments |= given
    if arguments.get("x-queue-type") == QUORUM and client.capabilities.unlimited_deliveries:
        arguments = _UNLIMITED | arguments
    return arguments or None


def warn_of_others(queue: str, info: QueueInfo | None) -> None:
    """Warn if a queue has other consumers."""
    if info is None or not info.subscriber_count:
        return
    _log.warning(
        "queue %r already has %d consumer(s): each gets a part of the messages, this query only what the others do "
        "not take (a self-join of one stream starts two); option exclusive=true refuses this",
        queue, info.subscriber_count,
    )  # fmt: skip


def subscribe(
    client: Client, queue: str, options: SourceOptions, *, max_unsettled: int | None = None, others: int | None = None
) -> Subscription:
    """Subscribe according to the options; errors name the option that causes them. ``others``: consumers of the queue
    before, if an exclusive subscription may be let in beside them."""
    arguments: dict[str, object] = {}
    if options.consumer_priority is not None or client.capabilities.logs:  # a stream refuses any priority
        arguments["x-priority"] = options.consumer_priority or 0
    if options.consumer_timeout is not None:
        arguments["x-consumer-timeout"] = round(options.consumer_timeout * 1000)
    elif options.exactly_once and client.capabilities.consumer_timeouts:
        arguments["x-consumer-timeout"] = round(CONSUMER_TIMEOUT_SECONDS * 1000)
    try:
        subscription = client.subscribe(
            queue,
            accept=options.accepts,
            acquire=True,
            exclusive=options.exclusive,
            selector=options.selector,
            max_unsettled=max_unsettled,
            arguments=arguments or None,
        )
    except ResourceLocked as error:
        error.add_note(
            f"queue {queue!r} is consumed or owned exclusively, or option 'exclusive' is true and it has consumers: "
            "stop them, or set exclusive to false"
        )
        raise
    except (IllegalArgument, InvalidArgument) as error:
        if options.selector is not None:
            error.add_note(f"option 'selector' has the value {options.selector!r}: can the broker read it?")
        raise
    except PreconditionFailed as error:
        if _STREAM.search(str(error)):
            raise LogError(SparkCondition.QUEUE_IS_LOG(queue=queue)) from error
        if options.consumer_timeout is not None and "x-consumer-timeout" in str(error):
            text = SparkCondition.CONSUMER_TIMEOUT_REFUSED(queue=queue, seconds=f"{options.consumer_timeout:g}")
            refused = PreconditionFailed(error.wire_code, error.command_id, text, error.command)
            refused.add_note(f"the broker's answer to 'consumerTimeout': {given(error.description)}")
            raise refused from error
        raise
    if options.exclusive and others and not client.capabilities.credit:
        _log.warning(
            "queue %r has %d other consumer(s) although option exclusive is true, which a quorum queue ignores: "
            "declare the queue with x-single-active-consumer, so that one consumer at a time gets messages",
            queue, others,
        )  # fmt: skip
    return subscription


def raise_if_cancelled(client: Client, queue: str, error: ResourceDeleted) -> None:
    """Raise ConsumerStalled if the queue, whose consumer the broker has ended with an error, still exists."""
    if not client.capabilities.credit and client.query_queue(queue) is not None:
        raise ConsumerStalled(SparkCondition.CONSUMER_CANCELLED_BY_BROKER(queue=queue)) from error


class Retries:
    """Connection attempts of one consumer."""

    def __init__(self, queue: str, options: SourceOptions, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._options = options
        self._clock = clock
        self._policy = RetryPolicy(f"queue {queue!r}", options.retry_max_attempts, options.retry_max_delay, _log)
        self._refused_since: float | None = None
        self._has_subscribed = False
        self._missing_since: float | None = None

    def subscribed(self) -> None:
        """Record a successful subscription."""
        self._refused_since = self._missing_since = None
        self._has_subscribed = True

    def pause_after(
        self, error: AmqpError, *, worked: bool, lasted: bool, dying_s: float, restarts: bool = False
    ) -> float | None:
        """Return the seconds from the error that ended an incarnation until the next one; None to give up. ``worked``:
        it does not count as a failed attempt; ``lasted``: it was useful; ``restarts``: the broker may have restarted,
        and not know its queues yet."""
        if isinstance(error, DeliveryTimedOut):
            _log.warning(
                "queue %r: messages were not accepted within the broker's consumer_timeout, so that they come again: a "
                "batch takes longer. Raise consumer_timeout of the broker; RabbitMQ from 4.3 on knows option "
                "consumerTimeout on quorum queues",
                self._queue,
            )  # fmt: skip
        if isinstance(error, ResourceLocked):
            return self._pause_refused(dying_s)
        self._refused_since = None
        if isinstance(error, NotFound) and self._has_subscribed and restarts:
            return self._pause_missing()
        return self._policy.pause_after(error, worked=worked, lasted=lasted)

    def _pause_missing(self) -> float | None:
        now = self._clock()
        if self._missing_since is None:
            self._missing_since = now
            _log.warning(
                "queue %r was consumed before, and is not there now; trying again for %.0f s, in case the broker "
                "restarts",
                self._queue, RECOVERY_SECONDS,
            )  # fmt: skip
        if now - self._missing_since >= RECOVERY_SECONDS:
            return None
        return lock_pause(self._options.retry_max_delay)

    def _pause_refused(self, dying_s: float) -> float | None:
        now = self._clock()
        if self._refused_since is None:
            self._refused_since = now
            _log.warning(
                "queue %r has a consumer, so that an exclusive subscription is refused, or is in exclusive use; trying "
                "again for %.0f s, in case that is a session which was lost",
                self._queue, dying_s,
            )  # fmt: skip
        if now - self._refused_since >= dying_s:
            return None
        return lock_pause(self._options.retry_max_delay)
