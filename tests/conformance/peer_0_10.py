"""A client of AMQP 0-10 over a blocking socket: frames and codec of the project, none of its state machines."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import (
    decode_command,
    decode_control,
    decode_header,
    encode_command,
    encode_control,
    encode_header,
)
from amqp_core.v0_10.framing import (
    BODY,
    COMMAND,
    CONTROL,
    HEADER,
    LAST_FRAME,
    LAST_SEGMENT,
    MAX_FRAME_SIZE,
    PROTOCOL_HEADER,
    TRACK_COMMAND,
    TRACK_CONTROL,
    Frame,
    encode_assembly,
    parse_frame,
)
from tests.conformance.peer import TAKEN, Closed, Declared, Delivery, Fate, Peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conformance.targets import Address

INFINITE = 0xFFFFFFFF
EXPLICIT, NONE = spec.MessageAcceptMode.EXPLICIT, spec.MessageAcceptMode.NONE
CREDIT, WINDOW = spec.MessageFlowMode.CREDIT, spec.MessageFlowMode.WINDOW
MESSAGE, BYTE = spec.MessageCreditUnit.MESSAGE, spec.MessageCreditUnit.BYTE
_T = TypeVar("_T")


class Peer010(Peer):
    """One connection with one session.

    Attributes:
        accepted: ids of published messages that the broker has accepted.
        rejected: codes of those that it has rejected, by id.
        properties: both structs of the header of received messages, by id.
        results: of commands, by id.
        session_name: of the session.
        exception: why the broker has ended the session.
    """

    def __init__(self, address: Address, declared: Declared) -> None:
        super().__init__(address.port, declared)
        self.accepted: set[int] = set()
        self.rejected: dict[int, int] = {}
        self.properties: dict[int, tuple[spec.DeliveryProperties, spec.MessageProperties]] = {}
        self.results: dict[int, Any] = {}
        self.outgoing += PROTOCOL_HEADER
        self._segment = b""
        self._assembly: list[tuple[int, bytes]] = []
        self._controls: list[spec.Control] = []
        self.session_name = b""
        self._next = self._received = 0
        self._completed: set[int] = set()
        self._published: list[int] = []
        self.exception: spec.ExecutionException | None = None
        try:
            self._log_in(address)
            self._attach()
        except BaseException:
            self._socket.close()
            raise

    def _log_in(self, address: Address) -> None:
        self.push()
        while len(self._data) < len(PROTOCOL_HEADER):
            self._fill()
        self._at = len(PROTOCOL_HEADER)
        self.server_properties = self.wait_control(spec.ConnectionStart).server_properties or {}
        login = f"\0{address.username}\0{address.password}".encode()
        self.control(spec.ConnectionStartOk({}, "PLAIN", login, "en_US"))
        tune = self.wait_control(spec.ConnectionTune)
        self.control(spec.ConnectionTuneOk(tune.channel_max, tune.max_frame_size, 0))
        self.control(spec.ConnectionOpen(virtual_host=address.virtual_host))
        self.wait_control(spec.ConnectionOpenOk)

    def _attach(self) -> None:
        self.session_name = uuid.uuid4().bytes
        self._next = self._received = 0
        self._completed.clear()
        self._published.clear()
        self.exception = None
        self.accepted.clear()
        self.rejected.clear()
        self.control(spec.SessionAttach(name=self.session_name))
        self.control(spec.SessionCommandPoint(command_id=0, command_offset=0))
        self.wait_control(spec.SessionAttached)

    # --- the protocol itself

    def control(self, control: spec.Control) -> None:
        """Send a control."""
        self.outgoing += b"".join(
            encode_assembly(0, TRACK_CONTROL, [(CONTROL, encode_control(control))], MAX_FRAME_SIZE)
        )

    def send(
        self, command: spec.Command, header: bytes | None = None, body: bytes | None = None, *, sync: bool = False
    ) -> int:
        """Send a command; return its id."""
        segments = [(COMMAND, encode_command(command, sync))]
        segments += [(HEADER, header)] if header is not None else []
        segments += [(BODY, body)] if body else []
        self.outgoing += b"".join(encode_assembly(0, TRACK_COMMAND, segments, MAX_FRAME_SIZE))
        self._next += 1
        return self._next - 1

    def call(self, command: spec.Command) -> Any:
        """Send a command, and wait until it is completed; return its result, or None if it has none."""
        sent = self.send(command, sync=True)
        self.read_until(lambda: sent in self._completed)
        return self.results.pop(sent, None)

    def ask(self, command: spec.Command, kind: type[_T]) -> _T:
        """Send a command, and wait for its result, which is of a kind."""
        sent = self.send(command, sync=True)
        self.read_until(lambda: sent in self.results)
        result = self.results.pop(sent)
        assert isinstance(result, kind), result
        return result

    def wait_control(self, kind: type[_T]) -> _T:
        """Wait for a control of a kind."""
        self.read_until(lambda: any(isinstance(each, kind) for each in self._controls))
        found = next(each for each in self._controls if isinstance(each, kind))
        self._controls.remove(found)
        return found

    def _frame(self) -> Frame:
        while (parsed := parse_frame(self._data, self._at, MAX_FRAME_SIZE)) is None:
            self._fill()
        frame, self._at = parsed
        return frame

    def _read(self) -> None:
        frame = self._frame()
        self._segment += frame.payload
        if not frame.flags & LAST_FRAME:
            return
        segment, self._segment = self._segment, b""
        self._assembly.append((frame.type, segment))
        if not frame.flags & LAST_SEGMENT:
            return
        assembly, self._assembly = self._assembly, []
        if frame.type == CONTROL:
            self._on_control(decode_control(segment))
            return
        segments = dict(assembly)
        command, _ = decode_command(segments[COMMAND])
        self._received += 1
        self._on_command(self._received - 1, command, segments)

    def _on_control(self, control: spec.Control) -> None:
        if isinstance(control, spec.SessionCompleted):
            for low, high in control.commands or ():
                self._completed.update(range(low, high + 1))
        elif isinstance(control, spec.SessionCommandPoint):
            self._received = control.command_id or 0
        elif isinstance(control, spec.SessionDetach):
            self.control(spec.SessionDetached(name=control.name, code=spec.SessionDetachCode.NORMAL))
            self.push()
            error = self.exception or spec.ExecutionException(error_code=0)
            raise Closed("session", error.error_code or 0, error.description or "")
        elif isinstance(control, spec.ConnectionClose):
            self.control(spec.ConnectionCloseOk())
            with contextlib.suppress(Closed):
                self.push()
            raise Closed("connection", control.reply_code or 0, control.reply_text or "")
        else:
            self._controls.append(control)

    def _on_command(self, number: int, command: spec.Command, segments: dict[int, bytes]) -> None:
        if isinstance(command, spec.MessageTransfer):
            given, properties, _ = decode_header(segments.get(HEADER, b""))
            delivery, message = given or spec.DeliveryProperties(), properties or spec.MessageProperties()
            self.properties[number] = (delivery, message)
            self.deliveries.append(
                Delivery(
                    number,
                    segments.get(BODY, b""),
                    delivery.redelivered,
                    command.destination or "",
                    delivery.exchange or "",
                    delivery.routing_key or "",
                    message.application_headers or {},
                )
            )
        elif isinstance(command, spec.MessageAccept):
            for low, high in command.transfers or ():
                self.accepted.update(range(low, high + 1))
        elif isinstance(command, spec.MessageReject):
            for low, high in command.transfers or ():
                self.rejected.update(dict.fromkeys(range(low, high + 1), command.code or 0))
        elif isinstance(command, spec.ExecutionResult):
            self.results[command.command_id or 0] = command.value
        elif isinstance(command, spec.ExecutionException):
            self.exception = command

    # --- declaring

    def _declare_queue(
        self, queue: str, alternate: str | None, arguments: dict[str, object], flags: dict[str, bool]
    ) -> None:
        given = arguments or None
        self.send(spec.QueueDeclare(queue=queue, alternate_exchange=alternate, arguments=given, **flags))

    def _declare_exchange(
        self, exchange: str, kind: str, alternate: str | None, arguments: dict[str, object], flags: dict[str, bool]
    ) -> None:
        given = arguments or None
        self.send(
            spec.ExchangeDeclare(exchange=exchange, type=kind, alternate_exchange=alternate, arguments=given, **flags)
        )

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        self._declared.queues.discard(queue)
        self.send(spec.QueueDelete(queue=queue, if_unused=if_unused, if_empty=if_empty))

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        self._declared.exchanges.discard(exchange)
        self.send(spec.ExchangeDelete(exchange=exchange, if_unused=if_unused))

    def purge(self, queue: str) -> None:
        self.send(spec.QueuePurge(queue=queue))

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        given = dict(arguments) if arguments else None
        self.send(spec.ExchangeBind(queue=queue, exchange=exchange, binding_key=key, arguments=given))

    def unbind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None) -> None:
        self.send(spec.ExchangeUnbind(queue=queue, exchange=exchange, binding_key=key))

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
        delivery = spec.DeliveryProperties(
            discard_unroutable=not mandatory,
            priority=priority,
            delivery_mode=2 if persistent else None,
            ttl=ttl_ms,
            routing_key=key,
        )
        message = spec.MessageProperties(application_headers=dict(headers)) if headers else None
        self.transfer(exchange, delivery, message, body)

    def transfer(
        self,
        exchange: str,
        delivery: spec.DeliveryProperties,
        message: spec.MessageProperties | None,
        body: bytes,
        *,
        accept_mode: int = EXPLICIT,
    ) -> int:
        """Publish with any properties; return the id."""
        command = spec.MessageTransfer(destination=exchange, accept_mode=accept_mode, acquire_mode=0)
        number = self.send(command, encode_header(delivery, message), body)
        self._published.append(number)
        return number

    def subscribe(
        self,
        queue: str,
        destination: str,
        *,
        accept_mode: int = EXPLICIT,
        acquire_mode: int = 0,
        mode: int = CREDIT,
        exclusive: bool = False,
    ) -> None:
        """Subscribe without credit."""
        self.send(
            spec.MessageSubscribe(
                queue=queue,
                destination=destination,
                accept_mode=accept_mode,
                acquire_mode=acquire_mode,
                exclusive=exclusive,
            )
        )
        self.send(spec.MessageSetFlowMode(destination=destination, flow_mode=mode))

    def flow(self, destination: str, messages: int = INFINITE, nbytes: int = INFINITE) -> None:
        """Grant credit in both units."""
        self.send(spec.MessageFlow(destination=destination, unit=BYTE, value=nbytes))
        self.send(spec.MessageFlow(destination=destination, unit=MESSAGE, value=messages))

    def flush(self, destination: str) -> list[bytes]:
        """Have the broker send what the credit allows (message.flush); return the bodies that came."""
        known = len(self.deliveries)
        self.call(spec.MessageFlush(destination=destination))
        return [each.body for each in self.deliveries[known:] if each.consumer == destination]

    def consume(self, queue: str, consumer: str, *, credit: int = 0, accept: bool = True) -> None:
        mode = EXPLICIT if accept else NONE
        self.subscribe(queue, consumer, accept_mode=mode, mode=WINDOW if credit else CREDIT)
        self.flow(consumer, credit or INFINITE)

    def cancel(self, consumer: str) -> None:
        self.send(spec.MessageCancel(destination=consumer))

    def accept(self, *deliveries: Delivery) -> None:
        ranges = [(each.number, each.number) for each in deliveries]
        self.send(spec.MessageAccept(transfers=ranges))
        self.control(spec.SessionCompleted(commands=ranges))

    def release(self, *deliveries: Delivery) -> None:
        ranges = [(each.number, each.number) for each in deliveries]
        self.send(spec.MessageRelease(transfers=ranges, set_redelivered=True))
        self.control(spec.SessionCompleted(commands=ranges))

    def reject(self, *deliveries: Delivery) -> None:
        ranges = [(each.number, each.number) for each in deliveries]
        self.send(spec.MessageReject(transfers=ranges, code=0, text=""))
        self.control(spec.SessionCompleted(commands=ranges))

    # --- calls that wait

    def sync(self) -> None:
        self.call(spec.ExecutionSync())

    def fates(self) -> list[Fate]:
        self.sync()
        published, self._published = self._published, []
        return [Fate("rejected", self.rejected[each]) if each in self.rejected else TAKEN for each in published]

    def get(self, *queues: str, most: int = 15, accept: bool = False) -> dict[str, list[Delivery]]:
        names = {f"get {queue}": queue for queue in queues}
        for name, queue in names.items():
            self.subscribe(queue, name, accept_mode=NONE if accept else EXPLICIT)
            self.flow(name, most)
            self.send(spec.MessageFlush(destination=name))
            self.send(spec.MessageCancel(destination=name))
        self.sync()
        found: dict[str, list[Delivery]] = {queue: [] for queue in queues}
        for each in self.deliveries:
            if each.consumer in names:
                found[names[each.consumer]].append(each)
        self.deliveries = [each for each in self.deliveries if each.consumer not in names]
        return found

    def query(self, queue: str) -> spec.QueueQueryResult:
        """queue.query."""
        return self.ask(spec.QueueQuery(queue=queue), spec.QueueQueryResult)

    def select_tx(self) -> None:
        self.call(spec.TxSelect())

    def commit(self) -> None:
        self.call(spec.TxCommit())

    def roll_back(self) -> None:
        self.call(spec.TxRollback())

    # --- ends

    def reopen(self) -> None:
        self.control(spec.SessionDetach(name=self.session_name))
        self.wait_control(spec.SessionDetached)
        self._attach()

    def after_error(self) -> None:
        """Attach a new session, after the broker detached the last one."""
        self._attach()

    def close(self) -> None:
        self.control(spec.ConnectionClose(reply_code=spec.ConnectionCloseCode.NORMAL, reply_text=""))
        self.wait_control(spec.ConnectionCloseOk)
        self._socket.close()
