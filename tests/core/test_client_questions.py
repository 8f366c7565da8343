"""Questions that share a round trip, with peers that answer, answer wrongly, or do not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.api import Route
from amqp_core.errors import DeadlineExceeded, ProtocolError, UnauthorizedAccess
from amqp_core.v0_10 import spec
from tests.support.clock import Clock
from tests.support.fakepeer import FakePeer, Peer, serve
from tests.support.runs import numbered
from tests.support.taking import receiving

if TYPE_CHECKING:
    from amqp_core.api import Target
    from amqp_core.blocks import Block

QUESTIONS = (
    spec.ExchangeQuery(name="e"),
    spec.QueueQuery(queue="q"),
    spec.ExchangeBound(exchange="e", binding_key="k"),
)


def test_questions_go_out_together_and_answers_come_in_their_order() -> None:
    def script(peer: Peer) -> None:
        peer.answers[spec.ExchangeQuery] = lambda asked: spec.ExchangeQueryResult(type=asked.name)
        peer.answers[spec.QueueQuery] = lambda asked: spec.QueueQueryResult(queue=asked.queue)
        peer.answers[spec.ExchangeBound] = lambda asked: spec.ExchangeBoundResult(key_not_matched=asked.exchange == "e")
        serve(peer)

    with FakePeer(script) as server:
        client = server.connect()
        first, second = client.ask(QUESTIONS), client.ask(QUESTIONS[1:])
        assert client.query_queue("other") is not None, "a call between them takes no answer away"
        assert first.arrived
        kind, queue, bound = first.answers()
        assert (kind, queue) == (spec.ExchangeQueryResult(type="e"), spec.QueueQueryResult(queue="q"))
        assert second.answers() == [queue, bound]
        assert client.ask([]).answers() == []


def test_a_query_for_each_target() -> None:
    def script(peer: Peer) -> None:
        peer.answers[spec.ExchangeQuery] = lambda asked: spec.ExchangeQueryResult(type=asked.name)
        peer.answers[spec.QueueQuery] = lambda asked: spec.QueueQueryResult(queue=asked.queue)
        peer.answers[spec.ExchangeBound] = lambda asked: spec.ExchangeBoundResult(
            exchange_not_found=asked.exchange == "gone", key_not_matched=asked.binding_key == "k"
        )
        serve(peer)

    with FakePeer(script) as server:
        client = server.connect()
        queries = client.query_routes([("direct", None), ("e", "k"), ("e", "other"), ("gone", "other"), ("", "q")])
        assert queries.answers() == [
            Route(exists=True, exchange_type="direct"),
            Route(exists=False),
            Route(exists=True),
            Route(exists=False),
            Route(exists=True),
        ]
        assert [client.is_bound("e", "other"), client.is_bound("e", "k"), client.is_bound("gone", "x")] == [
            True, False, False,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        (("e", None), spec.ExchangeQueryResult()),
        (("e", None), spec.ExchangeQueryResult(type="")),
        (("e", None), spec.ExchangeQueryResult(type="direct", not_found=True)),
        (("", "q"), spec.QueueQueryResult()),
    ],
)
def test_an_answer_that_does_not_show_a_route_for_certain_shows_none(target: Target, answer: Any) -> None:
    def script(peer: Peer) -> None:
        for command in (spec.ExchangeQuery, spec.QueueQuery):
            peer.answers[command] = lambda _: answer
        serve(peer)

    with FakePeer(script) as server:
        (route,) = server.connect().query_routes([target]).answers()
        assert not route.exists


@pytest.mark.parametrize("answer", [None, spec.DtxGetTimeoutResult(timeout=1)])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_is_answered_with_something_else(question: Any, answer: Any) -> None:
    def script(peer: Peer) -> None:
        peer.answers[type(question)] = lambda _: answer
        serve(peer)

    with FakePeer(script) as server, pytest.raises(ProtocolError, match=rf"{question.NAME} with"):
        server.connect().ask([question]).answers()


def test_a_question_that_is_completed_without_an_answer() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.QueueQuery)
        peer.session.tell_completed()
        peer.serve()

    with FakePeer(script) as server, pytest.raises(ProtocolError, match=r"answered queue\.query with nothing"):
        server.connect().ask(QUESTIONS[1:2]).answers()


def test_an_answer_may_come_after_the_completion_of_its_question() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.QueueQuery)
        answer = spec.ExecutionResult(command_id=command_id, value=spec.QueueQueryResult(queue="q"))
        peer.hooks[spec.ExecutionSync] = lambda _: peer.send(answer)
        peer.session.tell_completed()
        peer.serve()

    with FakePeer(script) as server:
        assert server.connect().ask([spec.QueueQuery(queue="q")]).answers() == [spec.QueueQueryResult(queue="q")]


def test_an_answer_may_come_after_what_is_published_behind_its_question_is_confirmed() -> None:
    def script(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.QueueQuery)
        answer = spec.ExecutionResult(command_id=command_id, value=spec.QueueQueryResult(queue="q"))
        peer.expect(spec.ExecutionSync)  # of the publisher, which has forgotten all before it when this is complete
        peer.hooks[spec.ExecutionSync] = lambda _: peer.send(answer)
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        questions = client.ask([spec.QueueQuery(queue="q")])
        publisher = client.publisher()
        publisher.send(numbered(1))
        publisher.finish()
        assert questions.answers() == [spec.QueueQueryResult(queue="q")]


def test_answers_come_behind_messages_under_way_however_long_those_take(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, taken = Clock(), threading.Semaphore(0)
    monkeypatch.setattr("amqp_core.pump.monotonic", clock)

    def script(peer: Peer) -> None:
        def messages_first(asked: spec.QueueQuery) -> spec.QueueQueryResult:
            for _ in range(5):
                peer.transfer(bytes(65_536))
                assert taken.acquire(timeout=60)
            return spec.QueueQueryResult(queue=asked.queue)

        peer.answers[spec.QueueQuery] = messages_first
        peer.subscribed()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect(call_timeout_s=30.0)
        receiving(client)
        endpoint = client._driver.endpoint
        on_block = endpoint.on_block

        def late(block: Block) -> None:
            clock.now += 20.0  # together longer than the call timeout
            on_block(block)
            taken.release()

        endpoint.on_block = late
        assert client.ask([spec.QueueQuery(queue="q")]).answers() == [spec.QueueQueryResult(queue="q")]


def test_a_question_that_is_not_answered_or_refused() -> None:
    def refuse(peer: Peer) -> None:
        peer.open()
        command_id, _ = peer.expect(spec.QueueQuery)
        peer.exception(403, command_id)
        peer.serve()

    with FakePeer(serve, refuse) as server:
        with pytest.raises(DeadlineExceeded, match=r"the answer to exchange\.bound"):
            server.connect(call_timeout_s=0.2).ask(QUESTIONS).answers()
        with pytest.raises(UnauthorizedAccess, match=r"refused queue\.query with 403"):
            server.connect().ask(QUESTIONS).answers()
