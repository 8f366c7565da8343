"""A client that no one here wrote: aio-pika, over 0-9-1, with the features that programs on asyncio use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.exceptions import (
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    DeliveryError,
    ProbableAuthenticationError,
    QueueEmpty,
)
from pamqp.commands import Basic

from tests.support.box_process import BoxProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
    from pamqp.common import FieldTable

    from amqp_core.broker import Broker

WAIT_S = 30.0


def run(broker: Broker, vhost: str, case: Callable[[AbstractChannel], Awaitable[None]], **options: Any) -> None:
    """Run a case with a channel of a connection of its own."""

    async def connected() -> None:
        connection = await aio_pika.connect(
            host="127.0.0.1", port=broker.port, virtualhost=vhost, login=broker.username, password=broker.password
        )
        async with connection:
            await asyncio.wait_for(case(await connection.channel(**options)), WAIT_S)

    asyncio.run(connected())


async def taken(queue: AbstractQueue) -> AsyncIterator[str]:
    """What a queue has, taken for good."""
    while (message := await queue.get(no_ack=True, fail=False)) is not None:
        yield message.body.decode()


async def bodies(queue: AbstractQueue) -> list[str]:
    return [body async for body in taken(queue)]


def test_confirmed_publishes_are_consumed_in_order_by_an_iterator(amqp_broker: Broker, vhost: str) -> None:
    async def case(channel: AbstractChannel) -> None:
        await channel.set_qos(prefetch_count=7)
        queue = await channel.declare_queue("q", durable=True)
        await asyncio.gather(*(channel.default_exchange.publish(Message(b"%d" % number), "q") for number in range(100)))
        found = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    found.append(int(message.body))
                if len(found) == 100:
                    break
        assert found == list(range(100))
        assert await bodies(queue) == []

    run(amqp_broker, vhost, case)


def test_returns_and_refused_publishes(amqp_broker: Broker, vhost: str) -> None:
    async def case(channel: AbstractChannel) -> None:
        with pytest.raises(DeliveryError) as caught:
            await channel.default_exchange.publish(Message(b"lost"), "nowhere")
        assert caught.value.message is not None
        returned = caught.value.message.delivery
        assert isinstance(returned, Basic.Return)
        assert returned.reply_code == 312
        arguments: FieldTable = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await channel.declare_queue("full", arguments=arguments)
        await channel.default_exchange.publish(Message(b"1"), "full")
        with pytest.raises(DeliveryError):
            await channel.default_exchange.publish(Message(b"2"), "full")

    run(amqp_broker, vhost, case, on_return_raises=True)


def test_transactions(amqp_broker: Broker, vhost: str) -> None:
    async def case(channel: AbstractChannel) -> None:
        queue = await channel.declare_queue("q")
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"1"), "q")
            await channel.default_exchange.publish(Message(b"2"), "q")
        undone = channel.transaction()
        await undone.select()
        await channel.default_exchange.publish(Message(b"undone"), "q")
        await undone.rollback()
        assert await bodies(queue) == ["1", "2"]

    run(amqp_broker, vhost, case, publisher_confirms=False)


def test_exchanges(amqp_broker: Broker, vhost: str) -> None:
    async def case(channel: AbstractChannel) -> None:
        topic = await channel.declare_exchange("t", ExchangeType.TOPIC, durable=True)
        headers = await channel.declare_exchange("h", ExchangeType.HEADERS, auto_delete=True)
        rest = await channel.declare_exchange("rest", ExchangeType.FANOUT)
        direct = await channel.declare_exchange("d", arguments={"alternate-exchange": "rest"})
        await headers.bind(topic, "a.#")
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(headers, arguments={"x-match": "any", "kind": "x", "size": 1})
        await queue.bind(rest)
        await topic.publish(Message(b"both", headers={"kind": "x"}), "a.b")
        await topic.publish(Message(b"no header", headers={"kind": "y"}), "a.b", mandatory=False)
        await topic.publish(Message(b"no key", headers={"kind": "x"}), "b", mandatory=False)
        await direct.publish(Message(b"rest"), "anything")
        assert await bodies(queue) == ["both", "rest"]
        await queue.unbind(rest)
        await headers.unbind(topic, "a.#")
        with pytest.raises(ChannelPreconditionFailed):
            await channel.declare_exchange("t", ExchangeType.DIRECT, durable=True)

    run(amqp_broker, vhost, case)


def test_settling(amqp_broker: Broker, vhost: str) -> None:
    async def case(channel: AbstractChannel) -> None:
        dead = await channel.declare_queue("dead")
        arguments: FieldTable = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        queue = await channel.declare_queue("q", arguments=arguments)
        for body in (b"1", b"2", b"3"):
            await channel.default_exchange.publish(Message(body, expiration=60), "q")
        first = await queue.get()
        assert (first.body, first.redelivered, first.message_count, first.expiration) == (b"1", False, 2, 60.0)
        await first.nack(requeue=True)
        again = await queue.get()
        assert (again.body, again.redelivered) == (b"1", True)
        await again.reject()
        message = await dead.get(no_ack=True)
        assert message.headers["x-death"][0]["reason"] == "rejected"  # type: ignore[index, call-overload] # any value
        last = [await queue.get(), await queue.get()][-1]
        await last.ack(multiple=True)
        with pytest.raises(QueueEmpty):
            await queue.get()
        assert await queue.purge() is not None
        with pytest.raises(ChannelNotFoundEntity):
            await channel.declare_queue("missing", passive=True)

    run(amqp_broker, vhost, case)


def test_a_request_is_answered(amqp_broker: Broker, vhost: str) -> None:
    async def case(channel: AbstractChannel) -> None:
        answers: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        requests = await channel.declare_queue("requests")
        replies = await channel.declare_queue(exclusive=True)

        async def serve(message: AbstractIncomingMessage) -> None:
            async with message.process():
                assert message.reply_to is not None
                answer = Message(message.body.upper(), correlation_id=message.correlation_id)
                await channel.default_exchange.publish(answer, message.reply_to)

        tag = await requests.consume(serve)
        await replies.consume(answers.put, no_ack=True)
        request = Message(b"question", correlation_id="7", reply_to=replies.name)
        await channel.default_exchange.publish(request, "requests")
        answer = await answers.get()
        assert (answer.body, answer.correlation_id) == (b"QUESTION", "7")
        await requests.cancel(tag)

    run(amqp_broker, vhost, case)


def test_a_wrong_login(amqp_broker: Broker) -> None:
    async def case() -> None:
        with pytest.raises(ProbableAuthenticationError):
            await aio_pika.connect(host="127.0.0.1", port=amqp_broker.port, login="guest", password="wrong")

    asyncio.run(case())


def test_a_robust_connection_comes_back_with_what_it_declared() -> None:
    """The broker is restarted under the client: stored messages come again, and its own queue and consumer are new."""

    async def case(broker: BoxProcess) -> None:
        url = f"amqp://{broker.username}:{broker.password}@{broker.host}:{broker.port}/"
        found: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        own: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        connection = await aio_pika.connect_robust(url, reconnect_interval=0.1)
        async with connection:
            reconnected = asyncio.Event()
            connection.reconnect_callbacks.add(lambda _: reconnected.set())
            channel = await connection.channel()
            stored = await channel.declare_queue("stored", durable=True)
            passing = await channel.declare_queue("passing", exclusive=True, auto_delete=True)
            exchange = await channel.declare_exchange("e", ExchangeType.TOPIC)
            await passing.bind(exchange, "key.*")
            await passing.consume(own.put)
            await channel.default_exchange.publish(Message(b"1", delivery_mode=DeliveryMode.PERSISTENT), "stored")
            await stored.consume(found.put)
            held = await found.get()
            assert (held.body, held.redelivered) == (b"1", False)

            await asyncio.to_thread(broker.restart)
            await reconnected.wait()
            again = await found.get()
            assert (again.body, again.redelivered) == (b"1", True)
            await again.ack()
            await exchange.publish(Message(b"2"), "key.x")
            assert (await own.get()).body == b"2"
            await channel.default_exchange.publish(Message(b"3"), "stored")
            assert (await found.get()).body == b"3"

    with BoxProcess() as broker:
        asyncio.run(asyncio.wait_for(case(broker), 120))
