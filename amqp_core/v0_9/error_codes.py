"""Error classes by the reply codes of channel.close and connection.close (0-9-1 section constants).

Worth a retry on a new connection, as often as the program allows:

- a close that names no method, unless its code says something of a queue, an exchange or a message (a soft error): it
  answers nothing that the client sent, so the broker had a reason of its own. The specification says so of 320
  (connection-forced: "may retry at some later date"), and 0-10's detached sessions are retried, too;
- 320 and 541 (internal-error), whatever they name;
- 504 (channel-error): the broker does not know the channel any more, and a new connection begins with new ones. A
  broker that has just closed the channel answers so to an ack that was under way;
- 405 (resource-locked), a delivery timeout, queues that are unavailable for a while, and a broker whose disk is nearly
  full.

Not 311 (content-too-large), although the specification allows it: the same message would come, or be sent, again. Nor
403, 404, 406 and the faults of a method that is named: it would be refused again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from amqp_core import errors
from amqp_core.error_conditions import CoreCondition
from amqp_core.v0_9 import spec
from amqp_core.v0_9.spec import ReplyCode as Code

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID_ARGUMENT: Final = 542
"""A reply code of Broker-J: for an argument of queue.declare that it does not know it closes the connection."""

ERRORS: Final[dict[int, type[errors.CommandFailed]]] = {
    Code.CONTENT_TOO_LARGE: errors.ResourceLimitExceeded,
    Code.NO_ROUTE: errors.NotFound,
    Code.NO_CONSUMERS: errors.NotFound,
    Code.CONNECTION_FORCED: errors.ChannelClosed,
    Code.INVALID_PATH: errors.NotFound,
    Code.ACCESS_REFUSED: errors.UnauthorizedAccess,
    Code.NOT_FOUND: errors.NotFound,
    Code.RESOURCE_LOCKED: errors.ResourceLocked,
    Code.PRECONDITION_FAILED: errors.PreconditionFailed,
    Code.SYNTAX_ERROR: errors.IllegalArgument,
    Code.COMMAND_INVALID: errors.CommandInvalid,
    Code.CHANNEL_ERROR: errors.ChannelClosed,
    Code.UNEXPECTED_FRAME: errors.CommandInvalid,
    Code.RESOURCE_ERROR: errors.ResourceLimitExceeded,
    Code.NOT_ALLOWED: errors.NotAllowed,
    Code.NOT_IMPLEMENTED: errors.NotImplementedByPeer,
    Code.INTERNAL_ERROR: errors.InternalError,
    INVALID_ARGUMENT: errors.InvalidArgument,
}

# RabbitMQ: inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'
# It is cut if it is longer than 255 bytes.
_DIFFERS: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']*)' for (?P<kind>\w+) '"
    r"(?:(?P<resource>.*)' in vhost '.*': received (?P<wanted>.*) but current is (?P<current>.*))?",
    re.DOTALL,
)
_TYPED: Final = re.compile(r"the value (.*) of type '(\w+)'", re.DOTALL)
# Brokers refuse what another connection uses exclusively as if a right were missing: RabbitMQ and Broker-J a second
# consumer with 403, Broker-J a declaration with 530.
_EXCLUSIVE: Final = re.compile("exclusive", re.IGNORECASE)
# RabbitMQ: home node 'r@h' of durable queue 'q' in vhost '/' is down or inaccessible; failed to perform operation on
# queue 'q' in vhost '/' due to timeout; queue 'q' in vhost '/' has crashed and failed to restart; failed to perform
# operation on queue 'q' in vhost '/': its leader <0.5.0> may be stopping or being demoted
_UNAVAILABLE: Final = re.compile(
    r"down or inaccessible|due to timeout|has crashed|stopped by supervisor|may be stopping or being demoted"
)
# RabbitMQ: delivery acknowledgement on channel 1 timed out; LavinMQ: consumer timeout
_TIMED_OUT: Final = re.compile(r"delivery acknowledgement on channel \d+ timed out|consumer timeout", re.IGNORECASE)
# LavinMQ, which blocks no connection: Server low on disk space; Server low on disk space, can not create queue
_LOW: Final = re.compile(r"\blow on disk\b", re.IGNORECASE)
# Where no method is named: RabbitMQ 3.8: consumer ack timed out on channel 1; other brokers have words of their own.
_SOME_TIMEOUT: Final = re.compile(r"timed?[ -]?out", re.IGNORECASE)


def command_failure(code: int, text: str, class_id: int, method_id: int) -> errors.CommandFailed:
    """Build the typed error for a channel.close; for a code that is not listed, an UnknownError.

    Args:
        code, text: reply-code and reply-text.
        class_id, method_id: the refused method; 0 if the broker did not name it.
    """
    refused = spec.METHOD_TYPES.get(class_id << 16 | method_id)
    command = refused.NAME if refused else None
    for is_it, build in _SPECIAL:
        if is_it(code, text, command):
            return build(code, text, command)
    remedy = ""
    if code == Code.ACCESS_REFUSED:
        remedy = "Let the broker's administrator grant the login the right (RabbitMQ: rabbitmqctl set_permissions)"
    kind = ERRORS.get(code, errors.UnknownError)
    if not (class_id or method_id or code in spec.SOFT_ERRORS or kind.retryable):
        kind = errors.ChannelClosed
    return kind(code, None, text, command, remedy)


def _is_timeout(code: int, text: str, command: str | None) -> bool:
    words = _SOME_TIMEOUT if command is None else _TIMED_OUT
    return code == Code.PRECONDITION_FAILED and words.search(text) is not None


def _timeout(code: int, text: str, command: str | None) -> errors.CommandFailed:
    return errors.DeliveryTimedOut(code, None, text, command)


def _is_unavailable(code: int, text: str, _: str | None) -> bool:
    return code == Code.NOT_FOUND and _UNAVAILABLE.search(text) is not None


def _unavailable(code: int, text: str, command: str | None) -> errors.CommandFailed:
    """A queue that exists, and cannot be used now, as after a restart of the broker: it may be tried again."""
    return errors.InternalError(code, None, text, command)


def _is_difference(code: int, text: str, _: str | None) -> bool:
    return code == Code.PRECONDITION_FAILED and _DIFFERS.search(text) is not None


def _difference(code: int, text: str, command: str | None) -> errors.CommandFailed:
    found = _DIFFERS.search(text)
    assert found is not None
    if found["current"] is None:
        shown = {"wanted": "another value", "current": "(the broker does not show it)"}
        return errors.DeclaredDifferently(code, None, text, command, argument=found["name"], **shown)
    wanted, _ = _value(found["wanted"])
    current, value = _value(found["current"])
    said = CoreCondition.DECLARED_DIFFERENTLY(
        kind=found["kind"].capitalize(),
        name=found["resource"],
        argument=found["name"],
        current=current,
        wanted=wanted,
    )
    return errors.DeclaredDifferently(
        code, None, said, command, argument=found["name"], wanted=wanted, current=current, value=value
    )


def _is_low(code: int, text: str, _: str | None) -> bool:
    return code == Code.PRECONDITION_FAILED and _LOW.search(text) is not None


def _low(code: int, text: str, command: str | None) -> errors.CommandFailed:
    """It is for no message: the same one is taken when there is room again."""
    return errors.ChannelClosed(code, None, text, command)


def _value(text: str) -> tuple[str, str | int | None]:
    """A value as an error shows it, and as a declaration takes it; ``None`` if it is absent or of a rare type.

    RabbitMQ writes ``none``, ``the value '5' of type 'signedint'``, and of some arguments the value alone: ``'true'``,
    ``'quorum'``, ``'-1'``.
    """
    if text == "none":
        return "absent", None
    found = _TYPED.fullmatch(text)
    shown, kind = (text, None) if found is None else (found[1], found[2])
    if not (len(shown) > 1 and shown[0] == shown[-1] == "'"):  # cut
        return shown, None
    plain = shown[1:-1]
    if kind in (None, "bool") and plain in ("true", "false"):
        return shown, plain == "true"
    if kind != "longstr" and re.fullmatch("-?[0-9]+", plain):
        return shown, int(plain)
    return shown, plain if kind in (None, "longstr") else None


def _is_exclusive(code: int, text: str, _: str | None) -> bool:
    return code in (Code.ACCESS_REFUSED, Code.NOT_ALLOWED) and _EXCLUSIVE.search(text) is not None


def _exclusive(code: int, text: str, command: str | None) -> errors.CommandFailed:
    return errors.ResourceLocked(code, None, text, command)


_SPECIAL: Final[
    tuple[tuple[Callable[[int, str, str | None], bool], Callable[[int, str, str | None], errors.CommandFailed]], ...]
] = (
    (_is_timeout, _timeout),
    (_is_unavailable, _unavailable),
    (_is_difference, _difference),
    (_is_low, _low),
    (_is_exclusive, _exclusive),
)
