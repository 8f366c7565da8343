"""A client of AMQP 0-9-1 over a blocking socket: frames and codec of the project, none of its state machines."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_header, decode_method, encode_header, encode_method
from amqp_core.v0_9.framing import BODY, HEADER, METHOD, Frame, encode_content, encode_frame, parse_frame
from tests.conformance.peer import TAKEN, Closed, Declared, Delivery, Fate, Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.targets import Address

_UNANSWERED: Final = (
    spec.BasicPublish,
    spec.BasicAck,
    spec.BasicReject,
    spec.BasicNack,
    spec.BasicRecoverAsync,
    spec.ChannelCloseOk,
    spec.ConnectionCloseOk,
    spec.ConnectionStartOk,
    spec.ConnectionTuneOk,
)
_CAPABILITIES: Final = {str(name): True for name in spec.CLIENT_CAPABILITIES}
_T = TypeVar("_T", bound=spec.Method)


class Peer09(Peer):
    """One connection with one channel, in which what is published is confirmed.

    Attributes:
        answers: of synchronous methods, that no call has returned yet.
        returns: of unroutable messages.
        cancelled: tags of consumers that the broker has cancelled.
        channel_max: the greatest channel, as agreed.
    """

    def __init__(self, address: Address, declared: Declared, *, confirms: bool = True) -> None:
        super().__init__(address.port, declared)
        self.answers: deque[tuple[spec.Method, spec.BasicProperties | None, bytes]] = deque()
        self.returns: list[tuple[spec.BasicReturn, bytes]] = []
        self.cancelled: list[str] = []
        self.channel = 0
        self.outgoing += b"AMQP\0\0\x09\x01"
        self.frame_max = 4096
        self._awaited = 0
        self._confirms = False
        self._published: list[bytes] = []
        self._settled: dict[int, bool] = {}
        self._given = 0  # messages whose fate was told
        self._returned = 0
        try:
            self.push()
            self._log_in(address)
            self._open(confirms=confirms)
        except BaseException:
            self._socket.close()
            raise

    def _log_in(self, address: Address) -> None:
        self._awaited += 1
        self._await()
        answer = self.answers.pop()[0]
        assert isinstance(answer, spec.ConnectionStart)
        self.server_properties = answer.server_properties
        login = f"\0{address.username}\0{address.password}".encode()
        self._send(spec.ConnectionStartOk({"capabilities": _CAPABILITIES}, "PLAIN", login, "en_US"))
        self._awaited += 1
        self._await()
        tune = self.answers.pop()[0]
        assert isinstance(tune, spec.ConnectionTune)
        self.frame_max, self.channel_max = tune.frame_max or 131072, tune.channel_max
        self._send(spec.ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))
        self.call(spec.ConnectionOpen(virtual_host=address.virtual_host))

    def _open(self, *, confirms: bool) -> None:
        self.channel += 1
        self._confirms = confirms
        self._published.clear()
        self._settled.clear()
        self._given = self._returned = 0
        self.call(spec.ChannelOpen())
        if confirms:
            self.send(spec.ConfirmSelect())

    # --- the protocol itself

    def send(self, method: spec.Method) -> None:
        """Send a method of the channel."""
        self._send(method)
        self._awaited += not isinstance(method, _UNANSWERED)

    def call(self, method: spec.Method) -> spec.Method:
        """Send a method; return its answer, once all earlier ones have theirs, too."""
        self.send(method)
        self._await()
        return self.answers.pop()[0]

    def ask(self, method: spec.Method, kind: type[_T]) -> _T:
        """Send a method; return its answer, which is of a kind."""
        answer = self.call(method)
        assert isinstance(answer, kind), answer
        return answer

    def _send(self, method: spec.Method) -> None:
        channel = 0 if method.CODE >> 16 == 10 else self.channel
        self.outgoing += encode_frame(METHOD, channel, encode_method(method))

    def _await(self) -> None:
        self.read_until(lambda: self._awaited == 0)

    def _frame(self) -> Frame:
        while (parsed := parse_frame(self._data, self._at, 1 << 24)) is None:
            self._fill()
        frame, self._at = parsed
        return frame

    def _read(self) -> None:
        frame = self._frame()
        if frame.type != METHOD:
            return
        method = decode_method(frame.payload)
        properties, body = None, b""
        if isinstance(method, spec.BasicDeliver | spec.BasicGetOk | spec.BasicReturn):
            header = self._frame()
            assert header.type == HEADER
            given, size = decode_header(header.payload)
            properties = given
            while len(body) < size:
                part = self._frame()
                assert part.type == BODY
                body += part.payload
        self._dispatch(method, properties, body)

    def _dispatch(self, method: spec.Method, properties: spec.BasicProperties | None, body: bytes) -> None:
        if isinstance(method, spec.BasicDeliver):
            self.deliveries.append(_delivery(method, method.consumer_tag, properties, body))
        elif isinstance(method, spec.BasicReturn):
            self.returns.append((method, body))
        elif isinstance(method, spec.BasicAck | spec.BasicNack):
            self._settle(method.delivery_tag, method.multiple, isinstance(method, spec.BasicAck))
        elif isinstance(method, spec.BasicCancel):
            self.cancelled.append(method.consumer_tag)
        elif isinstance(method, spec.ChannelClose):
            self._send(spec.ChannelCloseOk())
            self.push()
            self._awaited = 0
            raise Closed("channel", method.reply_code, method.reply_text)
        elif isinstance(method, spec.ConnectionClose):
            self._send(spec.ConnectionCloseOk())
            with contextlib.suppress(Closed):
                self.push()
            raise Closed("connection", method.reply_code, method.reply_text)
        else:
            self._awaited -= 1
            self.answers.append((method, properties, body))

    def _settle(self, tag: int, multiple: bool, taken: bool) -> None:
        if multiple:
            tags = [each for each in range(1, (tag or len(self._published)) + 1) if each not in self._settled]
        else:
            tags = [tag]
        self._settled.update(dict.fromkeys(tags, taken))

    # --- declaring

    def _declare_queue(
        self, queue: str, alternate: str | None, arguments: dict[str, object], flags: dict[str, bool]
    ) -> None:
        if alternate is not None:
            arguments |= {"x-dead-letter-exchange": alternate}
        self.send(spec.QueueDeclare(queue=queue, arguments=arguments, **flags))

    def _declare_exchange(
        self, exchange: str, kind: str, alternate: str | None, arguments: dict[str, object], flags: dict[str, bool]
    ) -> None:
        if alternate is not None:
            arguments |= {"alternate-exchange": alternate}
        self.send(spec.ExchangeDeclare(exchange=exchange, type=kind, arguments=arguments, **flags))

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        self._declared.queues.discard(queue)
        self.send(spec.QueueDelete(queue=queue, if_unused=if_unused, if_empty=if_empty))

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        self._declared.exchanges.discard(exchange)
        self.send(spec.ExchangeDelete(exchange=exchange, if_unused=if_unused))

    def purge(self, queue: str) -> None:
        self.send(spec.QueuePurge(queue=queue))

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        self.send(spec.QueueBind(queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments or {})))

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        self.send(spec.QueueUnbind(queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments or {})))

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None:
        """Bind an exchange to another one (an extension of RabbitMQ)."""
        self.send(spec.ExchangeBind(destination=destination, source=source, routing_key=key))

    def unbind_exchange(self, destination: str, source: str, key: str = "") -> None:
        """Unbind an exchange from another one."""
        self.send(spec.ExchangeUnbind(destination=destination, source=source, routing_key=key))

    # --- messages

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes,
        *,
        headers: Mapping[str, object] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        mandatory: bool = False,
        persistent: bool = False,
    ) -> None:
        properties = spec.BasicProperties(
            headers=dict(headers) if headers else None,
            priority=priority,
            expiration=None if ttl_ms is None else str(ttl_ms),
            delivery_mode=2 if persistent else None,
        )
        self.publish_raw(spec.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory), properties, body)

    def publish_raw(
        self,
        method: spec.BasicPublish,
        properties: spec.BasicProperties,
        body: bytes,
        *,
        frame_max: int | None = None,
    ) -> None:
        """Publish with any method and properties; ``frame_max``: another one than was agreed."""
        header = encode_header(properties, len(body))
        frames = encode_content(self.channel, encode_method(method), header, body, frame_max or self.frame_max)
        self.outgoing += b"".join(frames)
        self._published.append(body)

    def consume(self, queue: str, consumer: str, *, credit: int = 0, accept: bool = True) -> None:
        self.send(spec.BasicQos(prefetch_count=credit))
        self.send(spec.BasicConsume(queue=queue, consumer_tag=consumer, no_ack=not accept))
        self._await()  # RabbitMQ answers when its queue has the consumer: later than what was sent behind, or never

    def cancel(self, consumer: str) -> None:
        self.send(spec.BasicCancel(consumer_tag=consumer))

    def accept(self, *deliveries: Delivery) -> None:
        for each in deliveries:
            self.send(spec.BasicAck(delivery_tag=each.number))

    def release(self, *deliveries: Delivery) -> None:
        for each in deliveries:
            self.send(spec.BasicReject(delivery_tag=each.number, requeue=True))

    def reject(self, *deliveries: Delivery) -> None:
        for each in deliveries:
            self.send(spec.BasicReject(delivery_tag=each.number, requeue=False))

    # --- calls that wait

    def sync(self) -> None:
        self.send(spec.ExchangeDeclare(exchange="amq.direct", type="direct", passive=True))
        self.read_until(
            lambda: self._awaited == 0 and (not self._confirms or len(self._settled) == len(self._published))
        )
        self.answers.clear()

    def fates(self) -> list[Fate]:
        self.sync()
        returned = {body: method.reply_code for method, body in self.returns[self._returned :]}
        self._returned = len(self.returns)
        found = []
        for tag, body in enumerate(self._published[self._given :], self._given + 1):
            if body in returned:
                found.append(Fate("returned" if self._settled[tag] else "returned and refused", returned[body]))
            else:
                found.append(TAKEN if self._settled[tag] else Fate("refused"))
        self._given = len(self._published)
        return found

    def get(self, *queues: str, most: int = 15, accept: bool = False) -> dict[str, list[Delivery]]:
        for queue in queues:
            for _ in range(most):
                self.send(spec.BasicGet(queue=queue, no_ack=accept))
        self.answers.clear()
        self._await()
        found: dict[str, list[Delivery]] = {queue: [] for queue in queues}
        answers = list(self.answers)[-most * len(queues) :]
        self.answers.clear()
        for index, (method, properties, body) in enumerate(answers):
            if isinstance(method, spec.BasicGetOk):
                found[queues[index // most]].append(_delivery(method, "", properties, body, method.message_count))
        return found

    def ready_messages(self, queue: str) -> int:
        """Messages that wait in a queue (queue.declare, passive)."""
        return self.ask(spec.QueueDeclare(queue=queue, passive=True), spec.QueueDeclareOk).message_count

    def select_tx(self) -> None:
        if self._confirms:
            self.sync()
            self.call(spec.ChannelClose(200))
            self._open(confirms=False)
        self.call(spec.TxSelect())

    def commit(self) -> None:
        self.call(spec.TxCommit())

    def roll_back(self) -> None:
        self.call(spec.TxRollback())

    # --- ends

    def reopen(self) -> None:
        with contextlib.suppress(Closed):
            self.call(spec.ChannelClose(200))
        self._open(confirms=True)

    def after_error(self) -> None:
        """Open a new channel, after the broker closed the last one."""
        self._open(confirms=True)

    def close(self) -> None:
        self.call(spec.ConnectionClose(200))
        self._socket.close()


def _delivery(
    method: spec.BasicDeliver | spec.BasicGetOk,
    consumer: str,
    properties: spec.BasicProperties | None,
    body: bytes,
    left: int = -1,
) -> Delivery:
    return Delivery(
        method.delivery_tag,
        body,
        method.redelivered,
        consumer,
        method.exchange,
        method.routing_key,
        (properties and properties.headers) or {},
        left,
    )
