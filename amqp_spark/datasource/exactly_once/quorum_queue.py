"""Which queues of RabbitMQ exactly-once can read: quorum queues, without a single active consumer or delayed returns.

The type is learned by declaring the queue again as a quorum queue, which changes nothing: the broker refuses the first
argument that differs, with its current value.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from amqp_core.error_conditions import reason
from amqp_core.errors import DeclaredDifferently, UnauthorizedAccess
from amqp_spark.datasource.queue_comparison import MOST_TAKEN_OVER, take_over
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import LogError, UnsupportedModeError
from amqp_spark.options import QUORUM

if TYPE_CHECKING:
    from amqp_core.api import Client

TYPE: Final = "x-queue-type"
SINGLE: Final = "x-single-active-consumer"
DELAYED: Final = "x-delayed-retry-type"
"""RabbitMQ 4.3: which returned messages are delayed. Until the delay ends, no count shows them."""
_NOT_DELAYED: Final = (None, "disabled")
LIMIT: Final = "x-delivery-limit"
DEFAULT_LIMIT: Final = 20
"""That of quorum queues of RabbitMQ 4; earlier releases have none."""

_log = logging.getLogger(__name__)


def check_quorum(client: Client, queue: str) -> object:
    """Check that an existing queue is a quorum queue from which ``basic.get`` is allowed, and which delivers at once
    what has come back; return its declared limit of deliveries, or None. What a policy sets cannot be learned.

    Raises:
        UnsupportedModeError: it is not, or the login may not learn it.
        LogError: it is a stream.
    """
    flags = {"durable": True, "auto_delete": False, "exclusive": False}
    arguments: dict[str, object] = {TYPE: QUORUM}
    for _ in range(MOST_TAKEN_OVER):
        try:
            client.declare_queue(queue, **flags, arguments=arguments)
        except UnauthorizedAccess as error:
            why = reason(error)
            raise UnsupportedModeError(SparkCondition.QUEUE_TYPE_UNKNOWN(queue=queue, reason=why)) from error
        except DeclaredDifferently as error:
            if error.argument == TYPE:
                # RabbitMQ 3.10 knows no type of a queue that was declared without one
                if "stream" in str(error.value):
                    raise LogError(SparkCondition.QUEUE_IS_LOG(queue=queue)) from error
                raise UnsupportedModeError(SparkCondition.QUEUE_TYPE_REFUSED(queue=queue)) from error
            take_over(error, flags, arguments)
        else:
            break
    else:
        why = "its arguments cannot be compared"
        raise UnsupportedModeError(SparkCondition.QUEUE_TYPE_UNKNOWN(queue=queue, reason=why))
    if arguments.get(SINGLE):
        raise UnsupportedModeError(SparkCondition.QUEUE_SINGLE_CONSUMER(queue=queue))
    if (kind := arguments.get(DELAYED)) not in _NOT_DELAYED:
        raise UnsupportedModeError(SparkCondition.QUEUE_DELAYS_RETURNS(queue=queue, kind=kind))
    return arguments.get(LIMIT)


def warn_of_limit(client: Client, queue: str, limit: object) -> None:
    """Warn if a queue has a declared limit of deliveries, or the server's. What a policy sets cannot be learned."""
    if limit == -1 or (limit is None and not client.capabilities.unlimited_deliveries):
        return
    most = DEFAULT_LIMIT if limit is None else limit
    policy = " (all is well if a policy sets delivery-limit=-1, which a client cannot see)" if limit is None else ""
    _log.warning(
        "queue %r: the broker drops or dead-letters a message that comes back more than %s times, so that a reader "
        "that is killed as often in one batch loses messages: declare the queue with %s=-1, as declare=ifMissing with "
        "queueType=quorum does%s",
        queue, most, LIMIT, policy,
    )  # fmt: skip
