"""What the login may do: tried on temporary queues of one session, which end with it.

Whether it may use the user's own queues and exchanges is found out without their use, where the broker allows that (see
:attr:`amqp_core.api.Capabilities.checks_rights_first`); elsewhere it is not tried, and the report says so.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_core.api import Xid
from amqp_core.errors import AmqpError, ConnectionFailed
from amqp_spark.cli.errors import EXIT_BROKER
from amqp_spark.diagnosis import exchanges, queues
from amqp_spark.diagnosis.findings import Status, told
from amqp_spark.diagnosis.site import temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Client
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.site import Site

SECTION: Final = "rights"
_ARRIVAL_SECONDS: Final = 10.0
_FORMAT: Final = 0x444F43
"""Format number of the xids of the doctor."""
_NOT_TRIED: Final = "not tried: this broker may look at other things first, so only use would show it"


@dataclass(frozen=True, slots=True)
class Rights:
    """What was found: ``None``: not tried. Immutable: any thread may use it."""

    declare: bool | None = None
    local_transactions: bool | None = None
    distributed_transactions: bool | None = None
    read: bool | None = None
    """Of all queues of the user."""


def examine(report: Report, site: Site) -> Rights:
    """Try what the connector does, each with a client of its own, since a refusal may end the client."""
    with site.connect() as client:
        capabilities = client.capabilities
    declare = _try(report, site, "declare", _declare, "a temporary queue")
    if declare:
        _try(report, site, "write", _write, "to a temporary queue, by the default exchange")
        _try(report, site, "read", _read, "from a temporary queue")
    else:
        for name in ("write", "read"):
            report.skip(SECTION, name, "not tried: there is no temporary queue")
    local = distributed = None
    if capabilities.local_transactions and declare:
        local = _try(report, site, "local transactions (tx)", _commit, "published and committed")
    elif not capabilities.local_transactions:
        report.skip(SECTION, "local transactions (tx)", "this broker does not keep them whole: not used, not tried")
    else:
        report.skip(SECTION, "local transactions (tx)", "not tried: there is no temporary queue")
    if capabilities.distributed_transactions and declare:
        distributed = _try(report, site, "distributed transactions (dtx)", _branch, "a branch begun and rolled back")
    elif not capabilities.distributed_transactions:
        report.skip(SECTION, "distributed transactions (dtx)", "the protocol has none")
    else:
        report.skip(SECTION, "distributed transactions (dtx)", "not tried: there is no temporary queue")
    return Rights(declare, local, distributed, _examine_own(report, site))


def _try(report: Report, site: Site, name: str, attempt: Callable[[Client], None], value: str) -> bool | None:
    """Report whether something works; ``None`` if the connection failed, so that it is not known."""
    needed = site.exactly_once
    try:
        with site.connect() as client:
            attempt(client)
    except ConnectionFailed as error:
        report.refused(SECTION, name, error)
        return None
    except AmqpError as error:
        report.refused(SECTION, name, error, status=Status.ERROR if needed else Status.WARNING)
        return False
    report.ok(SECTION, name, f"yes: {value}")
    return True


def _declare(client: Client) -> None:
    client.declare_lock(temporary_name())


def _write(client: Client) -> None:
    queue = temporary_name()
    client.declare_lock(queue)
    _publish(client, queue)


def _publish(client: Client, queue: str) -> None:
    client.publish_to_queue(queue, b"amqp-spark doctor", content_type="text/plain")
    client.confirm()


def _read(client: Client) -> None:
    queue = temporary_name()
    client.declare_lock(queue)
    fetcher = client.fetcher(queue)
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


def _examine_own(report: Report, site: Site) -> bool | None:
    """The rights on the queues and exchanges of the user; return whether it may read all the queues."""
    may_read = [
        _ask(report, site, queues.section(queue), "read", lambda client, name=queue: client.may_read(name))
        for queue in site.queues
    ]
    for exchange in site.exchanges:
        about = exchanges.section(exchange)
        _ask(report, site, about, "write", lambda client, name=exchange: client.may_write(name))
    if any(each is False for each in may_read):
        return False
    return True if may_read and all(may_read) else None


def _ask(
    report: Report, site: Site, about: str, right: str, question: Callable[[Client], bool]
) -> bool | None:
    exists = report.of(about, "exists")
    if exists is not None and exists.status is Status.ERROR:
        return None
    try:
        with site.connect() as client:
            if not client.capabilities.checks_rights_first:
                report.skip(about, right, _NOT_TRIED)
                return None
            is_there = question(client)
    except AmqpError as error:
        report.skip(about, right, f"not known: {told(error)[0]}")
        return None
    if is_there:
        report.ok(about, right, "the login has the right")
    else:
        advice = f"Let the broker's administrator grant the login the right to {right}"
        report.fail(about, right, "the login has no right", advice, exit_code=EXIT_BROKER)
    return is_there
