"""The consumers and the receiver: the state that threads share, and the queries sent to the broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import ConnectionLost, LimitExceeded, ResourceDeleted
from amqp_spark.datasource import backlog, credit, drain_detector, settling
from amqp_spark.datasource import receiver as receivers
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.options import SourceOptions
from tests.spark.reader_support import count_looks
from tests.support.fake_broker import FakeBroker, FakeSubscription, bodies_of, transfer_frames
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client


def options(*queues: str, **given: object) -> SourceOptions:
    names = ",".join(queues or ("q",))
    return SourceOptions.parse({"url": "amqp://localhost", "queue": names, "bufferBytes": 1 << 20} | given)


@pytest.fixture
def make(fake: FakeBroker) -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def build(*queues: str, **given: object) -> Receiver:
        receiver = Receiver(options(*queues, **({"retry.maxDelay": 0.02} | given)), connector=fake.connect)
        made.append(receiver)
        return receiver

    yield build
    for receiver in made:
        receiver.stop()


def plan_all(receiver: Receiver, fake: FakeBroker, count: int, queue: str = "q") -> None:
    def planned() -> bool:
        receiver.plan(max_messages=None, max_bytes=1 << 30)
        return receiver.planned()[queue] >= count

    fake.wait(planned)


def test_nothing_happens_before_start(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make()
    assert fake.connects == 0
    receiver.start()
    receiver.start()
    fake.wait(lambda: len(fake.live) == 1)
    assert fake.connects == 1


def test_an_accept_goes_out_at_once_although_nothing_arrives(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit, "IDLE_SECONDS", 1e6)
    receiver = make()
    receiver.start()
    fake.publish("q", b"a", b"b")
    plan_all(receiver, fake, 2)
    assert receiver.accept({"q": 2})
    fake.wait(lambda: fake.accepted == [b"a", b"b"])
    assert not receiver.accept({"q": 2})


def test_an_accept_that_is_signalled_during_a_query_is_not_forgotten(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = make()
    receiver.start()
    fake.publish("q", b"a")
    plan_all(receiver, fake, 1)

    def signal(name: str) -> None:
        if name == "query":
            fake.on_command = lambda name: None
            monkeypatch.setattr(credit, "IDLE_SECONDS", 1e6)
            accepting = threading.Thread(target=receiver.accept, args=({"q": 1},))
            accepting.start()
            fake.changed.release()  # the fake holds its lock during a command; the signal needs it to wake the client
            accepting.join()
            fake.changed.acquire()
            for client in fake.live:
                client.woken = False  # as when the query's own wait had taken the wake-up

    fake.on_command = signal
    receiver.consumers[0].surveyed(None, counts_held=True)  # the session asks again whether the queue is there
    fake.wait(lambda: fake.accepted == [b"a"])


@pytest.fixture
def surveys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the backlog at every call of Spark."""
    monkeypatch.setattr(backlog, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(backlog, "SERVICE_SECONDS", 0.002)


class Rounds(threading.Event):
    """Counts how often the thread that asks for the backlog could have asked."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return super().wait(timeout)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    rounds, init = Rounds(), backlog.BacklogSurvey.__init__

    def counted(survey: backlog.BacklogSurvey, *given: Any) -> None:
        init(survey, *given)
        survey._ended = rounds

    monkeypatch.setattr(backlog.BacklogSurvey, "__init__", counted)
    return rounds


@pytest.mark.usefixtures("surveys")
def test_the_backlog_is_asked_for_only_when_spark_asks(
    fake: FakeBroker, make: Callable[..., Receiver], rounds: Rounds
) -> None:
    receiver = make()
    receiver.start()
    fake.wait(lambda: receiver.consumers[0].connected)  # it has asked for the queue itself
    queries = fake.queries
    fake.publish("q", *[b"x"] * 500)
    fake.wait(lambda: fake.held() == 500)
    fake.wait(lambda: rounds.count >= 10)
    assert fake.queries == queries
    receiver.touch()
    fake.wait(lambda: receiver.report()["q"][:2] == (500, 500))
    more = rounds.count + 10
    fake.wait(lambda: rounds.count >= more)
    assert fake.queries == queries + 1


def test_the_backlog_is_not_asked_for_too_often(
    fake: FakeBroker, make: Callable[..., Receiver], rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "SERVICE_SECONDS", 0.001)
    monkeypatch.setattr(backlog, "SURVEY_SECONDS", 0.1)  # every hundred rounds
    receiver = make()
    receiver.start()
    fake.wait(lambda: receiver.consumers[0].connected)  # it has asked for the queue itself
    queries = fake.queries

    def asks_again_and_again() -> bool:
        receiver.touch()
        return rounds.count >= 250

    fake.wait(asks_again_and_again)
    assert 1 <= fake.queries - queries <= rounds.count // 100


@pytest.mark.usefixtures("surveys")
def test_the_backlog_is_asked_for_on_a_connection_that_receives_nothing(
    fake: FakeBroker, make: Callable[..., Receiver]
) -> None:
    receiver = make(bufferBytes=5_000)
    fake.publish("q", *[b"x" * 1000] * 100)
    receiver.start()
    fake.wait(lambda: fake.held() == 4)
    queries = fake.queries

    receiver.touch()
    fake.wait(lambda: fake.queries > queries)
    assert receiver.report()["q"][1] == 100
    assert len(fake.live) == 2, "one more connection"
    assert fake.held() == 4, "nothing more was received for it"


@pytest.mark.usefixtures("surveys")
def test_a_survey_that_fails_costs_nothing_but_the_backlog(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make()
    receiver.start()
    fake.wait(lambda: receiver.consumers[0].connected)  # the survey leaves out queues without a connection
    (receiving,) = fake.live
    fake.fails["connect"].append(ConnectionLost("no more connections"))
    receiver.touch()
    fake.wait(lambda: not fake.fails["connect"])
    fake.publish("q", b"a")
    fake.wait(lambda: receiver.report()["q"][0] == 1)
    assert receiver.failure() is None
    assert receiving.error is None
    receiver.touch()
    fake.wait(lambda: len(fake.live) == 2)


@pytest.mark.usefixtures("surveys")
def test_the_backlog_is_asked_for_where_messages_are_received(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover the first host of the list may be another broker, or none."""
    connect, tried = fake.connect, []

    def connected(options: ConnectOptions) -> Client:
        tried.append(options.hosts)
        return connect(options)

    monkeypatch.setattr(fake, "connect", connected)
    receiver = make(url="amqp://first,fake")
    receiver.start()
    fake.wait(lambda: receiver.consumers[0].connected)
    receiver.touch()
    fake.wait(lambda: len(tried) > 1)
    assert tried == [(("first", 5672), ("fake", 5672)), (("fake", 5672),)]


@pytest.mark.usefixtures("surveys")
def test_another_broker_that_does_not_know_the_queue_ends_nothing(
    fake: FakeBroker, make: Callable[..., Receiver]
) -> None:
    """A broker that redirects may have sent the survey to another one than the receiving session."""
    receiver = make()
    receiver.start()
    fake.wait(lambda: receiver.consumers[0].connected)
    queries = fake.queries
    receiver.consumers[0].surveyed(None, counts_held=True)
    fake.wait(lambda: fake.queries > queries)
    assert receiver.failure() is None
    del fake.queues["q"]
    receiver.consumers[0].surveyed(None, counts_held=True)
    fake.wait(lambda: isinstance(receiver.failure(), ResourceDeleted))


@pytest.mark.usefixtures("surveys")
@pytest.mark.parametrize("counts_held", [True, False])
def test_the_backlog_is_what_no_batch_holds(fake: FakeBroker, make: Callable[..., Receiver], counts_held: bool) -> None:
    fake.counts_held = counts_held
    fake.publish("q", *[b"x" * 1000] * 100)
    receiver = make(bufferBytes=20_000)
    receiver.start()
    plan_all(receiver, fake, 5)
    planned = receiver.planned()["q"]

    def told() -> bool:
        receiver.touch()  # again and again: an answer may be older than what was received or accepted meanwhile
        return receiver.report()["q"][1] == 100 - planned

    fake.wait(told)
    receiver.accept({"q": planned})
    fake.wait(lambda: fake.depth("q") == 100 - planned)
    fake.wait(told)


def test_a_large_accept_lets_the_broker_be_silent_for_longer(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make()
    fake.heartbeat_s = 2.0
    receiver.start()
    fake.publish("q", *[b"x"] * 1000)
    plan_all(receiver, fake, 1000)
    receiver.accept({"q": 1000})
    fake.wait(lambda: len(fake.accepted) == 1000)
    fake.publish("q", *[b"x"] * 4000)
    plan_all(receiver, fake, 5000)
    receiver.accept({"q": 5000})
    fake.wait(lambda: len(fake.accepted) == 5000)
    assert fake.silence_timeouts[0] == 0.0, "what two heartbeats cover"
    assert max(fake.silence_timeouts) >= 2.0
    assert receiver.sync()
    assert fake.silence_timeouts[-1] >= 2.0


def test_large_rejects_let_the_broker_be_silent_for_longer(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = make()
    fake.heartbeat_s = 2.0
    receiver.start()
    fake.publish("q", *[b"x"] * 8000)
    plan_all(receiver, fake, 8000)
    monkeypatch.setattr(settling, "MOST_RANGES", 100)
    receiver.held.buffers["q"].reject(range(0, 8000, 2), "is not what it should be")
    receiver.accept({"q": 8000})
    fake.wait(lambda: len(fake.rejected) == len(fake.accepted) == 4000)
    assert sum(fake.silence_timeouts) == pytest.approx(8.0), "not once for each command"


@pytest.mark.parametrize("large", [700_000, 3_000_000])
def test_no_queue_starves_although_its_messages_exceed_its_share(
    fake: FakeBroker, make: Callable[..., Receiver], large: int
) -> None:
    """Small messages keep coming on one queue; each message of the other is larger than half of the budget."""
    budget = 1_000_000
    fake.block_messages = 1  # as a socket is read: in pieces smaller than these messages
    receiver = make("q", "r", bufferBytes=budget)
    fake.publish("q", *(b"L" * large for _ in range(5)))
    receiver.start()
    most = seen = 0

    def goes_on() -> bool:
        nonlocal most, seen
        fake.publish("r", b"s" * 2000)
        most = max(most, receiver.held.bytes)
        receiver.plan(max_messages=None, max_bytes=1 << 30)
        receiver.accept(receiver.planned())
        seen += 1
        return receiver.planned()["q"] == 5 and receiver.planned()["r"] >= 50

    fake.wait(goes_on)
    assert most <= budget + large + 100_000


def test_a_session_that_is_killed_again_and_again_is_given_up(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make(**{"retry.maxAttempts": 3})

    def poison(name: str) -> None:
        if name == "grant":
            fake.cut(ConnectionLost("poison"))

    fake.on_command = poison
    receiver.start()
    fake.wait(lambda: receiver.failure() is not None)
    assert fake.connects == 4


def test_what_is_not_retryable_ends_the_consumer_and_not_the_others(
    fake: FakeBroker, make: Callable[..., Receiver]
) -> None:
    receiver = make("q", "r")
    receiver.start()
    fake.wait(lambda: len(fake.live) == 2 and all(client.subscription for client in fake.live))
    with fake.changed:
        (client,) = [c for c in fake.live if c.subscription is not None and c.subscription.queue == "q"]
        client.end(LimitExceeded("a frame too large"))
    fake.wait(lambda: isinstance(receiver.failure(), LimitExceeded))
    fake.publish("r", b"still here")
    plan_all(receiver, fake, 1, "r")
    (chunk,) = receiver.held.buffers["r"].chunks(0, 1)
    assert list(bodies_of(bytes(chunk.frames))) == [b"still here"]


def test_a_bug_in_a_consumer_reaches_the_query(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make()

    def bug(name: str) -> None:
        if name == "grant":
            raise ZeroDivisionError("a bug")

    fake.on_command = bug
    receiver.start()
    fake.wait(lambda: isinstance(receiver.failure(), ZeroDivisionError))


def test_settlements_of_many_ranges_go_in_several_commands(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "MOST_RANGES", 10)
    receiver = make()
    receiver.start()
    fake.publish("q", *[b"%d" % number for number in range(100)])
    plan_all(receiver, fake, 100)
    receiver.held.buffers["q"].reject(range(0, 100, 2), "even")
    commands: list[str] = []
    fake.on_command = commands.append
    receiver.accept({"q": 100})
    fake.wait(lambda: fake.held() == 0)
    assert sorted(fake.accepted, key=int) == [b"%d" % number for number in range(1, 100, 2)]
    assert {text for _, text in fake.rejected} == {"even"}
    assert (commands.count("reject"), commands.count("accept")) == (5, 5)


def test_a_run_of_rejects_is_one_range(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "MOST_RANGES", 10)
    receiver = make()
    receiver.start()
    fake.publish("q", *[b"%d" % number for number in range(100)])
    plan_all(receiver, fake, 100)
    receiver.held.buffers["q"].reject(range(100), "all")
    commands: list[str] = []
    fake.on_command = commands.append
    receiver.accept({"q": 100})
    fake.wait(lambda: fake.held() == 0)
    assert len(fake.rejected) == 100
    assert (commands.count("reject"), commands.count("accept")) == (1, 0)


def test_stopping_while_the_broker_is_away_does_not_wait_for_the_next_attempt(fake: FakeBroker) -> None:
    receiver = Receiver(
        options(**{"retry.maxDelay": 86_400, "retry.maxAttempts": 1000}, bufferBytes=1000),
        connector=fake.connect,
    )
    fake.fails["connect"] = [ConnectionLost("away") for _ in range(1000)]
    receiver.start()
    fake.wait(lambda: fake.connects >= 2)
    receiver.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "amqp-receive-q"]


def test_a_broker_that_is_away_has_not_confirmed_anything(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    fake.fails["connect"] = [ConnectionLost("away")] * 1000
    receiver = make(**{"retry.maxAttempts": 3})
    receiver.start()
    assert not receiver.sync()  # while it is tried again
    fake.wait(lambda: receiver.failure() is not None)
    assert not receiver.sync()  # and when it was given up


def test_a_session_confirms_nothing_for_the_one_before_it(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make()
    receiver.start()
    fake.publish("q", b"a")
    plan_all(receiver, fake, 1)

    def lose(name: str) -> None:
        if name in {"accept", "sync"} and fake.connects == 1:
            fake.cut()

    fake.on_command = lose
    changed, queue_consumer = receiver.held.changed, receiver.consumers[0]
    wait = changed.wait
    asking = threading.get_ident()

    def oversleep(timeout: float | None = None) -> bool:
        woken = wait(timeout)
        while threading.get_ident() == asking and not (
            queue_consumer.connected and queue_consumer.sync_done == queue_consumer.sync_wanted
        ):
            wait(0.01)
        return woken

    changed.wait = oversleep  # type: ignore[method-assign]
    with changed:
        receiver.accept({"q": 1})
        assert not receiver.sync()
    fake.wait(receiver.waiting)
    assert fake.accepted == []


def test_pending_accepts_go_out_before_an_orderly_stop(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make()
    receiver.start()
    fake.publish("q", b"a", b"b", b"c")
    plan_all(receiver, fake, 3)
    with fake.changed:  # the consumer cannot run before the stop
        receiver.accept({"q": 2})
        stopping = threading.Thread(target=receiver.stop)
        stopping.start()
    stopping.join()
    assert fake.accepted == [b"a", b"b"]
    assert [message.body for message in fake.queues["q"]] == [b"c"]


def test_who_waits_for_a_batch_is_woken_when_there_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (receivers, "GROWTH_SECONDS"),
        (receivers, "TRICKLE_SECONDS"),
        (drain_detector, "HELD_ELSEWHERE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 1000.0)  # nothing else ends the wait
    fake = FakeBroker("q")
    fake.block_messages = 5
    fake.held_elsewhere["q"] = 100  # never sent, so that the end is not reached
    fake.publish("q", b"first")
    receiver = Receiver(options("q"), connector=fake.connect)
    receiver.start(bounded=True)
    try:
        waiting = threading.Thread(
            target=receiver.wait_for_batch, kwargs={"max_messages": None, "max_bytes": 40_000}, daemon=True
        )
        waiting.start()
        fake.publish("q", *[bytes(1000)] * 30)
        fake.wait(lambda: receiver.report()["q"][0] == 31)
        assert waiting.is_alive()
        fake.publish("q", *[bytes(1000)] * 30)
        waiting.join(20.0)
        assert not waiting.is_alive()
        assert not receiver.all_taken()
    finally:
        receiver.stop()


@pytest.mark.parametrize("bounded", [True, False])
def test_queues_whose_messages_exceed_their_share_pass_the_bound_by_one_message_together(
    bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks for its end as well (AvailableNow), with credit for a message of any size."""
    looked = count_looks(monkeypatch)
    queues = [f"q{number}" for number in range(8)]
    probing: set[str] = set()
    probe = FakeSubscription.probe

    def slow(self: FakeSubscription) -> None:
        """The answer is on its way until each of the others has looked whether it may probe, or does."""
        probing.add(self.queue)
        probe(self)
        before = looked.copy()
        wait_until(
            lambda: all(looked[queue] >= before[queue] + 2 or queue in probing for queue in queues), "the others", 20
        )
        probing.remove(self.queue)

    monkeypatch.setattr(FakeSubscription, "probe", slow)
    fake = FakeBroker(*queues)
    size = len(transfer_frames(b"x" * 700_000))
    for queue in queues:
        fake.publish(queue, *(b"x" * 700_000 for _ in range(3)))
    receiver = Receiver(options(*queues), connector=fake.connect)
    receiver.start(bounded=bounded)
    try:
        fake.wait(lambda: receiver.held.bytes >= 2 * size)
        looked.clear()
        fake.wait(lambda: all(looked[queue] >= 5 for queue in queues))
        assert receiver.held.bytes <= (1 << 20) + size
    finally:
        receiver.stop()
