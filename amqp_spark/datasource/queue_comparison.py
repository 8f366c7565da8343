"""Compare the arguments of an existing queue with those that the options name.

The source declares the queue again. That changes nothing: the broker refuses the declaration and names the first
argument that differs. If the options do not name that argument, the source copies its current value from the answer
and declares again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from amqp_core.errors import DeclaredDifferently, PreconditionFailed, UnauthorizedAccess
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.api import Client
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

MOST_TAKEN_OVER: Final = 32
"""More than RabbitMQ has arguments that it compares."""


def compare(client: Client, queue: str, options: SourceOptions, declared: Mapping[str, object] | None) -> None:
    """Check the arguments of a queue that exists; ``declared``: those with which it would be declared.

    Raises:
        PreconditionFailed: one that the options name differs; the text has both values.
        LogError: the options ask for a stream, and it is none.
    """
    named = dict.fromkeys(dict(options.queue_arguments), "queueArguments")
    if options.queue_type is not None:
        named["x-queue-type"] = "queueType"
    if not named:
        return
    flags = {"durable": True, "auto_delete": False, "exclusive": False}
    arguments = dict(declared or {})
    taken: set[str] = set()
    while True:
        try:
            client.declare_queue(queue, **flags, arguments=arguments)
        except UnauthorizedAccess as error:
            _log.info("queue %r: its arguments are not compared with the options: %s", queue, error)
            return
        except DeclaredDifferently as error:
            name = error.argument
            if name == "x-queue-type" and options.reads_streams:
                raise LogError(SparkCondition.LOG_IS_QUEUE(queue=queue)) from error
            if name in named:
                text = SparkCondition.QUEUE_DECLARED_DIFFERENTLY(
                    queue=queue, argument=name, current=error.current, option=named[name], wanted=error.wanted
                )
                raise PreconditionFailed(error.wire_code, error.command_id, text, error.command) from error
            if name in taken or len(taken) == MOST_TAKEN_OVER:
                _log.info("queue %r: not all of its arguments can be compared with the options: %s", queue, error)
                return
            taken.add(name)
            take_over(error, flags, arguments)
        else:
            return


def take_over(error: DeclaredDifferently, flags: dict[str, bool], arguments: dict[str, object]) -> None:
    """Change the flags and arguments of a declaration so that the argument that differs has its current value."""
    name = error.argument
    if name in flags:
        flags[name] = bool(error.value)
    elif error.value is None:
        arguments.pop(name, None)
    else:
        arguments[name] = error.value
