"""How a queue of RabbitMQ was declared, which its protocol does not tell, but refusals of declarations do.

A declaration that differs from the queue is refused, and the refusal names the first difference and the value that the
queue has. Here each declaration has impossible values for all arguments that are not known yet: so none can make a
queue, should it be deleted meanwhile, and each teaches one value. A declaration that succeeds has changed nothing: what
is still unknown is an argument that queues of this type do not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_core.errors import CommandFailed, DeclaredDifferently, UnauthorizedAccess
from amqp_spark.datasource.queue_comparison import take_over

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.api import Client

IMPOSSIBLE: Final[dict[str, object]] = {
    "x-queue-type": "doctor",
    "x-max-length": -7,
    "x-max-length-bytes": -7,
    "x-message-ttl": -7,
    "x-expires": -7,
    "x-overflow": "doctor",
    "x-dead-letter-exchange": -7,
    "x-single-active-consumer": "doctor",
    "x-delivery-limit": "doctor",
}
"""A value that no queue can be declared with, for each argument that matters."""
_MOST_QUESTIONS: Final = 20


@dataclass(frozen=True, slots=True)
class Declared:
    """How a queue was declared. Immutable: any thread may use it.

    Attributes:
        durable, exclusive, auto_delete: the flags; ``None``: not told.
        arguments: those that matter and are set.
        is_complete: whether all that matter are known; else ``why_not`` says why.
    """

    durable: bool | None
    exclusive: bool | None
    auto_delete: bool | None
    arguments: Mapping[str, object]
    is_complete: bool
    why_not: str = ""


def ask(client: Client, queue: str) -> Declared:
    """Find out how a queue was declared. It has to exist, on a broker that compares declarations."""
    flags = {"durable": True, "auto_delete": False, "exclusive": False}
    arguments = dict(IMPOSSIBLE)
    unknown = set(arguments)
    is_complete, why_not = False, "it did not name all"
    for _ in range(_MOST_QUESTIONS):
        try:
            client.declare_queue(queue, **flags, arguments=arguments)
        except DeclaredDifferently as error:
            name = error.argument
            if name not in flags and name not in unknown:
                break
            take_over(error, flags, arguments)
            unknown.discard(name)
        except UnauthorizedAccess:
            why_not = "the login may not declare it, so the broker does not compare"
            break
        except CommandFailed as error:
            why_not = str(error.description)
            break
        else:
            is_complete = True
            break
        if not unknown:
            is_complete = True
            break
    known = {name: value for name, value in arguments.items() if name not in unknown}
    told = is_complete or len(unknown) < len(IMPOSSIBLE)  # the flags are compared before the first argument
    return Declared(
        durable=flags["durable"] if told else None,
        exclusive=flags["exclusive"] if told else None,
        auto_delete=flags["auto_delete"] if told else None,
        arguments=known,
        is_complete=is_complete,
        why_not="" if is_complete else why_not,
    )
