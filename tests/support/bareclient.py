"""A minimal client over a blocking socket, for sending arbitrary controls and commands in tests and captures.

It uses the codec and the frames of this project and none of its state machines. ANONYMOUS login only.
"""

from __future__ import annotations

import socket
import uuid
from typing import TYPE_CHECKING, Any, Self

from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_command, decode_control, encode_command, encode_control, encode_header
from amqp_core.v0_10.framing import (
    BODY,
    COMMAND,
    CONTROL,
    HEADER,
    LAST_FRAME,
    PROTOCOL_HEADER,
    encode_assembly,
    parse_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_INFINITE = 0xFFFFFFFF


class BareClient:
    """One connection with one session on channel 0.

    Attributes:
        received: every received control and command, in order.
        bodies: the payloads of received body segments.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        virtual_host: str = "default",
        heartbeat: int = 0,
        wait: bool = True,
        timeout_s: float = 20.0,
    ) -> None:
        self.received: list[Any] = []
        self.session = b""
        self.bodies: list[bytes] = []
        self._socket = socket.create_connection((host, port), timeout_s)
        self._data = b""
        self._partial: list[bytes] = []
        self._next_id = 0  # of the next command sent
        self._expected_id = 0  # of the next command received
        self._socket.sendall(PROTOCOL_HEADER)
        while len(self._data) < len(PROTOCOL_HEADER):
            self._fill()
        self._data = self._data[len(PROTOCOL_HEADER) :]
        self.wait_for(spec.ConnectionStart)
        self.control(spec.ConnectionStartOk({}, "ANONYMOUS", b"", "en_US"))
        tune = self.wait_for(spec.ConnectionTune)
        self.control(spec.ConnectionTuneOk(tune.channel_max, tune.max_frame_size, heartbeat))
        self.control(spec.ConnectionOpen(virtual_host=virtual_host))
        if wait:
            self.wait_for(spec.ConnectionOpenOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def attach(self, name: bytes | None = None) -> bytes:
        """Attach a new session; return its name."""
        name = uuid.uuid4().bytes if name is None else name
        self.session = name
        self._next_id = self._expected_id = 0
        self.control(spec.SessionAttach(name=name))
        self.wait_for(spec.SessionAttached)
        self.control(spec.SessionCommandPoint(command_id=0, command_offset=0))
        return name

    def attach_again(self) -> None:
        """Detach the session and attach a new one."""
        self.control(spec.SessionDetach(name=self.session))
        self.wait_for(spec.SessionDetached)
        self.attach()

    def control(self, control: spec.Control) -> None:
        """Send a control."""
        self._send(0, [(CONTROL, encode_control(control))])

    def command(
        self, command: spec.Command, header: bytes | None = None, body: bytes | None = None, *, sync: bool = False
    ) -> int:
        """Send a command; return its id."""
        segments = [(COMMAND, encode_command(command, sync))]
        segments += [(HEADER, header)] if header is not None else []
        segments += [(BODY, body)] if body is not None else []
        self._send(1, segments)
        self._next_id += 1
        return self._next_id - 1

    def call(self, command: spec.Command, header: bytes | None = None, body: bytes | None = None) -> Any:
        """Send a command with sync and wait until it is completed; return its result, if it has one."""
        known = len(self.received)
        sent = self.command(command, header, body, sync=True)

        def completed(item: Any) -> bool:
            ranges = (item.commands or ()) if isinstance(item, spec.SessionCompleted) else ()
            refused = isinstance(item, spec.ExecutionException | spec.SessionDetach)
            return refused or any(low <= sent <= high for low, high in ranges)

        answer = self.wait_until(completed)
        if not isinstance(answer, spec.SessionCompleted):
            raise RuntimeError(f"{command.NAME} was refused: {answer}")  # noqa: TRY004 - not a matter of types
        results = [item for item in self.received[known:] if isinstance(item, spec.ExecutionResult)]
        return next((item.value for item in results if item.command_id == sent), None)

    def refused(self, command: spec.Command) -> spec.ExecutionException:
        """Send a command that the broker refuses, answer its detach, and attach a new session."""
        self.command(command, sync=True)
        exception = self.wait_for(spec.ExecutionException)
        detach = self.wait_for(spec.SessionDetach)
        self.control(spec.SessionDetached(name=detach.name, code=spec.SessionDetachCode.NORMAL))
        self.attach()
        assert isinstance(exception, spec.ExecutionException)
        return exception

    def publish(self, queue: str, properties: spec.MessageProperties, body: bytes = b"") -> None:
        """Send a message to a queue through the default exchange and wait for its completion."""
        self.transfer(spec.DeliveryProperties(delivery_mode=1, routing_key=queue), properties, body)

    def transfer(
        self,
        delivery: spec.DeliveryProperties | None,
        properties: spec.MessageProperties | None,
        body: bytes,
        *,
        destination: str = "",
        accept_mode: int = 1,
    ) -> None:
        """Send a message and wait for its completion; ``accept_mode`` 1 is none."""
        transfer = spec.MessageTransfer(destination=destination, accept_mode=accept_mode, acquire_mode=0)
        self.call(transfer, encode_header(delivery, properties), body)

    def subscribe(self, queue: str, destination: str, *, acquire_mode: int = 0) -> None:
        """Subscribe in credit mode with infinite byte credit."""
        self.call(spec.MessageSubscribe(queue=queue, destination=destination, accept_mode=0, acquire_mode=acquire_mode))
        self.call(spec.MessageSetFlowMode(destination=destination, flow_mode=spec.MessageFlowMode.CREDIT))

    def take(self, destination: str, count: int = 1) -> list[int]:
        """Grant credit for ``count`` messages and wait for them; return their command ids."""
        self.command(spec.MessageFlow(destination, spec.MessageCreditUnit.BYTE, _INFINITE))
        self.command(spec.MessageFlow(destination, spec.MessageCreditUnit.MESSAGE, count))
        ids: list[int] = []
        for _ in range(count):
            self.wait_for(spec.MessageTransfer)
            ids.append(self._expected_id - 1)
        return ids

    def close(self) -> None:
        """Close the connection cleanly."""
        self.control(spec.ConnectionClose(reply_code=spec.ConnectionCloseCode.NORMAL, reply_text=""))
        self.wait_for(spec.ConnectionCloseOk)
        self._socket.close()

    def wait_for(self, kind: type[Any]) -> Any:
        """Read until an object of a class arrives; return it."""
        return self.wait_until(lambda item: isinstance(item, kind))

    def wait_until(self, wanted: Callable[[Any], bool]) -> Any:
        """Read until ``wanted`` accepts an object; return it."""
        while True:
            item = self._next()
            if item is not None and wanted(item):
                return item

    def _send(self, track: int, segments: list[tuple[int, bytes]]) -> None:
        self._socket.sendall(b"".join(encode_assembly(0, track, segments, 65535)))

    def _fill(self) -> None:
        more = self._socket.recv(65536)
        if not more:
            raise EOFError("the broker closed the connection")
        self._data += more

    def _next(self) -> Any:
        while (parsed := parse_frame(self._data, 0, 65535)) is None:
            self._fill()
        frame, end = parsed
        self._data = self._data[end:]
        self._partial.append(frame.payload)
        if not frame.flags & LAST_FRAME:
            return None
        payload, self._partial = b"".join(self._partial), []
        if frame.type == BODY:
            self.bodies.append(payload)
        if frame.type in (HEADER, BODY):
            return None
        item: Any = decode_control(payload) if frame.type == CONTROL else decode_command(payload)[0]
        self.received.append(item)
        self._expected_id += frame.type == COMMAND
        return item
