"""The user's queues: that they exist, what they have, and what may surprise. Nothing is consumed or changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.api import DescribedQueue
from amqp_core.errors import AmqpError, ConnectionClosed, NotFound
from amqp_spark.cli.progress import counted
from amqp_spark.diagnosis.declared import Declared, ask
from amqp_spark.diagnosis.findings import listed
from amqp_spark.options import CLASSIC, QUORUM, STREAM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.api import Client, QueueInfo
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.site import Site

_TYPE: Final = "x-queue-type"
_LIMIT: Final = "x-delivery-limit"
_LIMITS: Final = (
    "x-max-length", "x-max-length-bytes", "x-max-age", "qpid.max_count", "qpid.max_size", "qpid.policy_type",
    "x-overflow", "x-qpid-capacity",
)  # fmt: skip
_TIMES: Final = ("x-message-ttl", "x-expires", "qpid.auto_delete_timeout")
_DEAD: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key")
_DELIVERIES: Final = (_LIMIT, "x-qpid-maximum-delivery-count")
_DROPS: Final = frozenset({"drop-head", "ring", "ring_strict"})
"""Policies of a full queue that drop its oldest messages."""
_NOT_FOUND: Final = 404


def section(queue: str) -> str:
    """Title of the findings about a queue."""
    return f"queue {queue!r}"


def examine(report: Report, site: Site, queue: str) -> str | None:
    """Report what is known of a queue; return its type on RabbitMQ, ``None`` if it is not known."""
    about = section(queue)
    try:
        with site.connect() as client:
            info = _query(client, queue)
            if info is None:
                vhost = site.virtual_host(client.protocol)
                if site.declares:
                    report.skip(about, "exists", f"no, not in virtual host {vhost}: the source declares it")
                    return site.queue_type if client.capabilities.queue_types else None
                advice = "Create it, correct the name or the virtual host, or set declare=ifMissing"
                report.fail(about, "exists", f"no, not in virtual host {vhost}", advice)
                return None
            _counts(report, about, client, info)
            if isinstance(info, DescribedQueue):
                declared = Declared(info.durable, info.exclusive, info.auto_delete, info.arguments or {}, True)
                _properties(report, about, client, declared, alternate=info.alternate_exchange)
            elif client.capabilities.compares_declarations:
                declared = ask(client, queue)
                _properties(report, about, client, declared)
            else:
                report.skip(about, "properties", f"AMQP {client.protocol} does not tell them for this broker")
                return None
    except AmqpError as error:
        report.refused(about, "properties" if report.of(about, "exists") else "exists", error)
        return None
    if not client.capabilities.queue_types or not declared.is_complete:
        return None
    return str(declared.arguments.get(_TYPE, CLASSIC))


def _query(client: Client, queue: str) -> QueueInfo | None:
    try:
        return client.query_queue(queue)
    except NotFound:
        return None
    except ConnectionClosed as error:  # Broker-J, over 0-9-1
        if error.reply_code == _NOT_FOUND:
            return None
        raise


def _counts(report: Report, about: str, client: Client, info: QueueInfo) -> None:
    held = "" if client.capabilities.counts_held_messages else " ready"
    consumers = info.subscriber_count or 0
    messages = counted(info.message_count or 0, "message", "messages")
    value = f"yes, {messages}{held}, {counted(consumers, 'consumer', 'consumers')}"
    if consumers:
        advice = "Each consumer gets a part of the messages: stop the others, or give the query a queue of its own"
        report.warn(about, "exists", value, advice)
    else:
        report.ok(about, "exists", value)


def _properties(
    report: Report, about: str, client: Client, declared: Declared, *, alternate: str | None = None
) -> None:
    arguments = declared.arguments
    if declared.durable is None:
        report.skip(about, "properties", f"not known: {declared.why_not}", "Grant it the right configure for the queue")
        return
    kind = _kind(client, arguments)
    flags = [
        "durable" if declared.durable else "not durable",
        *(["exclusive"] if declared.exclusive else []),
        *(["auto-delete"] if declared.auto_delete else []),
        *(["single active consumer"] if arguments.get("x-single-active-consumer") is True else []),
    ]
    value = listed([kind, *flags])
    if declared.auto_delete:
        report.warn(about, "type", value, "It is deleted when the query stops: declare it without auto-delete")
    elif not declared.durable:
        report.warn(about, "type", value, "A restart of the broker loses it: declare it durable")
    else:
        report.ok(about, "type", value)
    found = [
        _limits(report, about, arguments),
        _times(report, about, arguments),
        _dead_letters(report, about, arguments, alternate),
        _deliveries(report, about, client, kind, arguments),
    ]
    absent = [name for name in found if name]
    if absent:
        report.skip(about, "not declared", listed(absent))
    if not declared.is_complete:
        report.skip(about, "the rest", f"not known: {declared.why_not}")
    if client.capabilities.queue_types:
        command = "rabbitmqctl list_queues name policy effective_policy_definition"
        report.skip(about, "policies", "the protocol does not tell those of an administrator", f"See {command!r}")


def _kind(client: Client, arguments: Mapping[str, object]) -> str:
    if client.capabilities.queue_types:
        return str(arguments.get(_TYPE, CLASSIC))
    for name, kind in (
        ("qpid.last_value_queue_key", "last value queue"),
        ("qpid.last_value_queue", "last value queue"),
        ("x-qpid-priorities", "priority queue"),
        ("qpid.queue_sort_key", "sorted queue"),
        ("x-max-priority", "priority queue"),
    ):
        if arguments.get(name):
            return kind
    return str(arguments.get(_TYPE, "standard"))


def _limits(report: Report, about: str, arguments: Mapping[str, object]) -> str:
    """Report the limits of a queue; return the name of what it has not. The same of the functions below."""
    limits = _given(arguments, _LIMITS)
    if not limits:
        return "limits"
    policy = str(arguments.get("x-overflow") or arguments.get("qpid.policy_type") or "")
    is_log = arguments.get(_TYPE) == STREAM
    drops = policy in _DROPS or (not policy and any(name.startswith("x-max-length") for name in arguments))
    if drops and not is_log:
        advice = (
            "A full queue drops its oldest messages: let it refuse new ones (x-overflow=reject-publish), or drain it"
        )
        report.warn(about, "limits", limits, advice)
    elif is_log:
        report.warn(about, "limits", limits, "The broker deletes what is older, read or not: read it before")
    else:
        report.ok(about, "limits", limits)
    return ""


def _times(report: Report, about: str, arguments: Mapping[str, object]) -> str:
    times = _given(arguments, _TIMES)
    if not times:
        return "time to live"
    advice = "Messages that wait longer are lost to the query, or the queue itself is: drain it in time, or raise this"
    report.warn(about, "time to live", times, advice)
    return ""


def _dead_letters(report: Report, about: str, arguments: Mapping[str, object], alternate: str | None) -> str:
    named = _given(arguments, _DEAD) or (f"alternate exchange {alternate!r}" if alternate else "")
    if not named:
        return "dead letters (what is rejected is dropped)"
    report.ok(about, "dead letters", named)
    return ""


def _deliveries(report: Report, about: str, client: Client, kind: str, arguments: Mapping[str, object]) -> str:
    limit = _given(arguments, _DELIVERIES)
    if kind == QUORUM and not limit and client.capabilities.unlimited_deliveries:
        advice = f"Each crash of a reader counts: declare the queue with {_LIMIT}=-1, or set a policy"
        value = "20 returns, the default of RabbitMQ, if no policy sets it; then a message is dropped"
        report.warn(about, "delivery limit", value, advice)
        return ""
    if not limit:
        return "delivery limit"
    if arguments.get(_LIMIT) == -1:
        report.ok(about, "delivery limit", "none, as declared")
        return ""
    advice = "Each crash of a reader is a delivery: raise the limit, and declare where dead letters go"
    report.warn(about, "delivery limit", limit, advice)
    return ""


def _given(arguments: Mapping[str, object], names: tuple[str, ...]) -> str:
    return listed(f"{name}={arguments[name]}" for name in names if name in arguments)
