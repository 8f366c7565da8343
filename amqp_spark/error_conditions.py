"""The connector's conditions of errors; docs/errors.md is generated from them (grammar: amqp_core.error_conditions)."""

from __future__ import annotations

from enum import unique
from typing import Final

from amqp_core.error_conditions import Condition

FOR_STABLE_IDS: Final = " by stableMessageId=true outside of a streaming query"
NAMES_OF_STABLE_IDS: Final = {
    "transactionalId": "a name for this writer that never changes",
    "batchId": "a number that is another one for each new write, and the same when a write is repeated",
}
"""Options that are required then, with what is allowed."""


@unique
class SparkCondition(Condition):
    """Conditions of amqp_spark."""

    # fmt: off
    # --- options
    OPTIONS_INVALID = "{count} options cannot be used as given.", "Correct each of these problems."
    OPTION_UNKNOWN = "Option {option!r} is not known to the {side}.", "{remedy}."
    OPTION_DUPLICATE = (
        "Option {option!r} is given twice with different values.",
        "Give it once; upper and lower case make no difference in its name.")
    OPTION_REQUIRED = "Option {option!r} is required{reason}.", "Set it to {allowed}."
    OPTION_INVALID = "Option {option!r} has the value {value}, which is not allowed{reason}.", "Allowed: {allowed}."
    OPTION_INCOMPLETE = "Option {option!r} is given without {missing}.", "Set that option too, or remove {option!r}."
    OPTION_CONFLICT = "Options {first!r} and {second!r} are both given.", "Remove one of them."
    OPTION_WITHOUT_EFFECT = "Option {option!r} has no effect with {setting}.", "Remove it, or {remedy}."
    TABLE_KEEPS_NO_OPTIONS = (
        "Spark gives a source in Python the options of CREATE TABLE only while the table is made.",
        "Use CREATE TEMPORARY VIEW, or name the columns and give the options at each use of the table.",
        "docs/options.md says how (SQL).")
    EXTRA_MISSING = (
        "{what} need the package {package}, which is not installed.",
        "Install it: pip install 'amqp-spark[{extra}]'.")
    MODE_UNSUPPORTED = (
        "{mode} is not supported: {reason}.",
        "Use {alternative}.",
        "The source accepts a batch when Spark calls it after the commit of that batch, and not before.")

    # --- schemas and messages as rows
    COLUMNS_INVALID = "{count} columns of the schema cannot be used.", "Correct each of these problems."
    SCHEMA_INVALID = "The schema {schema!r} is no DDL: {reason}.", "Write it like 'body STRING, routing_key STRING'."
    SCHEMA_EMPTY = "The schema has no columns.", "Give at least one column, or no schema for all columns."
    COLUMN_UNKNOWN = (
        "There is no column {column!r}{hint}.",
        "Use one of {known}.",
        "Column names are compared without case; docs/columns.md describes all columns.")
    COLUMN_DUPLICATE = "Column {column!r} occurs twice.", "Keep one of them; names are compared without case."
    COLUMN_CONFLICT = (
        "Column {column!r} and option {option!r} both set the same property.",
        "Leave the option out, or drop the column before the write.")
    COLUMN_MISSING = "Column {column!r} is missing{why}.", "Add it as {allowed}."
    DESTINATION_MISSING = (
        "Neither the options nor the columns say where the messages go.",
        "Set option exchange, or name the queue in option routingKey or column routing_key.",
        "The default exchange routes by queue name, and no queue has the empty name.")
    COLUMN_TYPE_UNSUPPORTED = "Column {column!r} cannot have the type {type}.", "Use {allowed}."
    COLUMN_PART_UNSUPPORTED = (
        "The type of {part!r} is not supported: {reason}.",
        "Use {allowed}.",
        "Paths name parts of nested types: application_headers.legs.element is an element of the array legs.")
    COLUMN_NOT_NULL = (
        "Column {column!r} is NOT NULL, and mode=PERMISSIVE sets columns that do not fit to NULL.",
        "Make the column nullable, or use another mode.")
    CORRUPT_COLUMN_INVALID = (
        "Option columnNameOfCorruptRecord is {column!r}, which {reason}.",
        "Use a STRING column of the schema that can be NULL and has no other meaning.",
        "Without the option the column is _corrupt_record. It says in mode PERMISSIVE what did not fit.")
    MESSAGE_UNFIT = (
        "The message at position {position} of queue {queue!r} does not fit column {column!r}: {reason}.",
        "Change the schema, or read with mode=PERMISSIVE and a column _corrupt_record STRING{advice}.",
        "With mode=FAILFAST the message stops the query at each start; _corrupt_record says why columns are NULL.")
    MESSAGE_MALFORMED = (
        "The message at position {position} of queue {queue!r} cannot be decoded: {reason}.",
        "Read with mode=PERMISSIVE and a column _corrupt_record STRING{advice}.",
        "All columns except queue and position are NULL then, and _corrupt_record has the message as received.")
    HEADERS_UNFIT = (
        "Encoded headers cannot be decoded in {rows} row(s) of a batch; the first: {reason}.",
        "Use other types, or MAP<STRING,STRING>, which takes most values.")
    HEADERS_NOT_CONVERTED = (
        "Encoded headers cannot be converted to AMQP {protocol} in {rows} row(s) of a batch; the first: {reason}.",
        "Leave these headers out, or change the sender.")

    # --- rows as messages
    ROW_INVALID = (
        "{place} cannot be sent: {reason}.",
        "Correct the row, or filter it out before the write.",
        "Nothing of the row and of its block of up to 10,000 rows was sent; rows before may have been sent.")
    BODY_TYPE_CONFLICT = (
        "A body of type {type} is sent as {sent}, and option contentType is {content_type!r}.",
        "Leave the option out, or make the body BINARY or STRING.")

    # --- offsets in the checkpoint
    OFFSET_INVALID = (
        "The checkpoint has an offset of {where} that this source did not write: {reason}.",
        "Use the checkpoint location of this query, or a new one.",
        'An offset is {"<queue>": {"epoch": ..., "position": n, "version": 1}}.')
    OFFSET_TOO_NEW = (
        "The checkpoint has an offset of queue {queue!r} in version {version}, which a newer amqp_spark wrote.",
        "Upgrade amqp_spark, which knows version {known}, or use a new checkpoint location.")
    OFFSET_QUEUES_CHANGED = (
        "The checkpoint belongs to {found}, and the query now reads {wanted}.",
        "Read the same queues, or use a new checkpoint location.",
        "Messages that were not accepted are still on the broker.")

    OFFSET_LOGS_CHANGED = (
        "The checkpoint has offsets of {found}, and the query now reads {wanted}.",
        "Read all streams of the checkpoint, or use a new checkpoint location.",
        "A stream may join a query at a restart, and none may leave it. Reading removes nothing from a stream: with a "
        "new checkpoint the query begins at startingOffsets.")
    OFFSET_OF_QUEUE = (
        "The checkpoint has positions of queue {queue!r}, and with queueType=stream the query reads offsets of a "
        "stream.",
        "Use a new checkpoint location.")
    OFFSET_OF_LOG = (
        "The checkpoint has offsets of the stream {queue!r}, and without queueType=stream the query reads a queue.",
        "Set queueType=stream, or use a new checkpoint location.")

    # --- reading: streams, which are logs
    LOG_IS_QUEUE = (
        "{queue!r} is no stream: its messages have no offsets.",
        "Remove queueType=stream, startingOffsets and endingOffsets to read it as a queue.")
    QUEUE_IS_LOG = (
        "{queue!r} is a stream, which is not read as a queue.",
        "Set queueType=stream; startingOffsets says where to begin.",
        "With queueType=stream exactly-once needs neither consumerId nor spoolLocation, and refuses them.")
    LOG_OFFSET_OUTSIDE = (
        "Option {option!r} asks for {wanted} of stream {stream!r}, which has offsets from {first} to {end}.",
        "Give an offset from {first} to {end} (the next message gets {end}), earliest, or latest.")
    LOG_RANGE_REVERSED = (
        "Option 'endingOffsets' has {end} for stream {stream!r}, and 'startingOffsets' has {begin}.",
        "Give an end that is not before the beginning.")
    LOG_DATA_LOST = (
        "Messages {begin} to {end} (not included) of stream {stream!r} are gone: the broker has removed them before "
        "they were read.",
        "Let the stream keep more (x-max-age, x-max-length-bytes), or set failOnDataLoss=false to go on without them.")
    LOG_REPLACED = (
        "Stream {stream!r} {finding} before offset {offset}{than}: it was deleted and made again{otherwise}.",
        "Use a new checkpoint location, or set failOnDataLoss=false to begin with the first message of the new one.",
        "A stream that ends before the offset may also be a replica that lags behind. The source asks each host of the "
        "URL for 30 seconds before it says so; with failOnDataLoss=false it then takes the stream for another one. If "
        "the stream is the same, start the query again when its nodes have caught up.")
    LOG_ENDS_EARLY = (
        "Stream {stream!r} has sent nothing from offset {at} on for {seconds:g} s, and the batch ends at {end}.",
        "Was the stream deleted and made again? Then use a new checkpoint location; else start the query again.")

    LOG_END_HIDDEN = (
        "RabbitMQ does not send the last messages of stream {stream!r}: they are in a compressed sub-entry, which "
        "cannot be read over AMQP 0-9-1.",
        "Publish a message without compression, then start the query again.")

    # --- reading: queues, offsets, batches
    QUEUE_NOT_FOUND = "Queue {queue!r} does not exist on virtual host {vhost!r}.", "Create it{alternative}."
    QUEUE_DECLARED_DIFFERENTLY = (
        "Queue {queue!r} exists with {argument} {current}, and option {option!r} asks for {wanted}.",
        "Let the option ask for what the queue has, or delete the queue, or name another one.",
        "With declare=ifMissing the source compares what queueType and queueArguments name, and nothing else, with a "
        "queue that exists on RabbitMQ. It skips that if the login may not configure the queue.")
    CONSUMER_TIMEOUT_REFUSED = (
        "The broker refused to consume queue {queue!r} with option 'consumerTimeout' set to {seconds}s.",
        "Remove consumerTimeout, and raise the broker's consumer_timeout; or read a quorum queue.",
        "RabbitMQ 4.3 takes a timeout of the consumer for quorum queues only.")
    BIND_TARGET_NOT_FOUND = (
        "Option 'bind' has {binding!r}, and the broker did not find its exchange or the queue {queue!r}: {reason}.",
        "Create the exchange, or correct the option.")
    QUEUE_DELETED = (
        "Queue {queue!r} was deleted while the query read it.",
        "Create it again, and start the query again.",
        "Messages that the query had received before are still given to Spark, except with exactly-once.")
    BUFFER_OVERFLOWED = (
        "Queue {queue!r}: more came before an answer of the broker than bufferBytes has room for.",
        "If it repeats, raise option bufferBytes.",
        "AMQP 0-9-1 limits messages and not bytes, and an answer comes after all messages that were sent before. Those "
        "without room are dropped, and the source subscribes again, for fewer messages at a time: they come again.")
    CONSUMER_STALLED = (
        "Queue {queue!r} has {count} message(s), and the broker sends none of them to this consumer.",
        "If it repeats, raise option consumerTimeout, or the broker's consumer_timeout.",
        "RabbitMQ 4.3 sends nothing to a consumer whose messages were not settled within consumer_timeout (30 minutes) "
        "until it has settled them. The source subscribes again, and the messages come again. A consumer that waits "
        "while another one is active (x-single-active-consumer) looks the same.")
    MESSAGES_ALIKE = (
        "Queue {queue!r}: {count} redelivered message(s) look like accepted ones, but cannot be told from others; they "
        "are read, perhaps for the second time.",
        "Let the publishers set a unique message_id.",
        "RabbitMQ does not say whether it still knows an acknowledgement. Messages that are equal in every byte are "
        "rather read twice than lost. The source subscribes again.")
    MESSAGES_TAKEN_BACK = (
        "Queue {queue!r} has taken messages back from this consumer, and delivers them again.",
        "If it repeats, look for a broken link between the nodes of the cluster.",
        "RabbitMQ takes back what a consumer holds when its node loses the leader of the queue, and ignores later "
        "acknowledgements without a word. The source subscribes again, and drops what it has accepted.")
    MESSAGES_HELD_LONG = (
        "Queue {queue!r}: messages that were received {seconds} s ago are not accepted yet, and the broker may take "
        "them back.",
        "If it repeats, make batches shorter, or raise option consumerTimeout.",
        "RabbitMQ takes messages back that were not settled within consumer_timeout, and 4.3 does not say so. The "
        "source subscribes again, and gets them again.")
    QUEUE_TYPE_REFUSED = (
        "Queue {queue!r} is a classic queue, and deliveryGuarantee=exactly-once needs a quorum queue or a stream of "
        "RabbitMQ.",
        "Declare the queue with x-queue-type quorum, read a stream with its offsets, or use at-least-once.",
        "A classic queue may forget an acknowledgement in part, and marks all messages as redelivered after a crash.")
    QUEUE_SINGLE_CONSUMER = (
        "Queue {queue!r} was declared with x-single-active-consumer, and deliveryGuarantee=exactly-once asks the queue "
        "with basic.get, which the broker then refuses.",
        "Declare the queue without it, or use at-least-once.")
    QUEUE_DELAYS_RETURNS = (
        "Queue {queue!r} was declared with x-delayed-retry-type {kind}, so the broker delays messages that it delivers "
        "again.",
        "Declare the queue without it, or use at-least-once.",
        "deliveryGuarantee=exactly-once takes messages that do not come again after a crash for accepted ones: those "
        "that come late would be processed twice.")
    QUEUE_KEEPS_MESSAGES = (
        "Queue {queue!r} was declared with {argument}, so that no consumer removes a message from it, and "
        "deliveryGuarantee=exactly-once has to.",
        "Declare the queue without it, or browse it with spark.read.",
        "The broker lets each consumer browse such a queue, whatever it asks for, and ignores what is accepted: each "
        "session would get all messages again.")
    QUEUE_TYPE_UNKNOWN = (
        "The login may not learn the type of queue {queue!r}, which exactly-once needs: {reason}.",
        "Give it the right to configure the queue; an existing queue is not changed.")
    QUEUE_SHARED = (
        "{owner}: the queue has {count} other consumer(s).",
        "Stop them: exactly-once needs to be the only consumer of a quorum queue.",
        "Messages that come again after a crash could go to the other consumer, so that they are processed twice.")
    CONSUMER_CANCELLED_BY_BROKER = (
        "The broker cancelled the consumer of queue {queue!r}, which still exists.",
        "If it repeats, read the broker's log, and raise option consumerTimeout, or the broker's consumer_timeout.",
        "RabbitMQ does so when the queue moves to another node, and when messages are not settled in time. The source "
        "subscribes again.")
    BATCH_NOT_HELD = (
        "The reader of queue {queue!r} does not hold the batch that Spark asks for: {reason}.",
        "Use the checkpoint of this query.",
        "A batch is held from its planning until Spark has committed it, by the process that planned it.")
    READER_LOST = (
        "A reader process of the query, for {queues}, {how}.",
        "Start the query again; lower option numReaders if it repeats.",
        "Option numReaders has the query receive in several processes. The broker keeps all messages that were not "
        "accepted. Look for the cause above in the driver's log, or whether the machine ran out of memory.")
    CHECKPOINT_OF_EXACTLY_ONCE = (
        "The checkpoint of queue {queue!r} was written with deliveryGuarantee=exactly-once.",
        "Use that guarantee until no batch is owned, then a new checkpoint location.",
        "Its messages may be in the spool only. `amqp-spark transactions` shows the owned batches.")
    CHECKPOINT_OF_OTHER_PROTOCOL = (
        "The checkpoint of queue {queue!r} was written with AMQP {found}, and the query now uses AMQP {protocol}.",
        "Set protocol={found}, or use a new checkpoint location.",
        "Messages that were not accepted are still on the broker.")
    CHECKPOINT_NOT_EXACTLY_ONCE = (
        "{consumer}: the checkpoint {what} {offset}, which was not written with deliveryGuarantee=exactly-once.",
        "Use a new checkpoint location, or set adoptState=true until a batch is committed.",
        "Messages that were not accepted are on the queue: a new checkpoint location loses none.")
    CHECKPOINT_WITHOUT_STATE = (
        "{consumer}: the checkpoint {what} {offset}, but its state has no batch.",
        "Check broker, virtual host and consumerId, or set adoptState=true until a batch is committed.",
        "The state was deleted, or lost by a broker that keeps nothing over a restart, or this is another broker. The "
        "state of a quorum queue is in the spool: this may be another spoolLocation.")
    CHECKPOINT_MISMATCH = (
        "{consumer}: the checkpoint {what} {offset}, but the state finished {finished} and owns {owned}.",
        "Use the checkpoint of this state, or set adoptState=true until a batch is committed.",
        "The checkpoint was rolled back, or is that of another query; with adoptState=true owned batches come again.")
    TRANSFER_FAILED = (
        "This executor cannot fetch a batch from the reader of the query at {address}: {reason}.",
        "Set transferHost and transferPort to an address that executors reach, or set transfer=inline.")
    TRANSFER_REFUSED = (
        "The reader of the query did not serve a batch: {reason}.",
        "Spark repeats the task; if it fails again, remove this cause.")
    TRANSFER_FOREIGN_PEER = (
        "The peer at {address} is not the reader of the query, since it has another certificate.",
        "Set transferHost and transferPort to bypass proxies that end TLS, or set transfer=inline.",
        "Nothing was sent to this peer.")
    TRANSFER_PORT_IN_USE = (
        "Option transferPort is {port}, which another program on the driver's machine uses.",
        "Give each query its own port, remove the option, or set transfer=inline.",
        "With option numReaders a query takes so many ports, from the one that was given on.")
    TRANSFER_CANNOT_LISTEN = (
        "The pull endpoint cannot listen on {address}: {reason}.",
        "Set transferHost and transferPort to an address and a port of the driver, or set transfer=inline.")
    TRANSFER_CANNOT_ENCRYPT = (
        "The pull endpoint must encrypt, but package 'cryptography' is missing on the driver ({reason}).",
        "Install it there, or set transfer=inline and another mode than REJECT.")
    MESSAGE_TOO_LARGE_INLINE = (
        "A message of queue {queue!r} has {size} bytes, and a partition takes at most {limit}.",
        "Set transfer=pull.")

    # --- spool
    SPOOL_UNUSABLE = (
        "The spool {spool} {what}: {reason}.",
        "{remedy}.",
        "A batch that the spool cannot take is still on the broker. The files of the spool have accepted messages "
        "that are nowhere else: do not delete them.")
    SPOOL_BATCH_LOST = (
        "The spool {spool} cannot serve the accepted messages of file {file}, which {reason}.",
        "Restore the spool, or set adoptState=true until a batch is committed to give these messages up.",
        "The messages of an accepted batch are in its file and nowhere else.")
    SPOOL_FILE_FOREIGN = (
        "The file {file!r} in the state is not one of the spool {spool} for consumer {consumer!r} and queue {queue!r}.",
        "Use the consumerId, the queue and the version that wrote it.")
    SPOOL_FOREIGN = (
        "The spool {spool} belongs to consumer {owner!r}, not to {consumer!r}.",
        "Give each consumerId its own spoolLocation.")
    SPOOL_CLAIMED = (
        "Another consumer claims the spool {spool} at this moment.",
        "Give each consumerId its own spoolLocation; if no query runs, delete {claim}.")
    SPOOL_OTHER_PROTOCOL = (
        "The spool {spool} has messages of AMQP {found}, and the broker speaks AMQP {protocol}.",
        "Use the broker of this consumer, or another spoolLocation with another consumerId.")
    SPOOL_OWNER_UNREADABLE = (
        "The spool {spool} has no readable file {file}, which names its owner.",
        "Restore that file, or use an empty directory as spoolLocation.")
    SPOOL_VERSION_UNKNOWN = (
        "The spool {spool} has {what} of version {version}, but this amqp_spark knows version {known}.",
        "Use the amqp_spark that wrote it, or a newer one.",
        "If no other version was used, the file is damaged: restore it, since accepted messages are nowhere else.")

    # --- state of exactly-once
    STATE_IN_USE = (
        "{owner} is in use: {reason}.",
        "{remedy}.",
        "A lock protects the state of each consumer and writer. After a crash the broker releases it within two "
        "heartbeats of the process that died.")
    STATE_CHANGED = (
        "{subject} has changed in the meantime, and nothing was done.",
        "Look at it again, then repeat the action.")
    STATE_NOT_FOUND = "The broker has no state of {owner}.", "Check the id and the virtual host of the URL."
    STATE_DELETED = (
        "The state queue {queue!r} of {owner} was deleted, so it is unknown which rows of a repeated batch were "
        "published.",
        "Read docs/operations.md; {tool} lets the next batch begin anew, and may cause duplicates.")
    PYTHON_PACKAGE_MISSING = (
        "The Python that Spark runs (PYSPARK_PYTHON) has no package {package!r}.",
        "Install amqp-spark there with what it requires: pip install amqp-spark.")
    WRITER_OTHER_BROKER = (
        "The broker does not know the decision on batch {batch} of transactionalId {writer!r}, which a connection "
        "before was told to keep.",
        "Let option 'url' name the broker of before alone, which completes the batch.",
        "Rows of the batch may be published there already. At another broker the batch would be published as a whole, "
        "perhaps for the second time.")
    STATE_FOREIGN = (
        "The state queue {queue!r} is that of {found}, not of {owner}.",
        "Remove the message that was copied or moved there; nothing was changed, and {tool} shows the state.")
    STATE_UNREADABLE = (
        "The state queue {queue!r} of {owner} cannot be used: {reason}.",
        "Restore its message, or delete what the broker keeps of this id with {tool}; nothing was changed.",
        "Only amqp_spark publishes to its state queues. The command says what is lost before it deletes anything.")
    STATE_FILE_UNREADABLE = (
        "The state {state!r} of {owner} in the spool {spool!r} cannot be used: {reason}.",
        "Restore its newest file, or begin anew with another consumerId and another spoolLocation; nothing was "
        "changed.",
        "The state of a quorum queue is in files of its spool, which only amqp_spark writes. The batches of the spool "
        "are nowhere else.")
    STATE_MESSAGE_MISSING = (
        "The state queue {queue!r} of {owner} has no message, and none came within {seconds} s: it was purged, or "
        "another client holds it.",
        "Stop that client; if the message is lost, {tool} deletes the state.")
    STATE_AMBIGUOUS = (
        "The state queue {queue!r} of {owner} must have one message, and {reason}.",
        "Remove the messages that are not the latest state, then start again; nothing was changed.",
        "Another client has published there, or has copied or moved messages. A queue browser shows them.")
    STATE_QUEUE_BROKEN = (
        "The state queue {queue!r} of {owner} cannot be used: {reason}, and nothing was committed.",
        "Find out whether it was purged or deleted, and read docs/operations.md.")
    STATE_REFUSED = (
        "The broker does not let {owner} {action}: {reason}.",
        "Correct the cause that the broker names, then start again.")
    PERMISSION_MISSING = (
        "The login may not {action}, which exactly-once needs for {owner}: {reason}.",
        "Permit it to create, query (on qpidd: access), publish to, bind to amq.direct, unbind, consume and delete "
        "queues named amqp-spark.*.",
        "On RabbitMQ it is the right to configure amqp-spark.lock.*. docs/operations.md has the rules for each broker.")
    TRANSACTIONS_REFUSED = (
        "The broker does not let this login use {kind}, which deliveryGuarantee=exactly-once needs for {owner}: "
        "{reason}.",
        "Permit them, or use deliveryGuarantee=at-least-once; nothing was changed.")
    XID_INVALID = (
        "The text {text!r} is not the name of a transaction branch.",
        "Write format:global-id:branch-id as the list of branches shows it.",
        "Each id is written as plain text, or as 0x and hexadecimal digits.")
    PREPARED_LIST_LOST = (
        "The connection was lost while the broker listed its prepared transactions: {reason}.",
        "Try again; if it fails again, the broker has too many of them.")
    PREPARED_LIST_TOO_LONG = (
        "The broker (qpidd) cannot list its prepared transactions (dtx.recover): one frame holds about {most} of "
        "amqp_spark's.",
        "Roll back those that logs name with `amqp-spark transactions URL --rollback XID`, or wait for "
        "transactionTimeout.",
        "qpidd ends the connection instead of an answer. The limit applies to the transactions of all clients "
        "together, and no transactionalId of this broker works until there are fewer. Nothing was changed. --rollback "
        "needs no list.")
    CONSUMER_QUEUES_CHANGED = (
        "The consumerId {consumer!r} was used with another list of queues: {reason}.",
        "Use the same queues, or another consumerId; when no batch is owned, {command} begins anew.")
    CONSUMER_SPOOL_CHANGED = (
        "{consumer}: its state has the spool {found!r}, and option 'spoolLocation' is {spool!r}.",
        "Set it back, or move the files and set adoptState=true until a batch is committed.")
    CONSUMER_STATE_LOST = (
        "{consumer}: there is no state {state!r}, but the spool {spool!r} has {count} batch(es).",
        "Use the right broker, or set adoptState=true until a batch is committed.",
        "Nothing was changed. With adoptState=true every batch of the spool is offered again. Delete the files only "
        "to give their messages up: they are nowhere else. The state of a quorum queue is in files amqp-spark.state.* "
        "of the spool.")
    CONSUMER_SPOOL_SHARED = (
        "{consumer}: its spool {spool!r} has {count} batch(es) of another state of this consumer.",
        "Give each of them its own spoolLocation, or set adoptState=true until a batch is committed to leave those "
        "unread.",
        "Another broker or virtual host has a consumer of this name, or the state is new. Nothing was changed.")
    CONSUMER_OTHER_BROKER = (
        "{consumer}: the spool {spool!r} is of another broker or virtual host, since this one has no exchange "
        "{exchange!r}.",
        "Give each its own spoolLocation; after a move set adoptState=true until a batch is committed.",
        "Nothing was changed. If the exchange was deleted, it is as after a move. With adoptState=true this broker "
        "gets an exchange of its own, and the one before is refused from then on. The batches of the spool are offered "
        "again; messages whose acknowledgement was in doubt, and that the other broker still has, are not seen.")
    CONSUMER_STATE_DELETED = (
        "{consumer}: the state queue {state!r} was deleted while the query ran.",
        "Start the query again with adoptState=true until a batch is committed.",
        "A broker that keeps nothing over a restart loses it, too. The batches of the spool are offered again.")
    CONSUMER_STATE_CHANGED = (
        "{consumer}: another process has changed the state since this one has read it.",
        "If it repeats, run one query at a time for each consumerId.",
        "A process that was suspended may have been about to write, without knowing that it has lost its lock. The "
        "source reads the state again.")
    CONSUMER_REPLACED = (
        "{consumer}: another query has taken over the state (its epoch is {found}, ours is {ours}).",
        "Run one query at a time for each consumerId.")

    # --- writing
    CAPABILITY_MISSING = (
        "{purpose} needs {capability}, which the broker {peer} does not offer.",
        "Use another option, another guarantee, or another broker.")
    EXACTLY_ONCE_NOT_OFFERED = (
        "The sink cannot write with deliveryGuarantee=exactly-once: {peer} has no prepared transactions (AMQP "
        "{protocol}).",
        "Use protocol=0-10 if the broker is Broker-J; else at-least-once with stableMessageId=true, and let the "
        "readers drop duplicates (dropDuplicatesWithinWatermark).",
        "AMQP 0-9-1 cannot prepare a transaction, and a commit of RabbitMQ may be applied in part. docs/delivery.md "
        "shows how a message id that is the same in every attempt takes the place of it.")
    STATE_NOT_KEPT = (
        "{peer} speaks AMQP {protocol}, which can neither browse the state of exactly-once nor list prepared "
        "transactions.",
        "Use this command with protocol=0-10, which Broker-J serves on the same port; for quorum queues of RabbitMQ "
        "add --spool.",
        "Both protocols of Broker-J have the same state. RabbitMQ has none: for quorum queues it is in the spool.")
    STATE_ONLY_SHOWN = (
        "{peer} keeps no state of a consumer: that of a quorum queue is in the spool, which this command only shows.",
        "To begin anew, use another consumerId and spoolLocation; to get past a message, set mode=PERMISSIVE.",
        "Run the command with --consumer-id and --spool alone, which show the state. With mode=PERMISSIVE a column "
        "_corrupt_record STRING has the message that does not fit.")
    OPTION_NOT_SERVED = (
        "Option {option!r} has the value {value!r}, and AMQP {protocol} of the broker {peer} has no {capability}.",
        "Allowed: {allowed}.")
    EXCHANGE_NOT_FOUND = (
        "Cannot publish {place}: there is no such exchange.",
        "Create the exchange, or name another one ({options}).")
    EXCHANGE_DELETED = (
        "Cannot publish {place}: the exchange was deleted, or made again with another type, and messages may be lost.",
        "Create the exchange with its bindings, then run the batch again.",
        "The messages that were sent since the exchange was last seen may be lost.")
    UNROUTABLE = (
        "Cannot publish {place}: no queue is bound for it.",
        "Create the queue or the binding, or set onUnroutable=discard to drop such messages.")
    ROUTING_KEY_UNVERIFIABLE = (
        "Cannot publish {place}: its routing key is empty or not UTF-8, and the broker cannot confirm a binding with "
        "it.",
        "Give it a routing key (column routing_key, option routingKey), or set onUnroutable=discard.",
        "With onUnroutable=discard such messages are sent, and counted as discarded.")
    BINDING_DELETED = (
        "Cannot publish {place}: the queue or its binding was deleted during the task, and messages may be lost.",
        "Create the queue or the binding, then run the batch again, or set onUnroutable=discard.",
        "The messages that were sent since the binding was last seen, and those that the queue held, may be lost.")
    PUBLISH_REJECTED = (
        "Cannot publish {place}: the broker rejected it with code {code} ({text}).",
        "Read the log of the broker for the cause, then run the batch again.")
    REJECTED_AS_UNROUTABLE = (
        "Cannot publish {place}: the broker rejected it with code {code} ({text}): no queue is bound, or a queue is "
        "full.",
        "Create the queue or the binding, make room, or set onUnroutable=discard to drop unroutable messages.")
    PUBLISH_REFUSED = (
        "Cannot publish {place}: {reason}.",
        "Correct the cause that the broker names, then run the batch again.")
    PUBLISHING_BLOCKED_TOO_LONG = (
        "Cannot publish {place}: {reason}, and option blockedTimeout={timeout} s is over.",
        "Give the broker memory or disk, let consumers take messages, or raise the option, then run the batch again.",
        "Messages of the task that were sent and not confirmed may arrive twice when the batch runs again, unless the "
        "sink is exactly-once.")
    BROKER_CHANGED = (
        "Cannot publish {place}: the next broker of the URL is of another kind (AMQP {protocol}) or takes smaller "
        "frames ({found} bytes instead of {expected}).",
        "Run the task again, or name only brokers of one kind.")
    PUBLISH_OUTCOME_UNKNOWN = (
        "The broker has not confirmed {count} messages of {place} (the first is row {row}) after {failures} failed "
        "connections: {reason}.",
        "Run the batch again, which may cause duplicates, or raise retry.maxAttempts={most}.")
    QUERY_UNKNOWN = (
        "Spark does not say which streaming query this is, which exactly-once needs, so nothing was sent.",
        "Call AmqpBatchSink in the thread of the foreachBatch function, or use writeStream.format('amqp') or df.write "
        "with option batchId.",
        "Batch ids begin at 0 again with a new checkpoint, so that a batch id alone does not identify a batch. Spark "
        "names the query in the thread that runs the function of foreachBatch, and never with Spark Connect.")

    # --- exactly-once writing: commits
    TRANSACTION_LOST = (
        "The connection was lost in the middle of the transaction of {place}, and nothing of it is in doubt: {reason}.",
        "Let Spark run the task again.",
        "The transaction will never be committed. Spark runs a failed task again, but not with the master local[n].")
    TRANSACTION_TIMED_OUT = (
        "The broker has rolled the transaction of {place} back after option transactionTimeout={timeout} s: {reason}.",
        "Raise the option, or make batches smaller.")
    TRANSACTION_ROLLED_BACK = (
        "The broker has rolled the transaction of {place} back: {reason}.",
        "Read the log of the broker for the cause.")
    TRANSACTION_TOO_LARGE = (
        "A queue is too full for the transaction of {place} ({reason}), and its {nbytes} bytes cannot be kept to be "
        "sent again.",
        "Let consumers take messages, raise the limit of the queue (qpid.max_size), or use more partitions.",
        "A whole batch must fit into its queues, because prepared messages take room, too. The rows of a task are "
        "kept in memory up to a limit, and more of them on the local disk.")
    TRANSACTION_REFUSED = (
        "Cannot complete the transaction of {place}: {reason}.",
        "Correct the cause that the broker names, then run the batch again.")
    MARKER_NOT_STORED = (
        "Cannot complete the transaction of {place}: the queue {queue!r} does not take its marker ({reason}).",
        "Run the batch again, and neither delete nor limit this queue.")
    TRANSACTION_TIMEOUT_REFUSED = (
        "Option 'transactionTimeout' is {timeout}, which the broker does not take: {reason}.",
        "Use at most what its administrator permits (qpidd: option dtx-max-timeout, 3600 s by default).")
    TOO_MANY_TASKS = (
        "Batch {batch} has {count} tasks, and this broker (qpidd) takes {most} with exactly-once, so nothing was "
        "published.",
        "Write frame.coalesce({most}), or less.",
        "Each task prepares a transaction. A broker that cannot name all prepared transactions in one frame ends "
        "every connection that asks for them.")
    TASKS_MIXED = (
        "Batch {batch} cannot be committed: {reason}.",
        "Commit only the tasks of one run of one batch, each partition once.")
    BATCH_DIFFERS = (
        "Batch {batch} was published with transactionalId {writer!r} before, and is not the same now: partition "
        "{partition} had {before} rows and has {now}.",
        "Make the source and the query repeatable, or give other rows another batchId.",
        "The published rows stay, and nothing of the new attempt is published. Exactly-once needs a source and a "
        "query that give the same rows in the same order and partitions when a batch runs again.")
    BATCH_ID_NOT_GREATER = (
        "Option batchId is {batch}, and transactionalId {writer!r} has published {latest} already.",
        "Use {latest} with the same rows, which publishes nothing, or a greater number.")
    CHECKPOINT_ROLLED_BACK = (
        "Spark runs batch {batch} of {query}, and transactionalId {writer!r} has published batch {latest} of it "
        "already.",
        "Restore the checkpoint of batch {latest}, or use a new one, which publishes everything again.",
        "The checkpoint was set back, or a copy of it is in use.")
    TRANSACTIONAL_ID_SHARED = (
        "Two queries share transactionalId {writer!r}: {first} has published until batch {batch}, then {second}, and "
        "now the first again.",
        "Give each query an id of its own, or run {tool} for a query that is gone.",
        "The command removes the state of the id. Batches that were published and that Spark has not logged are then "
        "published twice.")
    TRANSACTIONAL_ID_CHANGED = (
        "The {query} has published under another transactionalId before, so its latest batch may come twice under "
        "{writer!r}.",
        "Restore the previous id, use a new checkpoint, or give each exactly-once sink a query of its own.",
        "A query cannot have two sinks with exactly-once on one broker: write both with one sink "
        "(exchangeFromColumn), or with two queries. A new checkpoint makes a new query, which may have any "
        "transactionalId.")
    TRANSACTIONS_GONE = (
        "In batch {batch} {lost} of {total} transactions are no longer prepared, the first is {xid} of partition "
        "{partition}; {committed}.",
        "Run the batch again; if it takes longer than option transactionTimeout={timeout} s, raise the option.",
        "The broker has rolled them back, because a timer ended or because it lost them in a restart; or another "
        "client has; or the tasks were connected to another broker of the list in option url.")
    TRANSACTIONS_LOST = (
        "The decided transaction {xid} of partition {partition} in batch {batch} is neither prepared nor committed: "
        "{lost} of {total} are lost, and {reason}.",
        "{remedy}.",
        "The broker has rolled the transactions back, because a timer ended or because it lost them in a restart, or "
        "another client has. The other transactions of the batch are published. A repetition of the batch with the "
        "same rows takes their place; the option --forget of the command removes the decision (docs/operations.md).")
    COMMITTED_TWICE = (
        "Partition {partition} of batch {batch} with transactionalId {writer!r} was committed by {xid}, and not by "
        "the decided {other}: {rows} rows may be duplicates.",
        "Remove the rows of the batch that arrived, then run {tool}.",
        "qpidd with its linear store commits prepared transactions when it is restarted; another client may do so, "
        "too. The command removes the decision: Spark then publishes the whole batch again.")
    COMMIT_UNKNOWN = (
        "Queue {queue!r} was deleted in the commit of batch {batch}: {lost} of {total} transactions are in doubt, the "
        "first is {xid} of partition {partition} ({rows} rows).",
        "Remove the rows of the batch that arrived, then run {tool}.",
        "The queue held the markers that prove the commits. The command removes the decision: the whole batch is "
        "published again when Spark runs it again.")
    MARKERS_DELETED = (
        "The queue {queue!r} was deleted, whose markers prove commits, and nothing of batch {batch} was committed.",
        "Run the batch again; the queue exists again.")
    MARKER_LATE = (
        "The marker that proves the commit of {xid} comes late to the queue {queue!r}.",
        "Let the query try again, and let no other client consume this queue.")
    MARKER_QUEUE_FOREIGN = (
        "The queue {queue!r} is for markers of exactly-once only, and holds another message: {reason}.",
        "Let another client take that message away.")
    BRANCH_RACED = (
        "Another client has resolved the branch {xid} just now.",
        "Let the query try again, and do not resolve its branches by hand while it runs.")

    # --- command line
    JAVA_MISSING = (
        "Spark needs Java {needed} or newer, and {found}.",
        "Install it with {command}, or set JAVA_HOME to the directory of one.")
    JAVA_ENDED = (
        "The Java process of Spark has ended by itself, or was killed.",
        "Look for the reason above and in the log of the system, such as too little memory, then start again.",
        "Messages that were not accepted are on their queues. The broker has no part in this.")
    JAVA_LIBRARY_UNFIT = (
        "A library of Java that Spark has loaded does not fit Spark {spark}: {reason}.",
        "Give --packages or --jars the release of it that is made for this Spark.")
    COMMAND_LINE_INVALID = "The command line cannot be used: {problem}.", "{remedy}."
    FILE_NOT_READABLE = "Option {option!r}: {path!r} cannot be read: {reason}.", "Correct the path or its permissions."
    FILE_NOT_WRITABLE = (
        "The file {path!r} cannot be written: {reason}.",
        "Give the name of a new file; nothing was done.")
    BRANCH_DECIDED = (
        "The branch {xid} must not be rolled back, because the state of {owner} says that its batch is committed.",
        "Start the query again, which commits it, or use --commit.",
        "Other branches of the batch may be committed, and Spark may know the batch as committed: the rows would be "
        "lost.")
    BRANCH_NOT_PREPARED = (
        "The branch {xid} is not prepared on this broker: it was resolved before, or its timer has ended.",
        "Check the virtual host, and list the prepared branches with neither --commit nor --rollback.")
    BRANCHES_DECIDED = (
        "The state of {owner} alone shows that {count} prepared branches are decided: {xids}.",
        "Start the query once, or --commit them first.")
    POSITION_NOT_OWNED = (
        "{found} position {position} of queue {queue}; owned are {owned}.",
        "Give EPOCH:POSITION of one of them.")
    CONSUMER_QUEUE_NEEDED = "The {owner} {problem}; it has {queues}.", "Name one of them with --queue."
    # fmt: on
