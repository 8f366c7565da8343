"""Clients of 0-9-1, whatever they do and however their bytes are cut, get what a model of the queue says."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_9 import spec
from tests.core.broker.peer_0_9 import World, method, publish
from tests.support.choice import examples

if TYPE_CHECKING:
    from tests.core.broker.peer_0_9 import Peer

LIMIT = 3
KINDS = (
    *("publish",) * 4,
    *("get", "ack", "nack", "reject", "consume"),
    *("cancel", "recover", "unknown tag", "close channel", "close", "garbage", "lost"),
)
ENDS = {
    "close": (method(0, spec.ConnectionClose(200, "", 0, 0)), (spec.ConnectionCloseOk, 0)),
    "garbage": (b"no frame", (spec.ConnectionClose, spec.ReplyCode.FRAME_ERROR)),
    "lost": (b"", None),
}
"""What ends the connection, and its answer."""
_OPENING = (
    spec.ConnectionStart,
    spec.ConnectionTune,
    spec.ConnectionOpenOk,
    spec.ChannelOpenOk,
    spec.QueueDeclareOk,
    spec.ConfirmSelectOk,
    spec.BasicQosOk,
)
_OPEN = method(1, spec.ChannelOpen()) + method(1, spec.ConfirmSelect())


@dataclass
class Holder:
    """A consumer in the model."""

    client: Client
    tag: str
    prefetch: int
    no_ack: bool
    held: int = 0

    @property
    def has_room(self) -> bool:
        return self.no_ack or not self.prefetch or self.held < self.prefetch


@dataclass
class Client:
    """A client in the model: what it should have received, and what it holds."""

    peer: Peer
    expected: list[tuple[object, ...]] = field(default_factory=list)
    """All but confirms."""
    taken: list[list[bool]] = field(default_factory=lambda: [[]])
    """Whether each message has to be acked, by the time that the channel was opened."""
    held: dict[int, tuple[int, Holder | None]] = field(default_factory=dict)
    """By delivery tag: number of the message, and the consumer that got it."""
    last_tag: int = 0

    def check(self) -> None:
        """Compare with what the peer has received."""
        received: list[tuple[object, ...]] = []
        confirmed: list[list[bool]] = [[]]
        bodies = iter(self.peer.bodies)
        for _, each in self.peer.methods:
            if isinstance(each, spec.BasicAck | spec.BasicNack):
                news = each.delivery_tag - len(confirmed[-1])
                assert news == 1 or (news > 1 and each.multiple), "confirms are in order"
                confirmed[-1] += [isinstance(each, spec.BasicAck)] * news
            elif isinstance(each, spec.BasicDeliver):
                received.append(("deliver", each.consumer_tag, each.delivery_tag, int(next(bodies)), each.redelivered))
            elif isinstance(each, spec.BasicGetOk):
                received.append(("get", each.delivery_tag, int(next(bodies)), each.redelivered, each.message_count))
            elif not isinstance(each, _OPENING):
                received.append((type(each), getattr(each, "reply_code", 0)))
            if isinstance(each, spec.ChannelClose | spec.ChannelCloseOk):
                confirmed.append([])
        assert received == self.expected
        assert confirmed == self.taken


class Model:
    """One queue, what its clients hold, and the broker that should do the same."""

    def __init__(self, overflow: str | None) -> None:
        self.world = World()
        self.overflow = overflow
        self.waiting: list[int] = []
        self.dead: list[int] = []
        self.returned: set[int] = set()
        self.turns: deque[Holder] = deque()
        self.published = 0
        arguments: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        if overflow is not None:
            arguments |= {"x-max-length": LIMIT, "x-overflow": overflow}
        self.arguments = arguments
        self.clients = [self.connect() for _ in range(3)]

    def connect(self) -> Client:
        peer = self.world.connect()
        peer.send(
            spec.QueueDeclare(queue="q", arguments=self.arguments),
            spec.QueueDeclare(queue="dead"),
            spec.ConfirmSelect(),
        )
        return Client(peer)

    # --- the queue

    def offer(self) -> None:
        while self.waiting:
            for _ in range(len(self.turns)):
                holder = self.turns[0]
                self.turns.rotate(-1)
                if holder.has_room:
                    self.hand_over(self.waiting.pop(0), holder)
                    break
            else:
                return

    def hand_over(self, number: int, holder: Holder) -> None:
        client = holder.client
        client.last_tag += 1
        if not holder.no_ack:
            holder.held += 1
            client.held[client.last_tag] = number, holder
        client.expected.append(("deliver", holder.tag, client.last_tag, number, number in self.returned))

    def put(self, number: int) -> bool:
        if self.overflow == "reject-publish" and len(self.waiting) >= LIMIT:
            return False
        self.waiting.append(number)
        self.offer()
        self.trim()
        return True

    def trim(self) -> None:
        while self.overflow == "drop-head" and len(self.waiting) > LIMIT:
            self.dead.append(self.waiting.pop(0))

    def give_back(self, numbers: list[int]) -> None:
        self.returned.update(numbers)
        self.waiting = sorted(self.waiting + numbers)
        self.offer()
        self.trim()

    # --- what clients do

    def settle(self, client: Client, tags: list[int], *, requeue: bool | None) -> None:
        numbers = []
        for tag in tags:
            number, holder = client.held.pop(tag)
            numbers.append(number)
            if holder is not None:
                holder.held -= 1
        if requeue:
            self.give_back(numbers)
            return
        if requeue is not None:
            self.dead += numbers
        self.offer()

    def end_channel(self, client: Client, *answer: object) -> None:
        client.expected.append(answer)
        client.taken.append([])
        self.turns = deque(holder for holder in self.turns if holder.client is not client)
        numbers = [number for number, _ in client.held.values()]
        client.held.clear()
        client.last_tag = 0
        self.give_back(numbers)

    def do(self, client: Client, kind: str, choice: int, *, flag: bool) -> bytes:
        """Let the model do what a client asks for; return the bytes that ask for it."""
        tags = list(client.held)
        tag = tags[choice % len(tags)] if tags else 0
        upto = [each for each in tags if flag and each <= tag] or [tag]
        if kind == "publish":
            number, self.published = self.published, self.published + 1
            client.taken[-1].append(self.put(number))
            return publish(b"%d" % number)
        if kind == "get":
            if not self.waiting:
                client.expected.append((spec.BasicGetEmpty, 0))
            else:
                number = self.waiting.pop(0)
                client.last_tag += 1
                if not flag:
                    client.held[client.last_tag] = number, None
                client.expected.append(("get", client.last_tag, number, number in self.returned, len(self.waiting)))
            return method(1, spec.BasicGet(queue="q", no_ack=flag))
        if kind == "consume":
            holder = Holder(client, f"{len(client.expected)}", choice % 4, no_ack=flag and choice > 5)
            client.expected.append((spec.BasicConsumeOk, 0))
            self.turns.append(holder)
            self.offer()
            return method(1, spec.BasicQos(prefetch_count=holder.prefetch)) + method(
                1, spec.BasicConsume(queue="q", consumer_tag=holder.tag, no_ack=holder.no_ack)
            )
        if kind == "cancel":
            own = [holder for holder in self.turns if holder.client is client]
            if not own:
                return b""
            holder = own[choice % len(own)]
            self.turns = deque(each for each in self.turns if each is not holder)
            client.expected.append((spec.BasicCancelOk, 0))
            return method(1, spec.BasicCancel(holder.tag))
        if kind == "recover":
            client.expected.append((spec.BasicRecoverOk, 0))
            self.settle(client, tags, requeue=True)
            return method(1, spec.BasicRecover(requeue=True))
        if kind in ("ack", "nack", "reject") and tags:
            if kind == "ack":
                self.settle(client, upto, requeue=None)
                return method(1, spec.BasicAck(tag, multiple=flag))
            if kind == "nack":
                self.settle(client, upto, requeue=choice > 4)
                return method(1, spec.BasicNack(tag, multiple=flag, requeue=choice > 4))
            self.settle(client, [tag], requeue=flag)
            return method(1, spec.BasicReject(tag, requeue=flag))
        return b""

    def send(self, place: int, steps: list[tuple[str, int, bool]], cuts: list[int]) -> None:
        """Let a client send what its steps ask for, cut into pieces, and compare."""
        client = self.clients[place]
        data, end = b"", ""
        for kind, choice, flag in steps:
            if kind in ENDS:
                end = kind
                break
            if kind == "unknown tag":
                data += (
                    method(1, spec.BasicAck(10_000)) + publish(b"dropped") + method(1, spec.ChannelCloseOk()) + _OPEN
                )
                self.end_channel(client, spec.ChannelClose, spec.ReplyCode.PRECONDITION_FAILED)
            elif kind == "close channel":
                data += method(1, spec.ChannelClose(200, "", 0, 0)) + _OPEN
                self.end_channel(client, spec.ChannelCloseOk, 0)
            else:
                data += self.do(client, kind, choice, flag=flag)
        if end:
            data += ENDS[end][0]
        places = sorted({0, len(data), *(each % (len(data) + 1) for each in cuts)})
        for low, high in pairwise(places):
            client.peer.server.receive(data[low:high])
        if end:
            self.end(place, end)
        for each in self.clients:
            each.peer.read()
            each.check()
        queue, dead = self.world.host.queues["q"], self.world.host.queues["dead"]
        assert (queue.message_count, dead.message_count) == (len(self.waiting), len(self.dead))
        assert queue.unsettled_count == sum(len(each.held) for each in self.clients)
        assert queue.consumer_count == len(self.turns)

    def end(self, place: int, kind: str) -> None:
        """The connection of a client has ended: compare what it has read, and let another take its place."""
        client, answer = self.clients[place], ENDS[kind][1]
        if answer is None:
            client.peer.server.lost()
        self.end_channel(client, *(answer or ()))
        if answer is not None:
            client.peer.read()
            client.taken.pop()
            client.check()
            assert client.peer.server.is_over
        self.clients[place] = self.connect()

    def left(self, queue: str) -> list[int]:
        """The messages of a queue, in order; they are taken."""
        peer = self.world.connect()
        peer.send(*(spec.BasicGet(queue=queue, no_ack=True) for _ in range(self.published + 1)))
        return [int(body) for body in peer.bodies]


@pytest.mark.parametrize("seed", range(examples(300)))
@pytest.mark.parametrize("overflow", [None, "drop-head", "reject-publish"])
def test_any_history(overflow: str | None, seed: int) -> None:
    random = Random(seed)
    model = Model(overflow)
    for _ in range(random.randrange(60)):
        steps = [
            (random.choice(KINDS), random.randrange(10), random.random() < 0.5) for _ in range(random.randrange(9))
        ]
        model.send(random.randrange(3), steps, [random.randrange(1000) for _ in range(random.randrange(4))])
    for place in range(3):
        model.send(place, [("close", 0, False)], [])
    assert model.left("q") == model.waiting
    assert model.left("dead") == model.dead
