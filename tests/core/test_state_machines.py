"""Two sessions talk at random over a wire that delivers late: ids, completion and blocks stay true to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amqp_core.connection_states import Ended, Opened, Role, State
from amqp_core.errors import ConnectionClosed
from amqp_core.v0_10 import session as session_module
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_header
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import CommandReceived, ControlReceived, TransfersReceived
from amqp_core.v0_10.messages import messages_of
from amqp_core.v0_10.session import Session, SessionState
from tests.support.choice import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

WRAP = 1 << 32
COMPLETE_EVERY = 16  # instead of thousands, so that random talk gets there


class Anonymous:
    """A login that asks nothing of the peer."""

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        return mechanisms[0], b""

    def respond(self, challenge: bytes) -> bytes:
        return challenge

    def succeeded(self) -> None:
        return

    def shown(self, text: str) -> str:
        return text


class End:
    """One end: a connection, its session, its received commands, and the sent ones that are not known as complete."""

    def __init__(self, role: Role, first_id: int) -> None:
        if role is Role.CLIENT:
            self.connection = Connection(role, login=Anonymous(), scan_transfers=True, heartbeat=10)
        else:
            self.connection = Connection(role, heartbeat=10)
        self.session = Session(self.connection, 0, b"name", first_id=first_id)
        self.first_id = first_id
        self.sent: list[spec.Command | bytes] = []
        self.received: list[spec.Command | bytes] = []
        self.wire = b""  # sent, not yet delivered to the other end
        self.opened = False
        self.now = 0.0

    def collect(self) -> None:
        self.wire += self.connection.data_to_send()

    def deliver(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            if isinstance(event, Opened):
                self.opened = True
                if self.connection.role is Role.CLIENT:
                    self.session.attach()
            elif isinstance(event, ControlReceived):
                self.session.receive_control(event.control)
            elif isinstance(event, TransfersReceived):
                assert event.block.first_id == -1
                self.session.receive_block(event.block)
                assert event.block.first_id == self.first_id + len(self.received)
                self.received += [message.body for message in messages_of(event.block)]
            elif isinstance(event, CommandReceived):
                command_id = self.session.receive_command(event.command, sync=event.sync)
                assert command_id == self.first_id + len(self.received)
                transfer = isinstance(event.command, spec.MessageTransfer)
                self.received.append((event.body or b"") if transfer else event.command)
            else:
                assert isinstance(event, Ended)
                assert event.error is None or isinstance(event.error, ConnectionClosed), event.error
        self.collect()


class Conversation(RuleBasedStateMachine):
    """Random commands both ways, delivered in pieces of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = session_module.COMPLETE_EVERY
        session_module.COMPLETE_EVERY = COMPLETE_EVERY

    @initialize(first_id=st.sampled_from([0, WRAP - 3, WRAP - 5000, 7 * WRAP - 1]))
    def connect(self, first_id: int) -> None:
        self.client, self.server = End(Role.CLIENT, first_id), End(Role.SERVER, first_id)
        self.closing = False
        self.carried = 0  # how often, so that not every conversation ends at once
        self.client.collect()
        while not (self.server.session.state is self.client.session.state is SessionState.ATTACHED):
            self.carry_all()

    def carry_all(self) -> None:
        for source, target in ((self.client, self.server), (self.server, self.client)):
            data, source.wire = source.wire, b""
            target.deliver(data)

    def pick(self, by_client: bool) -> End:
        return self.client if by_client else self.server

    @precondition(lambda self: not self.closing)
    @rule(by_client=st.booleans(), sync=st.booleans(), number=st.integers(0, 9))
    def send_command(self, by_client: bool, sync: bool, number: int) -> None:
        end = self.pick(by_client)
        command = spec.QueuePurge(queue=str(number))
        assert end.session.send(command, sync=sync) == end.first_id + len(end.sent)
        end.sent.append(command)
        end.collect()

    @precondition(lambda self: not self.closing)
    @rule(by_client=st.booleans(), count=st.integers(1, 5), body=st.binary(max_size=50))
    def send_transfers(self, by_client: bool, count: int, body: bytes) -> None:
        end = self.pick(by_client)
        for _ in range(count):
            transfer = spec.MessageTransfer(destination="d", accept_mode=0, acquire_mode=0)
            end.session.send(transfer, header=encode_header(spec.DeliveryProperties(), None), body=body or None)
            end.sent.append(body)
        end.collect()

    @precondition(lambda self: not self.closing)
    @rule()
    def send_a_flood(self) -> None:
        end = self.server
        for _ in range(COMPLETE_EVERY + 1):
            end.session.send(spec.MessageTransfer(destination="d", accept_mode=0, acquire_mode=0))
            end.sent.append(b"")
        end.collect()

    @rule(by_client=st.booleans(), size=st.integers(1, 100) | st.just(1 << 30))
    def carry(self, by_client: bool, size: int) -> None:
        source, target = self.pick(by_client), self.pick(not by_client)
        data, source.wire = source.wire[:size], source.wire[size:]
        self.carried += 1
        target.deliver(data)

    @precondition(lambda self: not self.closing)
    @rule(by_client=st.booleans(), what=st.sampled_from(["flush", "tell", "tick", "timeout"]))
    def control(self, by_client: bool, what: str) -> None:
        end = self.pick(by_client)
        if what == "flush":
            end.session.flush(expected=True, confirmed=True, completed=True)
        elif what == "tell":
            end.session.tell_completed()
        elif what == "timeout":
            end.session.request_timeout(5)
        else:
            end.now += 3.0
            end.connection.tick(end.now)
        end.collect()

    @precondition(lambda self: not self.closing)
    @rule(by_client=st.booleans())
    def settle(self, by_client: bool) -> None:
        """After a sync and everything delivered, each command is complete and nothing else is."""
        end, other = self.pick(by_client), self.pick(not by_client)
        end.session.send(spec.ExecutionSync(), sync=True)
        end.sent.append(spec.ExecutionSync())
        end.collect()
        while self.client.wire or self.server.wire:
            self.carry_all()
        assert other.received == end.sent
        assert end.session.incomplete() == 0
        assert end.session.completed.covers(end.first_id, end.first_id + len(end.sent) - 1)
        assert not end.session.is_complete(end.first_id + len(end.sent))

    @precondition(lambda self: not self.closing and self.carried >= 10)
    @rule(by_client=st.booleans())
    def close(self, by_client: bool) -> None:
        end = self.pick(by_client)
        end.session.detach()
        end.connection.close()
        end.collect()
        self.closing = True

    @invariant()
    def what_is_received_was_sent(self) -> None:
        if not hasattr(self, "client"):
            return
        for end, other in ((self.client, self.server), (self.server, self.client)):
            assert end.received == other.sent[: len(end.received)]
            assert end.session.received_next - end.session._told_below < COMPLETE_EVERY
            assert end.session.incomplete() <= len(end.sent)
            assert end.session.error is None or self.closing

    def teardown(self) -> None:
        session_module.COMPLETE_EVERY = self.usual
        if not hasattr(self, "client"):
            return
        while self.client.wire or self.server.wire:
            self.carry_all()
        if self.closing:
            assert self.client.connection.state is State.CLOSED
            assert self.server.connection.state is State.CLOSED
        else:
            assert self.client.received == self.server.sent
            assert self.server.received == self.client.sent


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=examples(80), stateful_step_count=50, deadline=None)
