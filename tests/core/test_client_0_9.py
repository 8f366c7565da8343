"""The client of 0-9-1 and scripted servers: what no real broker can be made to do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    DeliveryTimedOut,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    ResourceDeleted,
    ResourceLimitExceeded,
    UndecodableMessage,
    UsageError,
)
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.connection import CONSUMING, Connection
from amqp_core.v0_9.driver import ASKING
from amqp_core.v0_9.framing import METHOD, encode_content, encode_frame
from amqp_core.v0_9.messages import Message, each_message
from amqp_core.v0_9.redelivery import identity
from tests.support import wire_0_9 as wire
from tests.support.fakepeer_0_9 import RABBITMQ, FakePeer, Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.blocks import Block
    from amqp_core.v0_9.client import Client
    from amqp_core.v0_9.subscription import Subscription


class Server:
    """A script that answers the usual methods, and does its steps when the test says so."""

    def __init__(self, *steps: Callable[[Peer], object]) -> None:
        self.steps = steps
        self.go = threading.Event()
        self.peer: Peer | None = None

    def __call__(self, peer: Peer) -> None:
        self.peer = peer
        peer.answers |= {
            spec.BasicQos: spec.BasicQosOk(),
            spec.BasicConsume: spec.BasicConsumeOk("s1"),
            spec.BasicCancel: spec.BasicCancelOk("s1"),
            spec.ChannelFlow: spec.ChannelFlowOk(active=True),
        }
        peer.open()
        if self.steps:
            peer.expect(spec.BasicConsume)
            peer.flush()
            assert self.go.wait(15)
        for step in self.steps:
            step(peer)
        peer.serve()

    def subscribe(self, server: FakePeer, **settings: Any) -> tuple[Client, Subscription]:
        """Connect a client, subscribe, and let the steps begin."""
        client = server.connect(**settings)
        subscription = client.subscribe("q", max_unsettled=10)
        self.go.set()
        return client, subscription

    def seen(self, *kinds: type[spec.Method]) -> list[spec.Method]:
        """The methods of these kinds that the server has received."""
        assert self.peer is not None
        return [method for _, method in self.peer.methods if isinstance(method, kinds)]


def deliver(*bodies: bytes, tag: int = 1, consumer: str = "s1") -> Callable[[Peer], None]:
    def step(peer: Peer) -> None:
        for number, body in enumerate(bodies, tag):
            peer.send(spec.BasicDeliver(consumer, number, routing_key="q"), None, body, channel=CONSUMING)

    return step


def send(method: spec.Method, channel: int = CONSUMING) -> Callable[[Peer], None]:
    return lambda peer: peer.send(method, channel=channel)


def together(*steps: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """Steps whose bytes the client gets at once."""

    def step(peer: Peer) -> None:
        with peer.together():
            for each in steps:
                each(peer)

    return step


def refuse(code: int, text: str, kind: type[spec.Method] | None, channel: int = CONSUMING) -> Callable[[Peer], None]:
    """Close a channel because of a method."""

    def step(peer: Peer) -> None:
        peer.flush()
        peer.channels[channel].close(code, text)
        peer.connection.data_to_send()  # which names no method
        class_id, method_id = divmod(kind.CODE, 1 << 16) if kind else (0, 0)
        peer.send(spec.ChannelClose(code, text, class_id, method_id), channel=channel)

    return step


# ------------------------------------------------------------------------------------------------------ logging in
def test_a_server_that_closes_without_a_word_after_the_login() -> None:
    def hang_up(mechanism: str, response: bytes) -> bytes | None:
        raise ConnectionResetError

    for properties, kind in (({"product": "RabbitMQ"}, AuthenticationFailed), (RABBITMQ, ConnectionLost)):

        def gone(peer: Peer) -> None:
            with pytest.raises(ConnectionResetError):
                peer.open()

        with FakePeer(gone, server_properties=properties, authenticate=hang_up) as server, pytest.raises(kind):
            server.connect()


@pytest.mark.parametrize("answers", [True, False])
def test_close_says_whether_the_broker_has_answered(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    def script(peer: Peer) -> None:
        peer.open()
        if answers:
            peer.serve()
        else:
            peer.silent()

    monkeypatch.setattr("amqp_core.pump._CLOSE_TIMEOUT_S", 30.0 if answers else 0.1)
    with FakePeer(script) as server:
        assert server.connect().close() is answers


def test_a_redirect_of_0_9_is_followed() -> None:
    def elsewhere(port: int) -> Callable[[Peer], None]:
        def script(peer: Peer) -> None:
            original = peer.connection._on_open

            def redirect(method: spec.ConnectionOpen) -> Any:
                event = original(method)
                peer.connection.redirect(f"127.0.0.1:{port}")
                return event

            peer.connection._on_open = redirect  # type: ignore[method-assign]
            peer.open()

        return script

    def there(peer: Peer) -> None:
        peer.open()
        peer.serve()

    with FakePeer(there, version="0-9") as second, FakePeer(elsewhere(second.port), version="0-9") as first:
        client = first.connect(protocol="0-9")
        assert client.peer.endswith(f":{second.port}")
    with FakePeer(elsewhere(0), version="0-9") as lost, pytest.raises(ConnectionFailed):
        lost.connect(protocol="0-9")


def test_a_server_with_too_few_channels() -> None:
    with FakePeer(Server(), channel_max=2) as server:
        client = server.connect()
        with pytest.raises(ResourceLimitExceeded, match=r"AMQP_CHANNELS_EXHAUSTED.* allows 2 .* channel 3"):
            client.query_queue("q")
        client.subscribe("q")
        client.sync()


# -------------------------------------------------------------------------------------------------------- consuming
def test_messages_that_arrived_before_the_consumer_was_cancelled_are_returned_first() -> None:
    script = Server(together(deliver(b"a", b"b"), send(spec.BasicCancel("s1")), deliver(b"c", tag=3)))
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        found: list[Message] = []
        while len(found) < 3:
            for block in subscription.take_blocks(10):
                found += [message for message in each_message(block) if isinstance(message, Message)]
        assert [message.body for message in found] == [b"a", b"b", b"c"]
        assert (subscription.credit, subscription.credit_bytes) == (0, 0.0)
        for take in (subscription.take, lambda: subscription.take_blocks(1), lambda: subscription.take_one(timeout=1)):
            with pytest.raises(ResourceDeleted, match=r"AMQP_CONSUMER_CANCELLED.*'q'"):
                take()
        subscription.cancel()
        client.accept([(1, 3)], sync=True)


def test_settlements_are_one_ack_for_all_up_to_a_delivery() -> None:
    script = Server(deliver(*map(bytes, range(10))))
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        found = 0
        while found < 10:
            found += len(subscription.take(10))
        client.accept([(1, 4), (6, 6)])
        client.release([(5, 5)])
        client.reject([(6, 9)], silence_timeout_s=5.0)
        client.accept([(1, 100)])
        client.accept([(1, 100)])
        client.sync()
        assert script.seen(spec.BasicAck, spec.BasicNack) == [
            spec.BasicAck(4, multiple=True),
            spec.BasicAck(6),
            spec.BasicNack(5, multiple=True, requeue=True),
            spec.BasicNack(9, multiple=True),
            spec.BasicAck(10, multiple=True),
        ]


def test_of_an_unknown_broker_no_whole_transactions_are_expected() -> None:
    for product, whole in (("Apache Qpid Broker-J Core", True), ("RabbitMQ", False), ("another broker", False)):
        script = Server()
        with FakePeer(script, server_properties={"product": product}) as server:
            assert server.connect().capabilities.local_transactions == whole
            script.go.set()


def test_without_basic_nack_each_message_is_rejected() -> None:
    script = Server(deliver(b"a", b"b"))
    with FakePeer(script, server_properties={}) as server:
        client, subscription = script.subscribe(server)
        while subscription.credit > 8:
            subscription.take_blocks(10)
        client.release([(1, 2)], sync=True)
        assert script.seen(spec.BasicReject) == [spec.BasicReject(1, requeue=True), spec.BasicReject(2, requeue=True)]


def test_a_message_that_cannot_be_decoded_is_named_and_can_be_settled() -> None:
    def broken(peer: Peer) -> None:
        deliver(b"a")(peer)
        peer.connection.send_method(CONSUMING, spec.BasicDeliver("s1", 2), spec.BasicProperties(message_id="m"))
        data = bytearray(peer.connection.data_to_send())
        data[-5:-3] = b"\xff\xff"  # property flags that no property has
        peer.raw(bytes(data))
        deliver(b"c", tag=3)(peer)

    script = Server(broken)
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        first = subscription.take_one(timeout=10)
        assert first is not None
        assert first.body == b"a"
        with pytest.raises(UndecodableMessage) as refused:
            subscription.take_one(timeout=10)
        assert refused.value.command_id == 2
        client.reject([(2, 2)])
        third = subscription.take_one(timeout=10)
        assert third is not None
        assert third.transfer_id == 3


def test_a_consumer_that_nothing_subscribed() -> None:
    script = Server(deliver(b"a", consumer="other"))
    with FakePeer(script) as server:
        _, subscription = script.subscribe(server)
        with pytest.raises(ProtocolError, match="to consumer 'other', which does not exist here"):
            subscription.take()


@pytest.mark.parametrize(
    ("method", "channel"), [(spec.BasicAck(1), CONSUMING), (spec.BasicAck(1), 9), (spec.BasicCancel("s1"), ASKING)]
)
def test_a_method_on_the_wrong_channel(method: spec.Method, channel: int) -> None:
    script = Server(send(method, channel))
    with FakePeer(script) as server:
        _, subscription = script.subscribe(server)
        with pytest.raises(ProtocolError):
            subscription.take()


def test_a_delivery_timeout_ends_the_client_after_what_arrived() -> None:
    text = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 60000 ms."
    script = Server(deliver(b"a"), refuse(406, text, None))
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        assert [message.body for message in subscription.take(1)] == [b"a"]
        with pytest.raises(DeliveryTimedOut, match="consumer_timeout"):
            subscription.take()
        with pytest.raises(DeliveryTimedOut):
            client.accept([(1, 1)])


def test_a_refused_prefetch() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.BasicQos)
        refuse(406, "PRECONDITION_FAILED - no", spec.BasicQos)(peer)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        with pytest.raises(PreconditionFailed, match=r"basic\.qos with 406"):
            client.subscribe("q", max_unsettled=7)


def test_a_message_larger_than_allowed() -> None:
    script = Server(deliver(bytes(70_000)))
    with FakePeer(script) as server:
        _, subscription = script.subscribe(server, max_message_bytes=65536)
        with pytest.raises(LimitExceeded):
            subscription.take()


def test_a_large_message_that_begins_to_arrive_ends_the_wait() -> None:
    """So the program can pause reading before it has all of it."""
    body = bytes(range(256)) * 4000
    frames = wire.delivery(2, body, consumer=b"s1", channel=CONSUMING)
    rest = threading.Event()

    def part(peer: Peer) -> None:
        peer.raw(frames[:200_000])
        assert rest.wait(15)
        peer.raw(frames[200_000:])

    script = Server(deliver(b"small"), part)
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        assert client.under_way_bytes == 0
        taken = subscription.take_blocks(10, begun=True)
        while not client.under_way_bytes:
            taken += subscription.take_blocks(10, begun=True)
        assert [len(block.ends) for block in taken] == [1], "the wait ended without the message"
        assert len(body) <= client.under_way_bytes <= len(frames)
        threading.Timer(0.2, rest.set).start()
        (block,) = subscription.take_blocks(10)
        assert len(block.frames) == len(frames)
        assert client.under_way_bytes == 0


def test_a_delivery_that_did_not_come_is_not_settled_with_others() -> None:
    """Its tag may be of another client, behind a proxy that lets clients share a channel."""
    script = Server(deliver(b"a", b"b"), deliver(b"d", b"e", tag=4))
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        while subscription.credit > 6:
            subscription.take_blocks(10)
        client.accept([(1, 5)], sync=True)
        assert script.seen(spec.BasicAck) == [spec.BasicAck(2, multiple=True), spec.BasicAck(4), spec.BasicAck(5)]


def test_deliveries_without_settlement_are_no_gap() -> None:
    def other(peer: Peer) -> None:
        peer.until(lambda: sum(isinstance(each, spec.BasicConsume) for _, each in peer.methods) == 2, "basic.consume")
        deliver(b"a", tag=1, consumer="s2")(peer)
        deliver(b"b", b"c", tag=2)(peer)

    script = Server(other)
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        script.peer.answers[spec.BasicConsume] = spec.BasicConsumeOk("s2")  # type: ignore[union-attr]
        client.subscribe("r", accept=False)
        while subscription.credit > 8:
            subscription.take_blocks(10)
        client.accept([(2, 3)], sync=True)
        assert script.seen(spec.BasicAck) == [spec.BasicAck(3, multiple=True)]


KEY = b"k\xff".decode("utf-8", "surrogateescape")
"""A routing key that is not UTF-8."""


def test_a_message_whose_routing_key_is_not_utf_8_is_got_and_recognised() -> None:
    """The barrier of exactly-once gets it, too, and compares it with what was delivered."""

    def brought(peer: Peer) -> None:
        peer.expect(spec.BasicGet)
        peer.raw(frames(spec.BasicGetOk(1, routing_key=KEY)))
        peer.until(lambda: sum(isinstance(method, spec.BasicGet) for _, method in peer.methods) == 2, "basic.get")
        peer.raw(frames(spec.BasicGetOk(2, redelivered=True, routing_key=KEY)))
        peer.raw(frames(spec.BasicDeliver("s1", 3, redelivered=True, routing_key=KEY)))

    def frames(method: spec.Method) -> bytes:
        return b"".join(
            encode_content(CONSUMING, encode_method(method), encode_header(spec.BasicProperties(), 1), b"b", 4096)
        )

    script = Server(brought)
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        message = client.get("q")
        assert message is not None
        assert (message.routing_key, message.body) == (KEY, b"b")
        ready = client.pass_barrier("q")
        assert ready is not None
        assert ready.identity == identity(message)
        (block,) = subscription.take_blocks(10)
        assert list(client.identities(block)) == [identity(message)]
        (delivered,) = each_message(block)
        assert isinstance(delivered, Message)
        assert delivered.routing_key == KEY


def test_a_barrier_keeps_a_message_that_no_subscription_could_get() -> None:
    """Returned, it would be the first one again at each barrier, and be dropped when that was too often."""

    def bring(tag: int) -> Callable[[Peer], None]:
        def step(peer: Peer) -> None:
            peer.until(lambda: sum(isinstance(each, spec.BasicGet) for _, each in peer.methods) == tag, "basic.get")
            peer.send(spec.BasicGetOk(tag, routing_key="q"), None, b"b", channel=CONSUMING)

        return step

    script = Server(bring(1), bring(2))
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        client.pass_barrier("q")
        subscription.cease()
        client.pass_barrier("q")
        client.sync()
        assert script.seen(spec.BasicNack) == [spec.BasicNack(1, multiple=True, requeue=True)]


class Bound:
    """Says whether what comes before an answer is kept, and notes what it was asked."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, count: int, nbytes: int, under_way: int) -> bool:
        self.asked.append((count, nbytes, under_way))
        return nbytes + under_way <= self.most


def answers_after(*bodies: bytes) -> Server:
    """A server that sends messages before it answers basic.get."""
    sent = deliver(*bodies)

    def step(peer: Peer) -> None:
        peer.expect(spec.BasicGet)
        sent(peer)
        peer.send(spec.BasicGetEmpty(), channel=CONSUMING)

    return Server(step)


def test_what_comes_before_an_answer_is_kept_up_to_a_bound() -> None:
    """Else all is dropped that was not taken, and what comes later."""
    script = answers_after(*[b"x" * 1000] * 3, bytes(500_000), *[b"y" * 1000] * 3)
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        client.read_at_most(16 << 10)
        bound = Bound(20_000)
        dropped: list[Block] = []
        subscription.bound(bound, dropped.append)
        client.pass_barrier("q")
        assert subscription.overflowed
        tags = [each.first_id + index for each in dropped for index in range(len(each.ends))]
        assert tags == [1, 2, 3, 4, 5, 6, 7], "in the order in which they came"
        assert subscription.take_arrived() == []
        assert bound.asked[-1][2] >= 500_000, "the large one was dropped when it began"
        assert subscription.credit == 10 - 7, "the broker counts what was dropped"
        assert client.under_way_bytes == 0


def test_after_an_overflow_nothing_is_kept_of_a_large_message_that_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []
    drop = Connection.drop_under_way

    def counted(connection: Connection) -> None:
        dropped.append(connection.under_way_bytes)
        drop(connection)

    monkeypatch.setattr(Connection, "drop_under_way", counted)
    script = answers_after(bytes(500))
    later = threading.Event()

    def large(peer: Peer) -> None:
        assert later.wait(15)
        peer.raw(wire.delivery(2, bytes(600_000), consumer=b"s1", channel=CONSUMING))

    script.steps = (*script.steps, large)
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        subscription.bound(Bound(0))
        client.pass_barrier("q")
        assert subscription.overflowed
        later.set()
        while subscription.credit > 10 - 2:
            assert subscription.take_blocks(10, begun=True) == []
        assert len(dropped) == 1
        assert dropped[0] >= 600_000


def test_a_message_under_way_when_a_wait_begins_is_kept_if_there_is_room() -> None:
    frames = wire.delivery(1, bytes(400_000), consumer=b"s1", channel=CONSUMING)

    for most, kept in ((500_000, 1), (300_000, 0)):

        def part(peer: Peer) -> None:
            peer.raw(frames[:200_000])
            peer.expect(spec.BasicGet)
            peer.raw(frames[200_000:])
            peer.send(spec.BasicGetEmpty(), channel=CONSUMING)

        script = Server(part)
        with FakePeer(script) as server:
            client, subscription = script.subscribe(server)
            subscription.bound(Bound(most))
            while not client.under_way_bytes:
                assert subscription.take_blocks(10, begun=True) == []
            client.pass_barrier("q")
            assert len(subscription.take_arrived()) == kept
            assert subscription.overflowed is not bool(kept)


def test_what_is_taken_is_not_bounded() -> None:
    script = Server(deliver(bytes(300_000), b"a"))
    with FakePeer(script) as server:
        _, subscription = script.subscribe(server)
        subscription.bound(Bound(0))
        count = 0
        while count < 2:
            count += sum(len(block.ends) for block in subscription.take_blocks(10))
        assert not subscription.overflowed


def test_reading_is_paused() -> None:
    script = Server(deliver(b"a"))
    with FakePeer(script) as server:
        client = server.connect()
        subscription = client.subscribe("q")
        client.pause_reading(True)
        script.go.set()
        client.wake()
        assert subscription.take_blocks(0.0) == []
        first = subscription.take_one(timeout=10)  # reads all the same
        assert first is not None
        assert first.body == b"a"
        client.pause_reading(False)
        client.service()


# -------------------------------------------------------------------------------------------------------- questions
def test_questions_behind_a_refusal_are_sent_again() -> None:
    def script(peer: Peer) -> None:
        def on_method(channel: int, method: spec.Method, _: object) -> None:
            assert isinstance(method, spec.QueueDeclare)
            assert method.passive
            if method.queue.startswith("no"):
                refuse(404, "NOT_FOUND", spec.QueueDeclare, channel)(peer)
            else:
                peer.send(spec.QueueDeclareOk(method.queue), channel=channel)

        peer._method = on_method  # type: ignore[assignment]
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        targets = [("", "a"), ("", "no1"), ("", "b"), ("", "a"), ("", "no2")]
        routes = client.query_routes(targets).answers()
        assert [route.exists for route in routes] == [True, False, True, True, False]
        assert client.query_routes([("x", "unknown")]).answers()[0].exists is False


def test_a_question_behind_the_refused_one_of_another_caller_is_sent_again() -> None:
    held: list[spec.QueueDeclare] = []

    def script(peer: Peer) -> None:
        def on_method(channel: int, method: spec.Method, _: object) -> None:
            assert isinstance(method, spec.QueueDeclare)
            held.append(method)
            if len(held) == 2:  # both callers have asked: the first one is refused
                refuse(404, "NOT_FOUND", spec.QueueDeclare, channel)(peer)
            elif len(held) > 2:
                peer.send(spec.QueueDeclareOk(method.queue), channel=channel)

        peer._method = on_method  # type: ignore[assignment]
        peer.open()
        peer.serve()

    for ask in ("query_queue", "query_routes"):
        held.clear()
        with FakePeer(script) as server:
            client = server.connect()
            before = client.query_routes([("", "gone")])
            if ask == "query_queue":
                assert client.query_queue("there") is not None
            else:
                assert client.query_routes([("", "there")]).answers()[0].exists
            assert before.answers()[0].exists is False


def test_a_refused_question_after_the_end_of_the_client_is_its_error() -> None:
    script = Server(refuse(404, "NOT_FOUND - gone", spec.BasicConsume))
    with FakePeer(script) as server:
        client, subscription = script.subscribe(server)
        with pytest.raises(NotFound, match="gone"):
            subscription.take()
        for ask in (client.query_queue, client.exists_exchange):
            with pytest.raises(NotFound, match="gone"):
                ask("q")


# ------------------------------------------------------------------------------------------------------------ messages
def test_a_message_that_was_not_received_cannot_be_settled() -> None:
    message = Message(b"x")
    assert message.headers == {}
    with pytest.raises(UsageError, match="no delivery tag"):
        _ = message.transfer_id


def test_garbage_on_channel_0() -> None:
    script = Server(lambda peer: peer.raw(encode_frame(METHOD, 0, b"\0\x0a\xff\xff")))
    with FakePeer(script) as server:
        _, subscription = script.subscribe(server)
        with pytest.raises(ProtocolError):
            subscription.take()
