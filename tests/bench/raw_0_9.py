"""Bare socket loops for AMQP 0-9-1: the denominators of the ratios, and what fills a queue.

They log in, and then do the least that a consumer and a confirmed publisher can do in Python: find where each delivery
ends, acknowledge; write ready-made frames, count confirms.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from amqp_core.scanning import OUTSIDE
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method, encode_header, encode_method
from amqp_core.v0_9._scan import NO_HEADER, scan
from amqp_core.v0_9.framing import encode_frame
from tests.bench.preload import BLOCK_MESSAGES, MESSAGE_ID, MOST_BLOCK_BYTES, PRICE, SYMBOL, body_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from amqp_core.address import ConnectOptions

CHANNEL = 1
PREFETCH = 4000
"""More is slower: the server keeps a list of what is not acknowledged."""
ACK_EVERY = 1000
WINDOW = 20_000
"""Messages that are not confirmed yet; with more or fewer the loop was not faster."""
_READ_BYTES = 1 << 20
_TIMEOUT_S = 120.0
_FRAME = struct.Struct(">BHI")
_ACK = struct.Struct(">QB")
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_QTY = 0x51AB37C5
_STAMP = 0x17A9E4D2
_MARK = "ffffeeeeddddcccc"
_Reply = TypeVar("_Reply")


class RawConnection:
    """A socket with one open channel; a context manager that closes it."""

    def __init__(self, options: ConnectOptions) -> None:
        self.socket = socket.create_connection(options.hosts[0], timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._wait(spec.ConnectionStart)
        response = f"\0{options.username}\0{options.password}".encode()
        self.send(0, spec.ConnectionStartOk(mechanism="PLAIN", response=response, locale="en_US"))
        tune = self._wait(spec.ConnectionTune)
        self.frame_max = tune.frame_max or 131072
        self.send(0, spec.ConnectionTuneOk(channel_max=tune.channel_max, frame_max=self.frame_max, heartbeat=0))
        self.call(0, spec.ConnectionOpen(virtual_host=options.virtual_host or "/"), spec.ConnectionOpenOk)
        self.call(CHANNEL, spec.ChannelOpen(), spec.ChannelOpenOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, channel: int, method: spec.Method) -> None:
        """Send a method."""
        self.socket.sendall(encode_frame(spec.FrameType.METHOD, channel, encode_method(method)))

    def call(self, channel: int, method: spec.Method, reply: type[_Reply]) -> _Reply:
        """Send a method and return its reply."""
        self.send(channel, method)
        return self._wait(reply)

    def methods(self, data: bytes) -> Iterator[bytes]:
        """The payloads of the whole frames of methods in ``data``; what follows the last one taken is in ``rest``."""
        self.rest, data, at = b"", self.rest + data, 0
        while at + 7 <= len(data):
            kind, _, size = _FRAME.unpack_from(data, at)
            if at + size + 8 > len(data):
                break
            at += size + 8
            if kind == spec.FrameType.METHOD:
                self.rest = data[at:]
                yield data[at - size - 1 : at - 1]
        self.rest = data[at:]

    def _wait(self, reply: type[_Reply]) -> _Reply:
        while True:
            data = self.socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionError(f"the broker closed the connection instead of sending {reply.__name__}")
            for payload in self.methods(data):
                method = decode_method(payload)
                if not isinstance(method, reply):
                    raise ConnectionError(f"the broker sent {method} instead of {reply.__name__}")
                return method


def drain(options: ConnectOptions, queue: str, count: int, *, arguments: dict[str, object] | None = None) -> float:
    """Receive and acknowledge ``count`` messages of a queue, whose consumer has ``arguments``; return seconds from
    basic.consume to the last ack.

    The clock stops when the broker has answered a method that follows the last ack on the same channel.

    Raises:
        ConnectionError: the broker ended the connection, or sent something else than deliveries.
    """
    with RawConnection(options) as connection:
        connection.call(CHANNEL, spec.BasicQos(prefetch_count=PREFETCH), spec.BasicQosOk)
        sock = connection.socket
        received = acked = 0
        data, start, inside, left = b"", 0, OUTSIDE, NO_HEADER
        begin = time.perf_counter()
        consume = spec.BasicConsume(queue=queue, consumer_tag="raw", arguments=arguments or {})
        connection.call(CHANNEL, consume, spec.BasicConsumeOk)
        rest, connection.rest = connection.rest, b""
        while received < count:
            more = sock.recv(_READ_BYTES)
            if not more:
                raise ConnectionError(f"the broker closed the connection after {received} of {count} messages")
            data = rest + more if rest else more
            found, left = scan(data, start, CHANNEL, connection.frame_max, inside, left)
            if found.error is not None or found.others:
                raise ConnectionError(f"{found.error or found.others} after {received} of {count} messages")
            received += len(found.ends)
            if received - acked >= ACK_EVERY or received == count:
                acked = received
                connection.send(CHANNEL, spec.BasicAck(delivery_tag=received, multiple=True))
            rest, start, inside = data[found.begin :], found.next - found.begin, found.inside
        connection.call(CHANNEL, spec.BasicQos(prefetch_count=PREFETCH), spec.BasicQosOk)
        return time.perf_counter() - begin


class Frames:
    """Blocks of basic.publish frames that are equal except for their number; see :class:`tests.bench.preload.Frames`.

    Args:
        queue: the routing key, for the default exchange.
        body_bytes: size of every body.
        stamped: whether they have a timestamp.
        frame_max: largest frame.
        rows: most messages of a block.
    """

    def __init__(
        self, queue: str, *, body_bytes: int, stamped: bool, frame_max: int = 131072, rows: int = BLOCK_MESSAGES
    ) -> None:
        body = body_of(body_bytes)
        properties = spec.BasicProperties(
            headers={"symbol": SYMBOL, "qty": _QTY, "price": PRICE},
            delivery_mode=1,
            message_id=f"{str(MESSAGE_ID)[:18]}-{_MARK[:4]}-{_MARK[4:]}",
            timestamp=_STAMP if stamped else None,
        )
        publish = spec.BasicPublish(routing_key=queue, mandatory=True)
        message = encode_frame(spec.FrameType.METHOD, CHANNEL, encode_method(publish))
        message += encode_frame(spec.FrameType.HEADER, CHANNEL, encode_header(properties, len(body)))
        for at in range(0, len(body), frame_max - 8):
            message += encode_frame(spec.FrameType.BODY, CHANNEL, body[at : at + frame_max - 8])
        self._rows = np.frombuffer(message * rows, dtype=np.uint8).reshape(rows, len(message)).copy()
        self._digits = _find(message, f"{_MARK[:4]}-{_MARK[4:]}".encode())
        self._qty = _find(message, _QTY.to_bytes(4, "big"))
        self._stamp = _find(message, _STAMP.to_bytes(8, "big")) if stamped else None

    def block(self, first: int, size: int) -> bytes:
        """The frames of messages ``first`` to ``first + size - 1``; at most ``rows``."""
        rows, at = self._rows, self._digits
        numbers = np.arange(first, first + len(rows), dtype=np.int64)
        digits = _HEX[(numbers[:, None] >> np.arange(60, -4, -4)) & 15]
        rows[:, at : at + 4] = digits[:, :4]
        rows[:, at + 5 : at + 17] = digits[:, 4:]
        rows[:, self._qty : self._qty + 4] = numbers.astype(">i4").view(np.uint8).reshape(-1, 4)
        if (stamp := self._stamp) is not None:
            rows[:, stamp : stamp + 8] = np.frombuffer(int(time.time()).to_bytes(8, "big"), dtype=np.uint8)
        return rows[:size].tobytes()


def ready_made(queue: str, count: int, *, body_bytes: int) -> list[bytes]:
    """Frames of the messages that ``queries.messages`` has as rows, ``BLOCK_MESSAGES`` in each block."""
    frames = Frames(queue, body_bytes=body_bytes, stamped=False)
    return [frames.block(first, min(BLOCK_MESSAGES, count - first)) for first in range(0, count, BLOCK_MESSAGES)]


def fill(options: ConnectOptions, queue: str, count: int, *, body_bytes: int, told: Callable[[int], object]) -> None:
    """Publish ``count`` messages to a queue and wait until all are confirmed."""
    block = max(1, min(BLOCK_MESSAGES, MOST_BLOCK_BYTES // max(1, body_bytes)))
    frames = Frames(queue, body_bytes=body_bytes, stamped=True, rows=block)
    sizes = [min(block, count - first) for first in range(0, count, block)]
    blocks = (frames.block(block * number, size) for number, size in enumerate(sizes))
    publish(options, blocks, sizes, told=told)


def publish(
    options: ConnectOptions,
    blocks: Iterable[bytes],
    sizes: Sequence[int],
    *,
    told: Callable[[int], object] | None = None,
) -> float:
    """Send blocks of so many messages each; return seconds until the broker has confirmed them all.

    Raises:
        ConnectionError: the broker ended the connection, takes nothing for a minute, or does not confirm a message.
    """
    with RawConnection(options) as connection:
        connection.call(CHANNEL, spec.ConfirmSelect(), spec.ConfirmSelectOk)
        confirms = _Confirms(connection)
        sent = 0
        begin = time.perf_counter()
        for block, size in zip(blocks, sizes, strict=True):
            view = memoryview(block)
            while view:
                view = confirms.write(view, wait=sent - confirms.count > WINDOW)
            sent += size
            if told is not None:
                told(size)
        while confirms.count < sent:
            confirms.write(memoryview(b""), wait=True)
        return time.perf_counter() - begin


class _Confirms:
    """Counts what the broker has confirmed."""

    def __init__(self, connection: RawConnection) -> None:
        self.count = 0
        self._connection = connection
        self._socket = connection.socket
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._single: set[int] = set()

    def write(self, view: memoryview, *, wait: bool) -> memoryview:
        """Read what has come, and write some; with ``wait`` only read. Return what is not written."""
        self._poll.register(self._socket, select.POLLIN if wait or not view else select.POLLIN | select.POLLOUT)
        events = self._poll.poll(60_000)
        if not events:
            raise ConnectionError("the broker has taken and confirmed nothing for a minute")
        if events[0][1] & ~select.POLLOUT:
            self._read()
        if events[0][1] & select.POLLOUT:
            view = view[self._socket.send(view) :]
        return view

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        for payload in self._connection.methods(data):
            if payload[:4] != b"\x00\x3c\x00\x50":
                raise ConnectionError(f"the broker sent {decode_method(payload)} instead of a confirm")
            tag, multiple = _ACK.unpack_from(payload, 4)
            if multiple:
                self._single = {each for each in self._single if each > tag}
                self.count = max(self.count, tag)
            else:
                self._single.add(tag)
            while self.count + 1 in self._single:
                self.count += 1
                self._single.remove(self.count)


def _find(message: bytes, sample: bytes) -> int:
    if message.count(sample) != 1:
        raise RuntimeError("the sample value is not there, or not only once")
    return message.index(sample)
