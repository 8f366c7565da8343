"""A login that may not do something: the error names the right that is needed, for each broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from amqp_core.errors import CommandFailed, UnauthorizedAccess
from amqp_core.v0_10 import spec
from amqp_core.v0_10.error_codes import RIGHTS, command_failure
from amqp_spark.errors import PublishFailed, StateError
from amqp_spark.state.names import WRITER, Names
from amqp_spark.state.queue import StateQueue
from tests.spark.test_sink_exactly_once import Tasks
from tests.spark.test_sink_exactly_once import rows as branch_rows
from tests.support.fake_broker import FakeBroker, FakeClient
from tests.support.sink_task import Task, rows

if TYPE_CHECKING:
    from amqp_core.api import Route
    from amqp_core.v0_10.client import Client

QUERIES = {"exchange.query": "access exchange", "queue.query": "access queue", "exchange.bound": "access exchange"}
HINT = r"Let the broker's administrator grant .*qpidd: 'acl allow USER {}'; Broker-J: no right but ACCESS VIRTUALHOST"


def denied(command: str) -> CommandFailed:
    return command_failure(403, 7, "ACL denied", command)


@pytest.mark.parametrize("command", RIGHTS)
def test_every_right_is_named_for_both_brokers(command: str) -> None:
    qpidd, brokerj = RIGHTS[command]
    told = str(denied(command))
    assert told.startswith(f"[AMQP_ACCESS_REFUSED] The broker refused {command} with 403: ACL denied. Let")
    assert f"qpidd: 'acl allow USER {qpidd}'" in told
    assert f"'ACL ALLOW USER {brokerj}'" in told or brokerj is None
    assert command in {cls.NAME for cls in spec.COMMAND_TYPES.values()}


def test_a_refusal_that_is_no_matter_of_such_a_right_is_told_as_it_is() -> None:
    remedy = "Let the broker's administrator grant the login the right."
    told = f"[AMQP_ACCESS_REFUSED] The broker refused{{}} with 403: {{}}. {remedy}"
    assert str(denied("message.transfer")) == told.format(" message.transfer", "ACL denied")
    assert str(UnauthorizedAccess(403, None, "no")) == told.format("", "no")


def refuse(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    route = FakeClient.route

    def asked(client: FakeClient, exchange: str, key: str | None) -> Route:
        bound = "exchange.bound" if exchange else "queue.query"
        if command == ("exchange.query" if key is None else bound):
            raise denied(command)
        return route(client, exchange, key)

    monkeypatch.setattr(FakeClient, "route", asked)


@pytest.mark.parametrize("command", QUERIES)
def test_a_sink_that_may_not_ask(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    refuse(monkeypatch, command)
    exchange = "" if command == "queue.query" else "amq.direct"
    broker, branches = FakeBroker(qpidd=True), FakeBroker(qpidd=True)
    with pytest.raises(PublishFailed, match=HINT.format(QUERIES[command])):
        Task(broker, exchange=exchange).run(rows(3))
    with pytest.raises(PublishFailed, match=HINT.format(QUERIES[command])):
        Tasks(branches, exchange=exchange).run(branch_rows(3))
    assert broker.taken == branches.taken == []


@pytest.mark.parametrize("ask", ["exists", "take", "marked"])
def test_a_state_queue_that_may_not_be_asked_for(ask: str) -> None:
    command = "exchange.bound" if ask == "marked" else "queue.query"

    def no(*_: Any, **__: Any) -> NoReturn:
        raise denied(command)

    queue = StateQueue(cast("Client", SimpleNamespace(query_queue=no, is_bound=no)), Names(WRITER, "w"))
    with pytest.raises(StateError, match=HINT.format(QUERIES[command])) as told:
        getattr(queue, ask)(*["key"] if ask == "marked" else [])
    assert "The login may not ask for" in str(told.value)
    assert "which exactly-once needs for writer 'w'" in str(told.value)
    assert "create, query (on qpidd: access), publish to, bind to amq.direct, unbind, consume and delete" in str(
        told.value
    )
