"""All errors of amqp_core, and the registry that maps wire codes to classes.

Rules: a class states whether a retry can help (``retryable``); every argument goes to ``super().__init__`` so that
errors can be pickled between workers; a message names the value, the limit and the place, and never a secret. Codes
that are not in the registry become :class:`UnknownError`, never a ``KeyError``.
"""

from __future__ import annotations

from typing import ClassVar, Final

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


class CommandFailed(AmqpError):
    """The peer raised ``execution.exception`` for a command; the session has ended (0-10 section execution)."""

    error_code: ClassVar[int] = 0

    def __init__(self, error_code: int, command_id: int | None, description: str, command: str | None = None) -> None:
        super().__init__(error_code, command_id, description, command)
        self.wire_code = error_code
        self.command_id = command_id
        self.description = description
        self.command = command

    def __str__(self) -> str:
        what = f" on {self.command}" if self.command else ""
        return f"the broker refused{what} with {self.wire_code}: {self.description}"


class UnauthorizedAccess(CommandFailed):
    """403: the login lacks a right. The text names the right that qpidd and Broker-J require."""

    error_code: ClassVar[int] = 403

    def __str__(self) -> str:
        rights = RIGHTS.get(self.command or "")
        if rights is None:
            return super().__str__()
        qpidd, brokerj = rights
        there = "no right but ACCESS VIRTUALHOST" if brokerj is None else f"'ACL ALLOW USER {brokerj}'"
        return (
            f"{super().__str__()}. Let the broker's administrator grant the login what this takes (qpidd: "
            f"'acl allow USER {qpidd}'; Broker-J: {there})"
        )


class NotFound(CommandFailed):
    """404: no such queue, exchange or transaction branch."""

    error_code: ClassVar[int] = 404


class ResourceLocked(CommandFailed):
    """405: another session holds the queue exclusively."""

    error_code: ClassVar[int] = 405
    retryable: ClassVar[bool] = True


class PreconditionFailed(CommandFailed):
    """406: the resource is in a state that forbids the command."""

    error_code: ClassVar[int] = 406


class ResourceDeleted(CommandFailed):
    """408: the resource was deleted while it was in use."""

    error_code: ClassVar[int] = 408


class IllegalState(CommandFailed):
    """409: the command is not allowed in the state of the session."""

    error_code: ClassVar[int] = 409


class CommandInvalid(CommandFailed):
    """503: the command is not valid where it was sent."""

    error_code: ClassVar[int] = 503


class ResourceLimitExceeded(CommandFailed):
    """506: a limit of the broker (queue length, message size) was reached."""

    error_code: ClassVar[int] = 506


class NotAllowed(CommandFailed):
    """530: the broker's configuration forbids the command."""

    error_code: ClassVar[int] = 530


class IllegalArgument(CommandFailed):
    """531: the broker does not accept the value of an argument."""

    error_code: ClassVar[int] = 531


class NotImplementedByPeer(CommandFailed):
    """540: the broker does not implement the command."""

    error_code: ClassVar[int] = 540


class InternalError(CommandFailed):
    """541: the broker had an internal error."""

    error_code: ClassVar[int] = 541
    retryable: ClassVar[bool] = True


class InvalidArgument(CommandFailed):
    """542: an argument is not valid."""

    error_code: ClassVar[int] = 542


class UnknownError(CommandFailed):
    """An error code that the specification does not list."""


_COMMAND_FAILURES: dict[int, type[CommandFailed]] = {
    cls.error_code: cls
    for cls in (
        UnauthorizedAccess,
        NotFound,
        ResourceLocked,
        PreconditionFailed,
        ResourceDeleted,
        IllegalState,
        CommandInvalid,
        ResourceLimitExceeded,
        NotAllowed,
        IllegalArgument,
        NotImplementedByPeer,
        InternalError,
        InvalidArgument,
    )
}


def command_failure(
    error_code: int, command_id: int | None, description: str, command: str | None = None
) -> CommandFailed:
    """Build the typed error for an ``execution.exception``.

    Args:
        error_code: its error-code.
        command_id: id of the command that failed; ``None`` if it is not given.
        description: its description.
        command: name of the command, if known.
    """
    cls = _COMMAND_FAILURES.get(error_code, UnknownError)
    return cls(error_code, command_id, description, command)
