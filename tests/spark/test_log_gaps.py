"""A gap in a stream: whether messages are gone is for the broker to say, however late it answers."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.api import LogEntry
from amqp_core.blocks import Block
from amqp_core.errors import AuthenticationFailed, DeadlineExceeded
from amqp_spark.datasource.log import positions, range_reader
from amqp_spark.datasource.log import probe as probe_module
from amqp_spark.datasource.log.offsets import LogOffset
from amqp_spark.datasource.log.probe import EMPTY_SECONDS, SURE_SECONDS, LogProbe
from amqp_spark.datasource.log.range_reader import LogPartition, RangeReader
from amqp_spark.errors import LogError, LogTooShort
from amqp_spark.options import SourceOptions
from amqp_spark.options.log_positions import Edge, Since
from tests.support.clock import Clock
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    from collections.abc import Callable

DIGEST = bytes(20)


def options(*, fails: bool) -> SourceOptions:
    given = {"url": "amqp://localhost", "queue": "s", "queueType": "stream", "failOnDataLoss": str(fails).lower()}
    return SourceOptions.parse(given)


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str | int, float], LogEntry | None]) -> None:
    """Let the broker give this answer to a question for the message at an offset; the client waits ``patience_s``."""
    monkeypatch.setattr(
        LogProbe, "entry", lambda _probe, _log, since, patience_s=EMPTY_SECONDS: answer(since, patience_s)
    )


def counting(monkeypatch: pytest.MonkeyPatch, *, filled: bool) -> None:
    """Whether the broker counts messages in the log."""
    monkeypatch.setattr(LogProbe, "is_filled", lambda _probe, _log: filled)


def ending(monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    """The end of the log, as the last message tells; 0: the broker does not send it."""
    monkeypatch.setattr(LogProbe, "end", lambda _probe, _log, *, certain: end)


def late(since: str | int, patience_s: float) -> LogEntry | None:
    """The log begins at 900; the broker takes longer to say so than for an empty log."""
    del since
    return LogEntry(900, DIGEST) if patience_s >= SURE_SECONDS else None


def before_gap(*, fails: bool) -> RangeReader:
    """A reader of offsets 0 to 1000 that has received 900 first."""
    reader = RangeReader(LogPartition("s", 0, 1000), options(fails=fails), cast("Any", None), FakeBroker().connect)
    reader._pending = range_reader._Run(cast("Any", None), 0, 10, 900)
    return reader


def test_a_late_answer_does_not_hide_that_messages_are_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answering(monkeypatch, late)
    with pytest.raises(LogError, match=r"AMQP_LOG_DATA_LOST\] Messages 0 to 900"):
        before_gap(fails=True)._skip_gap()
    reader = before_gap(fails=False)
    reader._skip_gap()
    assert reader._at == 900
    assert "AMQP_LOG_DATA_LOST" in caplog.text


class Node:
    """A client of the first host of its options; the log of each node begins where its retention has left off."""

    def __init__(self, hosts: tuple[tuple[str, int], ...]) -> None:
        self.peer = "{}:{}".format(*hosts[0])

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_node_that_left_messages_out_says_whether_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node may still have them; it was down when the reader connected."""
    is_up = False

    def connect(given: Any) -> Any:
        return Node(given.hosts if is_up else given.hosts[1:])

    def entry(probe: Any, *_: object) -> LogEntry:
        return LogEntry({"one:5672": 0, "two:5672": 900}[probe._client.peer], DIGEST)

    monkeypatch.setattr(LogProbe, "entry", entry)
    of_two = SourceOptions.parse({"url": "amqp://one,two", "queue": "s", "queueType": "stream"})
    reader = RangeReader(LogPartition("s", 0, 1000), of_two, cast("Any", None), connect)
    assert reader._hosts.connect(connect, of_two.connect_options()).peer == "two:5672"
    is_up = True
    reader._pending = range_reader._Run(cast("Any", None), 0, 10, 900)
    with pytest.raises(LogError, match=r"AMQP_LOG_DATA_LOST\] Messages 0 to 900"):
        reader._skip_gap()


HIDDEN = "the broker sends nothing for the offsets"


def test_a_gap_of_several_offsets_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answering(monkeypatch, lambda *_: LogEntry(0, DIGEST))
    reader = before_gap(fails=True)
    reader._skip_gap()
    assert reader._at == 900
    assert "stream 's': the broker sends nothing for the offsets 0 to 899." in caplog.text
    assert "compressed sub-entries, which cannot be read over AMQP 0-9-1" in caplog.text
    reader._pending = range_reader._Run(cast("Any", None), 0, 10, 950)
    reader._skip_gap()
    assert reader._at == 950
    assert caplog.text.count(HIDDEN) == 1


def test_a_gap_of_one_offset_is_the_brokers_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answering(monkeypatch, lambda *_: LogEntry(0, DIGEST))
    reader = before_gap(fails=True)
    reader._at = 899
    reader._skip_gap()
    assert reader._at == 900
    assert HIDDEN not in caplog.text


@pytest.mark.parametrize(("first", "text"), [(900, None), (600, "the offsets 600 to 899.")])
def test_messages_that_were_removed_are_not_hidden_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: int, text: str | None
) -> None:
    answering(monkeypatch, lambda *_: LogEntry(first, DIGEST))
    reader = before_gap(fails=False)
    reader._skip_gap()
    assert f"Messages 0 to {first}" in caplog.text
    assert (HIDDEN in caplog.text) == (text is not None)
    assert (text or "") in caplog.text


def test_no_answer_is_no_proof_that_there_never_were_any(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda *_: None)
    reader = before_gap(fails=False)
    with pytest.raises(DeadlineExceeded, match=r"waited for it to send the first message of stream 's'"):
        reader._skip_gap()
    assert reader._at == 0


def test_a_checkpoint_does_not_go_on_across_messages_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, late)
    counting(monkeypatch, filled=True)
    ending(monkeypatch, 0)
    start = LogOffset(20, DIGEST.hex())
    with pytest.raises(LogError, match=r"AMQP_LOG_DATA_LOST\] Messages 20 to 900"):
        positions.start_or_first(LogProbe(cast("Any", None)), "s", start, fail=True)


def same(monkeypatch: pytest.MonkeyPatch, messages: range, *, slow: bool = False) -> bool:
    """Whether a log of these messages is the one that was read up to offset 100, whose last digest was zeros."""
    found = LogEntry(max(99, messages.start), DIGEST) if messages.stop > 99 else None
    answering(monkeypatch, lambda _since, patience_s: None if slow and patience_s < SURE_SECONDS else found)
    ending(monkeypatch, 0 if slow else messages.stop)
    counting(monkeypatch, filled=bool(messages))
    return positions.difference(LogProbe(cast("Any", None)), "s", LogOffset(100, DIGEST.hex())) is None


@pytest.mark.parametrize("slow", [False, True])
def test_a_log_that_ends_early_is_neither_the_same_nor_another_one(
    monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    """A node of a cluster whose replica lags behind has no message there yet."""
    assert same(monkeypatch, range(150), slow=slow)
    assert same(monkeypatch, range(120, 150), slow=slow), "the message was removed"
    for messages in (range(50), range(0)):
        with pytest.raises(LogTooShort, match=r"AMQP_LOG_REPLACED\] Stream 's' ends before offset 100"):
            same(monkeypatch, messages, slow=slow)


def test_a_log_that_has_messages_before_the_one_that_was_read_and_not_that_one_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was not removed: that begins with the first ones. The new log has a compressed sub-entry there."""
    answering(monkeypatch, lambda since, _patience_s: LogEntry(40 if since == "first" else 110, DIGEST))
    found = positions.difference(LogProbe(cast("Any", None)), "s", LogOffset(100, DIGEST.hex()))
    assert "AMQP_LOG_REPLACED" in str(found)
    assert positions.difference(LogProbe(cast("Any", None)), "s", LogOffset(100)) is None


def test_a_node_that_lags_is_asked_again_although_it_may_send_the_message_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What did not come before the node sent its last message may have come since."""
    answers = [None, LogEntry(99, DIGEST)]
    answering(monkeypatch, lambda *_: answers.pop(0))
    ending(monkeypatch, 150)
    assert positions.difference(LogProbe(cast("Any", None)), "s", LogOffset(100, DIGEST.hex())) is None


@pytest.mark.parametrize(("filled", "first"), [(True, 900), (False, 0)])
def test_earliest_is_where_the_log_begins_however_late_it_says_so(
    monkeypatch: pytest.MonkeyPatch, *, filled: bool, first: int
) -> None:
    answering(monkeypatch, late)
    counting(monkeypatch, filled=filled)
    assert positions.resolve(LogProbe(cast("Any", None)), "s", Edge.EARLIEST, "startingOffsets") == first


class SlowLog:
    """A broker whose log has messages 1000 to 4999, and sends the first one of a subscription after ``delay`` seconds.

    Time passes while the client waits.
    """

    peer = "slow:5672"
    under_way_bytes = 0

    def __init__(self, delay: float, clock: Clock) -> None:
        self.clock = clock
        self.sends_at = clock.now + delay

    def subscribe(self, _log: str, *, max_unsettled: int, arguments: dict[str, object]) -> SlowSubscription:
        del max_unsettled
        since = arguments["x-stream-offset"]
        return SlowSubscription(self, {"first": 1000, "last": 4999}.get(str(since), 2000))

    def sync(self) -> None:
        pass

    def query_queue(self, _name: str) -> SimpleNamespace:
        return SimpleNamespace(message_count=4000)

    def accept(self, ranges: list[tuple[int, int]]) -> None:
        pass

    def log_entry(self, block: Any, _index: int) -> LogEntry:
        return LogEntry(block.first_id, DIGEST)


class SlowSubscription:
    def __init__(self, broker: SlowLog, offset: int) -> None:
        self.broker = broker
        self.left = [Block(b"m", array("I", [1]), offset)]

    def take_arrived(self) -> list[Block]:
        if self.broker.clock.now < self.broker.sends_at:
            return []
        taken, self.left = self.left, []
        return taken

    def take_blocks(self, seconds: float) -> list[Block]:
        self.broker.clock.now += seconds
        return self.take_arrived()

    def bound(self, _admits: object) -> None:
        pass

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("delay", [0.0, 3.0, 15.0])
@pytest.mark.parametrize(("position", "offset"), [(Edge.EARLIEST, 1000), (Edge.LATEST, 5000), (Since(7), 2000)])
def test_positions_do_not_depend_on_how_late_the_broker_sends(
    monkeypatch: pytest.MonkeyPatch, position: Edge | Since, offset: int, delay: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(probe_module, "monotonic", clock)
    probe = LogProbe(cast("Any", SlowLog(delay, clock)))
    assert positions.resolve(probe, "s", position, "startingOffsets") == offset


@pytest.mark.parametrize("position", [Edge.LATEST, Since(7)])
def test_a_broker_that_does_not_send_the_last_message_has_not_said_where_the_log_ends(
    monkeypatch: pytest.MonkeyPatch, position: Edge | Since
) -> None:
    clock = Clock()
    monkeypatch.setattr(probe_module, "monotonic", clock)
    probe = LogProbe(cast("Any", SlowLog(1000.0, clock)))
    with pytest.raises(DeadlineExceeded, match=r"waited for it to send the last message of stream 's'"):
        positions.resolve(probe, "s", position, "startingOffsets")


def test_an_error_says_where_the_stream_was_read() -> None:
    def connect(_options: object) -> Any:
        raise AuthenticationFailed("wrong password")

    reader = RangeReader(LogPartition("s", 7, 9), options(fails=True), cast("Any", None), connect)
    with pytest.raises(AuthenticationFailed) as caught:
        list(reader.batches())
    assert caught.value.__notes__ == ["while stream 's' was read from offset 7 on"]
