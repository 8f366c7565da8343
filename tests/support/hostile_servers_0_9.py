"""A client of 0-9-1 and a server that errs: for a test, and for long runs by hand.

The server logs the client in and answers it. At times it says something else: a damaged answer, a method or content
that is not due, an early end. All happens in memory and at once, so that nothing waits.

Usage: python -m tests.support.hostile_servers_0_9 [COUNT [SEED]]
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from amqp_core.address import ConnectOptions
from amqp_core.connection_states import Role
from amqp_core.errors import AmqpError
from amqp_core.sasl import SaslLogin
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method, encode_header, encode_method
from amqp_core.v0_9.client import Client
from amqp_core.v0_9.connection import CONSUMING, Connection
from amqp_core.v0_9.connection_events import FrameReceived
from amqp_core.v0_9.driver import ASKING, PUBLISHING, Driver
from amqp_core.v0_9.framing import HEARTBEAT_FRAME, METHOD, encode_content, encode_frame
from amqp_core.v0_9.messages import Message, each_message
from tests.support.fakepeer_0_9 import RABBITMQ
from tests.support.mutations_0_9 import mutated, sampled_payloads
from tests.support.values_0_9 import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.transport import Transport
    from amqp_core.v0_9.subscription import Subscription

FRAME_MAX: Final = 4096
_CODES: Final = (200, *sorted(spec.SOFT_ERRORS), *sorted(spec.HARD_ERRORS), 0, 999)
_PAYLOADS: Final = [payload for method in MODEL.methods for payload in sampled_payloads(method)]
_ANSWERS: Final[dict[type, Callable[[Any], spec.Method]]] = {
    spec.ChannelOpen: lambda _: spec.ChannelOpenOk(),
    spec.ChannelClose: lambda _: spec.ChannelCloseOk(),
    spec.ChannelFlow: lambda asked: spec.ChannelFlowOk(asked.active),
    spec.ConfirmSelect: lambda _: spec.ConfirmSelectOk(),
    spec.QueueDeclare: lambda asked: spec.QueueDeclareOk(asked.queue, 3, 1),
    spec.QueueBind: lambda _: spec.QueueBindOk(),
    spec.ExchangeDeclare: lambda _: spec.ExchangeDeclareOk(),
    spec.BasicQos: lambda _: spec.BasicQosOk(),
    spec.BasicConsume: lambda asked: spec.BasicConsumeOk(asked.consumer_tag),
    spec.BasicCancel: lambda asked: spec.BasicCancelOk(asked.consumer_tag),
    spec.BasicGet: lambda _: spec.BasicGetEmpty(),
}


class Server:
    """The server's end of a connection; :attr:`out` is what it has sent, :attr:`has_ended` that it sends no more."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.out = b""
        self.has_ended = False
        self._connection = Connection(
            Role.SERVER, mechanisms=["ANONYMOUS"], server_properties=RABBITMQ, max_frame_size=FRAME_MAX
        )
        self._errs = chance.choice([0.0, 0.02, 0.2])
        self._left = chance.randint(2, 12)
        self._delivered = self._published = 0

    def receive(self, data: bytes) -> None:
        """Answer what the client has sent."""
        events = self._connection.receive_data(data)
        self._send(self._connection.data_to_send())
        for event in events:
            if isinstance(event, FrameReceived) and event.frame.type == METHOD:
                self._answer(event.frame.channel, decode_method(event.frame.payload))

    def speak(self) -> None:
        """Say something unasked, while the client waits; after some times, end the connection."""
        self._left -= 1
        if self._left < 0:
            self.has_ended = True
        elif self.chance.random() < 0.5:
            self._deliver()
        else:
            self.out += self._noise()

    def _answer(self, channel: int, method: spec.Method) -> None:
        if isinstance(method, spec.BasicPublish):
            self._published += 1
            self._send(_frame(channel, spec.BasicAck(self._published, self.chance.random() < 0.3)))
        answer = _ANSWERS.get(type(method))
        if answer is not None:
            self._send(_frame(channel, answer(method)))
        if isinstance(method, spec.BasicConsume):
            for _ in range(self.chance.randint(0, 4)):
                self._deliver()

    def _deliver(self) -> None:
        self._delivered += self.chance.choice([1, 1, 1, 1, 2])
        deliver = spec.BasicDeliver("s1", self._delivered, self.chance.random() < 0.1, "", "q")
        self._send(self._content(CONSUMING, deliver))

    def _content(self, channel: int, method: spec.Method) -> bytes:
        headers: dict[str, object] = {"x-delivery-count": 3, "x-stream-offset": 7, "symbol": "A"}
        properties = spec.BasicProperties(message_id="m", headers=self.chance.choice([None, headers]))
        body = bytes(self.chance.choice([0, 1, 40, 9000]))
        header = encode_header(properties, len(body))
        return b"".join(encode_content(channel, encode_method(method), header, body, FRAME_MAX))

    def _send(self, data: bytes) -> None:
        if not data or self.chance.random() >= self._errs:
            self.out += data
            return
        match self.chance.randrange(4):
            case 0:
                self.out += mutated(data, self.chance)
            case 1:
                self.out += self._noise() + data
            case 2:
                self.out += data + self._noise()
            case _:
                self.out += data + data

    def _noise(self) -> bytes:
        chance = self.chance
        channel = chance.choice([0, CONSUMING, CONSUMING, PUBLISHING, ASKING, 4])
        match chance.randrange(8):
            case 0:
                return encode_frame(METHOD, channel, chance.choice(_PAYLOADS))
            case 1:
                return encode_frame(METHOD, channel, mutated(chance.choice(_PAYLOADS), chance))
            case 2:
                return encode_frame(chance.randrange(10), channel, chance.randbytes(chance.randrange(30)))
            case 3:
                said = (chance.choice(_CODES), "said", *divmod(chance.choice([0, *spec.METHOD_TYPES]), 1 << 16))
                close: list[spec.Method] = [spec.ChannelClose(*said), spec.ConnectionClose(*said)]
                return _frame(channel, chance.choice(close))
            case 4:
                tag, multiple = chance.randrange(4), chance.random() < 0.5
                confirms: list[spec.Method] = [spec.BasicAck(tag, multiple), spec.BasicNack(tag, multiple)]
                return _frame(PUBLISHING, chance.choice(confirms))
            case 5:
                contents: list[spec.Method] = [spec.BasicReturn(312, "NO_ROUTE", "", "q"), spec.BasicDeliver("s1", 1)]
                return self._content(channel or PUBLISHING, chance.choice(contents))
            case 6:
                return mutated(self._content(CONSUMING, spec.BasicDeliver("s1", self._delivered + 1)), chance)
            case _:
                told: list[spec.Method] = [
                    spec.BasicCancel("s1"),
                    spec.ChannelFlow(active=False),
                    spec.ConnectionBlocked("memory"),
                ]
                return HEARTBEAT_FRAME + _frame(channel, chance.choice(told))


def _frame(channel: int, method: spec.Method) -> bytes:
    return encode_frame(METHOD, channel, encode_method(method))


class Wire:
    """Stands in for a transport between the client and the server; a wait ends at once."""

    peer = "server:1"
    is_tls = False
    pending_bytes = pending_own_bytes = sent_bytes = 0

    def __init__(self, server: Server) -> None:
        self._server = server

    def write(self, data: bytes | memoryview, *, bounded: bool = False) -> None:
        del bounded
        if data:
            self.sent_bytes += len(data)
            self._server.receive(bytes(data))

    def flush(self) -> None: ...

    def read(self) -> bytes | None:
        server = self._server
        if not server.out:
            return b"" if server.has_ended else None
        size = server.chance.choice([1, 7, 100, len(server.out)])
        data, server.out = server.out[:size], server.out[size:]
        return data

    def wait(self, timeout: float, *, reading: bool = True) -> bool:
        del timeout
        if reading and not self._server.out:
            self._server.speak()
        return False

    def wake(self) -> None: ...

    def reset_on_close(self, reset: bool) -> None: ...

    def close(self) -> None: ...


def connected(server: Server) -> Client:
    """A client that has logged in to the server, unless that has erred by then."""
    options = ConnectOptions(hosts=(("server", 1),), heartbeat=0)
    connection = Connection(
        Role.CLIENT, login=SaslLogin(options, loopback=True), max_message_bytes=1 << 16, scan_deliveries=True
    )
    wire = cast("Transport", Wire(server))
    driver = Driver(wire, connection, call_timeout_s=60.0, max_message_bytes=1 << 16)
    driver._open(float("inf"))
    return Client(driver)


class User:
    """Uses a client as the connector does."""

    def __init__(self, client: Client, chance: random.Random) -> None:
        self._client = client
        self._chance = chance
        self._subscription: Subscription | None = None
        self.blocks = 0

    def act(self) -> None:
        """Do one of the things that a client can do."""
        client = self._client
        match self._chance.randrange(8):
            case 0 | 1 | 2:
                self._receive()
            case 3:
                client.publish(Message(b"body"), routing_key="q")
            case 4:
                client.confirm()
            case 5:
                client.query_queue("q")
                client.exists_exchange("e")
            case 6:
                client.declare_queue("q", durable=True, arguments={"x-queue-type": "quorum"})
                client.bind("q", "e", "k")
            case _:
                message = client.get("q")
                client.sync()
                if message is not None:
                    client.reject([(message.transfer_id, message.transfer_id)])

    def _receive(self) -> None:
        if self._subscription is None:
            self._subscription = self._client.subscribe("q", max_unsettled=self._chance.choice([None, 3]))
        for block in self._subscription.take_blocks(1.0, begun=True):
            self.blocks += 1
            self._client.earlier_deliveries(block)
            self._client.redelivered(block)
            self._client.identities(block)
            self._client.log_entry(block, 0)
            count = sum(1 for _ in each_message(block))
            assert count == len(block.ends)
            self._client.accept([(block.first_id, block.first_id + count - 1)], sync=self._chance.random() < 0.5)


def run(count: int, seed: int) -> Counter[str]:
    """Use so many clients; what each ended with, and the blocks that all received. Anything but an AmqpError leaves."""
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(count):
        client: Client | None = None
        end = "no error"
        try:
            client = connected(Server(chance))
            user = User(client, chance)
            try:
                for _ in range(chance.randint(1, 10)):
                    user.act()
            finally:
                found["blocks"] += user.blocks
        except AmqpError as error:
            end = type(error).__name__ if str(error) else "an error without a text"
        if client is not None:
            client.close()
        found[end] += 1
    return found


if __name__ == "__main__":
    logging.disable()
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for name, number in run(total, int(sys.argv[2]) if len(sys.argv) > 2 else 1).most_common():
        print(f"{number:>9,} {name}")
