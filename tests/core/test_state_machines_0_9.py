"""Two ends of 0-9-1 talk at random over a wire that delivers late: answers, contents and deliveries stay in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp_core.connection_states import Ended, Opened, State
from amqp_core.errors import ConnectionClosed, NotFound
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import Channel, ChannelState, Received
from amqp_core.v0_9.connection import CONSUMING, Connection
from amqp_core.v0_9.connection_events import DeliveriesReceived, FrameReceived
from amqp_core.v0_9.messages import Message, each_message
from tests.support.choice import examples
from tests.support.machines_0_9 import client, server

if TYPE_CHECKING:
    from amqp_core.v0_9.channel import Request

ASKED = (spec.QueueDeclare(queue="q"), spec.BasicQos(prefetch_count=7), spec.QueuePurge(queue="q"))
ANSWERS: dict[type, spec.Method] = {
    spec.QueueDeclare: spec.QueueDeclareOk("q", 3, 4),
    spec.BasicQos: spec.BasicQosOk(),
    spec.QueuePurge: spec.QueuePurgeOk(9),
}
BODIES = st.one_of(st.binary(max_size=20), st.integers(4000, 20_000).map(bytes))
CHANNELS = st.sampled_from([1, 2, 3])


class End:
    """One end: a connection, its channels, and what it has received."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.channels = {number: Channel(connection, number) for number in (1, 2, 3)}
        self.received: dict[int, list[Received]] = {number: [] for number in self.channels}
        self.deliveries: list[Message] = []
        self.ends: list[Ended] = []
        self.wire = b""  # sent, not yet delivered to the other end
        self.opened = False

    def collect(self) -> None:
        self.wire += self.connection.data_to_send()

    def deliver(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            if isinstance(event, Opened):
                self.opened = True
            elif isinstance(event, FrameReceived):
                received = self.channels[event.frame.channel].receive(event.frame)
                if received is not None:
                    self.received[event.frame.channel].append(received)
            elif isinstance(event, DeliveriesReceived):
                for message in each_message(event.block):
                    assert isinstance(message, Message)
                    self.deliveries.append(message)
            else:
                assert isinstance(event, Ended)
                assert event.error is None or isinstance(event.error, ConnectionClosed), event.error
                self.ends.append(event)


class Talk(RuleBasedStateMachine):
    """A client with three channels and a server: requests, deliveries, publishes, channel errors, closes."""

    @initialize(frame_max=st.sampled_from([4096, 5000, 131072]))
    def start(self, frame_max: int) -> None:
        self.client = End(client(heartbeat=10, max_frame_size=frame_max))
        self.server = End(server(heartbeat=10))
        self.requests: dict[int, deque[Request]] = {number: deque() for number in (1, 2, 3)}
        self.delivered: list[tuple[int, bytes]] = []
        self.tag = 0
        self.published: list[bytes] = []
        self.now = 0.0
        self.settle_all()
        assert self.client.opened
        assert self.server.opened
        for number in self.requests:
            self.open(number)
        self.settle_all()
        assert all(map(self.open_on_both, self.requests))

    def settle_all(self) -> None:
        """Carry everything both ways until nothing is left."""
        while any(end.connection._out or end.wire for end in (self.client, self.server)):
            for here, there in ((self.client, self.server), (self.server, self.client)):
                here.collect()
                data, here.wire = here.wire, b""
                there.deliver(data)

    def open_on_both(self, number: int) -> bool:
        ends = (self.client, self.server)
        return all(end.opened and end.channels[number].state is ChannelState.OPEN for end in ends)

    def talks(self) -> bool:
        return all(end.opened and end.connection.state is State.OPEN for end in (self.client, self.server))

    # ------------------------------------------------------------------------------------------------------- the wire
    @rule(size=st.one_of(st.integers(1, 60), st.integers(1, 40_000)), to_client=st.booleans())
    def carry(self, size: int, to_client: bool) -> None:
        here, there = (self.server, self.client) if to_client else (self.client, self.server)
        here.collect()
        data, here.wire = here.wire[:size], here.wire[size:]
        there.deliver(data)

    @rule(seconds=st.sampled_from([0.5, 5.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for end in (self.client, self.server):
            end.connection.tick(self.now)

    # ------------------------------------------------------------------------------------------------------ the client
    @precondition(lambda self: self.talks())
    @rule(number=CHANNELS)
    def open(self, number: int) -> None:
        channel = self.client.channels[number]
        if channel.state is ChannelState.CLOSED:
            self.requests[number].append(channel.open())
            self.tag = 0 if number == CONSUMING else self.tag

    @precondition(lambda self: self.talks())
    @rule(number=CHANNELS, method=st.sampled_from(ASKED))
    def ask(self, number: int, method: spec.Method) -> None:
        channel = self.client.channels[number]
        if channel.state is ChannelState.OPEN:
            self.requests[number].append(channel.request(method))

    @precondition(lambda self: self.talks() and self.client.channels[2].state is ChannelState.OPEN)
    @rule(body=BODIES)
    def publish(self, body: bytes) -> None:
        self.client.channels[2].send(spec.BasicPublish(routing_key="k"), spec.BasicProperties(type="t"), body)
        self.published.append(body)

    # ------------------------------------------------------------------------------------------------------ the server
    @precondition(lambda self: self.talks())
    @rule(number=CHANNELS)
    def answer(self, number: int) -> None:
        end = self.server
        if end.channels[number].state is not ChannelState.OPEN:
            end.received[number].clear()
        while end.received[number]:
            method = end.received[number].pop(0).method
            if type(method) in ANSWERS:
                end.channels[number].send(ANSWERS[type(method)])
            else:
                assert isinstance(method, spec.BasicPublish)

    @precondition(lambda self: self.talks() and self.open_on_both(CONSUMING))
    @rule(bodies=st.lists(BODIES, max_size=5))
    def send_deliveries(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self.tag += 1
            method = spec.BasicDeliver("s1", self.tag, routing_key="k")
            self.server.channels[CONSUMING].send(method, spec.BasicProperties(message_id=str(self.tag)), body)
            self.delivered.append((self.tag, body))

    @precondition(lambda self: self.talks())
    @rule(number=st.sampled_from([2, 3]))
    def refuse(self, number: int) -> None:
        channel = self.server.channels[number]
        if channel.state is ChannelState.OPEN and self.open_on_both(number):
            channel.close(404, "NOT_FOUND")

    @precondition(lambda self: self.talks() and self.open_on_both(2))
    @rule(body=BODIES)
    def give_back(self, body: bytes) -> None:
        self.server.channels[2].send(spec.BasicReturn(312, "NO_ROUTE", "", "k"), spec.BasicProperties(), body)

    @precondition(lambda self: self.talks())
    @rule(by_client=st.booleans(), rarely=st.integers(0, 9))
    def close(self, by_client: bool, rarely: int) -> None:
        if rarely == 6:
            (self.client if by_client else self.server).connection.close()

    # ------------------------------------------------------------------------------------------------------ what holds
    @invariant()
    def deliveries_are_in_order_and_whole(self) -> None:
        found = [(message.delivery_tag, message.body) for message in self.client.deliveries]
        assert found == self.delivered[: len(found)]
        assert all(message.properties.message_id == str(message.delivery_tag) for message in self.client.deliveries)

    @invariant()
    def answers_belong_to_their_requests(self) -> None:
        for requests in self.requests.values():
            while requests and requests[0].is_done:
                request = requests.popleft()
                if request.answer is None:
                    assert isinstance(request.error, NotFound)
                elif isinstance(request.method, spec.ChannelOpen):
                    assert isinstance(request.answer.method, spec.ChannelOpenOk)
                else:
                    assert request.answer.method == ANSWERS[type(request.method)]

    @invariant()
    def published_contents_are_whole(self) -> None:
        bodies = [each.content.body for each in self.server.received[2] if each.content is not None]
        assert all(body in self.published for body in bodies)

    @invariant()
    def returned_contents_are_whole(self) -> None:
        for each in self.client.received[2]:
            assert each.content is not None
            assert isinstance(each.method, spec.BasicReturn)

    def teardown(self) -> None:
        self.settle_all()
        self.deliveries_are_in_order_and_whole()
        self.answers_belong_to_their_requests()
        if self.talks():
            assert len(self.client.deliveries) == len(self.delivered), "nothing is lost on the way"
        elif self.client.connection.state is State.CLOSED:
            assert len(self.client.ends) == 1


Talk.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
TestTalk = Talk.TestCase
