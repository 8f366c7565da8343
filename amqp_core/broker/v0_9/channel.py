"""One channel of the embedded broker: methods of the client in, calls of the model, methods of the broker out."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.broker.v0_9.confirms import Confirms
from amqp_core.broker.v0_9.consumer import ChannelConsumer
from amqp_core.broker.v0_9.direct_reply import REPLY_TO, DirectReply
from amqp_core.broker.v0_9.wire import header_of, message_of
from amqp_core.errors import AmqpError, EncodeError
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import Channel, ChannelMode, ChannelState, WrongMode
from amqp_core.v0_9.framing import METHOD
from amqp_core.write_primitives import cut_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqp_core.broker.model.memory import Restraint
    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Entry
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.broker.rights import Rights
    from amqp_core.broker.v0_9.connection import ServerConnection
    from amqp_core.v0_9.channel import Content
    from amqp_core.v0_9.framing import Frame

_Code = spec.ReplyCode
CODES: Final = {
    Refusal.NOT_FOUND: _Code.NOT_FOUND,
    Refusal.PRECONDITION_FAILED: _Code.PRECONDITION_FAILED,
    Refusal.IN_USE: _Code.PRECONDITION_FAILED,
    Refusal.INVALID_ARGUMENT: _Code.PRECONDITION_FAILED,
    Refusal.RESOURCE_LOCKED: _Code.RESOURCE_LOCKED,
    Refusal.ACCESS_REFUSED: _Code.ACCESS_REFUSED,
    Refusal.UNAUTHORIZED: _Code.ACCESS_REFUSED,
    Refusal.NOT_ALLOWED: _Code.NOT_ALLOWED,
    Refusal.NOT_IMPLEMENTED: _Code.NOT_IMPLEMENTED,
    Refusal.RESOURCE_LIMIT: _Code.RESOURCE_ERROR,
}
"""Reply codes of what the model refuses, as RabbitMQ has them."""


class Failed(Exception):
    """A method that cannot be carried out. Soft codes close the channel, the others the connection."""

    def __init__(self, code: spec.ReplyCode, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = f"{code.name} - {text}"


class _Held(NamedTuple):
    """A message that the client holds; ``consumer`` is None for basic.get."""

    entry: Entry
    consumer: ChannelConsumer | None


class ServerChannel:
    """One open channel. Not thread-safe."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection = connection
        self.state = Channel(connection.protocol, number, connection.max_message_bytes)
        self._host: VirtualHost = connection.virtual_host
        self._rights: Rights = connection.rights
        self._consumers: dict[str, ChannelConsumer] = {}
        self._held: dict[int, _Held] = {}
        self._last_tag = 0
        self._prefetch = 0
        self._limit = 0
        self._outstanding = 0
        """Delivered to consumers and not settled; in a transaction they are settled when it commits."""
        self._confirms: Confirms | None = None
        self._published: list[tuple[Message, bool]] = []
        """In a transaction: messages and whether they are mandatory."""
        self._acked: list[tuple[int, _Held, bool | None]] = []
        """In a transaction: what was settled. None: acked; else whether it is requeued."""
        self._last_queue = ""
        self._replies = DirectReply(self._host)
        self._names = itertools.count(1)

    # --- what the model asks

    @property
    def can_send(self) -> bool:
        """Whether the client takes messages now."""
        state = self.state
        return state.active and state.state is ChannelState.OPEN and not self.connection.is_congested

    @property
    def is_full(self) -> bool:
        """Whether consumers hold as many messages as basic.qos allows for the channel; basic.get is free of it."""
        return bool(self._limit) and self._outstanding >= self._limit

    @property
    def holds_messages(self) -> bool:
        """Whether the client has messages that it has not settled."""
        return bool(self._held or self._acked)

    def deliver(self, consumer: ChannelConsumer, entry: Entry) -> None:
        """Send a message to a consumer."""
        message = entry.message
        self._last_tag += 1
        if not consumer.no_ack:
            self._held[self._last_tag] = _Held(entry, consumer)
            self._outstanding += 1
        method = spec.BasicDeliver(
            consumer.tag, self._last_tag, entry.redelivered, message.exchange, message.routing_key
        )
        try:
            header = header_of(message)
            self.connection.send_content(self.state.number, method, header, message.body)
        except AmqpError as error:  # the call is another client's, and this one must not have an error of it
            self._held[self._last_tag] = _Held(entry, consumer)
            assert consumer.consumer is not None
            consumer.consumer.holds()
            self.connection.doom(spec.ReplyCode.INTERNAL_ERROR, f"INTERNAL_ERROR - a message cannot be sent: {error}")

    def consumer_lost(self, consumer: ChannelConsumer) -> None:
        """The queue of a consumer was deleted (basic.cancel, if the client understands it)."""
        self._consumers.pop(consumer.tag, None)
        if self.connection.knows(spec.Capability.CONSUMER_CANCEL_NOTIFY) and self.state.state is ChannelState.OPEN:
            self.connection.send_method(self.state.number, spec.BasicCancel(consumer.tag, no_wait=True))

    # --- what the connection asks

    def receive(self, frame: Frame) -> None:
        """Process a frame of this channel."""
        if frame.type == METHOD and int.from_bytes(frame.payload[:4]) == spec.ChannelClose.CODE:
            self.confirm()  # before channel.close-ok
        was_open, was_active = self.state.state is ChannelState.OPEN, self.state.active
        try:
            received = self.state.receive(frame)
        except WrongMode as error:
            self._fail(_Code.PRECONDITION_FAILED, f"PRECONDITION_FAILED - {error}", error.method)
            return
        if was_open and self.state.state is not ChannelState.OPEN:
            self.end()
        if self.state.active and not was_active:
            self.wake()
        if received is None:
            return
        method, content = received
        handler = _HANDLERS.get(type(method))
        if handler is None:
            self._fail(_Code.NOT_IMPLEMENTED, f"NOT_IMPLEMENTED - {method.NAME} is not implemented", method)
            return
        try:
            handler(self, method, content) if content is not None else handler(self, method)
        except Refused as refused:
            self._fail(CODES[refused.reason], f"{CODES[refused.reason].name} - {refused.text}", method)
        except Failed as failed:
            self._fail(failed.code, failed.text, method)
        except EncodeError as error:
            self._fail(_Code.INTERNAL_ERROR, f"INTERNAL_ERROR - {error}", method)

    def confirm(self) -> None:
        """Confirm what was published since the last call."""
        if self._confirms is not None and self.state.state is ChannelState.OPEN:
            for method in self._confirms.take():
                self.connection.send_method(self.state.number, method)

    def wake(self) -> None:
        """The client takes messages again."""
        # each queue looks at all its consumers: once for all of them
        for queue in {each.consumer.queue: None for each in self._consumers.values() if each.consumer is not None}:
            queue.ready(self.connection.now)

    def stop_consuming(self) -> None:
        """Cancel the consumers; what they hold stays held."""
        consumers, self._consumers = self._consumers, {}
        for each in consumers.values():
            if each.consumer is not None:
                self._host.cancel(each.consumer)

    def end(self) -> None:
        """Return what the client holds, then cancel the consumers: see ``give_back``."""
        self.give_back()
        self.stop_consuming()
        self._published.clear()
        self._confirms = None
        self._last_tag = self._prefetch = self._limit = self._outstanding = 0
        self._last_queue = ""

    def give_back(self) -> None:
        """Return what the client holds.

        Before the consumers, which get nothing more, are cancelled: who is the single active consumer of a queue then
        gets its messages in their order.
        """
        held = [held.entry for held in self._held.values()] + [held.entry for _, held, _ in self._acked]
        self._held.clear()
        self._acked.clear()
        self._host.release(held)

    def _fail(self, code: spec.ReplyCode, text: str, method: spec.Method) -> None:
        if code not in spec.SOFT_ERRORS:
            self.connection.close(code, text, method)
            return
        self.confirm()
        self.state.close(code, cut_short(text), method)
        self.end()

    def _answer(self, method: spec.Method, *, unless: bool = False) -> None:
        if not unless:
            self.connection.send_method(self.state.number, method)

    def _queue_name(self, name: str) -> str:
        """The name, or the queue that the channel declared last (0-9-1 section queue.declare, current queue)."""
        if name:
            return name
        if not self._last_queue:
            raise Failed(_Code.NOT_FOUND, "no previously declared queue")
        return self._last_queue

    # --- exchange

    def _exchange_declare(self, method: spec.ExchangeDeclare) -> None:
        if method.passive:
            self._rights.see_exchange(method.exchange)
        elif method.exchange:
            is_new = method.exchange not in self._host.exchanges
            alternate = method.arguments.get("alternate-exchange") if is_new else None
            self._rights.declare_exchange(method.exchange, alternate=alternate)
        try:
            self._host.declare_exchange(
                method.exchange,
                method.type,
                passive=method.passive,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=method.arguments,
            )
        except Refused as refused:
            if refused.reason is Refusal.NOT_IMPLEMENTED:  # 0-9-1 section exchange.declare, rule support
                raise Failed(_Code.COMMAND_INVALID, refused.text) from refused
            raise
        self._answer(spec.ExchangeDeclareOk(), unless=method.no_wait)

    def _exchange_delete(self, method: spec.ExchangeDelete) -> None:
        self._rights.delete_exchange(method.exchange)
        if (
            method.exchange in self._host.exchanges or not method.exchange
        ):  # RabbitMQ: deleting what is not there is no error
            self._host.delete_exchange(method.exchange, if_unused=method.if_unused)
        self._answer(spec.ExchangeDeleteOk(), unless=method.no_wait)

    def _exchange_bind(self, method: spec.ExchangeBind) -> None:
        self._rights.bind_exchange(method.destination, method.source)
        self._host.bind_exchange(method.destination, method.source, method.routing_key, arguments=method.arguments)
        self._answer(spec.ExchangeBindOk(), unless=method.no_wait)

    def _exchange_unbind(self, method: spec.ExchangeUnbind) -> None:
        self._rights.bind_exchange(method.destination, method.source)
        self._host.unbind_exchange(method.destination, method.source, method.routing_key, arguments=method.arguments)
        self._answer(spec.ExchangeUnbindOk(), unless=method.no_wait)

    # --- queue

    def _queue_declare(self, method: spec.QueueDeclare) -> None:
        if method.queue == REPLY_TO:
            self._answer(spec.QueueDeclareOk(REPLY_TO, 0, 1), unless=method.no_wait)
            return
        if method.passive:
            self._rights.see_queue(method.queue)
        else:
            is_new = method.queue not in self._host.queues
            exchange = method.arguments.get("x-dead-letter-exchange") if is_new else None
            self._rights.declare_queue(method.queue, dead_letters_to=exchange)
        queue = self._host.declare_queue(
            method.queue,
            owner=self.connection,
            passive=method.passive,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
            arguments=method.arguments,
            now=self.connection.now,
        )
        self._last_queue = queue.name
        answer = spec.QueueDeclareOk(queue.name, queue.message_count, queue.consumer_count)
        self._answer(answer, unless=method.no_wait)

    def _queue_bind(self, method: spec.QueueBind) -> None:
        name = self._queue_name(method.queue)
        self._rights.bind_queue(name, method.exchange)
        key = method.routing_key or (name if not method.queue else "")
        self._host.bind_queue(name, method.exchange, key, owner=self.connection, arguments=method.arguments)
        self._answer(spec.QueueBindOk(), unless=method.no_wait)

    def _queue_unbind(self, method: spec.QueueUnbind) -> None:
        name = self._queue_name(method.queue)
        self._rights.bind_queue(name, method.exchange)
        self._host.unbind_queue(
            name, method.exchange, method.routing_key, owner=self.connection, arguments=method.arguments
        )
        self._answer(spec.QueueUnbindOk())

    def _queue_purge(self, method: spec.QueuePurge) -> None:
        name = self._queue_name(method.queue)
        self._rights.consume(name)
        count = self._host.purge_queue(name, owner=self.connection)
        self._answer(spec.QueuePurgeOk(count), unless=method.no_wait)

    def _queue_delete(self, method: spec.QueueDelete) -> None:
        count, name = 0, self._queue_name(method.queue)
        self._rights.delete_queue(name)
        if name in self._host.queues:  # RabbitMQ: deleting what is not there is no error
            count = self._host.delete_queue(
                name, owner=self.connection, if_unused=method.if_unused, if_empty=method.if_empty
            )
        self._answer(spec.QueueDeleteOk(count), unless=method.no_wait)

    # --- basic: consume

    def _qos(self, method: spec.BasicQos) -> None:
        if method.prefetch_size:
            raise Failed(_Code.NOT_IMPLEMENTED, f"prefetch_size={method.prefetch_size}: only 0 is implemented")
        if method.global_:
            self._limit = method.prefetch_count
            self.wake()
        else:
            self._prefetch = method.prefetch_count
        self._answer(spec.BasicQosOk())

    def _consume(self, method: spec.BasicConsume) -> None:
        name = self._queue_name(method.queue)
        if name != REPLY_TO:  # its own replies anybody may read, as on RabbitMQ
            self._rights.consume(name)
        tag = method.consumer_tag or self._free_tag()
        if tag in self._consumers:
            raise Failed(_Code.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        receiver = ChannelConsumer(self, tag, no_ack=method.no_ack, prefetch=self._prefetch)
        priority = method.arguments.get("x-priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise Failed(_Code.PRECONDITION_FAILED, "x-priority must be an integer")
        if name == REPLY_TO:
            name = self._replies.queue(self.connection, self.connection.now, no_ack=method.no_ack)
        receiver.consumer = self._host.consume(
            name,
            receiver,
            owner=self.connection,
            exclusive=method.exclusive,
            no_ack=method.no_ack,
            priority=priority,
            now=self.connection.now,
        )
        self._consumers[tag] = receiver
        self._answer(spec.BasicConsumeOk(tag), unless=method.no_wait)
        receiver.consumer.queue.ready(self.connection.now)

    def _free_tag(self) -> str:
        return next(tag for tag in (f"amq.ctag-{number}" for number in self._names) if tag not in self._consumers)

    def _cancel(self, method: spec.BasicCancel) -> None:
        receiver = self._consumers.pop(method.consumer_tag, None)
        if receiver is not None and receiver.consumer is not None:
            self._host.cancel(receiver.consumer)
        self._answer(spec.BasicCancelOk(method.consumer_tag), unless=method.no_wait)

    def _get(self, method: spec.BasicGet) -> None:
        name = self._queue_name(method.queue)
        self._rights.consume(name)
        entry = self._host.get(name, owner=self.connection, now=self.connection.now)
        if entry is None:
            self._answer(spec.BasicGetEmpty())
            return
        self._last_tag += 1
        self._held[self._last_tag] = _Held(entry, None)  # also with no-ack: what cannot be written is not lost
        message = entry.message
        answer = spec.BasicGetOk(
            self._last_tag, entry.redelivered, message.exchange, message.routing_key, entry.queue.message_count
        )
        header = header_of(message)
        self.connection.answer_content(self.state.number, answer, header, message.body)
        if method.no_ack:
            del self._held[self._last_tag]
            self._host.accept([entry])

    # --- basic: settle

    def _ack(self, method: spec.BasicAck) -> None:
        self._settle(self._take(method.delivery_tag, multiple=method.multiple), None)

    def _reject(self, method: spec.BasicReject) -> None:
        self._settle(self._take(method.delivery_tag, multiple=False), method.requeue)

    def _nack(self, method: spec.BasicNack) -> None:
        self._settle(self._take(method.delivery_tag, multiple=method.multiple), method.requeue)

    def _take(self, tag: int, *, multiple: bool) -> list[tuple[int, _Held]]:
        """What a delivery tag names; it is not held any more."""
        if multiple:
            tags = list(itertools.takewhile(lambda each: each <= tag or not tag, self._held))  # they are in order
            if tag and tag not in self._held:  # all before it would be settled by mistake
                raise Failed(_Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        elif tag in self._held:
            tags = [tag]
        else:
            raise Failed(_Code.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        return [(each, self._held.pop(each)) for each in tags]

    def _settle(self, taken: Iterable[tuple[int, _Held]], requeue: bool | None) -> None:  # noqa: FBT001
        if self.state.mode is ChannelMode.TRANSACTIONS:
            self._acked += [(tag, held, requeue) for tag, held in taken]
            return
        self._settle_now([held for _, held in taken], requeue)

    def _settle_now(self, taken: list[_Held], requeue: bool | None) -> None:  # noqa: FBT001
        entries = [held.entry for held in taken]
        queues = {}
        for held in taken:
            if held.consumer is not None:
                held.consumer.held -= 1
                self._outstanding -= 1
                queues[held.entry.queue.name] = held.entry.queue
        if requeue is None:
            self._host.accept(entries)
        elif requeue:
            self._host.release(entries)
        else:
            self._host.reject(entries, now=self.connection.now)
        if self._limit:  # every consumer of the channel may have room now
            self.wake()
            return
        for queue in queues.values():
            queue.ready(self.connection.now)

    def _recover(self, method: spec.BasicRecover | spec.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise Failed(_Code.NOT_IMPLEMENTED, "basic.recover with requeue=false is not implemented")
        taken, self._held = list(self._held.values()), {}
        if isinstance(method, spec.BasicRecover):
            self._answer(spec.BasicRecoverOk())
        self._settle_now(taken, requeue=True)

    # --- basic: publish

    def _publish(self, method: spec.BasicPublish, content: Content) -> None:
        if method.immediate:
            raise Failed(_Code.NOT_IMPLEMENTED, "immediate=true is not implemented")
        self._rights.publish(method.exchange)
        message = message_of(method, self._replies.addressed(content), self.connection.username)
        if self.state.mode is ChannelMode.TRANSACTIONS:
            self._host.check_target(message.exchange)
            self._host.memory.admit(message)
            self._published.append((message, method.mandatory))
            if self._host.memory.holds:
                self.connection.stop_publisher(self, (self._host.memory,))
            return
        self._route(message, mandatory=method.mandatory)

    def _route(self, message: Message, *, mandatory: bool) -> None:
        published = self._host.publish(message, now=self.connection.now)
        if mandatory and not published.queues and not published.rejected:
            self._return(message)
        if self._confirms is not None:
            self._confirms.published(taken=not published.rejected)
        if published.restraints:
            self.connection.stop_publisher(self, published.restraints)

    def _return(self, message: Message) -> None:
        """Give a message back that is mandatory and has no queue."""
        back = spec.BasicReturn(_Code.NO_ROUTE, "NO_ROUTE", message.exchange, message.routing_key)
        self.connection.send_content(self.state.number, back, message.header, message.body)

    def _confirm_select(self, method: spec.ConfirmSelect) -> None:
        if self._confirms is None:
            self._confirms = Confirms()
        self._answer(spec.ConfirmSelectOk(), unless=method.no_wait)

    # --- tx

    def _tx_select(self, _: spec.TxSelect) -> None:
        self._answer(spec.TxSelectOk())

    def _tx_commit(self, _: spec.TxCommit) -> None:
        """Do all or nothing: what cannot be done is found out before anything is done."""
        host = self._host
        for message, _mandatory in self._published:
            host.check_target(message.exchange)
        routed = [(message, host.route(message)) for message, _mandatory in self._published]
        if not host.has_room(routed):
            raise Refused(Refusal.PRECONDITION_FAILED, "A queue for the messages of the transaction is full")
        published, self._published = self._published, []
        acked, self._acked = self._acked, []
        for (message, queues), (_same, mandatory) in zip(routed, published, strict=True):
            if mandatory and not queues:
                self._return(message)
            host.admit(message, queues, self.connection.now)
        restraints: list[Restraint] = [queue for _, queues in routed for queue in queues if queue.holds]
        if host.memory.holds:
            restraints.append(host.memory)
        if restraints:
            self.connection.stop_publisher(self, restraints)
        for requeue, group in itertools.groupby(acked, key=lambda each: each[2]):
            self._settle_now([held for _, held, _ in group], requeue)
        self._answer(spec.TxCommitOk())

    def _tx_rollback(self, _: spec.TxRollback) -> None:
        """What was acked is held again; it is not delivered again (0-9-1 section tx.rollback)."""
        self._published.clear()
        acked, self._acked = self._acked, []
        self._held = dict(sorted([*self._held.items(), *((tag, held) for tag, held, _ in acked)]))
        self._answer(spec.TxRollbackOk())


_HANDLERS: Final[dict[type[spec.Method], Callable[..., Any]]] = {
    spec.ExchangeDeclare: ServerChannel._exchange_declare,
    spec.ExchangeDelete: ServerChannel._exchange_delete,
    spec.ExchangeBind: ServerChannel._exchange_bind,
    spec.ExchangeUnbind: ServerChannel._exchange_unbind,
    spec.QueueDeclare: ServerChannel._queue_declare,
    spec.QueueBind: ServerChannel._queue_bind,
    spec.QueueUnbind: ServerChannel._queue_unbind,
    spec.QueuePurge: ServerChannel._queue_purge,
    spec.QueueDelete: ServerChannel._queue_delete,
    spec.BasicQos: ServerChannel._qos,
    spec.BasicConsume: ServerChannel._consume,
    spec.BasicCancel: ServerChannel._cancel,
    spec.BasicGet: ServerChannel._get,
    spec.BasicAck: ServerChannel._ack,
    spec.BasicReject: ServerChannel._reject,
    spec.BasicNack: ServerChannel._nack,
    spec.BasicRecover: ServerChannel._recover,
    spec.BasicRecoverAsync: ServerChannel._recover,
    spec.BasicPublish: ServerChannel._publish,
    spec.ConfirmSelect: ServerChannel._confirm_select,
    spec.TxSelect: ServerChannel._tx_select,
    spec.TxCommit: ServerChannel._tx_commit,
    spec.TxRollback: ServerChannel._tx_rollback,
}
