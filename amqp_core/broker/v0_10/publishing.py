"""Transfers from a client: routed, accepted or rejected, and put into queues at once or when a transaction commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.v0_10.errors import Code, Failed
from amqp_core.broker.v0_10.wire import Incoming, Reader
from amqp_core.sequence_numbers import wire_ranges
from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from amqp_core.broker.model.branches import Branch
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.broker.rights import Rights
    from amqp_core.broker.v0_10.flow import ProducerFlow
    from amqp_core.broker.v0_10.transaction import Transaction
    from amqp_core.v0_10.session import Session

_EXPLICIT: Final = spec.MessageAcceptMode.EXPLICIT
# Ranges in one message.accept; they have to fit a frame of any size.
_MOST_RANGES: Final = 400


class Publishing:
    """The transfers of one session. Not thread-safe.

    With accept-mode explicit each is answered: with message.accept if at least one queue has it, or if the client
    wants it discarded otherwise; else with message.reject. With accept-mode none what nobody takes is dropped.
    """

    def __init__(self, host: VirtualHost, session: Session, username: str, rights: Rights, flow: ProducerFlow) -> None:
        self._host = host
        self._rights = rights
        self._session = session
        self._flow = flow
        self._reader = Reader(username)
        self._accepted: list[tuple[int, int]] = []

    def transfer(
        self,
        command: spec.MessageTransfer,
        header: bytes,
        body: bytes | None,
        work: Transaction | Branch | None,
        now: float,
    ) -> None:
        """Take a message, which is the next command of the session.

        Args:
            body: its body segment; None: it has none.
            work: the transaction that it belongs to. It is routed and answered at once, and is in its queues when the
                transaction commits.

        Raises:
            Refused: NOT_FOUND, there is no such exchange; ACCESS_REFUSED, it is internal; UNAUTHORIZED.
            Failed: RESOURCE_LIMIT_EXCEEDED, a queue is full and accept-mode is none; those of the reader.
            DecodeError: its header is malformed.
        """
        exchange = command.destination or ""
        self._rights.publish(exchange)
        incoming = self._reader.read(exchange, header, body, now)
        if self._flow.is_stopped:
            self._flow.received(incoming.message.size)
        explicit = command.accept_mode == _EXPLICIT
        command_id = self._session.received_next
        if work is None:
            self._route(incoming, command_id, explicit=explicit, now=now)
            return
        self._host.check_target(exchange)
        memory = self._host.memory
        memory.admit(incoming.message)
        self._add(work, incoming, command_id, explicit=explicit)
        if memory.holds:
            self._flow.stop((memory,))

    def commit(self, transaction: Transaction, now: float) -> None:
        """Put what was published in a local transaction into the queues that it was routed to.

        Raises:
            Failed: RESOURCE_LIMIT_EXCEEDED, a queue that rejects what it has no room for is full: nothing is done.
        """
        if not self._host.has_room(transaction.published):
            text = "a queue for the messages of the transaction is full"
            raise Failed(Code.RESOURCE_LIMIT_EXCEEDED, text)
        published, transaction.published = transaction.published, []
        for message, queues in published:
            self._host.admit(message, queues, now)

    def tell_accepted(self) -> None:
        """Accept what was taken since the last call (message.accept)."""
        while self._accepted:
            part, self._accepted = self._accepted[:_MOST_RANGES], self._accepted[_MOST_RANGES:]
            self._session.send(spec.MessageAccept(transfers=wire_ranges(part)))

    def _route(self, incoming: Incoming, command_id: int, *, explicit: bool, now: float) -> None:
        message = incoming.message
        if incoming.immediate and not self._is_awaited(incoming):
            self._not_awaited(incoming, command_id, explicit=explicit)
            return
        published = self._host.publish(message, now=now)
        if published.restraints:
            self._flow.stop(published.restraints)
        if published.rejected:
            if not explicit:
                text = f"a queue for key '{message.routing_key}' of exchange '{message.exchange}' is full"
                raise Failed(Code.RESOURCE_LIMIT_EXCEEDED, text)
            self._reject(command_id, spec.MessageRejectCode.UNSPECIFIED, "A queue is full")
        elif not explicit:
            return
        elif published.queues or incoming.discard_unroutable:
            self._accept(command_id)
        else:
            self._reject(command_id, spec.MessageRejectCode.UNROUTABLE, "Unroutable")

    def _add(self, work: Transaction | Branch, incoming: Incoming, command_id: int, *, explicit: bool) -> None:
        """Let the commit of a transaction put a message into the queues that it is routed to now."""
        if incoming.immediate and not self._is_awaited(incoming):
            self._not_awaited(incoming, command_id, explicit=explicit)
            return
        queues = self._host.route(incoming.message)
        if queues:
            work.publish(incoming.message, queues)
        if restraints := [queue for queue in queues if queue.holds]:
            self._flow.stop(restraints)
        if explicit and (queues or incoming.discard_unroutable):
            self._accept(command_id)
        elif explicit:
            self._reject(command_id, spec.MessageRejectCode.UNROUTABLE, "Unroutable")

    def _not_awaited(self, incoming: Incoming, command_id: int, *, explicit: bool) -> None:
        """Nobody takes a message at once that is immediate."""
        if explicit and not incoming.discard_unroutable:
            self._reject(command_id, spec.MessageRejectCode.IMMEDIATE, "Nobody takes it at once")
        elif explicit:
            self._accept(command_id)

    def _is_awaited(self, incoming: Incoming) -> bool:
        """Whether each queue of a message has a subscription that takes it at once (delivery-properties, immediate)."""
        message = incoming.message
        queues = self._host.route(message)
        return bool(queues) and all(
            any(each.receiver.has_room(message.size) and each.wants(message) for each in queue.takers)
            for queue in queues
        )

    def _accept(self, command_id: int) -> None:
        accepted = self._accepted
        if accepted and accepted[-1][1] == command_id - 1:
            accepted[-1] = accepted[-1][0], command_id
        else:
            accepted.append((command_id, command_id))

    def _reject(self, command_id: int, code: spec.MessageRejectCode, text: str) -> None:
        self._session.send(spec.MessageReject(transfers=wire_ranges([(command_id, command_id)]), code=code, text=text))
