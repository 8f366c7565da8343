"""Why the model refuses a request, independent of protocols: adapters translate a reason into their own code."""

from __future__ import annotations

from enum import Enum, auto


class Refusal(Enum):
    """Reason of a refusal."""

    NOT_FOUND = auto()
    """There is no such queue or exchange."""
    PRECONDITION_FAILED = auto()
    """It exists with other properties, an argument is invalid, or a condition (if-empty) does not hold."""
    RESOURCE_LOCKED = auto()
    """The queue belongs to another owner."""
    NOT_ALLOWED = auto()
    ACCESS_REFUSED = auto()
    """A reserved name, the default exchange, an internal exchange, or an exclusive consumer."""
    ILLEGAL_STATE = auto()
    """A call that is not possible now."""
    UNAUTHORIZED = auto()
    """The login has no right to it."""
    IN_USE = auto()
    """A condition (if-unused) does not hold."""
    INVALID_ARGUMENT = auto()
    NOT_IMPLEMENTED = auto()
    """An exchange type or queue type that this broker does not serve."""
    RESOURCE_LIMIT = auto()


class Refused(Exception):
    """The model did nothing, and says why.

    Args:
        reason: for programs.
        text: for people, one sentence with the names.
    """

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        return self.text


def listed(names: tuple[str, ...]) -> str:
    """Names as a part of a sentence: ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
