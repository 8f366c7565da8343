"""Mutated sessions of 0-9-1: the broker answers with an error or goes on, and other connections notice nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.logins import Logins
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.v0_9.connection import ServerConnection
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.connection import HEADERS
from amqp_core.v0_9.framing import encode_content, encode_method_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAME_MAX = 131072


def method(channel: int, value: spec.Method) -> bytes:
    return encode_method_frame(channel, encode_method(value), FRAME_MAX)


def publish(body: bytes, properties: spec.BasicProperties, key: str = "q", exchange: str = "") -> bytes:
    payload = encode_method(spec.BasicPublish(exchange=exchange, routing_key=key, mandatory=True))
    return b"".join(encode_content(1, payload, encode_header(properties, len(body)), body, FRAME_MAX))


LOGIN = [
    HEADERS["0-9-1"],
    method(0, spec.ConnectionStartOk({"capabilities": {"basic.nack": True}}, "PLAIN", b"\0guest\0guest", "en_US")),
    method(0, spec.ConnectionTuneOk(2047, FRAME_MAX, 60)),
    method(0, spec.ConnectionOpen("/")),
]
SESSION = [
    method(1, spec.ChannelOpen()),
    method(1, spec.ConfirmSelect()),
    method(1, spec.ExchangeDeclare(exchange="e", type="topic")),
    method(1, spec.QueueDeclare(queue="q", arguments={"x-max-length": 50, "x-dead-letter-exchange": "e"})),
    method(1, spec.QueueBind(queue="q", exchange="e", routing_key="a.*")),
    method(1, spec.BasicQos(prefetch_count=3)),
    method(1, spec.BasicConsume(queue="q", consumer_tag="c")),
    publish(b"x" * 300, spec.BasicProperties(headers={"a": 1, "b": ["x"]}, priority=1, expiration="60000")),
    publish(b"", spec.BasicProperties(), "a.b", "e"),
    publish(b"y", spec.BasicProperties(delivery_mode=2), "missing"),
    method(1, spec.BasicAck(1)),
    method(1, spec.BasicNack(2, requeue=True)),
    method(1, spec.BasicRecover(requeue=True)),
    method(1, spec.BasicGet(queue="q")),
    method(1, spec.ChannelFlow(active=False)),
    method(1, spec.QueuePurge(queue="q")),
    method(1, spec.BasicCancel(consumer_tag="c")),
    method(2, spec.ChannelOpen()),
    method(2, spec.TxSelect()),
    method(2, spec.TxCommit()),
    method(1, spec.ChannelClose(reply_code=200)),
    method(0, spec.ConnectionClose(reply_code=200)),
]


def connection(hosts: Mapping[str, VirtualHost]) -> ServerConnection:
    return ServerConnection(version="0-9-1", hosts=hosts, logins=Logins(), clock=lambda: 1.0, wake=lambda: None)


def mutated(chance: random.Random) -> bytes:
    """A session with frames left out, repeated, moved, cut off or changed."""
    login, session = list(LOGIN), list(SESSION)
    parts = login if chance.random() < 0.3 else session
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(parts))
        kind = chance.randrange(6)
        if kind == 0:
            parts.pop(at)
        elif kind == 1:
            parts.insert(at, chance.choice(LOGIN + SESSION))
        elif kind == 2:
            parts[at] = parts[at][: chance.randrange(len(parts[at]) + 1)]
        else:
            data = bytearray(parts[at])
            for _ in range(chance.randrange(1, 4)):
                if data:
                    data[chance.randrange(len(data))] = chance.choice(
                        [0, 1, 2, 0x7F, 0xCE, 0xFF, chance.randrange(256)]
                    )
            parts[at] = bytes(data)
        if not parts:
            break
    return b"".join(login + session)


def test_the_session_that_is_mutated_is_right() -> None:
    found = connection({"/": VirtualHost("/")})
    found.receive(b"".join(LOGIN + SESSION[:-1]))
    answer = found.take_bytes()
    assert found.is_open
    assert not found.is_closing
    assert answer.endswith(method(1, spec.ChannelCloseOk()))
    found.receive(SESSION[-1])
    assert found.is_over


@pytest.mark.parametrize("seed", range(20))
def test_mutated_sessions_cost_only_their_own_connection(seed: int) -> None:
    fuzz(seed, 100)


def fuzz(seed: int, count: int) -> None:
    """Feed mutated sessions, whole or in pieces, to connections of one broker."""
    chance = random.Random(seed)
    for _ in range(count):
        hosts = {"/": VirtualHost("/")}
        good = connection(hosts)
        good.receive(b"".join(LOGIN) + method(1, spec.ChannelOpen()) + method(1, spec.QueueDeclare(queue="good")))
        data, bad = mutated(chance), connection(hosts)
        at = 0
        while at < len(data):
            size = len(data) if chance.random() < 0.5 else chance.randrange(1, 400)
            bad.receive(data[at : at + size])
            bad.take_bytes()
            at += size
            if bad.is_over or bad.is_closing:
                break
        good.take_bytes()
        good.receive(publish(b"still here", spec.BasicProperties(), "good"))
        good.receive(method(1, spec.BasicGet(queue="good", no_ack=True)))
        assert b"still here" in good.take_bytes()
        assert good.is_open
        bad.lost()
        good.lost()
