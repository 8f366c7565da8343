"""Clients of 0-10, whatever they do and however their bytes are cut, get what a model of the broker says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.sequence_numbers import unwrap_ranges, wire_ranges
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_header
from amqp_core.v0_10.connection_events import CommandReceived, ControlReceived
from amqp_core.v0_10.session import Session, SessionState
from tests.core.broker import session_model
from tests.core.broker.peer_0_10 import Peer, World, waiting
from tests.core.broker.queue_model import Queue
from tests.core.broker.session_model import Broker, Client, Published
from tests.support.choice import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.v0_10.connection_events import Event

CHANNELS = (0, 1)
ENDS = ("close", "garbage", "lost")
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "ring": ({"qpid.max_count": 3, "qpid.policy_type": "ring"}, {"limit": 3, "policy": "ring"}),
    "ring of bytes": ({"qpid.max_size": 40, "qpid.policy_type": "ring"}, {"most_bytes": 40, "policy": "ring"}),
    "reject": ({"qpid.max_count": 4}, {"limit": 4, "policy": "reject"}),
    "flow": (
        {"qpid.max_count": 5, "qpid.policy_type": "producer_flow_control"},
        {"limit": 5, "policy": "flow"},
    ),
    "priorities": ({"x-qpid-priorities": 10}, {"levels": 10}),
    "ring of priorities": (
        {"x-qpid-priorities": 10, "qpid.max_count": 3, "qpid.policy_type": "ring"},
        {"levels": 10, "limit": 3, "policy": "ring"},
    ),
    "single": ({"x-single-active-consumer": True}, {"single": True}),
    "deliveries": ({"x-qpid-maximum-delivery-count": 2}, {"deliveries": 2}),
}
"""Arguments of the queue ``q``, and what they mean."""
_STATUS = {each.value: each.name for each in spec.DtxXaStatus}
KINDS = (
    *("publish",) * 8,
    *("flow",) * 4,
    *("accept", "release", "subscribe", "complete", "distributed", "acquire") * 2,
    *("reject", "distributed", "cancel", "stop", "mode", "flush", "commit", "rollback"),
    *("purge", "query", "declare", "declare", "wrong"),
)
RARE = ("delete", "detach", "give_up", "select", "steal", *ENDS)


class Recorder(Peer):
    """A client that notes what it receives, by channel."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "guest", "guest", "")
        self.log: dict[int, list[tuple[object, ...]]] = {0: [], 1: []}
        self.accepted: set[tuple[int, int, int]] = set()
        self.ids: dict[int, list[int]] = {0: [], 1: []}
        """Command ids of the transfers of the present session."""
        self.attached = [0, 0]

    def _handle(self, event: Event) -> None:
        if isinstance(event, CommandReceived):
            session = self.sessions[event.channel]
            command_id = session.receive_command(event.command, sync=event.sync)
            self._received(event.channel, session, command_id, event)
            return
        super()._handle(event)
        if isinstance(event, ControlReceived):
            control = event.control
            if isinstance(control, spec.SessionAttached):
                self.attached[event.channel] += 1
                self.ids[event.channel].clear()
                self.log[event.channel].append(("attached",))
            elif isinstance(control, spec.SessionDetached):
                self.log[event.channel].append(("detached", control.code))
            elif isinstance(control, spec.SessionDetach):
                self.log[event.channel].append(("detach",))

    def _received(self, channel: int, session: Session, command_id: int, event: CommandReceived) -> None:
        command, log = event.command, self.log[channel]
        if isinstance(command, spec.MessageTransfer):
            delivery = is_redelivered(event.header or b"")
            number = int((event.body or b"").split(b":")[0])
            log.append(("transfer", command.destination, number, delivery))
            self.ids[channel].append(command_id)
        elif isinstance(command, spec.MessageAccept):
            for low, high in unwrap_ranges(command.transfers or [], session.next_id):
                self.accepted |= {(channel, self.attached[channel], each) for each in range(low, high + 1)}
        elif isinstance(command, spec.MessageReject):
            ((low, _),) = unwrap_ranges(command.transfers or [], session.next_id)
            log.append(("reject", low, command.code))
        elif isinstance(command, spec.ExecutionException):
            log.append(("exception", command.error_code))
        elif isinstance(command, spec.MessageStop):
            log.append(("stop",))
        elif isinstance(command, spec.MessageFlow):
            log.append(("go on",))
        elif isinstance(command, spec.ExecutionResult):
            log.append(self._result(channel, session, command.value))
        else:
            assert isinstance(command, spec.MessageSetFlowMode)

    def _result(self, channel: int, session: Session, value: object) -> tuple[object, ...]:
        if isinstance(value, spec.MessageAcquired):
            places = {each: place for place, each in enumerate(self.ids[channel])}
            ranges = unwrap_ranges(value.transfers or [], session.received_next)
            return "acquired", tuple(places[each] for low, high in ranges for each in range(low, high + 1))
        if isinstance(value, spec.XaResult):
            return "xa", _STATUS[value.status or 0]
        if isinstance(value, spec.DtxGetTimeoutResult):
            return "timeout", value.timeout
        if isinstance(value, spec.DtxRecoverResult):
            return "recover", tuple(each.format for each in value.in_doubt or [])
        assert isinstance(value, spec.QueueQueryResult)
        return ("queue", value.message_count, value.subscriber_count) if value.queue else ("no queue",)


def is_redelivered(header: bytes) -> bool:
    """Whether a message is flagged as redelivered: the bit of the first struct."""
    return bool(header[6] & 0x04)


@dataclass
class At:
    """What a step is about: the session of a client, in the model too (``own``), and what it names.

    ``known`` are the command ids of transfers that the client has received, by their ordinals.
    """

    client: Client
    session: Session
    own: session_model.Session | None
    place: int
    known: list[int]
    kind: str = ""
    name: str = ""
    destination: str = ""
    ordinals: list[int] = field(default_factory=list)
    xid: int = 0
    sync: bool = False

    @property
    def transfers(self) -> list[tuple[int, int]]:
        return wire_ranges((self.known[each], self.known[each]) for each in self.ordinals)

    @property
    def wire_xid(self) -> spec.Xid:
        return spec.Xid(format=self.xid, global_id=b"g", branch_id=b"b")

    def send(self, command: spec.Command, do: Callable[[session_model.Session], None]) -> None:
        """Send a command, and let the model do it."""
        self.session.send(command, sync=self.sync)
        self.client.command(self.session.channel, do)


def is_usable(session: Session) -> bool:
    """Whether the client may send commands."""
    return session.error is None and session.state in (SessionState.ATTACHED, SessionState.ATTACHING)


class History:
    """Three clients of a broker, and of its model."""

    def __init__(self, random: Random, kind: str) -> None:
        self.random = random
        self.world = World()
        self.broker = Broker()
        self.broker.now = self.world.now
        self.is_timed = random.random() < 0.4
        """Whether messages expire. Nobody browses then: which message that comes back is met again is not specified."""
        arguments, settings = SETTINGS[kind]
        maker = self.world.connect()
        maker.attach(name=b"maker")
        maker.call(spec.ExchangeDeclare(exchange="alt", type="fanout"))
        maker.call(spec.QueueDeclare(queue="dead"))
        maker.call(spec.ExchangeBind(queue="dead", exchange="alt", binding_key=""))
        maker.call(spec.QueueDeclare(queue="q", alternate_exchange="alt", arguments=arguments))
        maker.call(spec.ExchangeBind(queue="q", exchange="amq.fanout", binding_key=""))
        self.broker.queues["dead"] = Queue("dead", self.broker, alternate=False)
        self.broker.queues["q"] = queue = Queue("q", self.broker, **settings)
        self.broker.fanout[queue] = None
        self.world.peers.clear()
        self.clients: list[tuple[Client, Recorder]] = []
        for _ in range(3):
            self.clients.append(self.connect())
        self.number = 0

    def connect(self) -> tuple[Client, Recorder]:
        peer = Recorder(self.world)
        self.world.peers[:] = [peer]
        peer.pump()
        self.world.peers.clear()
        return Client(self.broker), peer

    def maybe(self, chance: float = 0.5) -> bool:
        return self.random.random() < chance

    # --- a turn of one client

    def turn(self, place: int) -> None:
        """Let a client send some commands in pieces, and compare what all have received."""
        random = self.random
        client, peer = self.clients[place]
        if self.maybe(0.1):
            client.paused = peer.server.paused = True
        kinds = random.choices(KINDS, k=random.randrange(12))
        if self.maybe(0.2):
            kinds.append(random.choice(RARE))
        if kinds[-1:] == ["delete"] and any(each.paused for each, _ in self.clients):
            kinds.pop()  # those whose sessions end by it have to read that first
        end = kinds.pop() if kinds and kinds[-1] in ENDS else ""
        known = {channel: list(peer.ids[channel]) for channel in CHANNELS}
        for kind in kinds:
            self.step(place, kind, known)
        for session in peer.sessions.values():
            if is_usable(session):
                session.send(spec.ExecutionSync(), sync=True)
                client.command(session.channel, lambda _: None)
        if end == "close":
            peer.protocol.send_control(0, spec.ConnectionClose(reply_code=200, reply_text=""))
        data = peer.protocol.data_to_send() + (b"no frame of AMQP" if end == "garbage" else b"")
        cuts = sorted({0, len(data), *(random.randrange(len(data) + 1) for _ in range(random.randrange(4)))})
        for low, high in pairwise(cuts):
            peer.server.receive(data[low:high])
        client.fail()
        if end:
            self.end(place, end)
        elif client.paused and self.maybe(0.4):
            peer.server.paused = False
            self.read(place)
            client.resume()
            peer.server.written()
        self.check()

    def step(self, place: int, kind: str, known: dict[int, list[int]]) -> None:
        """Let a client do something on one of its channels, or attach a session to it."""
        client, peer = self.clients[place]
        channel = self.random.choice(CHANNELS)
        session = peer.sessions.get(channel)
        if session is None or session.state is SessionState.DETACHED:
            if session is None or self.maybe():
                known[channel] = []
                self.attach(place, channel, b"%d %d" % (place, channel), force=self.maybe())
        elif is_usable(session):
            at = At(client, session, client.sessions.get(channel), place, known[channel])
            self.choose(at, kind)
            getattr(self, f"do_{at.kind}")(at)

    def end(self, place: int, kind: str) -> None:
        """The connection of a client has ended: compare what it has read, and let another take its place."""
        client, peer = self.clients[place]
        client.end(lost=kind == "lost")
        if kind == "lost":
            peer.server.lost()
        else:
            data = peer.server.take_bytes()
            for event in peer.protocol.receive_data(data):
                peer._handle(event)
            self.compare(client, peer)
            assert peer.server.is_over
            assert peer.ended is not None
        self.clients[place] = self.connect()

    def read(self, place: int) -> bool:
        client, peer = self.clients[place]
        if peer.server.paused:
            return False
        client.fail()
        moved = peer._pump_in()
        client.read()
        return moved

    def read_all(self) -> None:
        moved = [True]
        while any(moved):
            moved = [self.read(place) for place in range(3)]

    def check(self) -> None:
        """Let all clients read, and compare."""
        self.read_all()
        for client, peer in self.clients:
            peer.server.relieve()
            client.relieve()
        self.read_all()
        for client, peer in self.clients:
            if not client.paused:
                self.compare(client, peer)
                for session in client.sessions.values():
                    assert session.flushing is not None or not peer.sessions[session.channel].incomplete()
        queues = self.world.host.queues
        assert {
            name: (queue.message_count, queue.unsettled_count, queue.consumer_count) for name, queue in queues.items()
        } == {name: (len(each.waiting), each.held, len(each.consumers)) for name, each in self.broker.queues.items()}
        assert self.world.memory.queued.nbytes >= 0

    def compare(self, client: Client, peer: Recorder) -> None:
        assert peer.error is None or client.ending
        assert peer.log == client.log
        assert peer.accepted == client.accepted

    def tick(self) -> None:
        """Let time go on."""
        self.world.now += self.random.choice((1, 1, 3, 40))
        self.broker.now = self.world.now
        self.world.host.expire(self.world.now)
        self.broker.expire()
        self.check()

    def finish(self) -> None:
        """Let all clients end: what is left is as the model says."""
        for place in range(3):
            client, peer = self.clients[place]
            peer.server.lost()
            client.end(lost=True)
        assert set(self.world.host.queues) == set(self.broker.queues)
        for name, queue in self.broker.queues.items():
            left = [int(body.split(b":")[0]) for body in waiting(self.clients[0][1], name)]
            assert left == [item.number for item in queue.waiting if not queue.is_late(item)]
        assert [each.format for each in self.world.host.branches.prepared] == [
            xid for xid, branch in self.broker.branches.items() if branch.prepared
        ]

    # --- what a client does

    def attach(self, place: int, channel: int, name: bytes, *, force: bool) -> None:
        client, peer = self.clients[place]
        session = peer.sessions[channel] = Session(peer.protocol, channel, name)
        session.attach(force=force)
        client.attach(channel, name, force=force)
        select = self.random.choice(("", "", "tx", "dtx", "dtx"))
        at = At(client, session, client.sessions.get(channel), place, [])
        if select == "tx":
            at.send(spec.TxSelect(), session_model.Session.tx_select)
        elif select == "dtx":
            at.send(spec.DtxSelect(), session_model.Session.dtx_select)

    def choose(self, at: At, kind: str) -> None:
        """Choose what a command is about: most often something that is there."""
        random, own = self.random, at.own
        at.sync = self.maybe(0.2)
        at.name = random.choice(("q", "q", "q", "auto", f"x{at.place}{at.session.channel}", "dead"))
        queue = self.broker.queues.get(at.name)
        if (queue is None or queue.owner not in (None, own)) and self.maybe(0.98):
            at.name = "q"
        at.destination = random.choice("abc")
        at.ordinals = self.some(range(len(at.known)))
        if own is not None and kind in ("accept", "release", "reject", "acquire"):
            mine = [each for each in (own.browsed if kind == "acquire" else own.held) if each < len(at.known)]
            if mine and self.maybe(0.9):
                at.ordinals = self.some(mine)
            elif self.maybe(0.8):
                kind = "subscribe" if kind == "acquire" else "publish"
        if own is not None and kind in ("flow", "cancel", "stop", "mode", "flush") and self.maybe(0.98):
            if own.subscriptions:
                at.destination = random.choice(list(own.subscriptions))
            else:
                kind = "subscribe"
        if own is not None and kind == "subscribe" and self.maybe(0.98):
            at.destination = next(each for each in "abcdefghijklm" if each not in own.subscriptions)
        at.kind = kind

    def some(self, ordinals: Sequence[int]) -> list[int]:
        return sorted(self.random.sample(ordinals, min(len(ordinals), self.random.choice((1, 1, 2, 5)))))

    def do_accept(self, at: At) -> None:
        at.send(spec.MessageAccept(transfers=at.transfers), lambda it: it.accept(at.ordinals))

    def do_release(self, at: At) -> None:
        flag = self.maybe()
        command = spec.MessageRelease(transfers=at.transfers, set_redelivered=flag)
        at.send(command, lambda it: it.release(at.ordinals, redelivered=flag))

    def do_reject(self, at: At) -> None:
        at.send(spec.MessageReject(transfers=at.transfers, code=0), lambda it: it.reject(at.ordinals))

    def do_acquire(self, at: At) -> None:
        at.send(spec.MessageAcquire(transfers=at.transfers), lambda it: it.acquire(at.ordinals))

    def do_complete(self, at: At) -> None:
        if at.session.state is SessionState.ATTACHED:
            at.session.tell_completed()
            if at.own is not None and not at.own.ended:
                at.own.completed(len(at.known))

    def do_subscribe(self, at: At) -> None:
        if at.own is not None and len(at.own.subscriptions) >= 10:
            return
        rank = self.random.choice((0, 0, 0, 1))
        browse, settled, exclusive = not self.is_timed and self.maybe(0.4), self.maybe(0.2), self.maybe(0.01)
        if settled and at.own is not None and at.own.transaction is not None and self.maybe(0.9):
            settled = False
        command = spec.MessageSubscribe(
            queue=at.name,
            destination=at.destination,
            accept_mode=int(settled),
            acquire_mode=int(browse),
            exclusive=exclusive,
            arguments={"x-priority": rank},
        )
        how: dict[str, Any] = {"rank": rank, "browse": browse, "settled": settled, "exclusive": exclusive}
        at.send(command, lambda it: it.subscribe(at.destination, at.name, **how))
        if self.maybe(0.7):
            self.do_flow(at)

    def do_flow(self, at: At) -> None:
        of_bytes = self.maybe()
        self.grant(at, self.random.choice((0, 60, 200, None, None) if of_bytes else (1, 2, 5, None)), of_bytes=of_bytes)
        if self.maybe(0.8):
            self.grant(at, None, of_bytes=not of_bytes)

    def grant(self, at: At, value: int | None, *, of_bytes: bool) -> None:
        unit = spec.MessageCreditUnit.BYTE if of_bytes else spec.MessageCreditUnit.MESSAGE
        more = math.inf if value is None else value
        command = spec.MessageFlow(destination=at.destination, unit=unit, value=value)
        at.send(command, lambda it: it.flow(at.destination, of_bytes=of_bytes, value=more))

    def do_cancel(self, at: At) -> None:
        at.send(spec.MessageCancel(destination=at.destination), lambda it: it.cancel(at.destination))

    def do_stop(self, at: At) -> None:
        at.send(spec.MessageStop(destination=at.destination), lambda it: it.stop_subscription(at.destination))

    def do_mode(self, at: At) -> None:
        if self.maybe(0.9):  # else it may have credit, which is an error
            self.do_stop(at)
        window = self.maybe()
        command = spec.MessageSetFlowMode(destination=at.destination, flow_mode=int(window))
        at.send(command, lambda it: it.set_mode(at.destination, window=window))

    def do_flush(self, at: At) -> None:
        at.send(spec.MessageFlush(destination=at.destination), lambda it: it.flush(at.destination))

    def do_publish(self, at: At) -> None:
        random = self.random
        exchange = random.choices(("", "amq.fanout", "none"), (20, 6, 0.1))[0]
        key = at.name if self.maybe(0.97) else "nowhere"
        priority = random.choice((None, 0, 4, 5, 9))
        ttl = None
        if self.is_timed and key == "q" and not exchange:
            ttl = random.choice((None, None, 0, 500, 2000, 30_000))
        number, self.number = self.number, self.number + 1
        body = b"%d:" % number + b"x" * random.randrange(20)
        immediate, discard, explicit = self.maybe(0.1), self.maybe(0.1), self.maybe(0.8)
        delivery: dict[str, Any] = {"routing_key": key, "priority": priority, "discard_unroutable": discard}
        kept = encode_header(spec.DeliveryProperties(ttl=ttl, exchange=exchange, **delivery), None)
        dead = encode_header(spec.DeliveryProperties(exchange=exchange, **delivery), None)
        header = encode_header(spec.DeliveryProperties(ttl=ttl, immediate=immediate, **delivery), None)
        transfer = spec.MessageTransfer(destination=exchange, accept_mode=int(not explicit), acquire_mode=0)
        command_id = at.session.send(transfer, header=header, body=body, sync=at.sync)
        message = Published(
            number,
            exchange,
            key,
            4 if priority is None else priority,
            None if ttl is None else ttl / 1000,
            len(kept) + len(body),
            len(dead) + len(body),
            len(body),
            immediate,
            discard,
            explicit,
        )
        at.client.command(at.session.channel, lambda it: it.publish(message, command_id))

    def do_select(self, at: At) -> None:
        if self.maybe():
            at.send(spec.TxSelect(), session_model.Session.tx_select)
        else:
            at.send(spec.DtxSelect(), session_model.Session.dtx_select)

    def do_commit(self, at: At) -> None:
        if at.own is None or at.own.transaction is not None:
            at.send(spec.TxCommit(), session_model.Session.tx_commit)

    def do_rollback(self, at: At) -> None:
        if at.own is None or at.own.transaction is not None:
            at.send(spec.TxRollback(), session_model.Session.tx_rollback)

    def do_purge(self, at: At) -> None:
        if self.maybe(0.2):
            at.send(spec.QueuePurge(queue=at.name), lambda it: it.purge(at.name))

    def do_query(self, at: At) -> None:
        at.send(spec.QueueQuery(queue=at.name), lambda it: it.query(at.name))

    def do_declare(self, at: At) -> None:
        at.name = self.random.choice(("auto", f"x{at.place}{at.session.channel}"))
        queue = self.broker.queues.get(at.name)
        if queue is not None and queue.owner not in (None, at.own):
            return
        exclusive = at.name != "auto"
        command = spec.QueueDeclare(queue=at.name, alternate_exchange="alt", auto_delete=True, exclusive=exclusive)
        at.send(command, lambda it: it.declare(at.name, exclusive=exclusive))
        if self.maybe():
            bind = spec.ExchangeBind(queue=at.name, exchange="amq.fanout", binding_key="")
            at.send(bind, lambda it: it.bind(at.name))

    def do_delete(self, at: At) -> None:
        at.name = self.random.choice(("auto", f"x{at.place}{at.session.channel}"))
        if at.name in self.broker.queues:
            at.send(spec.QueueDelete(queue=at.name), lambda it: it.delete(at.name))

    def do_detach(self, at: At) -> None:
        if at.session.state is SessionState.ATTACHED:
            at.session.detach()
            at.client.detach(at.session.channel)

    def do_give_up(self, at: At) -> None:
        at.send(spec.ExecutionException(error_code=500), session_model.Session.give_up)

    def do_steal(self, at: At) -> None:
        """Attach a session with the name of another one."""
        sessions = self.clients[at.place][1].sessions
        other = 1 - at.session.channel
        if self.broker.names and (other not in sessions or sessions[other].state is SessionState.DETACHED):
            self.attach(at.place, other, self.random.choice(list(self.broker.names)), force=True)

    def do_wrong(self, at: At) -> None:
        if self.maybe(0.1):
            at.send(spec.MessageCancel(destination="none"), lambda it: it.cancel("none"))

    # --- distributed transactions; most commands that are possible at any time would end the session with an error

    def do_distributed(self, at: At) -> None:
        if at.own is None or not at.own.distributed:
            return
        kind = self.random.choice(("start", "end", "prepare", "commit", "rollback", "forget", "timeout", "recover"))
        at.xid = self.random.randrange(3)
        if self.maybe(0.9):
            branches = self.broker.branches
            free = [xid for xid, branch in branches.items() if not branch.sessions]
            if kind in ("start", "end", "forget"):
                kind = "start" if at.own.active is None else "end"
                at.xid = at.xid if at.own.active is None else at.own.active[0]
            elif kind in ("prepare", "commit", "rollback"):
                if not free:
                    return
                at.xid = self.random.choice(free)
            elif at.xid not in branches:
                kind = "recover"
        getattr(self, f"dtx_{kind}")(at)

    def dtx_start(self, at: At) -> None:
        branch = self.broker.branches.get(at.xid)
        join = resume = False
        if branch is not None and self.maybe(0.95):
            assert at.own is not None
            resume = branch.sessions.get(at.own) is False
            join = not resume
            if join and (branch.prepared or at.own in branch.sessions):
                return
        command = spec.DtxStart(xid=at.wire_xid, join=join, resume=resume)
        at.send(command, lambda it: it.dtx_start(at.xid, join=join, resume=resume))

    def dtx_end(self, at: At) -> None:
        fail, suspend = self.random.choices(
            ((False, False), (True, False), (False, True), (True, True)), (9, 1, 3, 0.1)
        )[0]
        command = spec.DtxEnd(xid=at.wire_xid, fail=fail, suspend=suspend)
        at.send(command, lambda it: it.dtx_end(at.xid, fail=fail, suspend=suspend))

    def dtx_prepare(self, at: At) -> None:
        branch = self.broker.branches.get(at.xid)
        if branch is None or not branch.prepared or self.maybe(0.1):
            at.send(spec.DtxPrepare(xid=at.wire_xid), lambda it: it.dtx_prepare(at.xid))

    def dtx_commit(self, at: At) -> None:
        branch = self.broker.branches.get(at.xid)
        one_phase = (branch is None or not branch.prepared) == self.maybe(0.95)
        command = spec.DtxCommit(xid=at.wire_xid, one_phase=one_phase)
        at.send(command, lambda it: it.dtx_commit(at.xid, one_phase=one_phase))

    def dtx_rollback(self, at: At) -> None:
        at.send(spec.DtxRollback(xid=at.wire_xid), lambda it: it.dtx_rollback(at.xid))

    def dtx_forget(self, at: At) -> None:
        at.send(spec.DtxForget(xid=at.wire_xid), lambda it: it.dtx_forget(at.xid))

    def dtx_timeout(self, at: At) -> None:
        seconds = self.random.choice((None, 0, 20, 100))
        command: spec.Command = spec.DtxGetTimeout(xid=at.wire_xid)
        if seconds is not None:
            command = spec.DtxSetTimeout(xid=at.wire_xid, timeout=seconds)
        at.send(command, lambda it: it.dtx_timeout(at.xid, seconds))

    def dtx_recover(self, at: At) -> None:
        at.send(spec.DtxRecover(), session_model.Session.dtx_recover)


@pytest.mark.parametrize("seed", range(examples(40)))
@pytest.mark.parametrize("kind", SETTINGS)
def test_any_history(kind: str, seed: int) -> None:
    random = Random(f"{kind} {seed}")
    history = History(random, kind)
    for _ in range(random.randrange(60)):
        if random.random() < 0.1:
            history.tick()
        else:
            history.turn(random.randrange(3))
    history.finish()
