"""The state message under its lock: taken, and swapped in one local transaction with whatever belongs to it.

Everything happens on one session, that of the client given: a lock on another connection than the one that accepts and
commits would let what a suspended process had sent take effect after its successor got the lock. The lock is an
exclusive auto-delete queue; it ends with the connection, or when it is deleted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeVar

from amqp_core.errors import CommandFailed, MessageRejected, UnauthorizedAccess
from amqp_spark.errors import StateError
from amqp_spark.state.names import hashed
from amqp_spark.timeouts import accept_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from amqp_core.api import Client, Message, Subscription
    from amqp_spark.state.names import Names

T = TypeVar("T")

TAKE_SECONDS: Final = 10.0
"""How long the state message is waited for: a session that just died may still hold it."""
EXCHANGE: Final = "amq.direct"
"""Where state queues are bound with keys that nobody publishes with: a binding is a mark that lasts."""


class StateQueue:
    """The lock and the state message of one identity, on one client.

    Order of use: :meth:`lock`; :meth:`take`, or :meth:`create` when it returns ``None``; then :meth:`swap`, any number
    of times; :meth:`unlock`, or the end of the connection. After any error the client is done for: close it.

    Attributes:
        names: of the queues.
        body: of the state message as the broker has it; ``None`` before it was taken.
    """

    def __init__(self, client: Client, names: Names) -> None:
        self.names = names
        self.body: bytes | None = None
        self._client = client
        self._subscription: Subscription | None = None
        self._held: Message | None = None

    # --- lock

    def lock(self) -> None:
        """Take the lock, at once or not at all (queue.declare, exclusive).

        Raises:
            ResourceLocked: somebody else has it. The session is over: try again on a new one.
            StateError: the login may not declare queues.
        """
        with allowed(f"declare the queue {self.names.lock!r}", self._whose()):
            self._client.declare_queue(self.names.lock, exclusive=True, auto_delete=True)

    def unlock(self) -> None:
        """Give the state message back to its queue, and the lock away, but keep the connection."""
        if self._subscription is not None:
            self._subscription.cancel()  # everything that was under way is here now
            held = self._held or self._subscription.take_one(timeout=0.0)
            if held is not None:
                self._client.release([_id_range(held)], sync=True)
        self._subscription = self._held = self.body = None
        self._client.delete_queue(self.names.lock)

    # --- the message

    def exists(self) -> bool:
        """Whether there is a state queue (queue.query)."""
        with self._allowed("ask for the queue"):
            return self._client.query_queue(self.names.state) is not None

    def take(self, *, timeout: float = TAKE_SECONDS) -> bytes | None:
        """Acquire the state message; ``None`` when there never was one.

        Parameters:
            timeout: seconds to wait for it, when the queue is there.

        Raises:
            StateError: the queue is there and once had a state, but none comes: it was purged, or something else holds
                it. Or it has several messages.
        """
        with self._allowed("ask for the queue"):
            found = self._client.query_queue(self.names.state)
        if found is None:
            return None
        if (found.message_count or 0) > 1:
            raise self._several(f"it has {found.message_count}")
        self._subscribe()
        if not self._receive(timeout):
            if not self._has_begun():
                return None
            raise StateError(
                f"the state queue {self.names.state!r} of {self._whose()} has no message, and none came within "
                f"{timeout:.0f} s: it was purged, or a client that is not amqp_spark holds it. Stop that client; if "
                f"the message is gone for good, {self.names.tool('--forget')} deletes what the broker keeps of this "
                "id, and says what is lost by that"
            )
        if not self._has_begun():  # the one who created it got no further
            self._bind(self.names.begun)
        return self.body

    def create(self, body: bytes) -> None:
        """Make the queue (durable) and put the first state message there; it is taken as well.

        Raises:
            StateError: the login may not, or the broker does not keep the message.
        """
        with self._allowed("declare the queue"):
            self._client.declare_queue(self.names.state, durable=True)
        self._publish(body)
        if self._client.transactions.is_local:  # the session has served another state before
            self._client.transactions.commit()
        self._bind(self.names.begun)
        self._subscribe()
        if not self._receive(TAKE_SECONDS):
            raise StateError(f"the state message that was put into {self.names.state!r} does not come back")

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        """Replace the state message and accept transfers of this session, all in one transaction (tx).

        Parameters:
            body: of the new state message.
            accept: inclusive ranges of command ids.
            sent: called when everything was sent, the commit included, and its outcome is not known.

        Raises:
            StateError: the state queue is gone; nothing was committed.
            AmqpError: the connection or session ended: **the outcome is not known**. Take the state on a new session to
                learn it.
        """
        self._select()
        expected = self.body
        if self._held is None and not self._receive(TAKE_SECONDS):
            raise StateError(
                f"the state queue {self.names.state!r} of {self._whose()} has lost its message while it was in use: "
                "was it purged or deleted? Start again: what is kept is compared then. docs/operations.md has the "
                "ways out"
            )
        assert self._held is not None
        if self.body != expected:
            raise self._several("another one came")
        patience_s = accept_timeout(sum(last - first + 1 for first, last in accept))
        self._client.accept([*accept, _id_range(self._held)])
        if accept:  # a broker may store them before it answers anything else
            self._client.sync(patience_s=patience_s)
        self._publish(body)
        self._client.transactions.commit(sent, patience_s=patience_s)
        self._held, self.body = None, body
        assert self._subscription is not None
        self._subscription.grant(1)  # it comes while something else is done

    # --- marks that last

    def mark(self, key: str) -> None:
        """Bind the state queue with a key that says something about it (exchange.bind)."""
        for each in (self._own(key), key):  # whoever finds the mark anywhere must be able to find out whose it is
            self._bind(each)

    def unmark(self, key: str) -> None:
        """Take a mark away (exchange.unbind).

        Raises:
            UnauthorizedAccess: the login may not. The session is over, and the mark stays.
        """
        for each in (key, self._own(key)):
            if self.marked_anywhere(each):  # half of it, when whoever began was cut off
                self._client.unbind(self.names.state, EXCHANGE, each)

    def marked(self, key: str) -> bool:
        """Whether the state queue has that mark (exchange.bound)."""
        # Not asked by queue and key: where that pair is not bound, qpidd answers for each of the two by itself.
        return self.marked_anywhere(self._own(key))

    def marked_anywhere(self, key: str) -> bool:
        """Whether any queue has that mark."""
        with self._allowed(f"ask for bindings of {EXCHANGE}, as it has to for the queue"):
            return self._client.is_bound(EXCHANGE, key)

    def _own(self, key: str) -> str:
        """A key like another that only this state queue is bound with."""
        return f"{key}.{hashed(self.names.state)}"

    # --- inside

    def _select(self) -> None:
        if self._client.transactions.is_local:
            return
        try:
            self._client.transactions.select()
        except CommandFailed as error:
            if error.retryable:
                raise
            raise StateError(
                f"the broker does not let this login use local transactions (tx), which "
                f"deliveryGuarantee=exactly-once needs for {self._whose()}: {error}. Nothing was changed. Without them "
                "at-least-once can be had"
            ) from error

    def _bind(self, key: str) -> None:
        with self._allowed(f"bind to {EXCHANGE} the queue"):
            self._client.bind(self.names.state, EXCHANGE, key)

    def _has_begun(self) -> bool:
        return self.marked_anywhere(self.names.begun)  # no other queue has that key

    def _subscribe(self) -> None:
        if self._subscription is None:
            with self._allowed("consume the queue"):
                self._subscription = self._client.subscribe(self.names.state)
            self._subscription.grant(1)

    def _receive(self, timeout: float) -> bool:
        """Wait for the message that there is credit for."""
        assert self._subscription is not None
        found = self._subscription.take_one(timeout=timeout)
        if found is not None:
            self._held, self.body = found, found.body
        return found is not None

    def _publish(self, body: bytes) -> None:
        try:
            with self._allowed("publish to the queue"):
                self._client.publish_to_queue(self.names.state, body, content_type="application/json")
                self._client.confirm()
        except MessageRejected as error:
            raise self._gone(str(error)) from error
        # a broker may drop what it cannot route without a word, as qpidd does
        if not self._client.capabilities.rejects_unroutable and not self.exists():
            raise self._gone("it was deleted")

    def _several(self, reason: str) -> StateError:
        # With two of them it would be luck which one counts: what the other says would be undone, or done twice.
        return StateError(
            f"the state queue {self.names.state!r} of {self._whose()} must have one message, and {reason}: somebody "
            "else has published there, or copied or moved messages. Nothing was changed. Take the messages away that "
            "are not the latest state (a queue browser shows them), then start again"
        )

    def _gone(self, reason: str) -> StateError:
        return StateError(
            f"the state queue {self.names.state!r} of {self._whose()} does not take its message ({reason}); nothing "
            "was committed. Was it deleted? docs/operations.md has the ways out"
        )

    def _whose(self) -> str:
        return f"{self.names.kind} {self.names.identity!r}"

    def _allowed(self, what: str) -> contextlib.AbstractContextManager[None]:
        return allowed(f"{what} {self.names.state!r}", self._whose())


@contextlib.contextmanager
def allowed(what: str, whose: str) -> Iterator[None]:
    """Say of what the broker refuses what it is for, and who can change that.

    Parameters:
        what: is done with which queue.
        whose: the queue is.

    Raises:
        StateError: the login may not, or the broker does not let it. What may be tried again stays what it is.
    """
    try:
        yield
    except UnauthorizedAccess as error:
        raise StateError(
            f"the login may not {what}, which exactly-once needs for {whose}: let the broker's administrator allow it "
            "to create, query (on qpidd: access), publish to, bind to amq.direct, unbind, consume and delete queues "
            f"named amqp-spark.*; docs/operations.md has the rules to write ({error})"
        ) from error
    except CommandFailed as error:
        if error.retryable:
            raise
        raise StateError(f"the broker does not let {whose} {what}: {error}") from error


def loaded(names: Names, load: Callable[[bytes], T], body: bytes) -> T:
    """What a state message says.

    Parameters:
        names: of the queue that it came from.
        load: reads the body; its StateError says what is wrong, and nothing of where.
    """
    try:
        return load(body)
    except StateError as error:
        raise StateError(
            f"the state queue {names.state!r} of {names.kind} {names.identity!r} cannot be used: {error}. Nothing was "
            f"changed. If somebody else has put it there, bring the right message back; {names.tool('--forget')} "
            "deletes what the broker keeps of this id, and says what is lost by that"
        ) from error


def _id_range(message: Message) -> tuple[int, int]:
    return message.transfer_id, message.transfer_id
