"""Mutated sessions of 0-10: the broker answers with an error or goes on, and other connections notice nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.logins import Logins
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.v0_9.wire import header_of as basic_header_of
from amqp_core.broker.v0_10.connection import ServerConnection
from amqp_core.broker.v0_10.names import SessionNames
from amqp_core.broker.v0_10.wire import header_of
from amqp_core.v0_9.channel import basic_properties
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_header, encode_command, encode_control, encode_header
from amqp_core.v0_10.framing import (
    BODY,
    COMMAND,
    HEADER,
    PROTOCOL_HEADER,
    TRACK_COMMAND,
    encode_assembly,
    encode_control_frame,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAME_MAX = 65535


def control(value: spec.Control, channel: int = 0) -> bytes:
    return encode_control_frame(channel, encode_control(value))


def command(value: spec.Command, *content: tuple[int, bytes], channel: int = 0, sync: bool = True) -> bytes:
    segments = [(COMMAND, encode_command(value, sync)), *content]
    return b"".join(encode_assembly(channel, TRACK_COMMAND, segments, FRAME_MAX))


def publish(
    body: bytes, properties: spec.MessageProperties, key: str = "q", exchange: str = "", accept_mode: int = 0
) -> bytes:
    header = encode_header(spec.DeliveryProperties(routing_key=key, priority=3, ttl=60_000), properties)
    transfer = spec.MessageTransfer(destination=exchange, accept_mode=accept_mode, acquire_mode=0)
    return command(transfer, (HEADER, header), (BODY, body), sync=False)


def attach(name: bytes, channel: int = 0) -> bytes:
    point = control(spec.SessionCommandPoint(command_id=0, command_offset=0), channel)
    return control(spec.SessionAttach(name=name), channel) + point


def flow(unit: int, value: int) -> bytes:
    return command(spec.MessageFlow(destination="d", unit=unit, value=value))


LOGIN = [
    PROTOCOL_HEADER,
    control(spec.ConnectionStartOk({"a": 1}, "PLAIN", b"\0guest\0guest", "en_US")),
    control(spec.ConnectionTuneOk(channel_max=255, max_frame_size=FRAME_MAX, heartbeat=60)),
    control(spec.ConnectionOpen(virtual_host="/")),
]
SESSION = [
    attach(b"one"),
    command(spec.ExchangeDeclare(exchange="e", type="topic")),
    command(spec.QueueDeclare(queue="q", alternate_exchange="e", arguments={"qpid.max_count": 50})),
    command(spec.ExchangeBind(queue="q", exchange="e", binding_key="a.*", arguments={"x": 1})),
    command(spec.ExchangeBound(exchange="e", queue="q", binding_key="a.*")),
    command(spec.MessageSubscribe(queue="q", destination="d", accept_mode=0, acquire_mode=0)),
    command(spec.MessageSetFlowMode(destination="d", flow_mode=1)),
    flow(1, 100_000),
    flow(0, 3),
    publish(b"x" * 300, spec.MessageProperties(content_type="text/plain", application_headers={"a": ["b", None]})),
    publish(b"", spec.MessageProperties(user_id=b"guest"), "a.b", "e"),
    publish(b"y", spec.MessageProperties(), "missing", accept_mode=1),
    command(spec.ExecutionSync()),
    control(spec.SessionFlush(expected=True, confirmed=True, completed=True)),
    command(spec.MessageAccept(transfers=[(0, 4)])),
    command(spec.MessageRelease(transfers=[(5, 5)], set_redelivered=True)),
    command(spec.MessageReject(transfers=[(6, 7)], code=0)),
    control(spec.SessionCompleted(commands=[(0, 6)], timely_reply=True)),
    control(spec.SessionKnownCompleted(commands=[(0, 3)])),
    command(spec.MessageSubscribe(queue="q", destination="b", accept_mode=0, acquire_mode=1)),
    command(spec.MessageFlush(destination="d")),
    command(spec.MessageAcquire(transfers=[(8, 9)])),
    command(spec.QueueQuery(queue="q")),
    command(spec.MessageCancel(destination="b")),
    attach(b"two", 1),
    command(spec.TxSelect(), channel=1),
    command(spec.QueueDeclare(queue="own", exclusive=True, auto_delete=True), channel=1),
    command(spec.TxCommit(), channel=1),
    control(spec.SessionDetach(name=b"one")),
    control(spec.ConnectionClose(reply_code=200, reply_text="")),
]


def connection(hosts: Mapping[str, VirtualHost], names: SessionNames) -> ServerConnection:
    return ServerConnection(hosts=hosts, logins=Logins(), names=names, clock=lambda: 1.0, wake=lambda: None)


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
                        [0, 1, 2, 0x0F, 0x7F, 0xFF, chance.randrange(256)]
                    )
            parts[at] = bytes(data)
        if not parts:
            break
    return b"".join(login + session)


def test_the_session_that_is_mutated_is_right() -> None:
    hosts = {"/": VirtualHost("/")}
    found = connection(hosts, SessionNames())
    found.receive(b"".join(LOGIN + SESSION[:-2]))
    assert found.is_open
    assert not found.is_closing
    assert encode_command(spec.ExecutionException())[:2] + b"\1" not in found.take_bytes()
    assert set(hosts["/"].queues) == {"q", "own"}
    found.receive(SESSION[-2] + SESSION[-1])
    assert found.is_over
    assert set(hosts["/"].queues) == {"q"}


@pytest.mark.parametrize("seed", range(20))
def test_mutated_sessions_cost_only_their_own_connection(seed: int) -> None:
    fuzz(seed, 100)


def fuzz(seed: int, count: int) -> None:
    """Feed mutated sessions, whole or in pieces, to connections of one broker."""
    chance = random.Random(seed)
    for _ in range(count):
        hosts, names = {"/": VirtualHost("/")}, SessionNames()
        good = connection(hosts, names)
        good.receive(b"".join(LOGIN) + attach(b"good") + command(spec.QueueDeclare(queue="good")))
        good.receive(command(spec.MessageSubscribe(queue="good", destination="d", accept_mode=1, acquire_mode=0)))
        good.receive(flow(0, 100) + flow(1, 0xFFFFFFFF))
        data, bad = mutated(chance), connection(hosts, names)
        at = 0
        while at < len(data):
            size = len(data) if chance.random() < 0.5 else chance.randrange(1, 400)
            bad.receive(data[at : at + size])
            bad.take_bytes()
            bad.written()
            at += size
            if bad.is_over or bad.is_closing:
                break
        good.take_bytes()
        good.receive(publish(b"still here", spec.MessageProperties(), "good"))
        assert b"still here" in good.take_bytes()
        assert good.is_open
        bad.lost()
        good.lost()
        assert not any(queue.unsettled_count or queue.consumer_count for queue in hosts["/"].queues.values())
        assert names.holder("guest", b"good") is None
        for name in hosts["/"].queues:
            while (entry := hosts["/"].get(name, owner=None, no_ack=True)) is not None:
                decode_header(header_of(entry.message, redelivered=True))
                basic_properties(basic_header_of(entry.message))
