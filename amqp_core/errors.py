"""All errors of amqp_core.

Rules: a class states whether a retry can help (``retryable``); every argument goes to ``super().__init__`` so that
errors can be pickled between workers; a message names the value, the limit and the place, and never a secret.
"""

from __future__ import annotations

from typing import ClassVar

from amqp_core.conditions import condition_of


class AmqpError(Exception):
    """Base of all errors of this library."""

    retryable: ClassVar[bool] = False

    @property
    def condition(self) -> str | None:
        """Name of the error's condition (docs/errors.md), such as ``AMQP_QUEUE_NOT_FOUND``."""
        return condition_of(self)


class UsageError(AmqpError):
    """The caller used an object in a state or way that the protocol does not allow."""


class EncodeError(AmqpError, ValueError):
    """A value does not fit its wire type."""


class ProtocolError(AmqpError):
    """The peer violated the protocol; the connection cannot continue (0-10 section 4)."""

    retryable: ClassVar[bool] = True


class DecodeError(ProtocolError, ValueError):
    """Bytes from the peer are not a value of the expected type."""

    def __init__(self, reason: str, offset: int = -1) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
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
        return f"the message with command id {self.command_id} cannot be decoded: {self.reason}"


class LimitExceeded(ProtocolError):
    """The peer sent more than a limit allows: frame, segment, map depth, buffer."""

    retryable: ClassVar[bool] = False


class VersionRefused(ProtocolError):
    """The peer does not speak AMQP 0-10; ``offered`` describes the protocol that it offered or answered with."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str, offered: str) -> None:
        super().__init__(message, offered)
        self.offered = offered

    def __str__(self) -> str:
        return str(self.args[0])


class ConnectionFailed(AmqpError):
    """A connection could not be made or did not last."""

    retryable: ClassVar[bool] = True


class ConnectionLost(ConnectionFailed):
    """The transport ended: end of file, reset, or a peer silent for two heartbeat intervals."""


class ConnectionClosed(ConnectionFailed):
    """The peer closed the connection with ``connection.close`` (reply code, reply text)."""

    def __init__(self, reply_code: int, reply_text: str) -> None:
        super().__init__(reply_code, reply_text)
        self.reply_code = reply_code
        self.reply_text = reply_text

    def __str__(self) -> str:
        return f"the broker closed the connection: {self.reply_code} {self.reply_text}"


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
        return f"the broker rejected {self.count} published message(s) with code {self.code}: {self.text}"


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

    def __str__(self) -> str:
        return f"{self.operation} ended with {self.name} ({self.status})"


class SessionDetached(AmqpError):
    """The peer detached the session without an execution exception (detach-code, session name)."""

    retryable: ClassVar[bool] = True

    def __init__(self, code: int, name: bytes) -> None:
        super().__init__(code, name)
        self.code = code
        self.name = name

    def __str__(self) -> str:
        return f"the broker detached session {self.name!r} with code {self.code}"


class CommandFailed(AmqpError):
    """The broker refused a command; the session has ended (0-10 section execution: exception).

    Attributes:
        wire_code: the broker's error code.
        command_id: id of the command; ``None`` if the broker did not name it.
        description: the broker's reason.
        command: name of the command, if known.
        remedy: one sentence: what ends the condition, if it is known.
    """

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
        what = f" on {self.command}" if self.command else ""
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"the broker refused{what} with {self.wire_code}: {self.description}{remedy}"


class UnauthorizedAccess(CommandFailed):
    """The login lacks a right. The text names the right that the broker requires, if it is known."""


class NotFound(CommandFailed):
    """No such queue, exchange or transaction branch."""


class ResourceLocked(CommandFailed):
    """Another session holds the queue exclusively."""

    retryable: ClassVar[bool] = True


class PreconditionFailed(CommandFailed):
    """The resource is in a state that forbids the command."""


class ResourceDeleted(CommandFailed):
    """The resource was deleted while it was in use."""


class IllegalState(CommandFailed):
    """The command is not allowed in the state of the session."""


class CommandInvalid(CommandFailed):
    """The command is not valid where it was sent."""


class ResourceLimitExceeded(CommandFailed):
    """A limit of the broker (queue length, message size) was reached."""


class NotAllowed(CommandFailed):
    """The broker's configuration forbids the command."""


class IllegalArgument(CommandFailed):
    """The broker does not accept the value of an argument."""


class NotImplementedByPeer(CommandFailed):
    """The broker does not implement the command."""


class InternalError(CommandFailed):
    """The broker had an internal error."""

    retryable: ClassVar[bool] = True


class InvalidArgument(CommandFailed):
    """An argument is not valid."""


class UnknownError(CommandFailed):
    """An error code that the specification does not list."""
