"""A scripted broker of AMQP 0-9-1 with one queue, whose habits the specification allows and real brokers seldom have.

It checks what it gets: an ack of a delivery that is not outstanding closes the channel, as RabbitMQ does, and counts.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from amqp_core.v0_9 import spec
from amqp_core.v0_9.connection import CONSUMING
from tests.support.fakepeer_0_9 import FakePeer, Peer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from amqp_core.v0_9.channel import Content

_PAUSE_S = 0.01
PLAIN: dict[str, object] = {"product": "Odd", "capabilities": {"publisher_confirms": True}}

Fault = tuple[str, int, type[spec.Method] | None]
"""What ends (``channel``, ``connection``; ``cut``: the socket is closed), with which code, because of which method."""


@dataclass
class Habits:
    """How it behaves.

    Attributes:
        gaps: greatest step between two delivery tags.
        counts_all: whether queue.declare-ok counts the messages that consumers hold.
        cap: most unsettled messages of a consumer, whatever prefetch it has asked for.
        missing: what a passive declaration of a missing queue ends.
        faults: what happens after some deliveries, each once.
        stalls: number of consumers that get nothing more at some time.
    """

    gaps: int = 1
    counts_all: bool = False
    cap: int = 1 << 16
    missing: Fault = ("channel", 404, spec.QueueDeclare)
    faults: list[Fault] = field(default_factory=list)
    stalls: int = 0


class OddBroker:
    """Keeps the queue over all connections; use :attr:`port` inside of ``with``. Any thread may use it.

    Attributes:
        acked: the bodies that were acked.
        unknown: delivery tags that were acked although they were not outstanding.
        consumers: how many consumers there were.
        counts: how often the queue was counted.
        exists: whether the queue exists.
    """

    def __init__(self, habits: Habits, chance: random.Random, **settings: Any) -> None:
        self.habits = habits
        self.acked: list[bytes] = []
        self.unknown: list[int] = []
        self.declared = self.consumers = self.counts = 0
        self.exists = True
        self.changed = threading.Condition(threading.RLock())
        self._chance = chance
        self._ready: list[tuple[int, bytes]] = []
        self._unacked: dict[Serving, dict[int, tuple[int, bytes]]] = {}
        self._serial = 0
        self._peer = FakePeer(lambda peer: Serving(self, peer).run(), **({"server_properties": PLAIN} | settings))

    def __enter__(self) -> OddBroker:
        self._peer.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._peer.__exit__(*exc)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._peer.port

    @property
    def depth(self) -> int:
        """Messages that were not acked."""
        with self.changed:
            return len(self._ready) + sum(map(len, self._unacked.values()))

    def put(self, *bodies: bytes) -> None:
        """Put messages into the queue."""
        with self.changed:
            self._ready += enumerate(bodies, self._serial)
            self._serial += len(bodies)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        with self.changed:
            assert self.changed.wait_for(condition, 60), "the condition did not come true"

    # --- called by the connections

    def count(self) -> int:
        """What queue.declare-ok says."""
        with self.changed:
            self.counts += 1
            self.changed.notify_all()
            return self.depth if self.habits.counts_all else len(self._ready)

    def next(self, serving: Serving, room: int) -> list[tuple[int, bytes]]:
        """Deliveries for a consumer: tags and bodies."""
        with self.changed:
            held = self._unacked.setdefault(serving, {})
            room = min(room, self.habits.cap) - len(held)
            taken = list(islice(self._ready, max(0, room)))
            del self._ready[: len(taken)]
            found = []
            for message in taken:
                serving.tag += self._chance.randint(1, self.habits.gaps)
                held[serving.tag] = message
                found.append((serving.tag, message[1]))
            return found

    def ack(self, serving: Serving, tag: int, *, multiple: bool) -> bool:
        """Remove what is acked; return whether it was outstanding."""
        with self.changed:
            held = self._unacked.get(serving, {})
            if tag not in held:
                self.unknown.append(tag)
                return False
            for each in [each for each in held if each == tag or (multiple and each <= tag)]:
                self.acked.append(held.pop(each)[1])
            self.changed.notify_all()
            return True

    def requeue(self, serving: Serving) -> None:
        """Return what a consumer held to the queue."""
        with self.changed:
            self._ready = sorted(self._ready + list(self._unacked.pop(serving, {}).values()))
            self.changed.notify_all()

    def fault(self) -> Fault | None:
        """What happens now."""
        with self.changed:
            if self.habits.faults and self._chance.random() < 0.3:
                return self.habits.faults.pop(0)
            return None

    def stalls(self) -> bool:
        """Whether the consumer gets nothing more from now on."""
        with self.changed:
            if self.habits.stalls and self._chance.random() < 0.3:
                self.habits.stalls -= 1
                return True
            return False


class Serving:
    """One connection."""

    def __init__(self, broker: OddBroker, peer: Peer) -> None:
        self.broker = broker
        self.peer = peer
        self.tag = 0
        self._consumer = ""
        self._prefetch = 0
        self._settles = True
        self._stalled = self._over = False
        peer.answers |= {
            spec.ChannelFlow: spec.ChannelFlowOk(active=True),
            spec.BasicQos: spec.BasicQosOk(),
            spec.QueueBind: spec.QueueBindOk(),
        }
        self._usual = peer._method
        peer._method = self._method  # type: ignore[method-assign]

    def run(self) -> None:
        """Serve until the end of the connection."""
        peer = self.peer
        try:
            peer.open()
            peer.sock.settimeout(_PAUSE_S)
            while peer.ended is None and not self._over:
                self._deliver()
                try:
                    data = peer.sock.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    return
                for event in peer.connection.receive_data(data):
                    peer._handle(event)
                peer.flush()
        except ConnectionError:
            pass
        finally:
            self.broker.requeue(self)

    def _deliver(self) -> None:
        if not self._consumer or self._stalled:
            return
        found = self.broker.next(self, self._prefetch)
        for tag, body in found:
            deliver = spec.BasicDeliver(self._consumer, tag, routing_key="q")
            self.peer.connection.send_method(CONSUMING, deliver, None, body)
        self.peer.flush()
        if found:
            self._stalled = self.broker.stalls()
            fault = self.broker.fault()
            if fault is not None:
                self._end(fault, CONSUMING)

    def _method(self, channel: int, method: spec.Method, content: Content | None) -> None:
        broker, connection = self.broker, self.peer.connection
        if isinstance(method, spec.QueueDeclare):
            if method.passive and not broker.exists:
                self._end(broker.habits.missing, channel)
                return
            broker.declared += not method.passive
            broker.exists = True
            connection.send_method(channel, spec.QueueDeclareOk("q", broker.count(), bool(self._consumer)))
        elif isinstance(method, spec.BasicConsume):
            connection.send_method(channel, spec.BasicConsumeOk(method.consumer_tag))
            self._consumer = method.consumer_tag
            broker.consumers += 1
        elif isinstance(method, spec.BasicCancel):
            connection.send_method(channel, spec.BasicCancelOk(method.consumer_tag))
            self._consumer = ""
        elif isinstance(method, spec.BasicAck):
            if not broker.ack(self, method.delivery_tag, multiple=method.multiple):
                self._end(("channel", 406, spec.BasicAck), channel)
        else:
            if isinstance(method, spec.BasicQos):
                self._prefetch = method.prefetch_count
            self._usual(channel, method, content)

    def _end(self, fault: Fault, channel: int) -> None:
        what, code, kind = fault
        class_id, method_id = divmod(kind.CODE, 1 << 16) if kind else (0, 0)
        text = "consumer timeout" if code == 406 and kind is None else "because"
        peer = self.peer
        peer.flush()
        if what == "cut":
            self._over = True
        elif what == "connection":
            peer.send(spec.ConnectionClose(code, text, class_id, method_id), channel=0)
            self._over = True
        else:
            peer.channels[channel].close(code, text)
            peer.connection.data_to_send()  # which names no method
            peer.send(spec.ChannelClose(code, text, class_id, method_id), channel=channel)
            if channel == CONSUMING:
                self._consumer = ""
                self.broker.requeue(self)
