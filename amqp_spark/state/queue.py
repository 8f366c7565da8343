"""The state message under its lock: acquired, and swapped in one local transaction with related messages.

Everything happens on the session of the given client. If the lock were on another connection than the accepts and
commits, commands sent by a suspended process could take effect after its successor got the lock. The lock is an
exclusive queue; it ends with the connection, or when it is deleted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

from amqp_core.error_conditions import reason
from amqp_core.errors import CommandFailed, MessageRejected, NotFound, UnauthorizedAccess
from amqp_spark.connect import require
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.state.names import hashed
from amqp_spark.state.records import RecordUnreadable
from amqp_spark.timeouts import accept_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from amqp_core.api import Client, Fetcher, Message
    from amqp_spark.state.names import Names

T = TypeVar("T")

TAKE_SECONDS: Final = 10.0
"""Seconds to wait for the state message: a session that just died may still hold it."""
ASK_SECONDS: Final = 1.0
"""Seconds of this time after which the broker has to answer: where it stands still, so much of that counts at most."""
EXCHANGE: Final = "amq.direct"
"""Exchange where state queues are bound with keys never used for publishing: a binding is a lasting mark."""


class StateQueue:
    """The lock and the state message of one identity, on one client; ``body``: of the message as the broker has it.

    Order of use: :meth:`lock`; :meth:`take`, or :meth:`create` if it returns ``None``; then :meth:`swap`, any number of
    times; :meth:`unlock`, or the end of the connection. After any error the client is unusable: close it.
    """

    def __init__(self, client: Client, names: Names) -> None:
        self.names = names
        self.body: bytes | None = None
        self._client = client
        self._fetcher: Fetcher | None = None
        self._held: Message | None = None

    # --- lock

    def lock(self) -> None:
        """Acquire the lock, without waiting (queue.declare, exclusive). ResourceLocked: another session holds it, and
        this session is over: try again on a new one. UnsupportedModeError: the broker lacks what the state needs."""
        require(self._client, "deliveryGuarantee=exactly-once", "local_transactions", "binding_queries")
        with allowed(f"declare the queue {self.names.lock!r}", self.names.owner):
            self._client.declare_lock(self.names.lock)

    def unlock(self) -> None:
        """Release the state message to its queue, and the lock, but keep the connection."""
        if self._fetcher is not None:
            self._fetcher.cancel()  # all transfers under way have arrived now
            held = self._held or self._fetcher.take_one(timeout=0.0)
            if held is not None:
                self._client.release([_id_range(held)], sync=True)
        self._fetcher = self._held = self.body = None
        self._client.delete_queue(self.names.lock)

    # --- the message

    def exists(self) -> bool:
        """Whether the state queue exists (queue.query)."""
        with self._allowed("ask for the queue"):
            return self._client.query_queue(self.names.state) is not None

    def has(self, names: Names) -> bool:
        """Whether the broker has the state queue of other names (queue.query)."""
        return StateQueue(self._client, names).exists()

    def take(self, *, timeout: float = TAKE_SECONDS) -> bytes | None:
        """Acquire the state message and return its body; ``None`` if there never was one.

        ``timeout``: seconds to wait for it, if the queue exists. StateError: the queue once had a state, but none
        arrives: it was purged, or another session holds it. Or the queue has several messages.
        """
        with self._allowed("ask for the queue"):
            found = self._client.query_queue(self.names.state)
        if found is None:
            return None
        if (found.message_count or 0) > 1:
            raise self._several(f"it has {found.message_count}")
        self._begin_to_fetch()
        if not self._comes(timeout):
            if not self._has_begun():
                return None
            raise StateError(
                SparkCondition.STATE_MESSAGE_MISSING(
                    queue=self.names.state,
                    owner=self.names.owner,
                    seconds=f"{timeout:.0f}",
                    tool=self.names.tool("--forget"),
                )
            )
        if not self._has_begun():  # the creator of the queue was interrupted
            self._bind(self.names.begun)
        return self.body

    def check_newest(self) -> None:
        """Nothing: this session holds the state message, so that no other one can have changed it."""

    def create(self, body: bytes) -> None:
        """Create the queue (durable) and put the first state message there; the message is acquired as well.
        StateError: the login lacks the permission, or the broker does not keep the message."""
        with self._allowed("declare the queue"):
            self._client.declare_queue(self.names.state, durable=True)
        self._publish(body)
        if self._client.transactions.is_local:  # the session has served another state before
            self._client.transactions.commit()
        self._bind(self.names.begun)
        self._begin_to_fetch()
        if not self._comes(TAKE_SECONDS):
            raise self._broken("its first message does not come back")

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        """Replace the state message and accept transfers of this session, all in one transaction (tx).

        ``accept``: inclusive ranges of command ids; ``sent``: called when everything was sent, including the commit,
        while its outcome is still unknown. StateError: the state queue is missing; nothing was committed. AmqpError:
        the connection or session ended: **the outcome is not known**. Take the state on a new session to learn it.
        """
        self._select()
        expected = self.body
        if self._held is None and not self._comes(TAKE_SECONDS):
            raise self._broken("it has lost its message while it was in use")
        assert self._held is not None
        if self.body != expected:
            raise self._several("another one came")
        silence_timeout_s = accept_timeout(sum(last - first + 1 for first, last in accept))
        self._client.accept([*accept, _id_range(self._held)])
        if accept:  # a broker may store them before it answers anything else
            self._client.sync(silence_timeout_s=silence_timeout_s)
        self._publish(body)
        self._client.transactions.commit(sent, silence_timeout_s=silence_timeout_s)
        self._held, self.body = None, body
        assert self._fetcher is not None
        self._fetcher.grant(1)  # the message arrives while other work is done

    # --- lasting marks

    def mark(self, key: str) -> None:
        """Bind the state queue with a key as a lasting mark (exchange.bind)."""
        for each in (self._own(key), key):  # a session that finds the mark must be able to find its queue
            self._bind(each)

    def unmark(self, key: str) -> None:
        """Remove a mark (exchange.unbind). UnauthorizedAccess: the session is over, and the mark stays."""
        for each in (key, self._own(key)):
            if self.marked_anywhere(each):  # only one may exist if marking was interrupted
                self._client.unbind(self.names.state, EXCHANGE, each)

    def marked(self, key: str) -> bool:
        """Whether the state queue has this mark (exchange.bound)."""
        # Not queried by queue and key: if that pair is not bound, qpidd answers for each of the two separately.
        return self.marked_anywhere(self._own(key))

    def marked_anywhere(self, key: str) -> bool:
        """Whether any queue has this mark."""
        with self._allowed(f"ask for bindings of {EXCHANGE}, as it has to for the queue"):
            return self._client.is_bound(EXCHANGE, key)

    def _own(self, key: str) -> str:
        """A variant of a key with which only this state queue is bound."""
        return f"{key}.{hashed(self.names.state)}"

    # --- internals

    def _select(self) -> None:
        if self._client.transactions.is_local:
            return
        try:
            self._client.transactions.select()
        except CommandFailed as error:
            if error.retryable:
                raise
            owner, why = self.names.owner, reason(error)
            raise StateError(
                SparkCondition.TRANSACTIONS_REFUSED(kind="local transactions (tx)", owner=owner, reason=why)
            ) from error

    def _bind(self, key: str) -> None:
        with self._allowed(f"bind to {EXCHANGE} the queue"):
            self._client.bind(self.names.state, EXCHANGE, key)

    def _has_begun(self) -> bool:
        return self.marked_anywhere(self.names.begun)  # no other queue has that key

    def _begin_to_fetch(self) -> None:
        if self._fetcher is None:
            with self._allowed("consume the queue"):
                self._fetcher = self._client.fetcher(self.names.state)
            self._fetcher.grant(1)

    def _comes(self, timeout: float) -> bool:
        """Whether the message comes that credit was granted for. A broker that is silent may only be slow, or stand
        still for a while: only time behind which it answers counts, a little at a time."""
        left = timeout
        while left > 0:
            step = min(left, ASK_SECONDS)
            if self._receive(step):
                return True
            self._client.sync()
            left -= step
        return self._receive(0.0)  # what came before the last answer

    def _receive(self, timeout: float) -> bool:
        """Wait for the message that credit was granted for."""
        assert self._fetcher is not None
        with self._allowed("consume the queue"):
            try:
                found = self._fetcher.take_one(timeout=timeout)
            except NotFound as error:  # 0-9-1 sends basic.get for each message
                raise self._broken("it was deleted") from error
        if found is not None:
            self._held, self.body = found, found.body
        return found is not None

    def _publish(self, body: bytes) -> None:
        try:
            with self._allowed("publish to the queue"):
                self._client.publish_to_queue(self.names.state, body, content_type="application/json")
                self._client.confirm()
        except MessageRejected as error:
            raise self._broken(f"it does not take its message ({reason(error)})") from error
        # a broker may drop unroutable messages silently, as qpidd does
        if not self._client.capabilities.rejects_unroutable and not self.exists():
            raise self._broken("it was deleted")

    def _several(self, why: str) -> StateError:
        # With two messages chance would decide which one counts: actions of the other would be undone, or done twice.
        names = self.names
        return StateError(SparkCondition.STATE_AMBIGUOUS(queue=names.state, owner=names.owner, reason=why))

    def _broken(self, why: str) -> StateError:
        names = self.names
        return StateError(SparkCondition.STATE_QUEUE_BROKEN(queue=names.state, owner=names.owner, reason=why))

    def _allowed(self, what: str) -> contextlib.AbstractContextManager[None]:
        return allowed(f"{what} {self.names.state!r}", self.names.owner)


@contextlib.contextmanager
def allowed(action: str, owner: str) -> Iterator[None]:
    """Turn a refusal of the broker into a StateError that names the action with its queue, and the required permission;
    errors that permit a retry pass unchanged."""
    try:
        yield
    except UnauthorizedAccess as error:
        raise StateError(SparkCondition.PERMISSION_MISSING(action=action, owner=owner, reason=reason(error))) from error
    except CommandFailed as error:
        if error.retryable:
            raise
        raise StateError(SparkCondition.STATE_REFUSED(action=action, owner=owner, reason=reason(error))) from error


def loaded(names: Names, load: Callable[[bytes], T], body: bytes) -> T:
    """Parse a state message; StateError names its queue, and quotes the RecordUnreadable of ``load``."""
    try:
        return load(body)
    except RecordUnreadable as error:
        raise unreadable(names, reason(error)) from error


def unreadable(names: Names, why: str) -> StateError:
    """Error: the state message cannot be parsed."""
    queue, owner, tool = names.state, names.owner, names.tool("--forget")
    return StateError(SparkCondition.STATE_UNREADABLE(queue=queue, owner=owner, reason=why, tool=tool))


def _id_range(message: Message) -> tuple[int, int]:
    return message.transfer_id, message.transfer_id
