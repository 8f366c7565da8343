"""The connector's conditions of errors; docs/errors.md is generated from them (grammar: amqp_core.conditions)."""

from __future__ import annotations

from enum import unique

from amqp_core.conditions import Condition


@unique
class SparkCondition(Condition):
    """Conditions of amqp_spark."""

    # --- options

    # --- schemas and messages as rows

    # --- rows as messages

    # --- reading: queues, offsets, batches

    # --- spool

    # --- state of exactly-once

    # --- writing

    # --- exactly-once writing: commits

    # --- command line
