"""The broker that replays: it respects credit, frames as qpidd does, and takes back what was not accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.driver import Driver
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, parse_frame
from amqp_core.v0_10.messages import messages_of
from tests.bench import rawloop, replay
from tests.bench.environment import Environment, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.blocks import Block


@pytest.fixture(scope="module")
def broker() -> Iterator[replay.ReplayBroker]:
    with replay.ReplayBroker() as broker:
        yield broker


def connect(broker: replay.ReplayBroker) -> Client:
    hosts, virtual_host, _ = parse_url(broker.url())
    return Client.connect(
        ConnectOptions(hosts=hosts, virtual_host=virtual_host, username="guest", password="guest", heartbeat=0)
    )


def left(client: Client, queue: str) -> int | None:
    found = client.query_queue(queue)
    assert found is not None
    return found.message_count


def test_credit_is_respected_and_what_was_not_accepted_goes_back(broker: replay.ReplayBroker) -> None:
    queue = replay.queue_name(1000)
    with connect(broker) as client:
        assert client.is_qpidd
        assert left(client, queue) == 1000
        subscription = client.subscribe(queue)
        blocks: list[Block] = []
        for credit in (1, 7, 492):
            subscription.grant(credit)
            subscription.flush()
            blocks += subscription.take_blocks(0)
        assert sum(block.count for block in blocks) == 500
        assert subscription.credit == 0
        assert left(client, queue) == 500
        client.accept([(blocks[0].first_id, blocks[0].first_id + 299)])
        client.sync()
    with connect(broker) as client:
        assert left(client, queue) == 700


def test_credit_in_bytes_is_respected(broker: replay.ReplayBroker) -> None:
    hosts, virtual_host, _ = parse_url(broker.url())
    options = ConnectOptions(hosts=hosts, virtual_host=virtual_host, username="guest", password="guest", heartbeat=0)
    driver = Driver.dial(options, *hosts[0], None, 10.0)
    blocks: list[Block] = []
    driver.endpoint.on_block = blocks.append
    driver.call(
        spec.MessageSubscribe(
            queue=replay.queue_name(100),
            destination="d",
            accept_mode=spec.MessageAcceptMode.EXPLICIT,
            acquire_mode=spec.MessageAcquireMode.PRE_ACQUIRED,
        )
    )

    def flow(unit: spec.MessageCreditUnit, value: int) -> int:
        """How many messages have come when that is done."""
        driver.call(spec.MessageFlow(destination="d", unit=unit, value=value))
        driver.call(spec.ExecutionSync())
        return sum(block.count for block in blocks)

    assert flow(spec.MessageCreditUnit.MESSAGE, 90) == 0
    assert flow(spec.MessageCreditUnit.BYTE, 10_000) == (some := 10_000 // blocks[0].ends[0])
    assert flow(spec.MessageCreditUnit.BYTE, blocks[0].ends[0]) == some + 1
    assert flow(spec.MessageCreditUnit.BYTE, 0xFFFFFFFF) == 90
    driver.close()


def test_a_message_is_three_frames_with_exchange_and_routing_key(broker: replay.ReplayBroker) -> None:
    queue = replay.queue_name(3)
    with connect(broker) as client:
        subscription = client.subscribe(queue)
        subscription.grant(10)
        subscription.flush()
        (block,) = subscription.take_blocks(0)
    kinds: list[int] = []
    at = 0
    while (parsed := parse_frame(block.frames, at, 65535)) is not None:
        frame, at = parsed
        kinds.append(frame.type)
    assert kinds == [COMMAND, HEADER, BODY] * 3
    messages = list(messages_of(block))
    assert [message.headers["qty"] for message in messages] == [0, 1, 2]
    for message in messages:
        assert (message.delivery.exchange, message.routing_key) == (replay.EXCHANGE, queue)
        assert len(message.body) == replay.BODY_BYTES


def test_the_raw_loop_drains_more_than_is_encoded(broker: replay.ReplayBroker) -> None:
    count = 2 * replay.ENCODED_MESSAGES + 7
    with Environment(sizes=Sizes.quick(), given_broker=broker, quiet=True, warms=False) as env:
        queue = replay.queue_name(count)
        with env.driver() as driver:
            assert rawloop.drain(driver, queue, count) > 0
        assert env.depth(queue) == 0
