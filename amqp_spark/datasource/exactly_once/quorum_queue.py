"""Which queues of RabbitMQ exactly-once can read: quorum queues, without a single active consumer.

The type is learned by declaring the queue again as a quorum queue, which changes nothing: the broker refuses the first
argument that differs, with its current value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.error_conditions import reason
from amqp_core.errors import DeclaredDifferently, UnauthorizedAccess
from amqp_spark.datasource.queue_comparison import MOST_TAKEN_OVER, take_over
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import UnsupportedModeError
from amqp_spark.options import QUORUM

if TYPE_CHECKING:
    from amqp_core.api import Client

TYPE: Final = "x-queue-type"
SINGLE: Final = "x-single-active-consumer"


def check_quorum(client: Client, queue: str) -> None:
    """Check that an existing queue is a quorum queue from which ``basic.get`` is allowed.

    Raises:
        UnsupportedModeError: it is not, or the login may not learn it.
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
                found = "a stream" if "stream" in str(error.value) else "a classic queue"
                raise UnsupportedModeError(SparkCondition.QUEUE_TYPE_REFUSED(queue=queue, found=found)) from error
            take_over(error, flags, arguments)
        else:
            break
    else:
        why = "its arguments cannot be compared"
        raise UnsupportedModeError(SparkCondition.QUEUE_TYPE_UNKNOWN(queue=queue, reason=why))
    if arguments.get(SINGLE):
        found = f"declared with {SINGLE}"
        raise UnsupportedModeError(SparkCondition.QUEUE_TYPE_REFUSED(queue=queue, found=found))
