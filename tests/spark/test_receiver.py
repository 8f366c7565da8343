"""The links and the receiver: what crosses threads, and what the broker is asked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import ConnectionLost, LimitExceeded
from amqp_spark.datasource import ending
from amqp_spark.datasource import link as links
from amqp_spark.datasource import receiver as receivers
from amqp_spark.datasource.held import LinkOptions
from amqp_spark.datasource.receiver import Receiver
from tests.spark.fake_client import FakeBroker, bodies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONNECT = ConnectOptions(hosts=(("localhost", 5672),))


@pytest.fixture
def make(fake: FakeBroker) -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def build(*queues: str, buffer_bytes: int = 1 << 20, **options: object) -> Receiver:
        link_options = LinkOptions(connect=CONNECT, max_delay=0.02, **options)  # type: ignore[arg-type]
        receiver = Receiver(queues or ("q",), link_options, epoch=1, buffer_bytes=buffer_bytes, connector=fake.connect)
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
    fake.wait(lambda: len(fake.clients) == 1)
    assert fake.connects == 1


def test_an_accept_goes_out_at_once_although_nothing_arrives(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "IDLE_SECONDS", 1e6)
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
    monkeypatch.setattr(links, "SURVEY_SECONDS", 0.0)
    receiver = make()
    receiver.start()
    fake.publish("q", b"a")
    plan_all(receiver, fake, 1)
    fake.wait(lambda: fake.queries >= 1)

    def signal(name: str) -> None:
        if name == "query":
            fake.on_command = lambda name: None
            monkeypatch.setattr(links, "IDLE_SECONDS", 1e6)
            accepting = threading.Thread(target=receiver.accept, args=({"q": 1},))
            accepting.start()
            fake.changed.release()  # the fake holds its lock during a command; the signal needs it to wake the client
            accepting.join()
            fake.changed.acquire()
            for client in fake.clients:
                client.woken = False  # as when the query's own wait had taken the wake-up

    fake.on_command = signal
    receiver.touch()
    fake.clients[0].wake()
    fake.wait(lambda: fake.accepted == [b"a"])


def test_the_backlog_is_asked_for_only_when_spark_asks_and_not_too_often(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(links, "IDLE_SECONDS", 0.001)
    receiver = make()
    receiver.start()
    fake.wait(lambda: fake.queries >= 1)
    passes = threading.Semaphore(0)
    taken = fake.clients[0].query_queue
    queries = fake.queries
    fake.publish("q", *[b"x"] * 500)
    fake.wait(lambda: fake.held() == 500)
    assert fake.queries <= queries + 1
    receiver.touch()
    fake.wait(lambda: receiver.report()["q"] == (500, 500))
    assert fake.queries <= queries + 2
    del passes, taken


@pytest.mark.parametrize("counts_held", [True, False])
def test_the_backlog_is_what_no_batch_holds(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch, counts_held: bool
) -> None:
    monkeypatch.setattr(links, "SURVEY_SECONDS", 0.0)
    monkeypatch.setattr(links, "IDLE_SECONDS", 0.005)
    fake.counts_held = counts_held
    fake.publish("q", *[b"x" * 1000] * 100)
    receiver = make(buffer_bytes=20_000)
    receiver.start()
    plan_all(receiver, fake, 5)
    planned = receiver.planned()["q"]
    receiver.touch()
    fake.wait(lambda: receiver.report()["q"][1] == 100 - planned)
    receiver.accept({"q": planned})
    receiver.touch()
    fake.wait(lambda: receiver.report()["q"][1] == 100 - receiver.planned()["q"])


def test_a_session_that_is_killed_again_and_again_is_given_up(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make(max_attempts=3)

    def poison(name: str) -> None:
        if name == "grant":
            fake.cut(ConnectionLost("poison"))

    fake.on_command = poison
    receiver.start()
    fake.wait(lambda: receiver.failure() is not None)
    assert fake.connects == 4


def test_what_is_not_retryable_ends_the_link_and_not_the_others(
    fake: FakeBroker, make: Callable[..., Receiver]
) -> None:
    receiver = make("q", "r")
    receiver.start()
    fake.wait(lambda: len(fake.clients) == 2 and all(client.subscription for client in fake.clients))
    with fake.changed:
        (client,) = [c for c in fake.clients if c.subscription is not None and c.subscription.queue == "q"]
        client.end(LimitExceeded("a frame too large"))
    fake.wait(lambda: isinstance(receiver.failure(), LimitExceeded))
    fake.publish("r", b"still here")
    plan_all(receiver, fake, 1, "r")
    (part,) = receiver.parts("r", 1, 0, 1)
    assert list(bodies_of(bytes(part))) == [b"still here"]


def test_a_bug_in_a_link_reaches_the_query(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
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
    monkeypatch.setattr(links, "MOST_RANGES", 10)
    receiver = make()
    receiver.start()
    fake.publish("q", *[b"%d" % number for number in range(100)])
    plan_all(receiver, fake, 100)
    receiver.reject("q", 1, range(0, 100, 2), "even")
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
    monkeypatch.setattr(links, "MOST_RANGES", 10)
    receiver = make()
    receiver.start()
    fake.publish("q", *[b"%d" % number for number in range(100)])
    plan_all(receiver, fake, 100)
    receiver.reject("q", 1, range(100), "all")
    commands: list[str] = []
    fake.on_command = commands.append
    receiver.accept({"q": 100})
    fake.wait(lambda: fake.held() == 0)
    assert len(fake.rejected) == 100
    assert (commands.count("reject"), commands.count("accept")) == (1, 0)


def test_stopping_while_the_broker_is_away_does_not_wait_for_the_next_attempt(
    fake: FakeBroker, make: Callable[..., Receiver]
) -> None:
    receiver = Receiver(
        ("q",),
        LinkOptions(connect=CONNECT, max_delay=1e6, max_attempts=1000),
        epoch=1,
        buffer_bytes=1000,
        connector=fake.connect,
    )
    fake.refuse = [ConnectionLost("away") for _ in range(1000)]
    receiver.start()
    fake.wait(lambda: fake.connects >= 2)
    receiver.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "amqp-receive-q"]
    del make


def test_a_broker_that_is_away_has_not_confirmed_anything(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    fake.refuse = [ConnectionLost("away")] * 1000
    receiver = make(max_attempts=3)
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
    changed, link = receiver._held.changed, receiver._links[0]
    wait = changed.wait
    asking = threading.get_ident()

    def oversleep(timeout: float | None = None) -> bool:
        woken = wait(timeout)
        while threading.get_ident() == asking and not (link.connected and link.sync_done == link.sync_wanted):
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
    with fake.changed:  # the link cannot run before the stop
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
        (ending, "HELD_ELSEWHERE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 1000.0)  # nothing else ends the wait
    fake = FakeBroker("q", block_messages=5)
    fake.held_elsewhere["q"] = 100  # never sent, so that the end is not reached
    fake.publish("q", b"first")
    receiver = Receiver(("q",), LinkOptions(connect=CONNECT), epoch=1, buffer_bytes=1 << 20, connector=fake.connect)
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
