"""The options of the sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from amqp_spark.error_conditions import FOR_STABLE_IDS, NAMES_OF_STABLE_IDS
from amqp_spark.errors import OptionError
from amqp_spark.options import kinds
from amqp_spark.options.connection import CONNECTION, ConnectionSettings
from amqp_spark.options.parsing import AT_LEAST_ONCE, EXACTLY_ONCE, STREAM, Given, option, options_of

if TYPE_CHECKING:
    from collections.abc import Mapping

FAIL = "fail"
DISCARD = "discard"
DROP = "drop"
HIGHEST_PRIORITY_OF_0_10 = 9
SHORTEST_TRANSACTION_SECONDS = 20
"""Shortest ``transactionTimeout``: a restart may wait a quarter of it, to see which transactions were committed."""
BEYOND_HEARTBEATS_SECONDS = 15
"""A transaction lasts at least two heartbeats and so many seconds: a restart may wait as long for its lock."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SinkOptions(ConnectionSettings):
    """Checked options of one sink. Times in seconds, ``ttl`` in milliseconds. ``repr`` shows no secret; pickles whole.

    An option that overrides a column is ``None`` if it was not given. ``delivery_mode`` is the number on the wire.
    Build it with :meth:`parse`. It is sent to executors with credentials, since they connect to the broker.
    """

    # fmt: off
    exchange: str = option(
        "exchange", kinds.exchange_name(), "",
        "The exchange to publish to. The default exchange (the empty name) routes by queue name.",
        shown="the default exchange",
    )
    exchange_from_column: bool = option(
        "exchangeFromColumn", kinds.boolean(), False,
        "Whether the column `exchange` names the exchange of each row; NULL: that of the option `exchange`. "
        "Otherwise that column is ignored, so that rows that were read can be written to another exchange.",
    )
    routing_key: str | None = option(
        "routingKey", kinds.short_text(), None,
        "Routing key of every message, instead of the column `routing_key`.",
    )
    delivery_mode: int | None = option(
        "deliveryMode", kinds.number_of("non-persistent", "persistent"), None,
        "Whether a durable queue keeps the message when the broker restarts. Instead of the column "
        "`delivery_mode`.",
        shown="persistent, unless there is a column",
    )
    ttl: int | None = option(
        "ttl", kinds.integer(0, 2**63 - 1), None,
        "Time to live in milliseconds, instead of the column `ttl`.",
    )
    priority: int | None = option(
        "priority", kinds.integer(0, 255), None,
        "Priority of every message, instead of the column `priority`; with 0-10 at most 9. Brokers of 0-10 take an "
        "absent one as 4.",
    )
    content_type: str | None = option(
        "contentType", kinds.short_text(), None,
        "MIME type of every body, instead of the column `content_type`.",
        shown="none; amqp/map for a body that is a map",
    )
    timestamp_unit: str = option(
        "timestampUnit", kinds.choice("auto", "s", "ms"), "auto",
        "Unit in which TIMESTAMP columns `timestamp` and `expiration` are sent: `auto` is milliseconds, as the "
        "Java client and Broker-J do; `s` is seconds, as in the specification and Qpid C++. BIGINT columns are "
        "sent as they are.",
    )
    delivery_guarantee: str = option(
        "deliveryGuarantee", kinds.choice(AT_LEAST_ONCE, EXACTLY_ONCE), AT_LEAST_ONCE,
        "`at-least-once`: a task succeeds when the broker has completed every transfer of it; messages that are "
        "sent again may arrive twice. `exactly-once`: each task prepares a transaction (dtx), which the driver "
        "commits after it has recorded that decision on the broker (docs/delivery.md).",
    )
    transactional_id: str | None = option(
        "transactionalId", kinds.identity(), None,
        "Identity of this writer across restarts: required for exactly-once, where no two queries may have the same "
        "one; with `stableMessageId` it takes the place of the query id. Otherwise without effect, hence refused.",
    )
    transaction_timeout: int = option(
        "transactionTimeout", kinds.integer(SHORTEST_TRANSACTION_SECONDS, 86_400), 3600,
        "Exactly-once only: seconds from the first row of a task to the commit of its batch, after which the "
        "broker rolls back. A broker that allows less (qpidd: option dtx-max-timeout, 3600) refuses more. A "
        "restart may have to wait before it commits: twice the `heartbeat` and 15 seconds are the minimum.",
    )
    batch_id: int | None = option(
        "batchId", kinds.integer(0, 2**63 - 1), None,
        "Id of a batch write: for `stampHeaders` and `stableMessageId`, and for exactly-once, where it is required and "
        "each new write needs a greater one. Streams have their own.",
    )
    on_unroutable: str = option(
        "onUnroutable", kinds.choice(FAIL, DISCARD), FAIL,
        "Treatment of a message that the broker cannot route to any queue, as far as it reports (docs/delivery.md): "
        "`fail` the task, or `discard` the message and count it.",
    )
    on_unsupported: str = option(
        "onUnsupported", kinds.choice(FAIL, DROP), FAIL,
        "Treatment of a column that is not NULL and for which the protocol has no property, such as `type` with 0-10 "
        "and `resume_id` with 0-9-1 (docs/columns.md), and of a text `message_id` that is no UUID, with 0-10: `fail` "
        "the task, or `drop` the value.",
    )
    queue_type: str | None = option(
        "queueType", kinds.choice(STREAM), None,
        "RabbitMQ only: `stream` says that the messages go to streams, which keep less than queues: arrays, structs "
        "and maps in headers, VARIANT headers, and `cluster_id` are refused. With `onUnsupported=drop` they are sent "
        "and the broker leaves them out. A decimal in encoded headers (BINARY), for which it closes the connection, is "
        "always refused; DECIMAL is sent as text.",
    )
    max_in_flight: int = option(
        "maxInFlight", kinds.integer(1, 1_000_000), 10_000,
        "Most transfers of a task that are sent and not completed by the broker; there are fewer while it is "
        "slow, and at most 32 MiB of them (4 MiB with qpidd).",
    )
    blocked_timeout: float = option(
        "blockedTimeout", kinds.seconds(1, 86_400), 600.0,
        "Seconds for which a task waits for a broker that blocks its publishers, as RabbitMQ does while its memory or "
        "disk is low, or that stops them, as Broker-J does while a queue is full; with AMQP 0-9-1 also for one that "
        "confirms nothing of what is sent, as a quorum queue without a majority. The log has warnings meanwhile. Then "
        "a task fails that publishes with AMQP 0-9-1, or exactly once. Another one tries one message on a new "
        "connection, and waits again if the broker stops that, too.",
    )
    stamp_headers: bool = option(
        "stampHeaders", kinds.boolean(), False,
        "Adds application headers by which a replay is recognized: `amqp-spark.query-id` (a stream's), "
        "`amqp-spark.batch-id`, `amqp-spark.partition` and `amqp-spark.row` (place in the partition, from 0).",
    )
    stable_message_id: bool = option(
        "stableMessageId", kinds.boolean(), False,
        "Sets `message_id` to query id (or `transactionalId`), batch, partition and row of each message, joined by "
        "hyphens; with 0-10 to a UUID made of that text. It is the same when a task or a batch is tried again "
        "(docs/delivery.md). A batch write needs `transactionalId` and `batchId`. A column `message_id` is refused.",
    )
    # fmt: on

    @property
    def exactly_once(self) -> bool:
        """Whether tasks prepare transaction branches and the driver decides on their commit."""
        return self.delivery_guarantee == EXACTLY_ONCE

    @property
    def drops_unsupported(self) -> bool:
        """Whether values are dropped that the protocol has no property for."""
        return self.on_unsupported == DROP

    @classmethod
    def parse(cls, options: Mapping[str, object], *, batch_write: bool = False) -> SinkOptions:
        """Check the options of a sink (keys in any case, values as text or Python values); OptionError lists every
        problem. ``batch_write``: of a write that has no batch id of Spark's."""
        given = Given((*CONNECTION, *SINK), "sink", options)
        _check_guarantee(given)
        if batch_write:
            _check_identity(given)
        priority = given.values["priority"]
        if given.values["protocol"] == "0-10" and isinstance(priority, int) and priority > HIGHEST_PRIORITY_OF_0_10:
            given.refuse("priority", priority, f"an integer from 0 to {HIGHEST_PRIORITY_OF_0_10}", " with 0-10")
        if given.problems:
            raise OptionError(given.problems)
        return cls(**cast("dict[str, Any]", given.values))


WITHOUT_PREPARED_TRANSACTIONS = ("0-9-1", "0-9")
"""Protocols whose brokers cannot prepare a transaction."""
SINK = options_of(SinkOptions, "sink", CONNECTION)


def _check_guarantee(given: Given) -> None:
    guarantee = given.values["delivery_guarantee"]
    setting = f"deliveryGuarantee={guarantee}"
    if guarantee != EXACTLY_ONCE:
        remedy = f"set deliveryGuarantee={EXACTLY_ONCE}"
        given.refuse_unused(setting, remedy, "transactionTimeout")
        if not given.values["stable_message_id"]:
            given.refuse_unused(setting, f"{remedy} or stableMessageId=true", "transactionalId")
        return
    protocol = given.values["protocol"]
    if protocol in WITHOUT_PREPARED_TRANSACTIONS:
        remedy = (
            "at-least-once, with stableMessageId=true so that readers can drop what comes twice; exactly-once with "
            "protocol=0-10 if the broker is Broker-J"
        )
        given.refuse("deliveryGuarantee", repr(guarantee), remedy, f" with protocol={protocol}")
    if "transactionalId" not in given:
        given.require("transactionalId", "a name for this writer that never changes", f" with {setting}")
    given.refuse_no_heartbeat()
    heartbeat, timeout = given.values["heartbeat"], given.values["transaction_timeout"]
    if not isinstance(heartbeat, int) or not isinstance(timeout, int):  # refused before
        return
    least = 2 * heartbeat + BEYOND_HEARTBEATS_SECONDS
    if timeout < least:  # a restart may have to wait until the broker gives up a writer that died
        allowed = f"{least} to 86400, or a shorter heartbeat"
        given.refuse("transactionTimeout", timeout, allowed, f" with heartbeat={heartbeat}")


def _check_identity(given: Given) -> None:
    """Require what names the rows of a batch write, for which Spark has no id; exactly-once requires `transactionalId`
    of all writes."""
    if given.values["delivery_guarantee"] == EXACTLY_ONCE:
        reason = f" by a batch write with deliveryGuarantee={EXACTLY_ONCE}"
        needed = {"batchId": "a number that is greater for each new write, and the same when a write is repeated"}
    elif given.values["stable_message_id"]:
        reason, needed = FOR_STABLE_IDS, NAMES_OF_STABLE_IDS
    else:
        return
    for name, allowed in needed.items():
        if name not in given:
            given.require(name, allowed, reason)
