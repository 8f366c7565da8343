"""Advice about a message that does not fit the schema, depending on the delivery guarantee of the query."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from amqp_spark.options import AT_MOST_ONCE, EXACTLY_ONCE
from amqp_spark.state.names import CONSUMER, Names

if TYPE_CHECKING:
    from amqp_spark.errors import MessageFormatError
    from amqp_spark.options import SourceOptions


def advice(options: SourceOptions, error: MessageFormatError, epoch: int) -> str:
    """Text that continues the message of the error.

    Args:
        options: options of the query.
        error: names queue and position.
        epoch: epoch of that position.
    """
    if options.delivery_guarantee == AT_MOST_ONCE:
        return ". It was accepted when it was transferred: a query that is started again goes on behind it"
    if options.delivery_guarantee == EXACTLY_ONCE:
        assert options.consumer_id is not None
        queue = shlex.quote(error.queue) if error.queue.isprintable() else "QUEUE"
        action = f"--queue {queue} --skip {epoch}:{error.position} --to FILE"
        return (
            ". It is in the spool, and no longer on the queue: "
            f"{Names(CONSUMER, options.consumer_id).tool(action)} writes it to a file and leaves it out, while the "
            "query is stopped"
        )
    return ", or with mode=REJECT (message.reject: the queue's alternate exchange gets it)"
