"""The client interface of every protocol: what a program needs of a connection, whatever AMQP is on the wire.

A client is one connection with one session, and one *incarnation*: after a failure it is closed, and a program connects
another one. Transfers are settled by ids that count on without end within a client and mean nothing outside of it
(0-10: command ids). Differences between protocols and brokers have names: :class:`Capabilities`.

Nothing here does input or output, and nothing is peculiar to one protocol. ``amqp_core.v0_10.client.Client`` implements
it for AMQP 0-10. A client is for one thread, except :meth:`Client.wake`; the value classes are immutable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.transfer_ledger import Counted, Rejected, Transfers


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities of a protocol, and known ways of the broker behind a connection.

    Attributes:
        credit: a subscription gets messages as far as it has credit, counted in messages and in bytes.
        browse: messages can be read without being acquired.
        selectors: a subscription may filter by a selector.
        exchange_queries: existence and type of an exchange can be queried.
        binding_queries: a binding of an exchange can be queried by its key.
        confirms: the broker confirms the messages that it has taken.
        local_transactions: publishes and accepts of one session can be committed together.
        distributed_transactions: branches can be prepared, and resolved by other sessions.
        counts_held_messages: the message count of a queue includes messages that consumers hold.
        rejects_unroutable: the broker is known to reject what it cannot route. Of an unknown broker the opposite has to
            be expected: it may drop such a message without a word.
        lists_branches_in_one_frame: a list of prepared branches that exceeds one frame costs the connection.
        zero_timeout_is_none: a branch with a timeout of 0 has no timer; elsewhere 0 ends it at once.
    """

    credit: bool = True
    browse: bool = True
    selectors: bool = True
    exchange_queries: bool = True
    binding_queries: bool = True
    confirms: bool = True
    local_transactions: bool = True
    distributed_transactions: bool = True
    counts_held_messages: bool = True
    rejects_unroutable: bool = False
    lists_branches_in_one_frame: bool = False
    zero_timeout_is_none: bool = True


@dataclass(frozen=True, slots=True)
class Xid:
    """The name of a transaction branch, as X/Open XA has it (0-10 section dtx, struct xid).

    Attributes:
        format: the number of the format; ``None`` only in an answer of a broker that leaves it out.
        global_id: of the transaction, at most 64 bytes.
        branch_id: of the branch, at most 64 bytes.
    """

    format: int | None = None
    global_id: bytes | None = None
    branch_id: bytes | None = None


class Route(NamedTuple):
    """The answer about a target of messages.

    Attributes:
        exists: whether the exchange, binding or queue is there. An answer that does not say so for certain is a no.
        exchange_type: of an exchange: direct, topic, fanout, headers or a type of the broker's own; else empty.
    """

    exists: bool
    exchange_type: str = ""


Target = tuple[str, str | None]
"""An exchange and a routing key: the binding; with an empty exchange: the queue of that name. Without a key: the
exchange."""


class Block(Protocol):
    """Transfers with consecutive ids, as raw frames."""

    @property
    def frames(self) -> bytes:
        """Whole transfers exactly as received; may be interleaved with frames that belong to no transfer."""

    @property
    def ends(self) -> Sequence[int]:
        """The end offset of each transfer in ``frames``."""

    @property
    def first_id(self) -> int:
        """Id of the first transfer."""

    @property
    def largest(self) -> int:
        """Bytes of the largest transfer."""


class Message(Protocol):
    """A received message."""

    @property
    def body(self) -> bytes:
        """Its body; empty when it has none."""

    @property
    def transfer_id(self) -> int:
        """The id that settles it."""


class QueueInfo(Protocol):
    """A broker's answer about a queue."""

    @property
    def message_count(self) -> int | None:
        """Messages in the queue: see :attr:`Capabilities.counts_held_messages`."""

    @property
    def subscriber_count(self) -> int | None:
        """Consumers of the queue."""


class Subscription(Protocol):
    """A flow of transfers from one queue, as far as there is credit."""

    @property
    def credit(self) -> int:
        """Messages that may still come."""

    @property
    def credit_bytes(self) -> float:
        """Bytes of messages that may still come; infinite where one of any size may."""

    def grant(self, messages: int) -> None:
        """Add credit for so many messages of any size."""

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        """Replace the credit, without waiting: so many messages of together so many bytes, or of any size.

        Messages under way still come, and count as credit until the broker has answered.
        """

    def take_blocks(self, timeout: float) -> Sequence[Block]:
        """Wait until transfers came, ``timeout`` seconds passed, or the client was woken; may return none."""

    def take_arrived(self) -> Sequence[Block]:
        """The transfers that came while the client waited for something else."""

    def take_one(self, *, timeout: float) -> Message | None:
        """The next message; ``None`` if none comes within ``timeout`` seconds.

        Raises:
            UndecodableMessage: it is not what the specification says; its id can still be settled.
        """

    def flush(self) -> None:
        """Wait until the broker has sent what it can; the credit ends with that."""

    def probe(self) -> None:
        """Replace all credit by one message's, and wait until it has come or there is none; credit is 0 then."""

    def cancel(self) -> None:
        """End the subscription and wait: everything that was under way is here then."""


class Publisher(Protocol):
    """Sends runs of ready-made transfers within a window, and keeps account of them."""

    accept_mode: int
    """A number for the encoder of this protocol, which writes it into every transfer."""

    @property
    def max_frame_size(self) -> int:
        """Bytes of the largest frame that the broker takes."""

    @property
    def sent(self) -> Counted:
        """All that was sent."""

    @property
    def completed(self) -> Counted:
        """That part which the broker has taken responsibility for."""

    @property
    def in_flight(self) -> int:
        """Transfers that were sent and are neither completed nor rejected."""

    def send(self, transfers: Transfers, *, timeout_s: float = math.inf) -> int:
        """Send a run, as fast as the window allows; return the id of its last transfer."""

    def finish(self, *, timeout_s: float = math.inf) -> None:
        """Wait until the broker has completed or rejected everything."""

    def unfinished(self) -> list[Transfers]:
        """The transfers that were neither completed nor rejected, to be sent again on another connection."""

    def locate(self, command_id: int) -> tuple[object, int] | None:
        """Tag and index of the transfer with an id, as an error names it."""

    def take_rejected(self) -> list[Rejected]:
        """The transfers that were rejected since the last call."""


class RouteQueries(Protocol):
    """Queries that were sent together; see :meth:`Client.query_routes`."""

    @property
    def arrived(self) -> bool:
        """Whether every answer is here."""

    def answers(self) -> list[Route]:
        """Wait for every answer and return them in the order of the targets; call it once.

        Raises:
            ProtocolError: an answer is missing or of another type.
            DeadlineExceeded: they do not come within the call timeout.
            ConnectionLost, SessionDetached, CommandFailed: the connection or session ended.
        """


class Transactions(Protocol):
    """Local and distributed transactions on the session of a client.

    Attributes:
        patience_s: seconds for which the broker may be silent over the end of a transaction.
    """

    patience_s: float

    @property
    def is_local(self) -> bool:
        """Whether publishes and accepts of the session wait for :meth:`commit`."""

    def select(self) -> None:
        """Make the session transactional, for good."""

    def commit(self, sent: Callable[[], None] | None = None, *, patience_s: float | None = None) -> None:
        """Commit everything since the last commit. ``sent`` is called once the outcome is in the broker's hands."""

    def dtx_select(self) -> None:
        """Let the session take part in distributed transactions."""

    def start(self, xid: Xid) -> None:
        """Associate the session with a branch."""

    def end(self, xid: Xid, *, fail: bool = False) -> None:
        """End the association."""

    def prepare(self, xid: Xid) -> None:
        """Prepare a branch that was ended."""

    def commit_branch(self, xid: Xid) -> None:
        """Commit a prepared branch."""

    def rollback_branch(self, xid: Xid) -> None:
        """Roll a branch back."""

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        """Roll back a branch that failed, if the session lives; whether the broker has confirmed that."""

    def get_timeout(self, xid: Xid) -> int:
        """Seconds after which the broker may roll the branch back."""

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        """Set them. :attr:`Capabilities.zero_timeout_is_none` says what 0 is."""

    def recover(self) -> list[Xid]:
        """All prepared branches, of every client."""


class Client(Protocol):
    """One connection with one session.

    Every method raises an :class:`amqp_core.errors.AmqpError` when the connection or session has ended, or the broker
    refuses; the client is finished then.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of protocol and broker."""

    @property
    def transactions(self) -> Transactions:
        """The transactions of the session."""

    @property
    def heartbeat_s(self) -> float:
        """Seconds between heartbeats, as the broker agreed to; 0 is none."""

    @property
    def peer(self) -> str:
        """``host:port`` of the broker."""

    def query_queue(self, queue: str) -> QueueInfo | None:
        """Ask about a queue; ``None`` when it does not exist."""

    def declare_queue(
        self, queue: str, *, durable: bool = False, exclusive: bool = False, auto_delete: bool = False
    ) -> None:
        """Create the queue unless it exists. ResourceLocked: another connection holds it exclusively."""

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with everything in it."""

    def bind(self, queue: str, exchange: str, binding_key: str) -> None:
        """Bind the queue to an exchange."""

    def unbind(self, queue: str, exchange: str, binding_key: str) -> None:
        """Remove a binding."""

    def is_bound(self, exchange: str, binding_key: str) -> bool:
        """Whether any queue is bound to the exchange with this key."""

    def query_routes(self, targets: Sequence[Target]) -> RouteQueries:
        """Send a query for each target at once, without waiting for the answers."""

    def subscribe(
        self,
        queue: str,
        *,
        accept: bool = True,
        acquire: bool = True,
        exclusive: bool = False,
        selector: str | None = None,
    ) -> Subscription:
        """Start a subscription without credit.

        Parameters:
            queue: its name.
            accept: messages wait for :meth:`accept`; else they are settled when they are sent.
            acquire: messages are this consumer's; else it browses.
            exclusive: refuse other subscriptions of the queue.
            selector: the broker's filter.
        """

    def accept(self, ranges: Sequence[tuple[int, int]], *, patience_s: float = 0.0) -> None:
        """Accept transfers by inclusive ranges of ids; the broker may be silent over it for ``patience_s`` seconds."""

    def reject(self, ranges: Sequence[tuple[int, int]], *, text: str = "", patience_s: float = 0.0) -> None:
        """Reject transfers: to the alternate exchange of the queue, if it has one. ``text`` is cut where needed."""

    def release(self, ranges: Sequence[tuple[int, int]], *, sync: bool = False) -> None:
        """Give transfers back to their queue."""

    def sync(self, *, patience_s: float = 0.0) -> None:
        """Wait until the broker has done everything that was sent before; it may be silent for so long."""

    def publish_to_queue(self, queue: str, body: bytes, *, content_type: str) -> None:
        """Send a durable message to a queue; :meth:`confirm` says whether the broker has taken it."""

    def confirm(self) -> None:
        """Wait until the broker has taken responsibility for everything published.

        Raises:
            MessageRejected: the broker rejected some of it.
            OutcomeUnknown: the connection ended before the broker answered.
        """

    def publisher(self, *, max_in_flight: int) -> Publisher:
        """A new publisher with a window of so many transfers; it replaces the one before."""

    def service(self) -> None:
        """Read what is there and send a heartbeat if one is due, without waiting."""

    def pause_reading(self, paused: bool) -> None:  # noqa: FBT001 - a switch, named by its method
        """Stop taking transfers from the socket, which slows the broker down; heartbeats keep going out."""

    def wake(self) -> None:
        """From any thread: let a waiting call return early."""

    def __enter__(self) -> Self:
        """The client itself; :meth:`close` ends it."""

    def __exit__(self, *exc: object) -> None: ...

    def close(self) -> None:
        """Close in order. Messages that were not accepted go back to their queue."""

    def discard(self) -> None:
        """End after a failure so that the broker takes nothing half-sent later."""

    def abort(self) -> None:
        """Drop the connection at once, as a crash would."""
