"""What a command is answered with (execution.result): a struct of the type that the specification gives the command.

Much rests on results (which branches are prepared, whether a queue is there, what is bound), so an answer of another
type, or none, is never taken for an empty one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from amqp_core.errors import ProtocolError

if TYPE_CHECKING:
    from amqp_core.v0_10 import spec

Result = TypeVar("Result", bound="spec.Struct")


def result_of(command: spec.Command, value: object, kind: type[Result]) -> Result:
    """Return the result of a command.

    Parameters:
        command: what was asked.
        value: what execution.result carried; ``None`` if it carried nothing, or did not come.
        kind: the type that the specification gives it.

    Raises:
        ProtocolError: it is of another type.
    """
    if isinstance(value, kind):
        return value
    given = getattr(value, "NAME", "nothing")
    raise ProtocolError(f"the broker answered {command.NAME} with {given}, where {kind.NAME} is due")
