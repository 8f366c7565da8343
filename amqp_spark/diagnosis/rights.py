"""What the login may do: tried on temporary queues of one session, which end with it.

Whether it may use the user's own queues and exchanges is found out without their use, where the broker allows that (see
:attr:`amqp_core.api.Capabilities.checks_rights_first`); elsewhere it is not tried, and the report says so.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from amqp_core.api import Xid
from amqp_core.errors import (
    AmqpError,
    ConnectionFailed,
    DeadlineExceeded,
    NotFound,
    OutcomeUnknown,
    PublisherStopped,
    PublishingBlocked,
    UnauthorizedAccess,
)
from amqp_spark.cli.errors import EXIT_BROKER
from amqp_spark.diagnosis import exchanges, queues
from amqp_spark.diagnosis.findings import Status, told
from amqp_spark.diagnosis.site import temporary_name
from amqp_spark.options import QUORUM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amqp_core.api import Capabilities, Client
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.site import Site

SECTION: Final = "rights"
_FORMAT: Final = 0x444F43
"""Format number of the xids of the doctor."""
_NOT_TRIED: Final = "not tried: this broker may look at other things first, so only use would show it"


_NO_ANSWER: Final = (ConnectionFailed, DeadlineExceeded, OutcomeUnknown, PublishingBlocked, PublisherStopped)
"""Errors that say nothing of rights, such as of a broker that takes no messages while its memory is low."""
_NO_QUEUE: Final = "not tried: there is no temporary queue"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Something that is tried. Immutable: any thread may use it.

    Attributes:
        name: of the finding.
        run: does it.
        value: what was done, if it works.
        purpose: what may need it, besides exactly-once.
    """

    name: str
    run: Callable[[Client], None]
    value: str
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class Rights:
    """What was found: ``None``: not tried. Immutable: any thread may use it."""

    declare: bool | None = None
    local_transactions: bool | None = None
    distributed_transactions: bool | None = None
    own_queues: bool | None = None
    """To write to queues of its own, and to read from them."""
    read: bool | None = None
    """Of all queues of the user."""
    write: bool | None = None
    """To all exchanges of the user."""


@dataclass(frozen=True, slots=True)
class Need:
    """What exactly-once needs. Immutable: any thread may use it.

    Attributes:
        ever: names of the attempts that some use of it needs on this broker.
        now: names of those that the use that is wanted needs; a refusal of one of them is an error.
    """

    ever: frozenset[str]
    now: frozenset[str]


def needed(site: Site, capabilities: Capabilities, queue_types: Mapping[str, str]) -> Need:
    """What exactly-once needs on this broker: nothing where the broker does not offer it.

    Args:
        queue_types: of the queues whose type is known, on a broker that has types of queues.
    """
    queues_of_states = {_DECLARE.name, _WRITE.name, _READ.name}
    source: set[str] = set()
    if capabilities.counts_deliveries:
        source = {_DECLARE.name}  # the lock of a quorum queue, which nothing is published to
    elif capabilities.local_transactions and capabilities.binding_queries:
        source = queues_of_states | {_LOCAL.name}
    sink = queues_of_states | {_DISTRIBUTED.name} if capabilities.distributed_transactions else set()
    now = set(sink) if site.wants_sink else set()
    if site.wants_source and (not capabilities.counts_deliveries or needs_lock(site, queue_types)):
        now |= source
    return Need(frozenset(source | sink), frozenset(now))


def needs_lock(site: Site, queue_types: Mapping[str, str]) -> bool:
    """Whether a queue is, or may be, of type quorum, on a broker that counts the deliveries of those."""
    return not site.queues or any(queue_types.get(queue, QUORUM) == QUORUM for queue in site.queues)


def examine(report: Report, site: Site, capabilities: Capabilities, queue_types: Mapping[str, str]) -> Rights:
    """Try what the connector does, each with a client of its own, since a refusal may end the client.

    Args:
        queue_types: as of :func:`needed`.
    """
    need = needed(site, capabilities, queue_types)
    declare = _try(report, site, _DECLARE, need)
    of_own: list[bool | None] = []
    for attempt in (_WRITE, _READ):
        if declare:
            of_own.append(_try(report, site, attempt, need))
        else:
            report.skip(SECTION, attempt.name, _NO_QUEUE)
    local = distributed = None
    if not capabilities.local_transactions:
        report.skip(SECTION, _LOCAL.name, "this broker does not keep them whole: not used, not tried")
    elif declare:
        local = _try(report, site, _LOCAL, need)
    else:
        report.skip(SECTION, _LOCAL.name, _NO_QUEUE)
    if not capabilities.distributed_transactions:
        report.skip(SECTION, _DISTRIBUTED.name, "the protocol has none")
    elif declare:
        distributed = _try(report, site, _DISTRIBUTED, need)
    else:
        report.skip(SECTION, _DISTRIBUTED.name, _NO_QUEUE)
    return Rights(declare, local, distributed, _all(of_own), *_examine_own(report, site))


def _try(report: Report, site: Site, attempt: Attempt, need: Need) -> bool | None:
    """Report whether something works; ``None`` if the connection failed, or the broker did not answer: not known."""
    name = attempt.name
    try:
        with site.connect() as client:
            attempt.run(client)
    except _NO_ANSWER as error:
        report.refused(SECTION, name, error)
        return None
    except AmqpError as error:
        problem, remedy = told(error)
        uses = [*(["exactly-once"] if name in need.ever else []), *([attempt.purpose] if attempt.purpose else [])]
        purpose = " and ".join(uses)
        if name in need.now:
            status = Status.ERROR
        elif site.exactly_once or not uses:
            report.skip(SECTION, name, f"not needed for what is examined: {problem}")
            return False
        else:
            status = Status.WARNING
        report.add(
            SECTION, name, status, problem, f"{remedy}: needed for {purpose}" if remedy else f"Needed for {purpose}"
        )
        return False
    except Exception as error:  # noqa: BLE001 - the other attempts go on
        report.unexpected(SECTION, name, error)
        return None
    report.ok(SECTION, name, f"yes: {attempt.value}")
    return True


def _declare(client: Client) -> None:
    client.declare_lock(temporary_name())


def _write(client: Client) -> None:
    queue = temporary_name()
    client.declare_lock(queue)
    _publish(client, queue)


def _publish(client: Client, queue: str) -> None:
    client.publish_to_queue(queue, b"amqp-spark doctor", content_type="text/plain")
    try:
        client.confirm()
    except OutcomeUnknown as error:  # what became of the message is of no interest
        raise error.__cause__ or error from None


def _read(client: Client) -> None:
    queue = temporary_name()
    client.declare_lock(queue)
    fetcher = client.fetcher(queue)
    fetcher.grant(1)
    fetcher.take_one(timeout=0.0)  # there is none: to ask needs the right
    fetcher.cancel()


def _commit(client: Client) -> None:
    queue = temporary_name()
    client.declare_lock(queue)
    client.transactions.select()
    _publish(client, queue)
    client.transactions.commit()


def _branch(client: Client) -> None:
    """Begin a branch and roll it back: it is never prepared, so that nothing is left if the doctor is killed."""
    queue, transactions = temporary_name(), client.transactions
    client.declare_lock(queue)
    transactions.dtx_select()
    xid = Xid(_FORMAT, uuid.uuid4().bytes, b"doctor")
    transactions.start(xid)
    _publish(client, queue)
    transactions.end(xid)
    transactions.rollback_branch(xid)


_DECLARE: Final = Attempt("declare", _declare, "a temporary queue", "declare=ifMissing")
_WRITE: Final = Attempt("write", _write, "to a temporary queue, by the default exchange", "sinks that name no exchange")
_READ: Final = Attempt("read", _read, "from a temporary queue", "sources")
_LOCAL: Final = Attempt("local transactions (tx)", _commit, "published and committed")
_DISTRIBUTED: Final = Attempt("distributed transactions (dtx)", _branch, "a branch begun and rolled back")


def _examine_own(report: Report, site: Site) -> tuple[bool | None, bool | None]:
    """The rights on the queues and exchanges of the user; return whether it may read all, and write to all."""
    read = [_ask(report, site, queues.section(queue), "read", partial(_may_read, queue)) for queue in site.queues]
    write = [
        _ask(report, site, exchanges.section(exchange), "write", partial(_may_write, exchange))
        for exchange in site.exchanges
    ]
    return _all(read), _all(write)


def _all(found: Sequence[bool | None]) -> bool | None:
    """Whether a right is there everywhere; ``None`` if that is not known."""
    return False if False in found else None if None in found or not found else True


def _may_read(queue: str, client: Client) -> bool:
    return client.may_read(queue)


def _may_write(exchange: str, client: Client) -> bool:
    return client.may_write(exchange)


def _ask(report: Report, site: Site, about: str, right: str, question: Callable[[Client], bool]) -> bool | None:
    try:
        with site.connect() as client:
            if not client.capabilities.checks_rights_first:
                report.skip(about, right, _NOT_TRIED)
                return None
            is_there = question(client)
    except NotFound:
        return None  # that it does not exist has been said
    except UnauthorizedAccess as error:
        report.skip(about, right, f"not known, since it depends on the routing key: {told(error)[0]}")
        return None
    except AmqpError as error:
        report.skip(about, right, f"not known: {told(error)[0]}")
        return None
    except Exception as error:  # noqa: BLE001 - the other questions go on
        report.unexpected(about, right, error)
        return None
    if is_there:
        report.ok(about, right, "the login has the right")
    else:
        advice = f"Let the broker's administrator grant the login the right to {right}"
        report.fail(about, right, "the login has no right", advice, exit_code=EXIT_BROKER)
    return is_there
