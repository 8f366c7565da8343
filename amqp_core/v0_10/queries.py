"""Queries to the broker: commands with a result, sent together and answered later.

A separate query costs a round trip. Here many share one, and the caller may continue to publish meanwhile: a broker
executes the commands of a session in order, so an answer describes the state after the transfers sent before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from amqp_core.api import Route
from amqp_core.v0_10 import spec
from amqp_core.v0_10.driver import result_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Target
    from amqp_core.v0_10.driver import Driver

    Question = spec.ExchangeQuery | spec.QueueQuery | spec.ExchangeBound
    Answer = spec.ExchangeQueryResult | spec.QueueQueryResult | spec.ExchangeBoundResult


class Questions:
    """Queries that were sent (exchange.query, exchange.bound, queue.query); made by :meth:`Client.ask`.

    Not thread-safe.

    Raises:
        ConnectionLost, SessionDetached, CommandFailed, ...: the connection or session has ended.
        EncodeError: a name does not fit its wire type (str8: 255 bytes).
    """

    def __init__(self, driver: Driver, questions: Sequence[Question]) -> None:
        self._driver = driver
        self._questions = questions
        self._ids = driver.send_questions(questions)

    @property
    def arrived(self) -> bool:
        """Whether every query is answered, as far as was read; see :meth:`Driver.is_answered`."""
        return all(map(self._driver.is_answered, self._ids))

    def answers(self) -> list[Answer]:
        """Wait for every answer (execution.result) and return them in the order of the queries; call it once.

        Raises:
            ProtocolError: an answer is missing or of another type.
            DeadlineExceeded: neither the answers nor much other data arrive within the call timeout.
            ConnectionLost, SessionDetached, CommandFailed, ...: the connection or session ended.
        """
        driver = self._driver
        if self._questions:
            driver.wait_for(lambda: self.arrived, f"the answer to {self._questions[-1].NAME}")
        results = driver.take_results(self._ids)
        found = [
            result_of(question, result, spec.RESULT_TYPES[question.CODE])
            for question, result in zip(self._questions, results, strict=True)
        ]
        return cast("list[Answer]", found)


class RouteQueries:
    """Queries about targets of messages, sent together; made by :meth:`Client.query_routes`. Not thread-safe.

    Raises:
        ConnectionLost, SessionDetached, CommandFailed, EncodeError, ...: as :class:`Questions`.
    """

    def __init__(self, driver: Driver, targets: Sequence[Target]) -> None:
        self._questions = Questions(driver, [_question(*target) for target in targets])

    @property
    def arrived(self) -> bool:
        """Whether every answer has arrived, as far as was read."""
        return self._questions.arrived

    def answers(self) -> list[Route]:
        """Wait for every answer and return the routes in the order of the targets; call it once.

        Raises:
            ProtocolError, DeadlineExceeded, ConnectionLost, SessionDetached, CommandFailed, ...: as
                :meth:`Questions.answers`.
        """
        return [route_of(answer) for answer in self._questions.answers()]


def _question(exchange: str, key: str | None) -> Question:
    if key is None:
        return spec.ExchangeQuery(name=exchange)
    return spec.ExchangeBound(exchange=exchange, binding_key=key) if exchange else spec.QueueQuery(queue=key)


def route_of(answer: Answer) -> Route:
    """Convert an answer to a route; if the answer is not certain, the route does not exist."""
    if isinstance(answer, spec.ExchangeQueryResult):
        return Route(not answer.not_found and bool(answer.type), answer.type or "")
    if isinstance(answer, spec.QueueQueryResult):
        return Route(bool(answer.queue))
    return Route(not (answer.exchange_not_found or answer.key_not_matched))
