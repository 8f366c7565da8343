"""The client interface, independent of the AMQP version on the wire.

A client is one connection with one session, and one *incarnation*: after a failure it is closed, and the program
connects another one. Transfers are settled by ids, which increase without limit within a client and are not valid in
another one (0-10: command ids; 0-9-1: delivery tags). :class:`Capabilities` lists the differences between protocols
and brokers.

Nothing here does I/O or depends on one protocol. ``amqp_core.v0_10.client.Client`` implements the interface for AMQP
0-10, ``amqp_core.v0_9.client.Client`` for AMQP 0-9 and 0-9-1. A client, and every object made by it, is for one
thread, except :meth:`Client.wake`. The value classes are immutable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from amqp_core.transfer_ledger import Counted, Rejected, Transfers

EMBEDDED_PRODUCT: Final = "amqp_core broker"
"""The product in the server properties of the broker in ``amqp_core.broker``."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a protocol, and known behaviour of the connected broker.

    Attributes:
        credit: a subscription receives messages only within its credit, counted in messages and in bytes.
        max_unsettled: a subscription may limit the messages that are not settled.
        browse: messages can be read without being acquired.
        selectors: a subscription may filter by a selector. Expect the opposite of an unknown broker: it may ignore the
            selector, and send all messages.
        exchange_queries: existence and type of an exchange can be queried.
        binding_queries: a binding of an exchange can be queried by its key.
        confirms: the broker confirms the messages that it has taken.
        local_transactions: publishes and accepts of one session can be committed together, and a broker that is killed
            meanwhile has done all of it or nothing.
        distributed_transactions: branches can be prepared, and resolved by other sessions.
        counts_held_messages: the message count of a queue includes messages that consumers hold.
        rejects_unroutable: the broker is known to reject unroutable messages. Expect the opposite of an unknown broker:
            it may drop such a message silently.
        lists_branches_in_one_frame: a list of prepared branches that exceeds one frame breaks the connection.
        zero_timeout_is_none: a branch with a timeout of 0 is known to have no timer; elsewhere 0 may end it at once, or
            stand for the broker's default.
        consumer_priorities: a subscription may have the argument ``x-priority``.
        counts_deliveries: a queue of type quorum counts deliveries, and may drop a message that exceeds its limit.
        unlimited_deliveries: a queue may be declared with a delivery limit of -1: no limit. A broker without this
            capability may take -1 for a limit that the first return exceeds.
        queue_types: a queue may be declared with the argument ``x-queue-type``.
        compares_declarations: a declaration of a queue that exists with other properties is refused, and the error
            names the first that differs (:class:`amqp_core.errors.DeclaredDifferently`).
        consumer_timeouts: a subscription may have the argument ``x-consumer-timeout``, which the broker may ignore.
        returns_unroutable: unroutable messages come back to their publisher before they are confirmed, whatever the
            type of the exchange: nothing has to be queried.
        rejections: a consumer can reject a message for good: to the alternate or dead-letter exchange, or dropped.
        logs: a queue may be a log: a subscription has the argument ``x-stream-offset``, and removes nothing.
        expiration_is_absolute: the expiration of a message is a time in milliseconds since 1970, not a duration.
        checks_rights_first: the broker is known to look at the rights of a login before it looks at the arguments of a
            request: one that it refuses in any case shows whether the login has the right, and changes nothing.
    """

    credit: bool = True
    max_unsettled: bool = True
    browse: bool = True
    selectors: bool = False
    exchange_queries: bool = True
    binding_queries: bool = True
    confirms: bool = True
    local_transactions: bool = True
    distributed_transactions: bool = True
    counts_held_messages: bool = True
    rejects_unroutable: bool = False
    lists_branches_in_one_frame: bool = False
    zero_timeout_is_none: bool = False
    consumer_priorities: bool = False
    counts_deliveries: bool = False
    unlimited_deliveries: bool = False
    queue_types: bool = False
    compares_declarations: bool = False
    consumer_timeouts: bool = False
    returns_unroutable: bool = False
    rejections: bool = True
    logs: bool = False
    expiration_is_absolute: bool = False
    checks_rights_first: bool = False


@dataclass(frozen=True, slots=True)
class Xid:
    """The id of a transaction branch, as defined by X/Open XA (0-10 section dtx, struct xid).

    Attributes:
        format: format number; ``None`` only in an answer of a broker that omits it.
        global_id: id of the transaction, at most 64 bytes.
        branch_id: id of the branch, at most 64 bytes.
    """

    format: int | None = None
    global_id: bytes | None = None
    branch_id: bytes | None = None


class Route(NamedTuple):
    """The answer to a query about a target of messages.

    Attributes:
        exists: whether the exchange, binding or queue exists; ``False`` if the answer is not certain.
        exchange_type: type of an exchange: direct, topic, fanout, headers or a broker-specific one; else empty.
    """

    exists: bool
    exchange_type: str = ""


Target = tuple[str, str | None]
"""An exchange and a routing key: their binding; with an empty exchange: the queue of that name. Without a key: the
exchange."""


class Block(Protocol):
    """Transfers with consecutive ids, as raw frames."""

    @property
    def frames(self) -> bytes:
        """Whole transfers exactly as received; frames that belong to no transfer may lie between."""

    @property
    def ends(self) -> Sequence[int]:
        """The end offset of each transfer in ``frames``."""

    @property
    def first_id(self) -> int:
        """Id of the first transfer."""

    @property
    def largest(self) -> int:
        """Bytes of the largest transfer."""


class LogEntry(NamedTuple):
    """The place of a message in a log.

    Attributes:
        offset: its number there; the numbers of one log are consecutive.
        digest: 20 bytes of its content, by which a log that was deleted and made again is recognised.
    """

    offset: int
    digest: bytes


class Identity(NamedTuple):
    """What identifies a message in all of its deliveries, on queues that count these.

    Attributes:
        digest: 16 bytes of all that its publisher has set.
        deliveries: a number that grows each time that it comes back to the queue.
        named: whether it has a message id.
    """

    digest: bytes
    deliveries: int
    named: bool


class Ready(NamedTuple):
    """The first message of a queue that was ready, which a client has received and returned.

    Attributes:
        redelivered: whether it was marked as delivered before.
        identity: see :class:`Identity`; ``None``: it cannot be decoded.
    """

    redelivered: bool
    identity: Identity | None


class Message(Protocol):
    """A received message."""

    @property
    def body(self) -> bytes:
        """The body; empty if it has none."""

    @property
    def transfer_id(self) -> int:
        """The id that settles it."""


class QueueInfo(Protocol):
    """A broker's answer about a queue."""

    @property
    def message_count(self) -> int | None:
        """Number of messages in the queue: see :attr:`Capabilities.counts_held_messages`."""

    @property
    def subscriber_count(self) -> int | None:
        """Number of consumers of the queue."""


@runtime_checkable
class DescribedQueue(QueueInfo, Protocol):
    """The answer about a queue of a protocol that tells more than counts (0-10 section queue.query)."""

    @property
    def durable(self) -> bool:
        """Whether it survives a restart of the broker."""

    @property
    def exclusive(self) -> bool:
        """Whether only the session that declared it may use it."""

    @property
    def auto_delete(self) -> bool:
        """Whether it is deleted when it is no longer used."""

    @property
    def alternate_exchange(self) -> str | None:
        """Exchange of its rejected messages."""

    @property
    def arguments(self) -> dict[str, object] | None:
        """The arguments of its declaration."""


class Subscription(Protocol):
    """A flow of transfers from one queue, limited by credit or by the number of unsettled messages.

    With ``max_unsettled`` the calls that change credit (``grant``, ``renew``, ``flush``, ``probe``) raise UsageError.
    """

    @property
    def credit(self) -> int:
        """Number of messages that may still arrive."""

    @property
    def credit_bytes(self) -> float:
        """Bytes of messages that may still arrive; infinite if their size is not limited."""

    def grant(self, messages: int) -> None:
        """Add credit for ``messages`` messages of any size."""

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        """Replace the credit, without waiting: ``messages`` messages of ``nbytes`` bytes in total, or of any size."""

    def take_blocks(self, timeout: float, *, begun: bool = False) -> Sequence[Block]:
        """Wait until transfers arrive, ``timeout`` seconds pass, or the client is woken; may return no block.

        ``begun``: a large message of which the first part arrives ends the wait, too; see
        :attr:`Client.under_way_bytes`.
        """

    def take_arrived(self) -> Sequence[Block]:
        """Return the transfers that arrived during other calls; do not wait."""

    def bound(self, admits: Callable[[int, int, int], bool], dropped: Callable[[Block], None] | None = None) -> None:
        """Drop what comes while a call waits for an answer, and was not taken, once ``admits`` has returned false: the
        messages come again to another client, after this one was closed. It is called with the number of messages that
        wait to be taken, their bytes, and the bytes of the message under way if it is about that. ``dropped`` is called
        with each block that is dropped, before the answer is returned. Not with credit, which bounds what may come."""

    @property
    def overflowed(self) -> bool:
        """Whether messages were dropped: see :meth:`bound`."""

    def take_one(self, *, timeout: float) -> Message | None:
        """Return the next message, or raise UndecodableMessage; ``None`` if none arrives in ``timeout`` seconds."""

    def flush(self) -> None:
        """Wait until the broker has sent all available messages within the credit; credit is 0 afterwards."""

    def probe(self) -> None:
        """Replace all credit by one message, and wait until it arrives or there is none; credit is 0 afterwards."""

    def cease(self) -> None:
        """Let the broker send no more, without waiting for its answer."""

    @property
    def ceased(self) -> bool:
        """Whether no transfer arrives any more since :meth:`cease`."""

    def cancel(self) -> None:
        """End the subscription and wait until all transfers under way have arrived."""


class Fetcher(Protocol):
    """Receives single messages of a queue, each when it is wanted."""

    def grant(self, messages: int) -> None:
        """Allow so many messages more; they may arrive at once, or when they are taken."""

    def take_one(self, *, timeout: float) -> Message | None:
        """As :meth:`Subscription.take_one`, of the messages that were granted."""

    def cancel(self) -> None:
        """End it, and wait until all messages under way have arrived."""


class Publisher(Protocol):
    """Sends runs of encoded transfers within a window, and tracks their outcome."""

    accept_mode: int
    """0-10: accept mode that the encoder writes into every transfer; 0 with other protocols."""

    @property
    def max_frame_size(self) -> int:
        """Largest frame that the broker accepts, in bytes."""

    @property
    def sent(self) -> Counted:
        """Count of the transfers sent."""

    @property
    def completed(self) -> Counted:
        """Count of the transfers for which the broker has taken responsibility."""

    @property
    def in_flight(self) -> int:
        """Number of transfers that were sent and are not completed."""

    @property
    def in_doubt(self) -> int:
        """Number of transfers that were sent and are neither completed nor rejected: their outcome is not known."""

    def send(self, transfers: Transfers, *, timeout_s: float = math.inf) -> int:
        """Send a run, as fast as the window allows; return the id of its first transfer."""

    def finish(self, *, timeout_s: float = math.inf) -> None:
        """Wait until the broker has completed or rejected all transfers sent."""

    def unfinished(self) -> list[Transfers]:
        """Return the transfers that were neither completed nor rejected, to be sent again on another connection."""

    def locate(self, command_id: int) -> tuple[object, int] | None:
        """Return tag and index of the transfer with an id that an error names; ``None`` if it is not known."""

    def take_rejected(self) -> list[Rejected]:
        """Return the transfers that were rejected since the last call."""

    def probe(self) -> None:
        """Send one transfer at a time at first, to a broker that may have no room."""


class RouteQueries(Protocol):
    """Queries that were sent together; see :meth:`Client.query_routes`."""

    @property
    def arrived(self) -> bool:
        """Whether every answer has arrived."""

    def answers(self) -> list[Route]:
        """Wait for every answer and return them in the order of the targets; call it once."""


class Transactions(Protocol):
    """Local and distributed transactions on the session of a client."""

    silence_timeout_s: float
    """Seconds for which the broker may be silent while it ends a transaction."""

    @property
    def is_local(self) -> bool:
        """Whether publishes and accepts of the session wait for :meth:`commit`."""

    def select(self) -> None:
        """Make the session transactional, permanently."""

    def commit(self, sent: Callable[[], None] | None = None, *, silence_timeout_s: float | None = None) -> None:
        """Commit everything since the last commit; ``sent`` is called while its outcome is not known."""

    def dtx_select(self) -> None:
        """Enable distributed transactions on the session."""

    def start(self, xid: Xid) -> None:
        """Associate the session with a branch."""

    def end(self, xid: Xid, *, fail: bool = False) -> None:
        """End the association with a branch; ``fail``: the branch must be rolled back."""

    def prepare(self, xid: Xid) -> None:
        """Prepare a branch after :meth:`end`."""

    def commit_branch(self, xid: Xid) -> None:
        """Commit a prepared branch."""

    def rollback_branch(self, xid: Xid) -> None:
        """Roll a branch back."""

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        """Roll back a failed branch, which was ``ended`` or not; return whether the broker has confirmed it."""

    def get_timeout(self, xid: Xid) -> int:
        """Return the seconds after which the broker may roll the branch back."""

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        """Set the timeout of a branch in seconds; for 0 see :attr:`Capabilities.zero_timeout_is_none`."""

    def recover(self) -> list[Xid]:
        """Return all prepared branches, of every client."""


class Client(Protocol):
    """One connection with one session.

    Every method raises an :class:`amqp_core.errors.AmqpError` if the connection or session has ended, or the broker
    refuses; the client cannot be used afterwards.
    """

    @property
    def protocol(self) -> str:
        """The protocol on the wire: ``0-10``, ``0-9-1`` or ``0-9``."""

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of protocol and broker."""

    @property
    def transactions(self) -> Transactions:
        """The transactions of the session."""

    @property
    def heartbeat_s(self) -> float:
        """Seconds between heartbeats, as agreed with the broker; 0: no heartbeats."""

    @property
    def peer(self) -> str:
        """``host:port`` of the broker."""

    @property
    def server_properties(self) -> Mapping[str, object]:
        """The broker's properties from connection.start, such as ``product`` and ``version``."""

    @property
    def mechanism(self) -> str:
        """The SASL mechanism of the login."""

    @property
    def max_frame_size(self) -> int:
        """Bytes of the largest frame, as agreed with the broker."""

    def may_read(self, queue: str) -> bool:
        """Whether the login has the right to consume from a queue.

        It asks for a consumer that the broker refuses in any case, so nothing is consumed. Only where
        :attr:`Capabilities.checks_rights_first` holds. With 0-10 the client has ended afterwards.
        """

    def may_write(self, exchange: str) -> bool:
        """Whether the login has the right to publish to an exchange.

        It sends a message that the broker refuses in any case, so nothing is published. Otherwise as :meth:`may_read`.

        Raises:
            UnauthorizedAccess: the broker limits this login by topics, so that it depends on the routing key.
        """

    def query_queue(self, queue: str) -> QueueInfo | None:
        """Query a queue; ``None`` if it does not exist."""

    def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        """Create the queue unless it exists; ``arguments`` of the broker, such as its type."""

    def declare_lock(self, queue: str) -> None:
        """Create a queue that only this session may use, and that ends with it.

        ResourceLocked, after which the client may have ended: another session has it.
        """

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with all its messages."""

    def declare_exchange(self, exchange: str, kind: str, *, durable: bool = False) -> None:
        """Create the exchange of a type (direct, fanout, …) unless it exists."""

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
        max_unsettled: int | None = None,
        arguments: dict[str, object] | None = None,
    ) -> Subscription:
        """Start a subscription; without ``accept`` messages are settled when they are sent.

        It has no credit, unless ``max_unsettled`` limits the unsettled messages: then further ones arrive while the
        program waits for messages of this client, or calls :meth:`service`, and fewer are unsettled.
        """

    def fetcher(self, queue: str) -> Fetcher:
        """Receive single messages of a queue; those of subscriptions do not delay them."""

    def accept(self, ranges: Sequence[tuple[int, int]], *, silence_timeout_s: float = 0.0) -> None:
        """Accept transfers by inclusive ranges of ids; the broker may be silent for so many seconds."""

    def reject(self, ranges: Sequence[tuple[int, int]], *, text: str = "", silence_timeout_s: float = 0.0) -> None:
        """Reject transfers: they go to the queue's alternate exchange, if it has one. A long ``text`` is cut."""

    def log_entry(self, block: Block, index: int) -> LogEntry | None:
        """Return the place of a message of a block in its log; ``None`` if it comes from no log."""

    def earlier_deliveries(self, block: Block) -> int:
        """Number of earlier deliveries that messages of the block report, of a sample; 0 if there is no report."""

    def redelivered(self, block: Block) -> list[int]:
        """Indices of the transfers of the block that the broker has marked as delivered before."""

    def returned(self, block: Block) -> list[int]:
        """As :meth:`redelivered`, where queues count what is returned to them; else nothing. It costs little mostly."""

    def first_is_redelivered(self, block: Block) -> bool:
        """Whether the first transfer of the block is marked as delivered before; False if that cannot be told at once.
        It costs the same for every block."""

    def identities(self, block: Block, indices: Sequence[int] | None = None) -> list[Identity | None]:
        """Identities of transfers of a block, of all or of those with ``indices``; ``None`` if one cannot be decoded.

        Only if the broker counts deliveries (:attr:`Capabilities.counts_deliveries`).
        """

    def pass_barrier(self, queue: str) -> Ready | None:
        """Wait until the queue has processed for good what this session has sent to it, and survives a crash with it.

        Only for queues of type quorum. For this the first message that is ready is received and returned: it comes
        again, marked as redelivered. It is kept until the session ends if no subscription of this session could get it.
        ``None``: the queue had none.
        """

    def release(self, ranges: Sequence[tuple[int, int]], *, sync: bool = False) -> None:
        """Return transfers to their queue."""

    def sync(self, *, silence_timeout_s: float = 0.0) -> None:
        """Wait until the broker has completed everything sent; which may be silent for ``silence_timeout_s`` s."""

    def publish_to_queue(self, queue: str, body: bytes, *, content_type: str) -> None:
        """Send a durable message to a queue; :meth:`confirm` waits until the broker has taken it."""

    def confirm(self) -> None:
        """Wait until the broker has taken responsibility for everything published."""

    def publisher(self, *, max_in_flight: int, blocked_timeout_s: float = math.inf) -> Publisher:
        """Return a new publisher with a window of ``max_in_flight`` transfers; it replaces the previous one.

        A broker that blocks its publishers for lack of memory or disk is waited for as long as ``blocked_timeout_s``;
        then :class:`amqp_core.errors.PublishingBlocked` is raised; on 0-9-1 also if it confirms nothing for so long
        (:class:`amqp_core.errors.ConfirmsMissing`). The same holds for a session that the broker has stopped (0-10
        message.stop), with :class:`amqp_core.errors.PublisherStopped`.
        """

    def service(self) -> None:
        """Read arrived data and send a heartbeat if one is due, without waiting."""

    @property
    def under_way_bytes(self) -> int:
        """Bytes of the message of which a large part has arrived, as many as are known of; 0 if there is none."""

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reads nothing of what is sent, since its memory or disk is low (connection.blocked)."""

    def read_at_most(self, nbytes: int) -> None:
        """Take at most so many bytes at once from the socket: what arrives after reading is paused, at the latest."""

    def pause_reading(self, paused: bool) -> None:  # noqa: FBT001 - a switch, named by its method
        """Stop or resume reading transfers from the socket, which slows down the broker; heartbeats are still sent."""

    def wake(self) -> None:
        """Make a waiting call return early. May be called from any thread."""

    def __enter__(self) -> Self:
        """Return the client; the end of the context closes it."""

    def __exit__(self, *exc: object) -> None: ...

    def close(self) -> bool:
        """Close cleanly. Messages that were not accepted go back to their queue.

        Return whether the broker has answered: else it may keep them, as long as it takes the connection for alive.
        """

    def discard(self) -> None:
        """End after a failure, so that the broker does not process partly sent data later."""

    def abort(self) -> None:
        """Drop the connection at once, as a crash would."""
