"""Which delivery guarantees this broker and this login can give, and why not (docs/delivery.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_spark.cli.errors import EXIT_OPTIONS
from amqp_spark.diagnosis import exchanges, queues
from amqp_spark.diagnosis.findings import Status, listed
from amqp_spark.diagnosis.rights import needs_lock
from amqp_spark.options import CLASSIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from amqp_core.api import Capabilities
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.rights import Rights
    from amqp_spark.diagnosis.site import Site

SECTION: Final = "guarantees"
_NO_RIGHTS: Final = (
    "no: the login may not use {} transactions, or may not declare queues, write to them or read from them"
)


@dataclass(frozen=True, slots=True)
class _Side:
    """Source or sink. Immutable: any thread may use it.

    Attributes:
        name: of the findings.
        verb, what: how it uses what.
        sections: titles of the findings about those that the user has named.
        right: whether the login may use them all; ``None``: not known.
    """

    name: str
    verb: str
    what: str
    sections: Sequence[str]
    right: bool | None


def examine(
    report: Report, site: Site, capabilities: Capabilities, rights: Rights, queue_types: Mapping[str, str]
) -> None:
    """Report what source and sink can promise: nothing where a queue or an exchange cannot be used.

    Args:
        report: has what was found of the user's queues and exchanges.
        queue_types: of the queues whose type is known, on a broker that has types of queues.
    """
    source = _Side("source", "read", "queue", [queues.section(each) for each in site.queues], rights.read)
    if _can_be_used(report, source):
        _promise(report, source, source.name, "at-most-once, at-least-once")
        _source(report, source, site, capabilities, rights, queue_types=queue_types)
    sink = _Side("sink", "write to", "exchange", [exchanges.section(each) for each in site.exchanges], rights.write)
    if not _can_be_used(report, sink):
        return
    if not capabilities.confirms:
        advice = "Use a broker with publisher confirms"
        report.fail(SECTION, sink.name, "none: the broker confirms no messages", advice, exit_code=EXIT_OPTIONS)
        return
    _promise(report, sink, sink.name, "at-least-once")
    _sink(report, sink, capabilities, rights, wanted=site.wants_sink)


def _can_be_used(report: Report, side: _Side) -> bool:
    """Whether nothing has been found that keeps the side from its queues or exchanges; else report it."""
    if side.right is False:
        value = f"none: the login may not {side.verb} the {side.what}"
        report.fail(SECTION, side.name, value, f"Let it be granted the right to {side.verb} it")
        return False
    missing = [section for section in side.sections if report.is_wrong(section, "exists", "examination")]
    if missing:
        report.skip(SECTION, side.name, f"not known: {listed(missing)} cannot be used, see there")
    return not missing


def _promise(report: Report, side: _Side, name: str, value: str) -> None:
    """Report what can be promised, and what of it is not known."""
    condition = f"{value}, if the login may {side.verb} the {side.what}"
    if not side.sections:
        report.skip(SECTION, name, f"{condition}: not checked, since no {side.what} was named")
    elif side.right is None:
        report.ok(SECTION, name, f"{condition}, which is not known")
    else:
        report.ok(SECTION, name, value)


def _source(
    report: Report,
    side: _Side,
    site: Site,
    capabilities: Capabilities,
    rights: Rights,
    *,
    queue_types: Mapping[str, str],
) -> None:
    name, wanted = "source, exactly-once", site.wants_source
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
            if site.declares and site.queue_type is None:
                advice = (
                    f"Set queueType=quorum, if declare=ifMissing makes the queue. Else: {advice[0].lower()}{advice[1:]}"
                )
            report.add(SECTION, name, Status.ERROR if wanted else Status.SKIPPED, value, advice)
        elif queue_types:
            _promise(report, side, name, f"yes: {listed(sorted(set(queue_types.values())))}")
        else:
            _promise(report, side, name, "from quorum queues and streams, not from classic queues")
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
        _promise(report, side, name, "yes, with consumerId and spoolLocation")


def _sink(report: Report, side: _Side, capabilities: Capabilities, rights: Rights, *, wanted: bool) -> None:
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
        _promise(report, side, name, "yes, with transactionalId")


def _not_offered(report: Report, name: str, value: str, advice: str, *, wanted: bool) -> None:
    """What is missing is an error if it is wanted."""
    status = Status.ERROR if wanted else Status.SKIPPED
    report.add(SECTION, name, status, value, advice, exit_code=EXIT_OPTIONS)
