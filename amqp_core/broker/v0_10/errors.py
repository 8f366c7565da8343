"""Errors of commands: what ends a session with execution.exception (0-10 domain execution.error-code)."""

from __future__ import annotations

from typing import Final

from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.v0_10.spec import ExecutionErrorCode as Code

__all__ = ["CODES", "Code", "Failed", "failure", "named"]

CODES: Final = {
    Refusal.NOT_FOUND: Code.NOT_FOUND,
    Refusal.PRECONDITION_FAILED: Code.PRECONDITION_FAILED,
    Refusal.ILLEGAL_STATE: Code.ILLEGAL_STATE,
    Refusal.IN_USE: Code.PRECONDITION_FAILED,
    Refusal.INVALID_ARGUMENT: Code.INVALID_ARGUMENT,
    Refusal.RESOURCE_LOCKED: Code.RESOURCE_LOCKED,
    Refusal.ACCESS_REFUSED: Code.NOT_ALLOWED,
    Refusal.UNAUTHORIZED: Code.UNAUTHORIZED_ACCESS,
    Refusal.NOT_ALLOWED: Code.NOT_ALLOWED,
    Refusal.NOT_IMPLEMENTED: Code.NOT_IMPLEMENTED,
    Refusal.RESOURCE_LIMIT: Code.RESOURCE_LIMIT_EXCEEDED,
}
"""Codes of what the model refuses, as the specification has them."""


class Failed(Exception):
    """A command that cannot be carried out; its session ends."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


def failure(error: Failed | Refused) -> Failed:
    """What the model or a handler refused, with its code."""
    return error if isinstance(error, Failed) else Failed(CODES[error.reason], error.text)


def named(value: str | None, what: str) -> str:
    """A name that must not be empty.

    Raises:
        Failed: INVALID_ARGUMENT.
    """
    if not value:
        raise Failed(Code.INVALID_ARGUMENT, f"{what} must not be empty")
    return value
