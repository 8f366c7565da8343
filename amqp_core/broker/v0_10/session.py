"""One session of the embedded broker: commands of the client in, calls of the model, commands of the broker out."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.broker.v0_10.declarations import HANDLERS as DECLARATIONS
from amqp_core.broker.v0_10.declarations import Declarations
from amqp_core.broker.v0_10.deliveries import Deliveries
from amqp_core.broker.v0_10.distributed import HANDLERS as DISTRIBUTED
from amqp_core.broker.v0_10.distributed import Distributed
from amqp_core.broker.v0_10.errors import Code, Failed, failure, named
from amqp_core.broker.v0_10.filters import selector_of
from amqp_core.broker.v0_10.flow import ProducerFlow
from amqp_core.broker.v0_10.publishing import Publishing
from amqp_core.broker.v0_10.subscription import SessionSubscription
from amqp_core.broker.v0_10.transaction import Transaction
from amqp_core.broker.v0_10.transfer_ids import ranges_of
from amqp_core.broker.v0_10.wire import WIRE_WITH_EMPTY_BODY, header_of
from amqp_core.errors import AmqpError
from amqp_core.sequence_numbers import unwrap_ranges, wire_ranges, wrap
from amqp_core.v0_10 import spec
from amqp_core.v0_10.connection_events import CommandUnknown
from amqp_core.v0_10.session import Session, SessionState
from amqp_core.write_primitives import cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.broker.v0_10.connection import ServerConnection
    from amqp_core.v0_10.connection_events import CommandReceived

# Class codes of file and stream, which are optional.
_UNSERVED: Final = (9, 10)
_MOST_RANGES: Final = 8191
"""Of a set of command ids (0-10 section session.commands), which has at most 65,535 bytes."""


class ServerSession:
    """One attached session. Not thread-safe."""

    def __init__(self, connection: ServerConnection, channel: int, name: bytes) -> None:
        self.connection = connection
        # qpidd tells what it knows only if asked, too, and the Python client of Qpid fails if it is told otherwise
        self.state = Session(connection, channel, name, tells_known=False)
        self.flow = ProducerFlow(self.state, connection.pull_brake)
        self._host: VirtualHost = connection.virtual_host
        self._declarations = Declarations(self._host, self, lambda: connection.now, connection.rights)
        self._publishing = Publishing(self._host, self.state, connection.username, connection.rights, self.flow)
        self._subscriptions: dict[str, SessionSubscription] = {}
        self._deliveries = Deliveries()
        self._transaction: Transaction | None = None
        self._distributed = Distributed(self._host, self, lambda: connection.now, connection.rights)
        self._flushing: SessionSubscription | None = None
        self._flush: CommandReceived | None = None
        self._waiting: deque[CommandReceived | CommandUnknown] = deque()
        """What arrived behind a flush that has not ended."""
        self._unsent: list[Entry] = []
        """Held here, and unknown to the client."""
        self._failed: Failed | None = None
        self._ended = False

    # --- what the model asks

    @property
    def can_send(self) -> bool:
        """Whether the client takes messages now."""
        if self._ended or self._failed is not None or self.state.state is not SessionState.ATTACHED:
            return False
        return not self.connection.is_congested

    @property
    def holds_messages(self) -> bool:
        """Whether the client has messages that it has not settled."""
        return bool(self._deliveries.held) or self._transaction is not None

    def deliver(self, subscription: SessionSubscription, entry: Entry) -> int:
        """Send a message to a subscription; return its bytes of header and body."""
        message = entry.message
        try:
            header = header_of(message, redelivered=entry.redelivered)
        except AmqpError as error:  # the call is another client's, and this one must not have an error of it
            self._cannot_send(subscription, entry, error)
            return message.size
        size = len(header) + len(message.body)
        self._deliveries.add(self.state.number(1), entry, subscription, size)
        body = message.body if message.body or message.wire is WIRE_WITH_EMPTY_BODY else None
        self.connection.send_transfer(self.state.channel, subscription.command, header, body)
        return size

    def _cannot_send(self, subscription: SessionSubscription, entry: Entry, error: AmqpError) -> None:
        """End the session, after the present call of the model, because of a message, which goes back to its queue."""
        if not subscription.browse:
            assert subscription.consumer is not None
            subscription.consumer.holds()
            self._unsent.append(entry)
        self._failed = Failed(Code.INTERNAL_ERROR, f"a message cannot be sent: {error}")
        self.connection.fail_later(self)

    def forget_window(self, subscription: SessionSubscription) -> None:
        """The transfers of a subscription give no credit back any more."""
        self._deliveries.forget_window(subscription)

    def queue_gone(self, subscription: SessionSubscription) -> None:
        """The queue of a subscription was deleted: that ends the session (0-10 section message.subscribe)."""
        self._subscriptions.pop(subscription.destination, None)
        if not self._ended and self._failed is None:
            text = f"the queue of destination '{subscription.destination}' was deleted"
            self._failed = Failed(Code.RESOURCE_DELETED, text)
            self.connection.fail_later(self)

    # --- what the connection asks

    @property
    def is_stalled(self) -> bool:
        """Whether a flush waits until the client has read, or selectors have looked at all messages."""
        return self._flushing is not None

    def receive_control(self, control: spec.Control) -> None:
        """Process a control of the session.

        Raises:
            ProtocolError: it is not possible now.
        """
        if isinstance(control, spec.SessionDetach | spec.SessionDetached):
            self.hurry()
            self.tell_accepted()  # before session.detached
        if isinstance(control, spec.SessionRequestTimeout):  # nothing is kept of a session that is detached
            self.connection.protocol.send_control(self.state.channel, spec.SessionTimeout(timeout=0))
            return
        if isinstance(control, spec.SessionFlush):
            self.tell_accepted()
        self.state.receive_control(control)
        if isinstance(control, spec.SessionAttach):
            self.connection.names.add(self.connection.username, self.state.name, self)
        elif isinstance(control, spec.SessionCompleted):
            self._completed(control)
        elif self.state.state is SessionState.DETACHED:
            self.end()

    def receive(self, event: CommandReceived | CommandUnknown) -> None:
        """Process a command.

        Raises:
            AmqpError: a header is malformed, or ids are not possible: the connection has to end.
        """
        if self.is_stalled:
            self._waiting.append(event)
            return
        state = self.state
        if state.state is not SessionState.ATTACHED:
            return  # it was under way when the session ended
        if isinstance(event, CommandUnknown):
            self._fail(_unknown(event.code))
            return
        command = event.command
        if isinstance(command, spec.ExecutionException):
            self._given_up()
            return
        try:
            if type(command) is spec.MessageTransfer:
                self._transfer(command, event.header or b"", event.body)
            else:
                self._command(command)
        except (Refused, Failed) as error:
            self._fail(failure(error), command)
            return
        if self._flushing is not None:
            self._flush = event
        else:
            self._done(command, sync=event.sync)

    def tell_accepted(self) -> None:
        """Accept the transfers that were taken since the last call (message.accept)."""
        if self.state.state is SessionState.ATTACHED:
            self._publishing.tell_accepted()

    def wake(self) -> None:
        """The client has read, or others had their turn: go on with deliveries, and with what waited for a flush."""
        self._ready(self._subscriptions.values())
        while self._flushing is not None:
            if self._flushing.may_get_more:
                self.connection.resume_later()
                return
            self._end_flush()

    def hurry(self) -> None:
        """The client ends the session: that does not wait for a flush, but comes after what arrived behind the flush.

        Raises:
            AmqpError: as ``receive``.
        """
        while self._flushing is not None:
            self._end_flush()

    def _end_flush(self) -> None:
        assert self._flushing is not None
        assert self._flush is not None
        self._flushing.stop()
        self._flushing = None
        self._done(self._flush.command, sync=self._flush.sync)
        while self._waiting and self._flushing is None:
            self.receive(self._waiting.popleft())

    def taken_over(self) -> None:
        """Another channel or connection of this user attaches a session of the same name with force."""
        self.tell_accepted()  # before session.detached
        self.end()
        self.connection.detached(self.state.channel, self)

    def fail_now(self) -> None:
        """End the session with the error that was noted."""
        if self._failed is not None and self.state.state is SessionState.ATTACHED:
            self._fail(self._failed)

    def stop_consuming(self) -> None:
        """Cancel the subscriptions; what they hold stays held."""
        subscriptions, self._subscriptions = self._subscriptions, {}
        for each in subscriptions.values():
            if each.consumer is not None:
                self._host.cancel(each.consumer)

    def end(self) -> None:
        """Return what the client holds, then cancel the subscriptions: see ``give_back``."""
        self.give_back()
        self.connection.names.remove(self.connection.username, self.state.name, self)
        self.stop_consuming()
        self._declarations.end()

    def give_back(self) -> None:
        """Get nothing more, and return what the client holds.

        Before the subscriptions are cancelled: who is the single active consumer of a queue then gets its messages in
        their order.
        """
        if self._ended:
            return
        self._ended = True
        self._flushing = None
        self._waiting.clear()
        held = self._distributed.leave() + self._deliveries.clear() + self._unsent
        if self._transaction is not None:
            held += self._transaction.take_accepted()
        self._host.release(held)

    # --- commands

    def _command(self, command: spec.Command) -> None:
        kind = type(command)
        result: spec.Struct | None
        if kind in DECLARATIONS:
            result = DECLARATIONS[kind](self._declarations, command)
        elif kind in _HANDLERS:
            result = _HANDLERS[kind](self, command)
        elif kind in DISTRIBUTED:
            result = DISTRIBUTED[kind](self._distributed, command)
        else:
            raise Failed(Code.NOT_IMPLEMENTED, f"{command.NAME} is not served")
        if result is not None:
            self.state.send(spec.ExecutionResult(command_id=wrap(self.state.received_next), value=result))

    def _done(self, command: spec.Command, *, sync: bool) -> None:
        """A command is complete; number it, and say so if that is asked for."""
        if sync or type(command) is spec.ExecutionSync:
            self.tell_accepted()
        self.state.receive_command(command, sync=sync)

    def _fail(self, failed: Failed, command: spec.Command | None = None) -> None:
        """End the session with an error (execution.exception, session.detach)."""
        state = self.state
        self.tell_accepted()
        exception = spec.ExecutionException(
            error_code=failed.code,
            command_id=None if command is None else wrap(state.received_next),
            class_code=None if command is None else command.CODE >> 8,
            command_code=None if command is None else command.CODE & 0xFF,
            description=cut_short(failed.text),
        )
        state.send(exception)
        state.detach()
        self.end()

    def _given_up(self) -> None:
        """The client cannot carry out a command of this side: the session ends (0-10 section execution.exception)."""
        self.tell_accepted()
        self.state.detach()
        self.end()

    def _ignore(self, _: spec.Command) -> None:
        """execution.sync is done when it arrives; a result says nothing that is waited for."""

    def _transfer(self, command: spec.MessageTransfer, header: bytes, body: bytes | None) -> None:
        work = self._distributed.active or self._transaction
        self._publishing.transfer(command, header, body, work, self.connection.now)

    def _accept(self, command: spec.MessageAccept) -> None:
        taken = self._deliveries.take(self._sent(command.transfers))
        branch = self._distributed.active
        if branch is not None:
            self._host.branches.accept(branch, [entry for _, entry in taken])
        elif self._transaction is not None:
            self._transaction.accept(taken)
        else:
            self._host.accept(entry for _, entry in taken)

    def _release(self, command: spec.MessageRelease) -> None:
        ranges = list(self._sent(command.transfers))
        taken = self._deliveries.take(ranges)
        if self._transaction is not None:
            self._transaction.release(ranges, redelivered=command.set_redelivered)
        entries = [entry for _, entry in taken]
        self._host.release(entries, delivered=command.set_redelivered, now=self.connection.now)

    def _reject(self, command: spec.MessageReject) -> None:
        taken = self._deliveries.take(self._sent(command.transfers))
        self._host.reject([entry for _, entry in taken], now=self.connection.now)

    def _acquire(self, command: spec.MessageAcquire) -> spec.MessageAcquired:
        """message.acquire: no more than its answer can name; the rest stays in the queue, for another one."""
        seen = self._deliveries.browsed(self._sent(command.transfers))
        acquired: list[tuple[int, Entry]] = []
        ranges: list[tuple[int, int]] = []
        while seen and len(ranges) < _MOST_RANGES:
            room = _MOST_RANGES - len(ranges)
            part, seen = seen[:room], seen[room:]
            taken = set(self._host.acquire([entry for _, entry in part], now=self.connection.now))
            for each, entry in part:
                if entry in taken:
                    taken.remove(entry)  # two subscriptions may have browsed it: it is held once
                    acquired.append((each, entry))
            ranges = ranges_of(each for each, _ in acquired)
        self._host.accept(self._deliveries.acquired(acquired))  # as qpidd does with accept-mode none
        return spec.MessageAcquired(transfers=wire_ranges(ranges))

    def _resume(self, command: spec.MessageResume) -> spec.MessageResumeResult:
        """message.resume: no part of a message is ever kept."""
        if command.destination:
            self._subscription(command.destination)
        return spec.MessageResumeResult(offset=0)

    def _subscribe(self, command: spec.MessageSubscribe) -> None:
        destination, arguments = named(command.destination, "the destination"), command.arguments or {}
        if destination in self._subscriptions:
            raise Failed(Code.NOT_ALLOWED, f"destination '{destination}' has a subscription already")
        queue = named(command.queue, "the name of a queue")
        self.connection.rights.consume(queue)
        selector = selector_of(arguments)
        priority = arguments.get("x-priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise Failed(Code.INVALID_ARGUMENT, "x-priority must be an integer")
        no_ack = command.accept_mode == spec.MessageAcceptMode.NONE
        if no_ack and self._transaction is not None:
            raise Failed(Code.NOT_ALLOWED, "accept-mode none is not allowed in a transaction")
        browse = command.acquire_mode == spec.MessageAcquireMode.NOT_ACQUIRED
        receiver = SessionSubscription(self, destination, no_ack=no_ack, browse=browse)
        try:
            receiver.consumer = self._host.consume(
                queue,
                receiver,
                owner=self,
                exclusive=command.exclusive,
                no_ack=no_ack and not browse,
                browse=browse,
                priority=priority,
                selector=selector,
                weight=1 if selector is None else selector.weight,
                now=self.connection.now,
            )
        except Refused as refused:
            if refused.reason is Refusal.ACCESS_REFUSED:  # an exclusive subscription
                raise Failed(Code.RESOURCE_LOCKED, refused.text) from refused
            raise
        self._subscriptions[destination] = receiver

    def _cancel(self, command: spec.MessageCancel) -> None:
        subscription = self._subscription(command.destination)
        del self._subscriptions[subscription.destination]
        subscription.stop()
        self._deliveries.forget_browsed(subscription)
        if subscription.consumer is not None:
            self._host.cancel(subscription.consumer, now=self.connection.now)

    def _set_flow_mode(self, command: spec.MessageSetFlowMode) -> None:
        self._subscription(command.destination).set_mode(command.flow_mode)

    def _flow(self, command: spec.MessageFlow) -> None:
        subscription = self._subscription(command.destination)
        subscription.flow(command.unit, command.value)
        subscription.ready()

    def _on_flush(self, command: spec.MessageFlush) -> None:
        subscription = self._subscription(command.destination)
        subscription.ready()
        if subscription.may_get_more:
            self._flushing = subscription
            self.connection.resume_later()
        else:
            subscription.stop()

    def _stop(self, command: spec.MessageStop) -> None:
        self._subscription(command.destination).stop()

    def _tx_select(self, _: spec.TxSelect) -> None:
        if self._transaction is not None:
            raise Failed(Code.ILLEGAL_STATE, "tx was selected before")
        if self._distributed.selected:
            raise Failed(Code.ILLEGAL_STATE, "dtx was selected, so tx is not possible")
        if any(each.no_ack for each in self._subscriptions.values()):
            raise Failed(Code.NOT_ALLOWED, "a subscription has accept-mode none, which a transaction does not allow")
        self._transaction = Transaction()

    def _tx_commit(self, _: spec.TxCommit) -> None:
        transaction = self._selected()
        self._publishing.commit(transaction, self.connection.now)
        self._host.accept(transaction.take_accepted())

    def _tx_rollback(self, _: spec.TxRollback) -> None:
        """What was accepted is held again, unless it was released meanwhile; it is not delivered again by itself.

        See 0-10 section tx.rollback.
        """
        undone = self._selected().roll_back()
        self._deliveries.put_back(undone.held)
        self._host.release(undone.released, delivered=False, now=self.connection.now)
        self._host.release(undone.redelivered, now=self.connection.now)

    def _dtx_select(self, _: spec.DtxSelect) -> None:
        if self._transaction is not None:
            raise Failed(Code.ILLEGAL_STATE, "tx was selected, so dtx is not possible")
        self._distributed.selected = True

    # --- internals

    def _selected(self) -> Transaction:
        if self._transaction is None:
            raise Failed(Code.ILLEGAL_STATE, "tx.select has to come first")
        return self._transaction

    def _subscription(self, destination: str | None) -> SessionSubscription:
        subscription = self._subscriptions.get(destination or "")
        if subscription is None:
            raise Failed(Code.NOT_FOUND, f"there is no subscription '{destination or ''}'")
        return subscription

    def _sent(self, ranges: list[tuple[int, int]] | None) -> Iterable[tuple[int, int]]:
        return unwrap_ranges(ranges or [], self.state.next_id)

    def _completed(self, control: spec.SessionCompleted) -> None:
        """Give back the credit of the windows whose transfers are complete."""
        changed = {}
        for subscription, size in self._deliveries.completed(self._sent(control.commands)):
            subscription.completed(size)
            changed[subscription.destination] = subscription
        self._ready(changed.values())

    def _ready(self, subscriptions: Iterable[SessionSubscription]) -> None:
        """Deliver what the credit allows: each queue looks at all its consumers, so once for all of them."""
        for queue in {each.consumer.queue: None for each in subscriptions if each.consumer and each.has_credit}:
            queue.ready(self.connection.now)


def _unknown(code: int) -> Failed:
    if code >> 8 in _UNSERVED:
        return Failed(Code.NOT_IMPLEMENTED, f"command 0x{code:04x}: the classes file and stream are not served")
    return Failed(Code.COMMAND_INVALID, f"there is no command 0x{code:04x}")


_HANDLERS: Final[dict[type[spec.Command], Callable[..., Any]]] = {
    spec.ExecutionSync: ServerSession._ignore,
    spec.ExecutionResult: ServerSession._ignore,
    spec.MessageAccept: ServerSession._accept,
    spec.MessageRelease: ServerSession._release,
    spec.MessageReject: ServerSession._reject,
    spec.MessageAcquire: ServerSession._acquire,
    spec.MessageResume: ServerSession._resume,
    spec.MessageSubscribe: ServerSession._subscribe,
    spec.MessageCancel: ServerSession._cancel,
    spec.MessageSetFlowMode: ServerSession._set_flow_mode,
    spec.MessageFlow: ServerSession._flow,
    spec.MessageFlush: ServerSession._on_flush,
    spec.MessageStop: ServerSession._stop,
    spec.DtxSelect: ServerSession._dtx_select,
    spec.TxSelect: ServerSession._tx_select,
    spec.TxCommit: ServerSession._tx_commit,
    spec.TxRollback: ServerSession._tx_rollback,
}
