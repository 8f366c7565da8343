"""All errors of amqp_core.

Rules: a class states whether a retry can help (``retryable``); every argument goes to ``super().__init__`` so that
errors can be pickled between workers; a message names the value, the limit and the place, and never a secret.

Thread-safety: the fields of an error do not change after its construction, so any thread may read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from amqp_core.error_conditions import CoreCondition, condition_of

if TYPE_CHECKING:
    from amqp_core.error_conditions import Condition

# By the protocol that a client expects and the answer of the port: the client that may suit it. RabbitMQ answers the
# header of 0-10 with that of 0-9-1 (before version 4) or 1.0 with SASL.
_RABBITMQ = ", or speak AMQP 0-9-1 (RabbitMQ) with amqp_core.amqp_0_9_1.Client or option protocol=auto"
_QPID = ", or speak AMQP 0-10 with amqp_core.Client or option protocol=auto"
_ALTERNATIVES = {
    "AMQP 0-10": dict.fromkeys(("AMQP 0-9-1", "AMQP 0-9", "AMQP 0-8", "AMQP 1.0 with SASL"), _RABBITMQ),
    "AMQP 0-9-1": {"AMQP 0-10": _QPID},
    "AMQP 0-9": {"AMQP 0-10": _QPID},
}
# Whether a branch is committed, by the xa-status of dtx.commit and dtx.rollback. Every other one leaves that open.
_HAS_COMMITTED = {"XA_RBROLLBACK": False, "XA_RBTIMEOUT": False, "XA_HEURRB": False, "XA_HEURCOM": True}
_MIXED = frozenset({"XA_HEURMIX", "XA_HEURHAZ"})
# Commands after which a branch should be whole, committed or not.
_RESOLVING = frozenset({"dtx.commit", "dtx.rollback"})


def given(text: str) -> str:
    """The text of a broker as a part of a sentence; it may be empty."""
    return text.removesuffix(".") or "no reason given"


class AmqpError(Exception):
    """Base of all errors of this library. Their fields do not change: any thread may read an error."""

    retryable: ClassVar[bool] = False

    @property
    def condition(self) -> str | None:
        """Name of the error's condition (docs/errors.md), such as ``AMQP_QUEUE_NOT_FOUND``."""
        return condition_of(self)


class UsageError(AmqpError):
    """The caller gave a value, or used an object in a state or way, that is not allowed."""


class _WithReason(AmqpError):
    """An error of low level: the text of its condition quotes ``reason``."""

    _condition: ClassVar[Condition]

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def cause(self) -> str:
        """The reason, and where it was found."""
        return self.reason

    def __str__(self) -> str:
        return self._condition(reason=self.cause)


class EncodeError(_WithReason, ValueError):
    """A value does not fit its wire type."""

    _condition = CoreCondition.VALUE_NOT_ENCODABLE


class ProtocolError(_WithReason):
    """The peer violated the protocol; the connection cannot continue (0-10 section 4)."""

    retryable: ClassVar[bool] = True
    _condition = CoreCondition.PROTOCOL_VIOLATED


class DecodeError(ProtocolError, ValueError):
    """Bytes from the peer are not a value of the expected type.

    Attributes:
        reason: without the position.
        offset: the position of the byte; -1 if it is not known.
    """

    _condition = CoreCondition.DATA_MALFORMED

    def __init__(self, reason: str, offset: int = -1) -> None:
        super().__init__(reason)
        self.args = (reason, offset)
        self.offset = offset

    @property
    def cause(self) -> str:
        """The reason, and the position of the byte."""
        return self.reason if self.offset < 0 else f"{self.reason} (at byte {self.offset})"


class UndecodableMessage(DecodeError):
    """A completely received message cannot be decoded. The connection and the following messages are not affected.

    Its transfer can be accepted, rejected or released by ``command_id``. A retry does not help.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, command_id: int, reason: str) -> None:
        super().__init__(reason)
        self.args = (command_id, reason)
        self.command_id = command_id

    def __str__(self) -> str:
        return CoreCondition.MESSAGE_UNDECODABLE(transfer_id=self.command_id, reason=self.reason)


class ReturnedUnexpectedly(ProtocolError):
    """The broker returned a message as unroutable that is not in flight: it may have confirmed that message before.

    A retry would not send it again.
    """

    retryable: ClassVar[bool] = False


class RejectedUnexpectedly(ProtocolError):
    """The broker rejected a message that it had completed, and a sync behind it as well: it counted as delivered.

    A retry would not send it again.
    """

    retryable: ClassVar[bool] = False


class LimitExceeded(ProtocolError):
    """The peer sent more than a limit allows: frame, segment, map depth, buffer."""

    retryable: ClassVar[bool] = False
    _condition = CoreCondition.LIMIT_EXCEEDED


class VersionRefused(ProtocolError):
    """The peer does not speak the expected protocol.

    Attributes:
        offered: describes the protocol that it offered or answered with.
        expected: the protocol that was expected.
        how: verb: how the peer showed its protocol.
        peer: its address, if known.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, offered: str, expected: str, how: str, peer: str = "The peer") -> None:
        super().__init__(offered)
        self.args = (offered, expected, how, peer)
        self.offered = offered
        self.expected = expected
        self.how = how
        self.peer = peer

    def at(self, peer: str) -> VersionRefused:
        """Return the error with the address of the peer."""
        return VersionRefused(self.offered, self.expected, self.how, peer)

    def __str__(self) -> str:
        alternative = _ALTERNATIVES.get(self.expected, {}).get(self.offered, "")
        return CoreCondition.PROTOCOL_MISMATCH(
            peer=self.peer, expected=self.expected, how=self.how, offered=self.offered, alternative=alternative
        )


class ConnectionFailed(AmqpError):
    """A connection could not be made or did not last."""

    retryable: ClassVar[bool] = True


class ConnectionLost(ConnectionFailed):
    """The transport ended: end of file, reset, or a peer silent for two heartbeat intervals."""


class SpeaksNoAmqp(ConnectionFailed):
    """The peer closes each connection at the protocol header of AMQP: it speaks another protocol, or expects TLS.

    Attributes:
        peer: its address.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.peer = peer

    def __str__(self) -> str:
        return CoreCondition.PORT_SPEAKS_NO_AMQP(peer=self.peer)


class ConnectionClosed(ConnectionFailed):
    """The peer closed the connection with ``connection.close`` (reply code, reply text)."""

    def __init__(self, reply_code: int, reply_text: str) -> None:
        super().__init__(reply_code, reply_text)
        self.reply_code = reply_code
        self.reply_text = reply_text

    def __str__(self) -> str:
        return CoreCondition.CONNECTION_CLOSED(code=self.reply_code, text=given(self.reply_text))


class LimitReached(ConnectionClosed):
    """The peer takes no more connections, or channels, for now: as many are open as its limit allows."""

    def __str__(self) -> str:
        return CoreCondition.CONNECTION_LIMIT_REACHED(code=self.reply_code, text=given(self.reply_text))


class AuthenticationFailed(ConnectionFailed):
    """The login was refused, or no SASL mechanism is acceptable to both sides."""

    retryable: ClassVar[bool] = False


class TlsError(ConnectionFailed):
    """The TLS handshake failed: an untrusted certificate, one for another name, or no TLS on that port."""

    retryable: ClassVar[bool] = False


class VirtualHostRefused(ConnectionFailed):
    """The broker has no such virtual host, or does not let this login use it."""

    retryable: ClassVar[bool] = False


class DeadlineExceeded(AmqpError):
    """An answer did not arrive in time; the connection is closed because its state is unknown."""

    retryable: ClassVar[bool] = True


class PublishingBlocked(AmqpError):
    """The broker blocks its publishers for longer than allowed (RabbitMQ's connection.blocked: memory or disk is low).

    Attributes:
        peer: address of the broker.
        seconds: time for which it has blocked them.
        reason: the broker's reason.
    """

    def __init__(self, peer: str, seconds: float, reason: str) -> None:
        super().__init__(peer, seconds, reason)
        self.peer = peer
        self.seconds = seconds
        self.reason = reason

    def __str__(self) -> str:
        return CoreCondition.PUBLISHING_BLOCKED(
            peer=self.peer, seconds=f"{self.seconds:.0f}", reason=given(self.reason)
        )


class ConfirmsMissing(PublishingBlocked):
    """The broker has confirmed none of the messages in flight for longer than allowed, and has not said why (0-9-1).

    Attributes:
        reason: their number.
    """

    def __str__(self) -> str:
        return CoreCondition.CONFIRMS_MISSING(peer=self.peer, seconds=f"{self.seconds:.0f}", count=self.reason)


class PublisherStopped(AmqpError):
    """The broker has stopped the publisher of a session for longer than allowed (0-10 ``message.stop``).

    Nothing is in flight. Another session may publish: Broker-J can forget that it has stopped one.

    Attributes:
        peer: address of the broker.
        seconds: time for which it has stopped the publisher.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, peer: str, seconds: float) -> None:
        super().__init__(peer, seconds)
        self.peer = peer
        self.seconds = seconds

    def __str__(self) -> str:
        return CoreCondition.PUBLISHER_STOPPED(peer=self.peer, seconds=f"{self.seconds:.0f}")


class UnroutableDropped(AmqpError):
    """The broker confirms messages that no queue gets, and does not return them (0-9-1 section basic.publish).

    Attributes:
        peer: address of the broker.
    """

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.peer = peer

    def __str__(self) -> str:
        return CoreCondition.UNROUTABLE_DROPPED(peer=self.peer)


class OutcomeUnknown(AmqpError):
    """The connection broke before the broker completed commands that were sent: the caller must decide."""

    retryable: ClassVar[bool] = True


class MessageRejected(AmqpError):
    """The broker rejected published messages (``message.reject``): unroutable, or a queue is full."""

    def __init__(self, count: int, code: int, text: str) -> None:
        super().__init__(count, code, text)
        self.count = count
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return CoreCondition.MESSAGES_REJECTED(count=self.count, code=self.code, text=given(self.text))


class TransactionFailed(AmqpError):
    """A distributed transaction branch did not end as requested (``xa-status``, 0-10 section dtx)."""

    def __init__(self, operation: str, status: int, name: str) -> None:
        super().__init__(operation, status, name)
        self.operation = operation
        self.status = status
        self.name = name

    @property
    def is_timeout(self) -> bool:
        """Whether the timer of the branch has ended it (XA_RBTIMEOUT)."""
        return self.name == "XA_RBTIMEOUT"

    @property
    def is_rollback(self) -> bool:
        """Whether the broker has rolled the branch back for another reason (XA_RBROLLBACK)."""
        return self.name == "XA_RBROLLBACK"

    @property
    def has_committed(self) -> bool | None:
        """Whether the branch is committed (XA_HEURCOM), or nothing of it (XA_RB..., XA_HEURRB); ``None``: not known."""
        return _HAS_COMMITTED.get(self.name)

    @property
    def is_mixed(self) -> bool:
        """Whether the broker may have committed one part of the branch and rolled back another."""
        return self.name in _MIXED or (self.has_committed is None and self.operation in _RESOLVING)

    def __str__(self) -> str:
        condition = CoreCondition.TRANSACTION_FAILED
        if self.is_mixed:
            condition = CoreCondition.TRANSACTION_MIXED
        elif self.has_committed:
            condition = CoreCondition.TRANSACTION_COMMITTED
        return condition(operation=self.operation, status=self.name, code=self.status)


class SessionDetached(AmqpError):
    """The peer detached the session without an execution exception (detach-code, session name)."""

    retryable: ClassVar[bool] = True

    def __init__(self, code: int, name: bytes) -> None:
        super().__init__(code, name)
        self.code = code
        self.name = name

    def __str__(self) -> str:
        return CoreCondition.SESSION_DETACHED(name=self.name, code=self.code)


class CommandFailed(AmqpError):
    """The broker refused a command; the session has ended (0-10 section execution: exception).

    Attributes:
        wire_code: the broker's error code.
        command_id: id of the command; ``None`` if the broker did not name it.
        description: the broker's reason; the whole text if it begins with a condition.
        command: name of the command, if known.
        remedy: what the administrator of the broker has to do, if it is known.
    """

    _condition: ClassVar[Condition] = CoreCondition.COMMAND_REFUSED

    def __init__(
        self, error_code: int, command_id: int | None, description: str, command: str | None = None, remedy: str = ""
    ) -> None:
        super().__init__(error_code, command_id, description, command, remedy)
        self.wire_code = error_code
        self.command_id = command_id
        self.description = description
        self.command = command
        self.remedy = remedy

    def __str__(self) -> str:
        if condition_of(self.description):  # of a caller that found the error in an answer of the broker
            return self.description
        return self._condition(**self._fields())

    def _fields(self) -> dict[str, object]:
        command = f" {self.command}" if self.command else ""
        description = given(self.description)
        return {"command": command, "code": self.wire_code, "description": description}


class UnauthorizedAccess(CommandFailed):
    """The login lacks a right. The text names the right that the broker requires, if it is known."""

    _condition = CoreCondition.ACCESS_REFUSED

    def _fields(self) -> dict[str, object]:
        return super()._fields() | {"remedy": self.remedy or "Let the broker's administrator grant the login the right"}


class NotFound(CommandFailed):
    """No such queue, exchange or transaction branch."""

    _condition = CoreCondition.RESOURCE_NOT_FOUND


class ResourceLocked(CommandFailed):
    """Another session holds the queue exclusively."""

    _condition = CoreCondition.RESOURCE_LOCKED
    retryable: ClassVar[bool] = True


class PreconditionFailed(CommandFailed):
    """The resource is in a state that forbids the command."""


class DeclaredDifferently(PreconditionFailed):
    """A declaration differs from the queue or exchange that exists (RabbitMQ, which names the first difference).

    Attributes:
        argument: what differs: an argument, or a property such as ``durable``.
        wanted, current: what was declared, and what the queue or exchange has, as the broker shows it.
        value: what it has, as a declaration takes it; ``None`` if it is absent, or not shown in full.
    """

    def __init__(
        self,
        error_code: int,
        command_id: int | None,
        description: str,
        command: str | None = None,
        remedy: str = "",
        *,
        argument: str = "",
        wanted: str = "",
        current: str = "",
        value: str | int | None = None,
    ) -> None:
        super().__init__(error_code, command_id, description, command, remedy)
        self.argument = argument
        self.wanted = wanted
        self.current = current
        self.value = value


class DeliveryTimedOut(PreconditionFailed):
    """Messages stayed unsettled for longer than the broker allows; it has taken them back."""

    _condition = CoreCondition.DELIVERY_TIMED_OUT
    retryable: ClassVar[bool] = True


class ResourceDeleted(CommandFailed):
    """The resource was deleted while it was in use."""


class IllegalState(CommandFailed):
    """The command is not allowed in the state of the session."""


class CommandInvalid(CommandFailed):
    """The command is not valid where it was sent."""


class ResourceLimitExceeded(CommandFailed):
    """A limit of the broker (queue length, message size) was reached."""

    _condition = CoreCondition.RESOURCE_LIMIT_REACHED


class NotAllowed(CommandFailed):
    """The broker's configuration forbids the command."""


class IllegalArgument(CommandFailed):
    """The broker does not accept the value of an argument."""


class NotImplementedByPeer(CommandFailed):
    """The broker does not implement the command."""


class InternalError(CommandFailed):
    """The broker had an internal error."""

    retryable: ClassVar[bool] = True


class ChannelClosed(CommandFailed):
    """The broker closed the channel for a reason of its own: a new one may work (0-9-1)."""

    _condition = CoreCondition.CHANNEL_CLOSED
    retryable: ClassVar[bool] = True

    def _fields(self) -> dict[str, object]:
        return super()._fields() | {"command": f" at {self.command}" if self.command else ""}


class InvalidArgument(CommandFailed):
    """An argument is not valid."""


class UnknownError(CommandFailed):
    """An error code that the specification does not list."""
