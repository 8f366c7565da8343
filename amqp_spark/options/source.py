"""The options of the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from amqp_spark.errors import OptionError
from amqp_spark.options import kinds
from amqp_spark.options.connection import CONNECTION, ConnectionSettings
from amqp_spark.options.log_positions import LogPositions, log_positions
from amqp_spark.options.parsing import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    DERIVED,
    EXACTLY_ONCE,
    REQUIRED,
    STREAM,
    Given,
    option,
    options_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILFAST = "FAILFAST"
REJECT = "REJECT"
PERMISSIVE = "PERMISSIVE"
CLASSIC = "classic"
QUORUM = "quorum"
_MOST_PORT = 65535
_DEFAULT_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SourceOptions(ConnectionSettings):
    """Checked options of one source. Sizes in bytes, times in seconds. ``repr`` shows no secret; pickles whole.

    Build it with :meth:`parse`. Send executors the copy of :meth:`for_executors`.
    """

    # fmt: off
    queues: tuple[str, ...] = option(
        "queue", kinds.queue_names(), REQUIRED,
        "The queue to read, or a comma list of queues.",
    )
    consumer_id: str | None = option(
        "consumerId", kinds.identity(), None,
        "Identity of this consumer across restarts and drivers. Required for exactly-once from queues, where no two "
        "queries may have the same one. Not for streams.",
    )
    exclusive: bool = option(
        "exclusive", kinds.boolean(), False,
        "Subscribe exclusively: a second consumer of the queue is refused, after 2 x `heartbeat` + 5 seconds in "
        "which one that died may still be seen. Otherwise a queue that already has consumers is a warning, "
        "because each consumer gets a part of the messages.",
    )
    delivery_guarantee: str = option(
        "deliveryGuarantee", kinds.choice(AT_LEAST_ONCE, EXACTLY_ONCE, AT_MOST_ONCE), AT_LEAST_ONCE,
        "`at-least-once`: accepted after Spark logged the batch, redelivered after a crash. `at-most-once`: "
        "accepted on transfer. `exactly-once`: accepted into a spool, in one transaction with a record on the "
        "broker; from a quorum queue of RabbitMQ with a record in the spool (docs/delivery.md). Streams: both "
        "`at-least-once` and `exactly-once` mean offsets in the checkpoint, without a spool; `at-most-once` is "
        "refused.",
    )
    spool_location: str | None = option(
        "spoolLocation", kinds.directory_uri(), None,
        "Directory for planned batches, as a path or a URI that Arrow supports (`file:`, `s3:`, `gs:`, `hdfs:`, "
        "`abfs:`), without credentials; for exactly-once from queues only, where it is required. The messages of a "
        "planned batch are nowhere else: it must be as durable as the checkpoint, and reached by every driver that may "
        "run the query. One directory for each `consumerId`.",
    )
    adopt_state: bool = option(
        "adoptState", kinds.boolean(), False,
        "Exactly-once only: take over the state of `consumerId` although it does not fit the checkpoint (rolled "
        "back, copied, of another query), or the broker has lost it. Batches that are owned and not finished are "
        "offered again; messages that the checkpoint lacks may be lost to it, or come twice. Remove the option "
        "once a batch is committed.",
    )
    query_checkpoint: str | None = option(
        "queryCheckpoint", kinds.directory_uri(), None,
        "The `checkpointLocation` of the query (which Spark does not pass to a source), as a path or a URI that "
        "Arrow supports. A query that is stopped between two batches (`query.stop()`, `processingTime`) reads "
        "there whether its last batch is committed, and accepts it; otherwise the broker sends that batch again. "
        "Not needed with exactly-once.",
    )
    max_messages_per_trigger: int | None = option(
        "maxMessagesPerTrigger", kinds.integer(1, 2**31 - 1), None,
        "Most messages of one micro-batch, over all queues.",
        shown="no limit",
    )
    min_messages_per_trigger: int = option(
        "minMessagesPerTrigger", kinds.integer(1, 2**31 - 1), 1,
        "A micro-batch waits for this many messages, over all queues, but not longer than `maxTriggerDelay`, and "
        "not when the buffer or the batch has no room for more. AvailableNow does not wait.",
    )
    max_trigger_delay: float = option(
        "maxTriggerDelay", kinds.duration(), 900.0,
        "Time after the last micro-batch (or the start) from which fewer than `minMessagesPerTrigger` are enough.",
        shown="15m",
    )
    max_bytes_per_trigger: int = option(
        "maxBytesPerTrigger", kinds.size(), DERIVED,
        "Most bytes of one micro-batch, counted as received (frames included), over all queues. One larger "
        "message passes alone.",
        shown="64m, or bufferBytes if that is less",
    )
    buffer_bytes: int = option(
        "bufferBytes", kinds.size(), DERIVED,
        "Most bytes that the receiver holds over all queues, received and not accepted yet, besides one message and "
        "16 MiB ([memory](delivery.md#memory-of-the-source)). Other consumers do not see these messages.",
        shown="2 x maxBytesPerTrigger",
    )
    num_partitions: int = option(
        "numPartitions", kinds.integer(1, 10_000), 2,
        "Most partitions of one micro-batch and queue; more where a batch travels inside the partitions (`transfer`), "
        "of which each then has about 16 MiB at most. Small parts of several queues are in one partition.",
    )
    num_readers: int = option(
        "numReaders", kinds.integer(1, 64), 1,
        "Most processes that receive, of which each gets some of the queues of `queue`. For several queues that bring "
        "more messages than one process on one core takes: about a million per second. Each has an equal share of "
        "`maxMessagesPerTrigger`, `maxBytesPerTrigger` and `bufferBytes`, and about 100 MB for itself "
        "([performance](performance.md#several-readers)).",
    )
    bind: tuple[tuple[str, str], ...] = option(
        "bind", kinds.bindings(), (),
        "Bindings to make at start, for every queue of `queue`.",
        shown="none",
    )
    declare: str = option(
        "declare", kinds.choice("never", "ifMissing"), "never",
        "`ifMissing` declares a queue that does not exist, durable. `never`: a missing queue is an error. RabbitMQ "
        "compares a queue that exists with what `queueType` and `queueArguments` name: a difference is an error.",
    )
    queue_type: str | None = option(
        "queueType", kinds.choice(CLASSIC, QUORUM, STREAM), None,
        "RabbitMQ only: type of a queue that `declare=ifMissing` declares; without it the virtual host's default, "
        "which is classic at first. A quorum queue gets no limit of deliveries, where the server knows that. `stream`: "
        "the queues are streams, which are read by offsets (docs/rabbitmq.md).",
    )
    starting_offsets: LogPositions | None = option(
        "startingOffsets", log_positions(), None,
        "Streams only: where a query without a checkpoint begins, and a stream that joins one: `earliest`, `latest`, "
        "an offset, a time (the messages that were stored together with the first one of that time, and all after "
        "them), or a JSON object with one of them for each stream. Without it `latest`; in a batch read `earliest`.",
    )
    ending_offsets: LogPositions | None = option(
        "endingOffsets", log_positions(), None,
        "Streams only, batch reads only: where to end, as `startingOffsets`; the offset itself is not read. Without it "
        "`latest`: what is there when the query begins.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss", kinds.boolean(), True,
        "Streams only: whether it is an error that messages were removed before they were read, or that a stream was "
        "deleted and made again. Otherwise the query warns and goes on with what is there.",
    )
    queue_arguments: tuple[tuple[str, object], ...] = option(
        "queueArguments", kinds.arguments(), (),
        "Arguments of a queue that `declare=ifMissing` declares, such as "
        "`x-dead-letter-exchange=dead;x-max-length=1000`.",
        shown="none",
    )
    consumer_priority: int | None = option(
        "consumerPriority", kinds.integer(-(2**31), 2**31 - 1), None,
        "RabbitMQ only: priority among the consumers of the queue (`x-priority`): others get messages while this one "
        "can take no more.",
    )
    consumer_timeout: float | None = option(
        "consumerTimeout", kinds.duration("1s"), None,
        "RabbitMQ only: time from the delivery of a message to the end of its batch, after which the broker takes it "
        "back (`x-consumer-timeout`); without it the server's `consumer_timeout`, which is 30 minutes at first. "
        "RabbitMQ 4.3 and later take it for quorum queues, earlier ones ignore it.",
    )
    selector: str | None = option(
        "selector", kinds.text(), None,
        "JMS message selector that the broker applies; the source sees matching messages only. The broker must "
        "announce selectors (`qpid.jms-selector`), or be qpidd 0.22 or later: others ignore them. Not with 0-9-1, "
        "which has none.",
    )
    mode: str = option(
        "mode", kinds.choice(FAILFAST, REJECT, PERMISSIVE), FAILFAST,
        "Treatment of a message that does not fit the schema: `FAILFAST` stops the query, `REJECT` rejects the "
        "message (the queue's alternate exchange gets it; with 0-9-1 its dead-letter exchange), `PERMISSIVE` sets the "
        "column to NULL and writes the reason to the column of `columnNameOfCorruptRecord`.",
    )
    corrupt_column: str | None = option(
        "columnNameOfCorruptRecord", kinds.text("a name that no column of messages has"), None,
        "With `PERMISSIVE`: the STRING column for the reason why a message did not fit, and for the values that "
        "its columns could not take (docs/columns.md). Without the option it is `_corrupt_record`, where the "
        "schema has that column. Without a schema the option adds the column to the default one.",
    )
    timestamp_unit: str = option(
        "timestampUnit", kinds.choice("auto", "s", "ms"), "auto",
        "Unit of the wire's `timestamp` and `expiration`: seconds, milliseconds, or `auto` by magnitude, since "
        "clients disagree.",
    )
    transfer: str = option(
        "transfer", kinds.choice("auto", "inline", "pull"), "auto",
        "How a batch's bytes reach the executors: inside the partitions, pulled from the reader over a socket, or "
        "`auto` by size. Bytes pulled from another machine are encrypted (docs/operations.md, Security).",
    )
    transfer_host: str | None = option(
        "transferHost", kinds.host(), None,
        "Host that executors connect to for pulling.",
        shown="driver host",
    )
    transfer_port: int = option(
        "transferPort", kinds.integer(0, _MOST_PORT), 0,
        "Port on the driver for pulling; 0 takes a free one. No two queries on a machine can have the same one. With "
        "`numReaders` it is the first of so many.",
        shown="0 (any free port)",
    )
    # fmt: on

    @classmethod
    def parse(cls, options: Mapping[str, object], *, streaming: bool | None = None) -> SourceOptions:
        """Check the options of a source (keys in any case, values as text or Python values); OptionError lists every
        problem. ``streaming``: of a streaming query, or of a batch read; None: of either."""
        given = Given((*CONNECTION, *SOURCE), "source", options)
        _set_sizes(given)
        _check_delay(given)
        _check_guarantee(given)
        _check_mode(given, streaming=streaming)
        _check_readers(given)
        _check_queue(given)
        _check_streams(given, streaming=streaming)
        if given.problems:
            raise OptionError(given.problems)
        return cls(**cast("dict[str, Any]", given.values))

    @property
    def reads_streams(self) -> bool:
        """Whether the queues are streams of RabbitMQ, which are read by offsets."""
        return self.queue_type == STREAM

    @property
    def readers(self) -> int:
        """Processes that receive: each has at least one queue, and at least one message of a batch."""
        most = self.max_messages_per_trigger
        return min(self.num_readers, len(self.queues), self.num_readers if most is None else most)

    @property
    def exactly_once(self) -> bool:
        """Whether batches are stored in a spool when they are accepted."""
        return self.delivery_guarantee == EXACTLY_ONCE and not self.reads_streams

    @property
    def accepts(self) -> bool:
        """Whether the source accepts messages; with at-most-once the broker forgets them as it transfers them."""
        return self.delivery_guarantee != AT_MOST_ONCE

    @property
    def client_name(self) -> str:
        """Client name sent to the broker."""
        return "amqp_spark" if self.consumer_id is None else f"amqp_spark {self.consumer_id}"

    def for_executors(self) -> SourceOptions:
        """Return a copy without credentials, to be pickled for executors, which never connect to the broker."""
        return replace(self, username=None, password=None, password_file=None, tls_key_file=None)


SOURCE = options_of(SourceOptions, "source", CONNECTION)


def _set_sizes(given: Given) -> None:
    values = given.values
    batch, held = values["max_bytes_per_trigger"], values["buffer_bytes"]
    if batch is None:
        batch = min(_DEFAULT_MAX_BYTES, held) if isinstance(held, int) else _DEFAULT_MAX_BYTES
    assert isinstance(batch, int)
    if isinstance(held, int) and held < batch:
        reason = f" with maxBytesPerTrigger={batch}, since the buffer must hold a batch"
        given.refuse("bufferBytes", held, f"{batch} or more", reason)
    values["max_bytes_per_trigger"] = batch
    values["buffer_bytes"] = 2 * batch if held is None else held


def _check_delay(given: Given) -> None:
    least, most = given.values["min_messages_per_trigger"], given.values["max_messages_per_trigger"]
    if "minMessagesPerTrigger" not in given:
        if not any("'maxTriggerDelay'" in each for each in given.problems):  # it is wrong by itself
            given.refuse_unused("minMessagesPerTrigger=1", "set minMessagesPerTrigger", "maxTriggerDelay")
    elif isinstance(least, int) and isinstance(most, int) and least > most:
        given.refuse("minMessagesPerTrigger", least, f"1 to {most}", f" with maxMessagesPerTrigger={most}")


def _check_guarantee(given: Given) -> None:
    guarantee = given.values["delivery_guarantee"]
    setting = f"deliveryGuarantee={guarantee}"
    if guarantee == EXACTLY_ONCE and given.values["queue_type"] != STREAM:
        for name, allowed in (
            ("consumerId", "a name for this consumer that never changes"),
            ("spoolLocation", "a directory as durable as the checkpoint"),
        ):
            if name not in given:
                given.require(name, allowed, f" with {setting}")
        given.refuse_no_heartbeat()
    else:
        given.refuse_unused(setting, f"set deliveryGuarantee={EXACTLY_ONCE}", "spoolLocation", "adoptState")


def _check_readers(given: Given) -> None:
    readers, port = given.values["num_readers"], given.values["transfer_port"]
    if not isinstance(readers, int) or readers == 1 or given.values["queue_type"] == STREAM:
        return
    if given.values["delivery_guarantee"] == EXACTLY_ONCE:
        reason = f" with deliveryGuarantee={EXACTLY_ONCE}: the transactions of all queues are planned together"
        given.refuse("numReaders", readers, "1", reason)
    if given.values["min_messages_per_trigger"] != 1:
        reason = f" with numReaders={readers}: no process knows how many messages the others have"
        given.refuse("minMessagesPerTrigger", given.values["min_messages_per_trigger"], "1", reason)
    if isinstance(port, int) and port + readers - 1 > _MOST_PORT:
        given.refuse("transferPort", port, f"0 to {_MOST_PORT + 1 - readers}", f" with numReaders={readers}")


def _check_mode(given: Given, *, streaming: bool | None) -> None:
    guarantee = given.values["delivery_guarantee"]
    if given.values["mode"] != REJECT:
        return
    if given.values["queue_type"] == STREAM:
        reason = " with queueType=stream: nothing is rejected"
    elif streaming is False:
        reason = " in a batch read, which browses and cannot reject"
    elif guarantee != AT_LEAST_ONCE:
        reason = f" with deliveryGuarantee={guarantee}, which accepts a message before its rows are decoded"
    else:
        return
    given.refuse("mode", repr(REJECT), f"{FAILFAST}, {PERMISSIVE}", reason)


def _check_queue(given: Given) -> None:
    if given.values["declare"] == "never":
        unused = ("queueArguments",) if given.values["queue_type"] == STREAM else ("queueType", "queueArguments")
        given.refuse_unused("declare=never", "set declare=ifMissing", *unused)
    arguments = given.values["queue_arguments"]
    assert isinstance(arguments, tuple)
    if "queueType" in given and "x-queue-type" in dict(arguments):
        given.refuse("queueArguments", "x-queue-type", "other arguments", " with queueType")
    if given.values["delivery_guarantee"] == AT_MOST_ONCE:
        remedy = f"set deliveryGuarantee={AT_LEAST_ONCE}"
        given.refuse_unused(f"deliveryGuarantee={AT_MOST_ONCE}", remedy, "consumerTimeout")


_OF_STREAMS = ("startingOffsets", "endingOffsets", "failOnDataLoss")
_OF_QUEUES = (
    "exclusive", "consumerPriority", "consumerTimeout", "selector", "bufferBytes", "numReaders", "transfer",
    "transferHost", "transferPort", "queryCheckpoint", "consumerId", "spoolLocation", "adoptState",
)  # fmt: skip


def _check_streams(given: Given, *, streaming: bool | None) -> None:
    if given.values["queue_type"] != STREAM:
        given.refuse_unused("a queue that is no stream", "set queueType=stream", *_OF_STREAMS)
        return
    given.refuse_unused("queueType=stream", "read a queue of another type", *_OF_QUEUES)
    guarantee = given.values["delivery_guarantee"]
    if guarantee == AT_MOST_ONCE:
        reason = " with queueType=stream: nothing is removed by reading it, and each batch can be read again"
        given.refuse("deliveryGuarantee", repr(guarantee), f"{AT_LEAST_ONCE}, {EXACTLY_ONCE}", reason)
    if streaming and given.values["ending_offsets"] is not None:
        allowed = "a batch read (spark.read); Trigger.AvailableNow ends at what is there when it begins"
        reason = " in a streaming query, which has no end"
        given.refuse("endingOffsets", repr(given.texts["endingOffsets"]), allowed, reason)
    queues = given.values["queues"]
    for name, positions in (("startingOffsets", "starting_offsets"), ("endingOffsets", "ending_offsets")):
        found = given.values[positions]
        named = [log for log, _ in found.by_name] if isinstance(found, LogPositions) else []
        if unknown := sorted(set(named) - set(queues if isinstance(queues, tuple) else ())):
            given.refuse(name, repr(unknown[0]), "names of streams that option 'queue' has", " as the name of a stream")
