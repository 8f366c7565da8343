"""The connector's conditions of errors; docs/errors.md is generated from them (grammar: amqp_core.conditions)."""

from __future__ import annotations

from enum import unique

from amqp_core.conditions import Condition


@unique
class SparkCondition(Condition):
    """Conditions of amqp_spark."""

    # --- options

    # --- schemas and messages as rows

    SCHEMA_INVALID = "The schema {schema!r} is no DDL: {reason}.", "Write it like 'body STRING, routing_key STRING'."
    SCHEMA_EMPTY = "The schema has no columns.", "Give at least one column, or no schema for all columns."
    COLUMN_UNKNOWN = (
        "There is no column {column!r}{hint}.",
        "Use one of {known}.",
        "Column names are compared without case; docs/columns.md describes all columns.",
    )
    COLUMN_DUPLICATE = "Column {column!r} occurs twice.", "Keep one of them; names are compared without case."
    COLUMN_MISSING = "Column {column!r} is missing{why}.", "Add it as {allowed}."
    COLUMN_TYPE_UNSUPPORTED = "Column {column!r} cannot have the type {type}.", "Use {allowed}."
    COLUMN_PART_UNSUPPORTED = (
        "The type of {part!r} is not supported: {reason}.",
        "Use {allowed}.",
        "Paths name parts of nested types: application_headers.legs.element is an element of the array legs.",
    )
    COLUMN_NOT_NULL = (
        "Column {column!r} is NOT NULL, and mode=PERMISSIVE sets columns that do not fit to NULL.",
        "Make the column nullable, or use another mode.",
    )
    CORRUPT_COLUMN_INVALID = (
        "Option columnNameOfCorruptRecord is {column!r}, which {reason}.",
        "Use a STRING column of the schema that can be NULL and has no other meaning.",
        "Without the option the column is _corrupt_record. It says in mode PERMISSIVE what did not fit.",
    )
    MESSAGE_UNFIT = (
        "The message at position {position} of queue {queue!r} does not fit column {column!r}: {reason}.",
        "Change the schema, or read with mode=PERMISSIVE and a column _corrupt_record STRING{advice}.",
        "With mode=FAILFAST the message stops the query at each start; _corrupt_record says why columns are NULL.",
    )
    MESSAGE_MALFORMED = (
        "The message at position {position} of queue {queue!r} cannot be decoded: {reason}.",
        "Read with mode=PERMISSIVE and a column _corrupt_record STRING{advice}.",
        "All columns except queue and position are NULL then, and _corrupt_record has the message as received.",
    )
    HEADERS_UNFIT = (
        "Encoded headers cannot be decoded in {rows} row(s) of a batch, in the first because {reason}.",
        "Use other types, or MAP<STRING,STRING>, which takes most values.",
    )

    # --- rows as messages

    ROW_INVALID = (
        "{place} cannot be sent: {what}{reason}.",
        "Correct the row, or filter it out before the write.",
        "Nothing of the row and of its block of up to 4096 rows was sent; rows before may have been sent.",
    )
    BODY_TYPE_CONFLICT = (
        "A body of type {type} is sent as {sent}, and option contentType is {content_type!r}.",
        "Leave the option out, or make the body BINARY or STRING.",
    )

    # --- offsets in the checkpoint

    OFFSET_INVALID = (
        "The checkpoint has an offset of {where} that this source did not write: {reason}.",
        "Use the checkpoint location of this query, or a new one.",
        'An offset is {"<queue>": {"epoch": ..., "position": n, "version": 1}}.',
    )
    OFFSET_TOO_NEW = (
        "The checkpoint has an offset of queue {queue!r} in version {version}, which a newer amqp_spark wrote.",
        "Upgrade amqp_spark, which knows version {known}, or use a new checkpoint location.",
    )
    OFFSET_QUEUES_CHANGED = (
        "The checkpoint belongs to {found}, and the query now reads {wanted}.",
        "Read the same queues, or use a new checkpoint location.",
        "Messages that were not accepted are still on the broker.",
    )

    # --- reading: queues, offsets, batches

    # --- spool

    # --- state of exactly-once

    # --- writing

    # --- exactly-once writing: commits

    # --- command line
