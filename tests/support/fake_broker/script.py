"""The faults that a test wants of a connection or a transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from amqp_core.errors import AmqpError, ConnectionLost


@dataclass
class Script:
    """Faults of one connection that publishes."""

    breaks_after: int | None = None
    """So many transfers are sent, then the connection is lost."""
    completes: int = 0
    """So many of them are complete by then."""
    error: AmqpError = field(default_factory=lambda: ConnectionLost("the connection was cut"))
    breaks_at_finish: bool = False
    breaks_at_question: int | None = None
    """The connection is lost when so many rounds of queries were answered."""
    rejects: dict[int, int] = field(default_factory=dict)
    """Transfer of this connection, counted from 0: reject code."""
    refuses: int | None = None
    """This transfer gets an execution.exception."""
    full: bool = False
    """Rejects with code 1 mean a full queue, as on Broker-J."""


@dataclass
class CommitOutcome:
    """A local transaction whose answer never comes."""

    commits: bool
    error: Exception
