"""Error classes by the codes of execution.exception (0-10 section execution.error-code), and the rights of brokers."""

from __future__ import annotations

from typing import Final

from amqp_core import errors
from amqp_core.v0_10.spec import ExecutionErrorCode as Code

ERRORS: Final[dict[int, type[errors.CommandFailed]]] = {
    Code.UNAUTHORIZED_ACCESS: errors.UnauthorizedAccess,
    Code.NOT_FOUND: errors.NotFound,
    Code.RESOURCE_LOCKED: errors.ResourceLocked,
    Code.PRECONDITION_FAILED: errors.PreconditionFailed,
    Code.RESOURCE_DELETED: errors.ResourceDeleted,
    Code.ILLEGAL_STATE: errors.IllegalState,
    Code.COMMAND_INVALID: errors.CommandInvalid,
    Code.RESOURCE_LIMIT_EXCEEDED: errors.ResourceLimitExceeded,
    Code.NOT_ALLOWED: errors.NotAllowed,
    Code.ILLEGAL_ARGUMENT: errors.IllegalArgument,
    Code.NOT_IMPLEMENTED: errors.NotImplementedByPeer,
    Code.INTERNAL_ERROR: errors.InternalError,
    Code.INVALID_ARGUMENT: errors.InvalidArgument,
}

RIGHTS: Final[dict[str, tuple[str, str | None]]] = {
    "queue.query": ("access queue", None),
    "exchange.query": ("access exchange", None),
    "exchange.bound": ("access exchange", None),
    "exchange.bind": ("bind exchange", None),
    "exchange.unbind": ("unbind exchange", "UNBIND EXCHANGE"),
    "queue.declare": ("create queue", "CREATE QUEUE"),
    "queue.delete": ("delete queue", "DELETE QUEUE"),
    "message.subscribe": ("consume queue", "CONSUME QUEUE"),
}
"""Access right that each command needs: on qpidd, and on Broker-J (``None``: no specific one)."""


def command_failure(
    error_code: int, command_id: int | None, description: str, command: str | None = None
) -> errors.CommandFailed:
    """Build the typed error for an ``execution.exception``; for a code that is not listed, an UnknownError."""
    remedy = ""
    if error_code == Code.UNAUTHORIZED_ACCESS and command in RIGHTS:
        qpidd, brokerj = RIGHTS[command]
        there = "no right but ACCESS VIRTUALHOST" if brokerj is None else f"'ACL ALLOW USER {brokerj}'"
        remedy = (
            "Let the broker's administrator grant the login the right "
            f"(qpidd: 'acl allow USER {qpidd}'; Broker-J: {there})"
        )
    return ERRORS.get(error_code, errors.UnknownError)(error_code, command_id, description, command, remedy)
