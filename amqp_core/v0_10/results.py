"""Results of commands (execution.result): a struct of the type that the specification assigns to the command.

Results are essential (prepared branches, existence of a queue, bindings), so a missing answer, or one of another type,
is never treated as an empty result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from amqp_core.errors import ProtocolError

if TYPE_CHECKING:
    from amqp_core.v0_10 import spec

Result = TypeVar("Result", bound="spec.Struct")


def result_of(command: spec.Command, value: object, kind: type[Result]) -> Result:
    """Return the result of a command.

    Args:
        command: the command.
        value: the value of execution.result; ``None`` if it has none, or did not arrive.
        kind: the result type of the command in the specification.

    Raises:
        ProtocolError: the value is of another type.
    """
    if isinstance(value, kind):
        return value
    given = getattr(value, "NAME", "nothing")
    raise ProtocolError(f"the broker answered {command.NAME} with {given}, where {kind.NAME} is due")
