"""The blocking client against a real broker: publishing, receiving, credit, what happens to what is not accepted."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import (
    CommandFailed,
    InvalidArgument,
    MessageRejected,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLimitExceeded,
    ResourceLocked,
    UsageError,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message, messages_of
from tests.support.capabilities import needs
from tests.support.process import wait_until
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription
    from tests.support.capabilities import Capabilities
    from tests.support.fixtures import Connect

pytestmark = pytest.mark.broker


def publish(client: Client, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        client.publish(Message(body), routing_key=queue)
    client.confirm()


def drain(subscription: Subscription) -> list[Message]:
    """All messages of a queue without other consumers."""
    subscription.grant(1_000_000)
    subscription.flush()
    blocks = subscription.take_blocks(0)
    assert [block.first_id for block in blocks[1:]] == [block.first_id + block.count for block in blocks[:-1]]
    return [message for block in blocks for message in messages_of(block)]


def ids(messages: list[Message]) -> list[tuple[int, int]]:
    found = [message.command_id for message in messages if message.command_id is not None]
    assert len(found) == len(messages)
    return [(one, one) for one in found]


def count(client: Client, queue: str) -> int | None:
    info = client.query_queue(queue)
    assert info is not None
    return info.message_count


# ------------------------------------------------------------------------------------------------------ there and back
PROPERTIES: dict[str, Any] = {
    "content_length": 4,
    "message_id": uuid.UUID(int=7),
    "correlation_id": b"corr\x00elation",
    "reply_to": spec.ReplyTo(exchange="amq.direct", routing_key="back"),
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "user_id": b"guest",
    "app_id": b"app",
}
HEADERS: dict[str, object] = {
    "text": "grün",
    "empty": "",
    "int": 42,
    "negative": -(1 << 40),
    "float": 2.5,
    "true": True,
    "bytes": b"\x00\xff",
    "none": None,
    "map": {"a": 1, "list": [1, "b", {"c": False}]},
}


@needs("takes_any_user_id")
def test_every_property_comes_back(connect: Connect, place: tuple[str, str], capabilities: Capabilities) -> None:
    vhost, queue = place
    client = connect(vhost)
    sent = Message(
        b"body",
        spec.DeliveryProperties(priority=7, delivery_mode=2, ttl=600_000, timestamp=1_700_000_000),
        spec.MessageProperties(**PROPERTIES, application_headers=HEADERS),
    )
    client.publish(sent, routing_key=queue)
    client.confirm()
    assert sent.delivery.routing_key is None, "the caller's message is left alone"
    (message,) = drain(client.subscribe(queue))
    assert message.body == b"body"
    assert message.headers == HEADERS
    assert {name: getattr(message.properties, name) for name in PROPERTIES} == PROPERTIES
    delivery = message.delivery
    assert (delivery.priority, delivery.delivery_mode, delivery.timestamp) == (7, 2, 1_700_000_000)
    assert (delivery.expiration is not None) is capabilities.stamps_expiration  # the broker's own, ms since 1970
    assert message.routing_key == queue
    assert not delivery.redelivered
    client.accept(ids([message]), sync=True)
    assert count(client, queue) == 0


@pytest.mark.parametrize("size", [0, 1, 65_523, 65_524, 65_537, 5_000_000])
def test_bodies_of_every_size(connect: Connect, queue: str, size: int) -> None:
    body = (uuid.uuid4().bytes * (size // 16 + 1))[:size]
    client = connect()
    publish(client, queue, body, b"small", body)
    messages = drain(client.subscribe(queue))
    assert [message.body for message in messages] == [body, b"small", body]


def test_headers_of_more_than_one_frame(connect: Connect, queue: str) -> None:
    headers: dict[str, object] = {f"key-{i}": "x" * 30_000 for i in range(5)}
    client = connect()
    client.publish(Message(b"body", properties=spec.MessageProperties(application_headers=headers)), routing_key=queue)
    client.confirm()
    (message,) = drain(client.subscribe(queue))
    assert message.headers == headers
    assert message.body == b"body"


def test_small_frames_are_agreed_and_kept(connect: Connect, queue: str) -> None:
    client = connect(max_frame_size=4096)
    body = bytes(range(256)) * 400
    publish(client, queue, body, b"", body)
    subscription = client.subscribe(queue)
    subscription.grant(3)
    subscription.flush()
    blocks = subscription.take_blocks(0)
    assert [message.body for block in blocks for message in messages_of(block)] == [body, b"", body]
    sizes = []
    for block in blocks:
        pos = 0
        while pos < block.nbytes:
            sizes.append(int.from_bytes(block.frames[pos + 2 : pos + 4]))
            pos += sizes[-1]
    assert max(sizes) == 4096


def test_take_gives_messages_as_objects(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, *[b"%d" % i for i in range(100)])
    subscription = client.subscribe(queue)
    messages = subscription.take(3)
    assert 1 <= len(messages) <= 3
    while len(messages) < 100:
        more = subscription.take(100 - len(messages))
        assert more
        messages += more
    assert [message.body for message in messages] == [b"%d" % i for i in range(100)]
    assert subscription.take(1, timeout=0.05) == []
    assert {message.destination for message in messages} == {subscription.destination}


@pytest.mark.thorough
def test_more_than_65536_transfers_do_not_kill_the_broker(connect: Connect, queue: str) -> None:
    total = 70_500
    publisher = connect()
    for number in range(total):
        publisher.publish(Message(b"%d" % number), routing_key=queue)
    publisher.confirm()
    client = connect()
    subscription = client.subscribe(queue)
    subscription.grant(total)  # all at once: the client gives the broker as much as it can bear
    blocks = subscription.take_blocks(20.0)
    first, seen = blocks[0].first_id, blocks[0].count
    while seen < total:
        blocks = blocks[1:] or subscription.take_blocks(20.0)
        assert blocks, f"{seen} of {total} came"
        assert blocks[0].first_id == first + seen
        seen += blocks[0].count
    assert list(messages_of(blocks[0]))[-1].body == b"%d" % (total - 1)
    client.accept([(first, first + total - 1)], sync=True)
    assert count(client, queue) == 0


# -------------------------------------------------------------------------------------------------------------- credit
def test_nothing_comes_without_credit_and_no_more_than_it(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, *[b"%d" % i for i in range(20)])
    subscription = client.subscribe(queue)
    assert subscription.take_blocks(0.1) == []
    subscription.grant(3)
    subscription.flush()
    subscription.grant(4)
    assert subscription.credit == 4
    found = sum(block.count for block in subscription.take_blocks(5.0))
    while found < 7:
        blocks = subscription.take_blocks(5.0)
        assert blocks
        found += sum(block.count for block in blocks)
    client.sync()
    assert subscription.take_blocks(0) == []
    assert (found, subscription.credit) == (7, 0)


def test_flush_and_stop_take_the_credit_back(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1")
    subscription = client.subscribe(queue)
    for end in (subscription.flush, subscription.stop):
        subscription.grant(100)
        client.sync()
        end()
        assert subscription.credit == 0
        publish(client, queue, b"later")
        client.sync()
    assert [message.body for block in subscription.take_blocks(0) for message in messages_of(block)] == [b"1", b"later"]
    subscription.grant(1)
    subscription.flush()
    assert [message.body for block in subscription.take_blocks(0) for message in messages_of(block)] == [b"later"]


def test_messages_come_as_they_are_published(connect: Connect, queue: str) -> None:
    client, publisher = connect(), connect()
    subscription = client.subscribe(queue)
    subscription.grant(10)
    client.sync()
    timer = threading.Timer(0.1, publish, (publisher, queue, b"now"))
    timer.start()
    (block,) = subscription.take_blocks(20.0)
    timer.join()
    assert [message.body for message in messages_of(block)] == [b"now"]


def test_paused_reading_leaves_the_rest_on_the_broker(connect: Connect, queue: str) -> None:
    client, publisher = connect(), connect()
    subscription = client.subscribe(queue)
    subscription.grant(1000)
    client.sync()
    client.pause_reading(paused=True)
    publish(publisher, queue, *[bytes(100_000)] * 300)
    assert subscription.take_blocks(0.1) == []
    client.pause_reading(paused=False)
    found = 0
    while found < 300:
        blocks = subscription.take_blocks(10.0)
        assert blocks
        found += sum(block.count for block in blocks)


@pytest.mark.parametrize("most", [1, 2, 7, 100])
def test_a_limit_of_unsettled_messages_holds_and_every_message_arrives(connect: Connect, queue: str, most: int) -> None:
    client = connect()
    publish(client, queue, *(b"%d" % i for i in range(60)))
    subscription = client.subscribe(queue, max_unsettled=most)
    settle = (client.accept, client.reject, client.accept)
    unsettled: list[Message] = []
    found: list[bytes] = []
    while len(found) < 60:
        for block in subscription.take_blocks(10.0):
            arrived = list(messages_of(block))
            unsettled += arrived
            found += [message.body for message in arrived]
        assert len(unsettled) <= most
        if unsettled:
            settle[len(found) % 3](ids([unsettled.pop(len(found) % len(unsettled))]))
    client.accept(ids(unsettled), sync=True)
    assert found == [b"%d" % i for i in range(60)]
    assert count(client, queue) == 0
    publish(client, queue, b"last")
    (last,) = subscription.take(1)
    assert last.body == b"last"


def test_unsettled_messages_that_are_released_arrive_again(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"a", b"b", b"c")
    subscription = client.subscribe(queue, max_unsettled=2)
    first = take(subscription, 2)
    assert subscription.take_blocks(0.5) == []
    client.release(ids(first))
    again = take(subscription, 2)
    assert [message.body for message in [*first, *again]] == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize("call", ["grant", "renew", "flush", "probe", "stop"])
def test_a_limit_of_unsettled_messages_refuses_other_credit(connect: Connect, queue: str, call: str) -> None:
    client = connect()
    publish(client, queue, b"a", b"b")
    subscription = client.subscribe(queue, max_unsettled=1)
    with pytest.raises(UsageError, match=f"{call} changes the credit"):
        getattr(subscription, call)(*((5,) if call in ("grant", "renew") else ()))
    assert [message.body for message in subscription.take(2)] == [b"a"]


@pytest.mark.parametrize(("most", "accept"), [(0, True), (-1, True), (5, False)])
def test_a_limit_of_unsettled_messages_that_cannot_be_is_refused(
    connect: Connect, queue: str, most: int, *, accept: bool
) -> None:
    client = connect()
    with pytest.raises(UsageError, match=f"max_unsettled={most} is not valid"):
        client.subscribe(queue, max_unsettled=most, accept=accept)
    publish(client, queue, b"x")
    assert client.subscribe(queue, max_unsettled=1).take(1), "the client is still usable"


# --------------------------------------------------------------------------------------------- accept, release, reject
@needs("flags_redelivered")
def test_what_is_not_accepted_goes_back_in_order_and_flagged(connect: Connect, place: tuple[str, str]) -> None:
    vhost, queue = place
    client = connect(vhost)
    publish(client, queue, *[b"%d" % i for i in range(6)])
    messages = drain(client.subscribe(queue))
    client.accept(ids(messages)[1:3], sync=True)
    client.close()
    client = connect(vhost)
    messages = drain(client.subscribe(queue))
    assert [message.body for message in messages] == [b"0", b"3", b"4", b"5"]
    assert all(message.delivery.redelivered for message in messages)


def test_a_crash_gives_back_everything(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1", b"2")
    assert len(drain(client.subscribe(queue))) == 2
    client.abort()
    client = connect()
    subscription = client.subscribe(queue)
    subscription.grant(10)
    messages = subscription.take(2, timeout=20.0)
    messages += subscription.take(2 - len(messages), timeout=20.0)
    assert [message.body for message in messages] == [b"1", b"2"]


def test_release_with_and_without_the_flag(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1", b"2", b"3")
    messages = drain(client.subscribe(queue))
    client.release(ids(messages)[:1], set_redelivered=True)
    client.release(ids(messages)[1:], sync=True)
    again = drain(client.subscribe(queue))
    assert [(message.body, bool(message.delivery.redelivered)) for message in again] == [
        (b"1", True),
        (b"2", False),
        (b"3", False),
    ]


@needs("alternate_exchange")
def test_reject_leads_to_the_alternate_exchange(connect: Connect, fresh_names: Iterator[str]) -> None:
    queue, dead, exchange = next(fresh_names), next(fresh_names), next(fresh_names)
    client = connect()
    client.declare_exchange(exchange, "fanout")
    client.declare_queue(dead)
    client.bind(dead, exchange, "")
    client.declare_queue(queue, alternate_exchange=exchange)
    publish(client, queue, b"good", b"bad", b"good")
    messages = drain(client.subscribe(queue))
    client.reject(ids(messages)[1:2], code=1, text="does not fit", sync=True)
    client.accept([ids(messages)[0], ids(messages)[2]], sync=True)
    assert count(client, queue) == 0
    (rejected,) = drain(client.subscribe(dead))
    assert rejected.body == b"bad"


def test_reject_without_an_alternate_exchange_drops(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1")
    client.reject(ids(drain(client.subscribe(queue))), sync=True)
    assert count(client, queue) == 0


def test_accept_passes_over_ids_of_other_commands(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1", b"2")
    subscription = client.subscribe(queue)
    subscription.grant(1)
    subscription.flush()
    assert count(client, queue) == 2  # its result takes an id between the two transfers
    subscription.grant(1)
    subscription.flush()
    messages = [message for block in subscription.take_blocks(0) for message in messages_of(block)]
    first, last = ids(messages)
    assert last[0] - first[0] == 2
    client.accept([(first[0], last[0])], sync=True)
    assert count(client, queue) == 0


def test_accept_mode_none_forgets_what_is_sent(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1", b"2")
    subscription = client.subscribe(queue, accept=False)
    assert len(drain(subscription)) == 2
    assert count(client, queue) == 0


def test_browsing_takes_nothing_and_acquire_does(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1", b"2", b"3")
    subscription = client.subscribe(queue, acquire=False, accept=False)
    messages = drain(subscription)
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    assert count(client, queue) == 3
    subscription.cancel()
    subscription = client.subscribe(queue, acquire=False)
    messages = drain(subscription)
    acquired = client.acquire(ids(messages)[:2])
    assert acquired == [(messages[0].command_id, messages[1].command_id)]
    client.accept(acquired, sync=True)
    assert count(client, queue) == 1


@needs("selectors")
def test_a_selector_filters(connect: Connect, queue: str) -> None:
    client = connect()
    for price in (1, 5, 9):
        properties = spec.MessageProperties(application_headers={"price": price})
        client.publish(Message(b"%d" % price, properties=properties), routing_key=queue)
    client.confirm()
    messages = drain(client.subscribe(queue, selector="price > 3"))
    assert [message.body for message in messages] == [b"5", b"9"]


def test_two_subscriptions_of_one_session(connect: Connect, fresh_names: Iterator[str]) -> None:
    first, second = next(fresh_names), next(fresh_names)
    client = connect()
    for name in (first, second):
        client.declare_queue(name)
    one, two = client.subscribe(first), client.subscribe(second)
    for number in range(20):
        client.publish(Message(b"%d" % number), routing_key=(first, second)[number % 2])
    client.confirm()
    one.grant(100)
    two.grant(100)
    one.flush()
    two.flush()
    found = {s.destination: [m for b in s.take_blocks(0) for m in messages_of(b)] for s in (one, two)}
    assert [message.body for message in found[one.destination]] == [b"%d" % i for i in range(0, 20, 2)]
    assert [message.body for message in found[two.destination]] == [b"%d" % i for i in range(1, 20, 2)]
    client.accept(ids(found[one.destination] + found[two.destination]), sync=True)
    assert (count(client, first), count(client, second)) == (0, 0)
    one.cancel()
    publish(client, second, b"more")
    assert [message.body for message in drain(two)] == [b"more"]


def test_a_cancelled_subscription_leaves_what_came_to_be_accepted(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"1", b"2")
    subscription = client.subscribe(queue)
    messages = drain(subscription)
    subscription.cancel()
    client.accept(ids(messages)[:1], sync=True)
    client.release(ids(messages)[1:], sync=True)
    assert count(client, queue) == 1


# ---------------------------------------------------------------------------------------------------------- publishing
@needs("rejects_unroutable")
def test_what_cannot_be_routed_is_reported(connect: Connect, queue: str) -> None:
    client = connect()
    client.publish(Message(b"1"), routing_key=queue)
    client.publish(Message(b"2"), "amq.direct", "unbound-key")
    client.publish(Message(b"3"), "amq.direct", "unbound-key")
    client.publish(Message(b"4"), routing_key=queue)
    with pytest.raises(MessageRejected, match=r"rejected 2 published message\(s\) with code 1") as raised:
        client.confirm()
    assert raised.value.count == 2
    assert count(client, queue) == 2
    publish(client, queue, b"5")
    client.publish(Message(b"6", spec.DeliveryProperties(discard_unroutable=True)), "amq.direct", "unbound-key")
    client.confirm()
    client.confirm()


@needs("rejects_overflow")
def test_a_full_queue(connect: Connect, fresh_names: Iterator[str]) -> None:
    queue = next(fresh_names)
    client = connect()
    client.declare_queue(queue, arguments={"qpid.max_count": 2, "qpid.policy_type": "reject"})
    for number in range(3):
        client.publish(Message(b"%d" % number), routing_key=queue)
    with pytest.raises(MessageRejected):
        client.confirm()
    assert count(client, queue) == 2
    client.publish(Message(b"x"), routing_key=queue, accept_mode=spec.MessageAcceptMode.NONE)
    with pytest.raises(ResourceLimitExceeded, match="506"):
        client.confirm()


@needs("stops_producers")
def test_producer_flow_control(connect: Connect, fresh_names: Iterator[str]) -> None:
    queue = next(fresh_names)
    client, consumer = connect(), connect()
    client.declare_queue(queue, arguments={"qpid.max_count": 50, "qpid.policy_type": "producer_flow_control"})
    for number in range(60):
        client.publish(Message(b"%d" % number), routing_key=queue)
    client.confirm()

    def stopped() -> bool:
        client.sync()
        return client._publisher.credit.left == 0

    wait_until(stopped, "the broker to say stop")
    subscription = consumer.subscribe(queue, accept=False)
    subscription.grant(1000)
    timer = threading.Timer(0.1, subscription.flush)
    timer.start()
    client.publish(Message(b"last"), routing_key=queue)  # waits until the consumer has made room
    client.confirm()
    timer.join()
    assert client._publisher.credit.left is None


# -------------------------------------------------------------------------------------------------------- typed errors
ERRORS: list[tuple[str, type[CommandFailed], int]] = [
    ("subscribe to no queue", NotFound, 404),
    ("declare passive", NotFound, 404),
    ("bind no queue", NotFound, 404),
    ("delete no queue", NotFound, 404),
    ("same destination", NotAllowed, 530),
    ("exclusive subscription", ResourceLocked, 405),
    ("delete if empty", PreconditionFailed, 406),
    ("delete if unused", PreconditionFailed, 406),
    ("redeclare exchange", NotAllowed, 530),
    ("unknown exchange type", NotFound, 404),
    ("empty destination", InvalidArgument, 542),
]


@pytest.mark.parametrize(("what", "error", "code"), ERRORS, ids=[what for what, _, _ in ERRORS])
def test_errors_are_typed_and_name_the_command(
    connect: Connect, queue: str, what: str, error: type[CommandFailed], code: int
) -> None:
    client, other = connect(), connect()
    publish(client, queue, b"1")
    subscription = other.subscribe(queue)

    def same_destination() -> None:
        client.subscribe(queue, destination="d")
        client.subscribe(queue, destination="d")

    calls: dict[str, Callable[[], object]] = {
        "subscribe to no queue": lambda: client.subscribe("no-such-queue"),
        "declare passive": lambda: client.declare_queue("no-such-queue", passive=True),
        "bind no queue": lambda: client.bind("no-such-queue", "amq.topic", "x"),
        "delete no queue": lambda: client.delete_queue("no-such-queue"),
        "same destination": same_destination,
        "exclusive subscription": lambda: client.subscribe(queue, exclusive=True),
        "delete if empty": lambda: client.delete_queue(queue, if_empty=True),
        "delete if unused": lambda: client.delete_queue(queue, if_unused=True),
        "redeclare exchange": lambda: client.declare_exchange("amq.direct", "topic"),
        "unknown exchange type": lambda: client.declare_exchange(queue, "no-such-type"),
        "empty destination": lambda: client._driver.call(
            spec.MessageSubscribe(queue=queue, accept_mode=0, acquire_mode=0)
        ),
    }
    with pytest.raises(CommandFailed) as raised:
        calls[what]()
    assert (type(raised.value), raised.value.wire_code) == (error, code)
    assert raised.value.command
    assert str(raised.value).startswith(
        f"[{raised.value.condition}] The broker refused {raised.value.command} with {code}: "
    )
    with pytest.raises(error):
        client.sync()
    assert subscription.credit == 0
    assert connect().query_queue(queue) is not None
