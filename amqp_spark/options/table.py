"""Tables of the options: parsing, documentation and ``--help`` are generated from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_core.address import DEFAULT_MAX_MESSAGE_BYTES, MAX_MAX_MESSAGE_BYTES, MIN_MAX_MESSAGE_BYTES
from amqp_core.sasl import DEFAULT_MECHANISMS
from amqp_spark.options import kinds

if TYPE_CHECKING:
    from amqp_spark.options.kinds import Kind


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. ``default`` is the default as documented, ``absent`` the value if the option is absent."""

    name: str
    field: str
    kind: Kind
    default: str
    absent: object
    meaning: str
    secret: bool = False


AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
AT_MOST_ONCE = "at-most-once"
FAILFAST = "FAILFAST"
REJECT = "REJECT"
PERMISSIVE = "PERMISSIVE"
FAIL = "fail"
DISCARD = "discard"
SHORTEST_TRANSACTION_SECONDS = 20
"""Shortest ``transactionTimeout``: a restart may wait a quarter of it, to see which transactions were committed."""
BEYOND_HEARTBEATS_SECONDS = 15
"""A transaction lasts at least two heartbeats and so many seconds: a restart may wait as long for its lock."""
#: In the order of their wire codes, from 1 (0-10 message, domain delivery-mode).
DELIVERY_MODES = ("non-persistent", "persistent")

#: Connection options, for the source and the sink.
CONNECTION: tuple[Option, ...] = (
    Option(
        "url", "url", kinds.text("amqp://host[:port][,host2...]/virtual-host, or amqps:// for TLS"), "required", None,
        "Where the broker is. `amqps://` means TLS. Several hosts are tried in order. Without a virtual host the "
        "broker's default one is used. Credentials in it are refused, since URLs are logged.",
    ),
    Option(
        "username", "username", kinds.text(), "none", None,
        "Login name. Without one, the login is EXTERNAL when a client certificate is given, else ANONYMOUS.",
    ),
    Option(
        "password", "password", kinds.secret(), "none", None,
        "Password of `username`. Redacted in plans by Spark (`spark.redaction.regex` must match it, as the "
        "default does), in logs by this connector.",
        secret=True,
    ),
    Option(
        "passwordFile", "password_file", kinds.path("path of a file"), "none", None,
        "File that holds the password, on the driver (for a batch read and for writing on the executors too); read at "
        "every connection, so that it can be changed. One newline at its end is not part of it.",
    ),
    Option(
        "saslMechanisms", "sasl_mechanisms", kinds.words(DEFAULT_MECHANISMS), " ".join(DEFAULT_MECHANISMS),
        DEFAULT_MECHANISMS,
        "Allowed login mechanisms, best first. PLAIN and CRAM-MD5 without TLS are used only to a loopback address, or "
        "when they are named here: a listener learns the password from PLAIN, and can try out many with CRAM-MD5.",
    ),
    Option(
        "tls.caFile", "tls_ca_file", kinds.path("path of a PEM file"), "the system's", None,
        "Certificates of the authorities to trust, instead of the system's.",
    ),
    Option(
        "tls.certFile", "tls_cert_file", kinds.path("path of a PEM file"), "none", None,
        "Client certificate, with its chain (and its key, unless `tls.keyFile` has it).",
    ),
    Option(
        "tls.keyFile", "tls_key_file", kinds.path("path of a PEM file"), "none", None,
        "Private key of the client certificate.",
    ),
    Option(
        "tls.verifyHostname", "tls_verify_hostname", kinds.boolean(), "true", True,
        "Whether the broker's certificate must be for the host that was connected to. The chain is always verified.",
    ),
    Option(
        "heartbeat", "heartbeat", kinds.integer(0, 65535), "30", 30,
        "Seconds between heartbeats; a broker that is silent for two of them is lost (while it works on transactions "
        "of exactly-once: for five minutes at least). 0 turns them off.",
    ),
    Option(
        "connectTimeout", "connect_timeout", kinds.seconds(0.1, 3600), "10", 10.0,
        "Seconds that a connection may take, login included, for each host.",
    ),
    Option(
        "maxMessageBytes", "max_message_bytes", kinds.size(MIN_MAX_MESSAGE_BYTES, MAX_MAX_MESSAGE_BYTES), "512m",
        DEFAULT_MAX_MESSAGE_BYTES,
        "The largest message that is taken from the broker, counted with all its frames. A larger one ends the query, "
        "since it stays at the head of its queue: raise this, or remove the message.",
    ),
    Option(
        "retry.maxAttempts", "retry_max_attempts", kinds.integer(0, 1_000_000), "10", 10,
        "How many times in a row a lost connection is made again (each time through the host list) before the query, "
        "or the task that writes, fails. 0: not at all. Of a source one over which a subscription worked counts anew.",
    ),
    Option(
        "retry.maxDelay", "retry_max_delay", kinds.seconds(0, 86400), "30", 30.0,
        "Longest pause in seconds between two attempts; pauses double, with jitter.",
    ),
)  # fmt: skip

SOURCE: tuple[Option, ...] = (
    Option(
        "queue", "queues", kinds.queue_names(), "required", None,
        "The queue to read, or a comma list of queues.",
    ),
    Option(
        "consumerId", "consumer_id", kinds.identity(), "none", None,
        "Identity of this consumer across restarts and drivers. Required for exactly-once, where no two queries may "
        "have the same one.",
    ),
    Option(
        "exclusive", "exclusive", kinds.boolean(), "false", False,
        "Subscribe exclusively: a second consumer of the queue is refused, after 2 x `heartbeat` + 5 seconds in which "
        "one that died may still be seen. Otherwise a queue that already has consumers is a warning, because each "
        "consumer gets a part of the messages.",
    ),
    Option(
        "deliveryGuarantee", "delivery_guarantee", kinds.choice(AT_LEAST_ONCE, EXACTLY_ONCE, AT_MOST_ONCE),
        AT_LEAST_ONCE, AT_LEAST_ONCE,
        "`at-least-once`: accepted after Spark logged the batch, redelivered after a crash. `at-most-once`: accepted "
        "on transfer. `exactly-once`: accepted into a spool, in one transaction with a record on the broker "
        "(docs/delivery.md).",
    ),
    Option(
        "spoolLocation", "spool_location", kinds.directory_uri(), "none", None,
        "Directory for planned batches, as a path or a URI that Arrow knows (`file:`, `s3:`, `gs:`, `hdfs:`, `abfs:`), "
        "without credentials; for exactly-once only, where it is required. The messages of a planned batch are nowhere "
        "else: it must be as durable as the checkpoint, and reached by every driver that may run the query. One "
        "directory for each `consumerId`.",
    ),
    Option(
        "adoptState", "adopt_state", kinds.boolean(), "false", False,
        "Exactly-once only: take over the state of `consumerId` although it does not fit the checkpoint (rolled back, "
        "copied, of another query), or the broker has lost it. What is owned and not finished is offered again; what "
        "the checkpoint lacks may be lost to it, or come twice. Leave it out again once a batch is committed.",
    ),
    Option(
        "queryCheckpoint", "query_checkpoint", kinds.directory_uri(), "none", None,
        "The `checkpointLocation` of the query (which Spark does not tell a source), as a path or a URI that Arrow "
        "knows. With it a query that is stopped between two batches (`query.stop()`, `processingTime`) looks there "
        "whether its last batch is committed, and accepts it; otherwise the broker sends that batch again. Not needed "
        "with exactly-once.",
    ),
    Option(
        "maxMessagesPerTrigger", "max_messages_per_trigger", kinds.integer(1, 2**31 - 1), "no limit", None,
        "Most messages of one micro-batch, over all queues.",
    ),
    Option(
        "minMessagesPerTrigger", "min_messages_per_trigger", kinds.integer(1, 2**31 - 1), "1", 1,
        "A micro-batch waits until so many messages are there, over all queues; no longer than `maxTriggerDelay`, nor "
        "than there is room for more in the buffer or in a batch. AvailableNow does not wait.",
    ),
    Option(
        "maxTriggerDelay", "max_trigger_delay", kinds.duration(), "15m", 900.0,
        "How long after the last micro-batch (or the start) less than `minMessagesPerTrigger` is enough.",
    ),
    Option(
        "maxBytesPerTrigger", "max_bytes_per_trigger", kinds.size(), "64m, or bufferBytes if that is less", None,
        "Most bytes of one micro-batch, counted as received (frames included), over all queues. One larger message "
        "passes alone.",
    ),
    Option(
        "bufferBytes", "buffer_bytes", kinds.size(), "2 x maxBytesPerTrigger", None,
        "Most bytes that the receiver holds, received and not accepted yet. Other consumers do not see these "
        "messages. One larger message passes alone.",
    ),
    Option(
        "numPartitions", "num_partitions", kinds.integer(1, 10_000), "2", 2,
        "Most partitions of one micro-batch and queue.",
    ),
    Option(
        "bind", "bind", kinds.bindings(), "none", (),
        "Bindings to make at start, for every queue of `queue`.",
    ),
    Option(
        "declare", "declare", kinds.choice("never", "ifMissing"), "never", "never",
        "`ifMissing` declares a queue that does not exist, durable. `never`: a missing queue is an error.",
    ),
    Option(
        "selector", "selector", kinds.text(), "none", None,
        "JMS message selector that the broker applies; the source sees matching messages only.",
    ),
    Option(
        "mode", "mode", kinds.choice(FAILFAST, REJECT, PERMISSIVE), FAILFAST, FAILFAST,
        "What happens to a message that does not fit the schema: `FAILFAST` stops the query, `REJECT` rejects the "
        "message (the queue's alternate exchange gets it), `PERMISSIVE` makes the column NULL, and says why in the "
        "column of `columnNameOfCorruptRecord`.",
    ),
    Option(
        "columnNameOfCorruptRecord", "corrupt_column", kinds.text("a name that no column of messages has"),
        "none", None,
        "The STRING column that says, with `PERMISSIVE`, why a message did not fit, and keeps what its columns could "
        "not take (docs/columns.md). Without the option it is `_corrupt_record`, where the schema has that column. "
        "Without a schema the option adds the column to the default one.",
    ),
    Option(
        "timestampUnit", "timestamp_unit", kinds.choice("auto", "s", "ms"), "auto", "auto",
        "Unit of the wire's `timestamp` and `expiration`: seconds, milliseconds, or `auto` by magnitude, since "
        "clients disagree.",
    ),
    Option(
        "transfer", "transfer", kinds.choice("auto", "inline", "pull"), "auto", "auto",
        "How a batch's bytes reach the executors: inside the partitions, pulled from the reader over a socket, or "
        "`auto` by size. What is pulled from another machine is encrypted (docs/operations.md, Security).",
    ),
    Option(
        "transferHost", "transfer_host", kinds.host(), "driver host", None,
        "What executors connect to for pulling.",
    ),
    Option(
        "transferPort", "transfer_port", kinds.integer(0, 65535), "0 (any free port)", 0,
        "Port on the driver for pulling; 0 takes a free one. No two queries on a machine can have the same one.",
    ),
)  # fmt: skip

SINK: tuple[Option, ...] = (
    Option(
        "exchange", "exchange", kinds.exchange_name(), "the default exchange", "",
        "The exchange to publish to. The default exchange (the empty name) routes by queue name.",
    ),
    Option(
        "exchangeFromColumn", "exchange_from_column", kinds.boolean(), "false", False,
        "Whether the column `exchange` says for each row where it goes; NULL goes to the option `exchange`. Otherwise "
        "that column is ignored, so that what was read can be written to another exchange.",
    ),
    Option(
        "routingKey", "routing_key", kinds.short_text(), "none", None,
        "Routing key of every message, instead of the column `routing_key`.",
    ),
    Option(
        "deliveryMode", "delivery_mode", kinds.choice(*DELIVERY_MODES), "persistent, unless there is a column", None,
        "Whether a durable queue keeps the message when the broker restarts. Instead of the column `delivery_mode`.",
    ),
    Option(
        "ttl", "ttl", kinds.integer(0, 2**63 - 1), "none", None,
        "Time to live in milliseconds, instead of the column `ttl`.",
    ),
    Option(
        "priority", "priority", kinds.integer(0, 9), "none", None,
        "Priority of every message, instead of the column `priority`; brokers take an absent one as 4.",
    ),
    Option(
        "contentType", "content_type", kinds.short_text(), "none; amqp/map for a body that is a map", None,
        "MIME type of every body, instead of the column `content_type`.",
    ),
    Option(
        "timestampUnit", "timestamp_unit", kinds.choice("auto", "s", "ms"), "auto", "auto",
        "Unit in which TIMESTAMP columns `timestamp` and `expiration` are sent: `auto` is milliseconds, as the Java "
        "client and Broker-J do; `s` is what the specification says and Qpid C++ does. BIGINT columns are sent as "
        "they are.",
    ),
    Option(
        "deliveryGuarantee", "delivery_guarantee", kinds.choice(AT_LEAST_ONCE, EXACTLY_ONCE),
        AT_LEAST_ONCE, AT_LEAST_ONCE,
        "`at-least-once`: a task succeeds when the broker has completed every transfer of it; what is tried again may "
        "arrive twice. `exactly-once`: each task prepares a transaction (dtx), which the driver commits after a record "
        "on the broker has decided so (docs/delivery.md).",
    ),
    Option(
        "transactionalId", "transactional_id", kinds.identity(), "none", None,
        "Identity of this writer across restarts; for exactly-once only, where it is required, and where no two "
        "queries may have the same one.",
    ),
    Option(
        "transactionTimeout", "transaction_timeout", kinds.integer(SHORTEST_TRANSACTION_SECONDS, 86_400), "3600", 3600,
        "Exactly-once only: seconds from the first row of a task to the commit of its batch, after which the broker "
        "rolls back. A broker that allows less (qpidd: option dtx-max-timeout, 3600) refuses more. A restart may "
        "have to wait before it commits: twice the `heartbeat` and 15 seconds are the minimum.",
    ),
    Option(
        "batchId", "batch_id", kinds.integer(0, 2**63 - 1), "none", None,
        "Id of a batch write: for `stampHeaders`, and for exactly-once, where it is required and each new write needs "
        "a greater one. Streams have their own.",
    ),
    Option(
        "onUnroutable", "on_unroutable", kinds.choice(FAIL, DISCARD), FAIL, FAIL,
        "What happens when the broker cannot route a message to any queue, as far as it tells (docs/delivery.md): "
        "`fail` the task, or `discard` the message and count it.",
    ),
    Option(
        "maxInFlight", "max_in_flight", kinds.integer(1, 1_000_000), "10000", 10_000,
        "Most transfers of a task that are sent and not completed by the broker; there are fewer while it is slow, and "
        "at most 32 MiB of them (4 MiB with qpidd).",
    ),
    Option(
        "stampHeaders", "stamp_headers", kinds.boolean(), "false", False,
        "Adds application headers that tell a replay from something new: `amqp-spark.query-id` (a stream's), "
        "`amqp-spark.batch-id`, `amqp-spark.partition` and `amqp-spark.row` (place in the partition, from 0).",
    ),
)  # fmt: skip
