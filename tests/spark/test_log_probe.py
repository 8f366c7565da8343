"""Where a log ends, as a broker shows it that others write to meanwhile; and logs that are empty."""

from __future__ import annotations

import struct
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.api import LogEntry
from amqp_core.blocks import Block
from amqp_core.errors import DeadlineExceeded, ResourceDeleted
from amqp_core.v0_9 import spec
from amqp_core.v0_9.connection import CONSUMING
from amqp_core.v0_9.subscription import Subscription
from amqp_spark.datasource.log import positions
from amqp_spark.datasource.log import probe as probe_module
from amqp_spark.datasource.log.offsets import LogOffset
from amqp_spark.datasource.log.probe import LogProbe
from amqp_spark.options.log_positions import Edge, Since
from tests.support import wire_0_9 as wire
from tests.support.clock import Clock
from tests.support.fakepeer_0_9 import FakePeer, Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_9.framing import Frame


class WrittenLog:
    """A broker with a log of which ``stored`` says how many messages it has at a time.

    It sends what the prefetch allows before it answers ``sync``. Each answer takes ``answer_s``; time passes only so,
    and while the client waits.
    """

    peer = "busy:5672"
    under_way_bytes = 0

    def __init__(self, clock: Clock, stored: Callable[[float], int], answer_s: float = 0.001) -> None:
        self.clock = clock
        self.stored = stored
        self.answer_s = answer_s
        self.begun = clock.now
        self.sent = self.settled = self.prefetch = 0
        self.arrived: list[Block] = []

    def subscribe(self, _log: str, *, max_unsettled: int, arguments: dict[str, object]) -> WrittenLog:
        assert arguments == {"x-stream-offset": "last"}
        self.prefetch = max_unsettled
        return self

    def send(self) -> None:
        upto = min(self.stored(self.clock.now - self.begun), self.settled + self.prefetch)
        if upto > self.sent:
            count = upto - self.sent
            self.arrived.append(Block(b"m" * count, array("I", range(1, count + 1)), self.sent))
            self.sent = upto

    def bound(self, admits: Callable[[int, int, int], bool]) -> None:
        pass

    def sync(self) -> None:
        self.clock.now += self.answer_s
        self.send()

    def take_arrived(self) -> list[Block]:
        taken, self.arrived = self.arrived, []
        return taken

    def take_blocks(self, seconds: float) -> list[Block]:
        until = self.clock.now + seconds
        while not self.arrived and self.clock.now < until:
            self.clock.now = min(until, self.clock.now + 0.001)
            self.send()
        return self.take_arrived()

    def accept(self, ranges: list[tuple[int, int]]) -> None:
        self.settled = ranges[-1][1] + 1

    def log_entry(self, block: Block, index: int) -> LogEntry:
        return LogEntry(block.first_id + index, bytes(20))

    def cancel(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(probe_module, "monotonic", found)
    return found


@pytest.mark.parametrize("per_second", [11, 40, 500, 20_000])
def test_the_end_is_found_while_others_write_all_the_time(clock: Clock, per_second: int) -> None:
    began = clock.now
    log = WrittenLog(clock, lambda seconds: 10 + int(seconds * per_second))
    assert LogProbe(cast("Any", log)).end("s", certain=True) >= 10
    assert clock.now - began < 0.5


def test_the_end_is_found_although_others_write_faster_than_it_is_read(clock: Clock) -> None:
    began = clock.now
    log = WrittenLog(clock, lambda _seconds: log.sent + 20_000)
    assert LogProbe(cast("Any", log)).end("s", certain=True) > 20_000
    assert clock.now - began < 10


@pytest.mark.parametrize("answer_s", [0.001, 0.3])
def test_a_last_chunk_of_more_messages_than_the_prefetch_counts_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, answer_s: float
) -> None:
    monkeypatch.setattr(probe_module, "CHUNK_MESSAGES", 10)
    log = WrittenLog(clock, lambda _seconds: 95, answer_s)
    assert LogProbe(cast("Any", log)).end("s", certain=True) == 95


def test_what_a_replica_gets_a_little_later_counts(clock: Clock) -> None:
    log = WrittenLog(clock, lambda seconds: 10 if seconds < 0.05 else 15)
    assert LogProbe(cast("Any", log)).end("s", certain=True) == 15


class Logs:
    """A broker with several logs; ``stored`` has their numbers of messages. Time passes only while the client waits."""

    peer = "several:5672"
    under_way_bytes = 0

    def __init__(self, clock: Clock, stored: dict[str, int]) -> None:
        self.clock = clock
        self.stored = stored
        self.hidden = 0
        """Messages that it counts and does not send."""
        self.subscribed = 0

    def subscribe(self, log: str, *, max_unsettled: int, arguments: dict[str, object]) -> LogSubscription:
        self.subscribed += 1
        return LogSubscription(self, log, max_unsettled)

    def query_queue(self, log: str) -> SimpleNamespace:
        return SimpleNamespace(message_count=self.stored[log] + self.hidden)

    def log_entry(self, block: Block, index: int) -> LogEntry:
        return LogEntry(block.first_id + index, bytes(20))

    def sync(self) -> None:
        pass

    def accept(self, ranges: list[tuple[int, int]]) -> None:
        pass


class LogSubscription:
    """Has at most as many messages as the prefetch allows."""

    def __init__(self, logs: Logs, log: str, prefetch: int) -> None:
        self.logs = logs
        self.log = log
        self.prefetch = prefetch
        self.sent = 0

    def take_arrived(self) -> list[Block]:
        first, self.sent = self.sent, min(self.prefetch, self.logs.stored[self.log])
        count = self.sent - first
        return [Block(b"m" * count, array("I", range(1, count + 1)), first)] if count else []

    def take_blocks(self, seconds: float) -> list[Block]:
        found = self.take_arrived()
        if not found:
            self.logs.clock.now += seconds
        return found

    def bound(self, admits: Callable[[int, int, int], bool]) -> None:
        pass

    def cancel(self) -> None:
        self.logs.subscribed -= 1


def test_empty_logs_are_waited_for_together(clock: Clock) -> None:
    names = [f"s{number}" for number in range(50)]
    logs = Logs(clock, dict.fromkeys(names, 0) | {"s7": 3})
    probe = LogProbe(cast("Any", logs))
    began = clock.now
    probe.find_empty(names)
    for name in names:
        count = logs.stored[name]
        assert positions.resolve(probe, name, Edge.EARLIEST, "startingOffsets") == 0
        assert positions.resolve(probe, name, Edge.LATEST, "startingOffsets") == count
        assert positions.resolve(probe, name, Since(1_800_000_000), "startingOffsets") == 0
        assert positions.start_or_first(probe, name, LogOffset(0), fail=True) == LogOffset(0)
    assert clock.now - began < 1.5 * probe_module.EMPTY_SECONDS
    assert logs.subscribed == 49, "one waits for the first message of each empty log"


def test_a_log_that_was_empty_has_what_came_since(clock: Clock) -> None:
    logs = Logs(clock, {"s": 0, "t": 0})
    probe = LogProbe(cast("Any", logs))
    probe.find_empty(logs.stored)
    logs.stored["s"] = 5
    found = probe.entry("s", "first")
    assert found is not None
    assert found.offset == 0
    assert probe.end("s", certain=True) == 5
    assert probe.end("t", certain=True) == 0
    assert logs.subscribed == 1


def test_a_log_that_counts_messages_is_not_taken_for_an_empty_one(clock: Clock) -> None:
    """A slow broker."""
    logs = Logs(clock, {"s": 0})
    probe = LogProbe(cast("Any", logs))
    probe.find_empty(logs.stored)
    logs.hidden = 5
    with pytest.raises(DeadlineExceeded, match="to send the last message of stream 's'"):
        probe.end("s", certain=True)
    with pytest.raises(DeadlineExceeded, match="to send the last message of stream 's'"):
        probe.since("s", 1_800_000_000)
    assert probe.end("s", certain=False) == 0


def test_an_empty_log_is_not_taken_for_empty_once_the_broker_has_ended_its_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when another node becomes the leader: the subscription will never say that a message has come."""
    monkeypatch.setattr(probe_module, "EMPTY_SECONDS", 0.05)
    ends = False

    def script(peer: Peer) -> None:
        def on_frame(frame: Frame) -> None:
            if ends and frame.payload.startswith(spec.ChannelFlow.CODE.to_bytes(4)):
                peer.send(spec.BasicCancel(consumer_tag="s1", no_wait=True), channel=CONSUMING)

        peer.answers |= {spec.BasicQos: spec.BasicQosOk(), spec.BasicConsume: spec.BasicConsumeOk(consumer_tag="s1")}
        peer.on_frame = on_frame
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        probe = LogProbe(server.connect())
        probe.find_empty(["s"])
        assert probe.end("s", certain=False) == 0
        ends = True
        with pytest.raises(ResourceDeleted, match="AMQP_CONSUMER_CANCELLED"):
            probe.end("s", certain=False)


@pytest.mark.parametrize("certain", [True, False])
def test_of_a_last_chunk_of_large_messages_little_is_kept(monkeypatch: pytest.MonkeyPatch, *, certain: bool) -> None:
    """All that the prefetch allows comes before the broker's answer."""
    size, count = 100_000, 60
    monkeypatch.setattr(probe_module, "KEPT_BYTES", 5 * size)
    monkeypatch.setattr(probe_module, "CHUNK_MESSAGES", count // 2)
    kept: list[int] = []
    receive = Subscription.receive_block

    def received(self: Subscription, block: Block) -> None:
        receive(self, block)
        kept.append(sum(len(each.frames) for each in self._blocks))

    monkeypatch.setattr(Subscription, "receive_block", received)
    acked: list[int] = [0]

    def script(peer: Peer) -> None:
        sent, most = 0, count

        def on_frame(frame: Frame) -> None:
            nonlocal sent, most
            if frame.payload.startswith(spec.BasicCancel.CODE.to_bytes(4)):
                most = sent
            if frame.payload.startswith(spec.BasicAck.CODE.to_bytes(4)):
                acked.append(int.from_bytes(frame.payload[4:12]))
            if frame.payload.startswith(spec.ChannelFlow.CODE.to_bytes(4)):
                while sent < min(most, acked[-1] + count // 2):
                    headers = wire.table((b"x-stream-offset", b"l" + struct.pack(">q", 700 + sent)))
                    sent += 1
                    properties = wire.properties(headers=headers)
                    peer.raw(wire.delivery(sent, bytes(size), properties=properties, consumer=b"s1", channel=CONSUMING))

        peer.answers |= {
            spec.BasicQos: spec.BasicQosOk(),
            spec.BasicConsume: spec.BasicConsumeOk(consumer_tag="s1"),
            spec.BasicCancel: spec.BasicCancelOk(consumer_tag="s1"),
        }
        peer.on_frame = on_frame
        peer.open()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        client.read_at_most(2 * size)
        assert LogProbe(client).end("s", certain=certain) == 700 + (count if certain else count // 2)
        client.sync()  # the broker has read the acks
    assert max(kept) <= 8 * size
    assert acked[-1] >= (count if certain else count // 2), "what was not kept is settled, too"
