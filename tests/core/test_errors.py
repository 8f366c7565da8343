"""Every error crosses processes as it is, and says the same afterwards."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from amqp_core import errors
from amqp_core.errors import AmqpError

# Arguments of the classes that take other than a text.
ARGUMENTS: dict[type[AmqpError], tuple[object, ...]] = {
    errors.DecodeError: ("reason", 7),
    errors.UndecodableMessage: (7, "reason"),
    errors.VersionRefused: ("AMQP 1.0", "AMQP 0-10", "offers"),
    errors.ConnectionClosed: (320, "forced"),
    errors.LimitReached: (530, "connection limit (9) is reached"),
    errors.MessageRejected: (2, 1, "full"),
    errors.TransactionFailed: ("dtx.prepare", 2, "XA_RBTIMEOUT"),
    errors.SessionDetached: (1, b"name"),
    errors.PublishingBlocked: ("h:5672", 30.0, "low on memory"),
    errors.ConfirmsMissing: ("h:5672", 600.0, "2"),
    errors.PublisherStopped: ("h:5672", 600.0),
}
TEXT = "given by the caller"
CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, AmqpError) and cls.__name__[0] != "_"
]


def made(cls: type[AmqpError]) -> AmqpError:
    if issubclass(cls, errors.CommandFailed):
        return cls(404, 7, "no such queue", "queue.query")
    return cls(*ARGUMENTS.get(cls, (TEXT,)))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_pickles_with_all_that_it_says(cls: type[AmqpError]) -> None:
    error = made(cls)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is cls
        assert (str(other), repr(other), vars(other), other.args) == (str(error), repr(error), vars(error), error.args)
        assert other.retryable is error.retryable
    assert error.condition is not None or error.args == (TEXT,), "a class that makes its text has a condition"
