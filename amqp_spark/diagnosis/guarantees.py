"""Which delivery guarantees this broker and this login can give, and why not (docs/delivery.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.cli.errors import EXIT_OPTIONS
from amqp_spark.diagnosis.findings import Status, listed
from amqp_spark.diagnosis.rights import needs_lock
from amqp_spark.options import CLASSIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.api import Capabilities
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.rights import Rights
    from amqp_spark.diagnosis.site import Site

SECTION: Final = "guarantees"
_NO_RIGHTS: Final = (
    "no: the login may not use {} transactions, or may not declare queues, write to them or read from them"
)


def examine(
    report: Report, site: Site, capabilities: Capabilities, rights: Rights, queue_types: Mapping[str, str]
) -> None:
    """Report what source and sink can promise.

    Args:
        queue_types: of the queues whose type is known, on a broker that has types of queues.
    """
    if rights.read is False:
        report.fail(SECTION, "source", "none: the login may not read the queue", "Let it be granted the right to read")
    else:
        report.ok(SECTION, "source", "at-most-once, at-least-once")
        _source(report, site, capabilities, rights, queue_types, wanted=site.wants_source)
    if rights.write is False:
        report.fail(
            SECTION, "sink", "none: the login may not write to the exchange", "Let it be granted the right to write"
        )
        return
    if not capabilities.confirms:
        advice = "Use a broker with publisher confirms"
        report.fail(SECTION, "sink", "none: the broker confirms no messages", advice, exit_code=EXIT_OPTIONS)
        return
    report.ok(SECTION, "sink", "at-least-once")
    _sink(report, capabilities, rights, wanted=site.wants_sink)


def _source(
    report: Report,
    site: Site,
    capabilities: Capabilities,
    rights: Rights,
    queue_types: Mapping[str, str],
    *,
    wanted: bool,
) -> None:
    name = "source, exactly-once"
    if capabilities.counts_deliveries:
        classic = sorted(queue for queue, kind in queue_types.items() if kind == CLASSIC)
        if classic:
            are = "is a classic queue" if len(classic) == 1 else "are classic queues"
            value = f"no: {listed(map(repr, classic))} {are}, which a crash of the broker may rewind"
            _not_offered(report, name, value, "Use a quorum queue or a stream", wanted=wanted)
        elif rights.declare is False and needs_lock(site, queue_types):
            value = "no from quorum queues: the login may not declare the lock; yes from streams"
            _not_offered(report, name, value, "Let it be granted the rights of docs/operations.md", wanted=wanted)
        elif unknown := sorted(set(site.queues) - queue_types.keys()):
            value = f"not known: the type of {listed(map(repr, unknown))} could not be learned"
            advice = "Let the login be granted the right configure for the queue: the source asks for its type, too"
            report.add(SECTION, name, Status.ERROR if wanted else Status.SKIPPED, value, advice)
        elif queue_types:
            report.ok(SECTION, name, f"yes: {listed(sorted(set(queue_types.values())))}")
        else:
            report.ok(SECTION, name, "from quorum queues and streams, not from classic queues")
        return
    if not (capabilities.local_transactions and capabilities.binding_queries):
        value = "no: the broker is not known to keep local transactions whole, or cannot be asked for bindings"
        _not_offered(report, name, value, "Use AMQP 0-10, Broker-J, or RabbitMQ", wanted=wanted)
    elif False in (rights.local_transactions, rights.declare, rights.own_queues):
        value = _NO_RIGHTS.format("local")
        _not_offered(report, name, value, "Let it be granted the rights of docs/operations.md", wanted=wanted)
    elif rights.local_transactions is None:
        report.skip(SECTION, name, "not known: local transactions could not be tried")
    else:
        report.ok(SECTION, name, "yes, with consumerId and spoolLocation")


def _sink(report: Report, capabilities: Capabilities, rights: Rights, *, wanted: bool) -> None:
    name = "sink, exactly-once"
    if not capabilities.distributed_transactions:
        value = "no: the protocol has no distributed transactions"
        advice = "Use at-least-once with stableMessageId, and let consumers drop what comes twice; or AMQP 0-10"
        _not_offered(report, name, value, advice, wanted=wanted)
    elif False in (rights.distributed_transactions, rights.declare, rights.own_queues):
        value = _NO_RIGHTS.format("distributed")
        _not_offered(report, name, value, "Let it be granted the rights of docs/operations.md", wanted=wanted)
    elif rights.distributed_transactions is None:
        report.skip(SECTION, name, "not known: distributed transactions could not be tried")
    else:
        report.ok(SECTION, name, "yes, with transactionalId")


def _not_offered(report: Report, name: str, value: str, advice: str, *, wanted: bool) -> None:
    """What is missing is an error if it is wanted."""
    status = Status.ERROR if wanted else Status.SKIPPED
    report.add(SECTION, name, status, value, advice, exit_code=EXIT_OPTIONS)
