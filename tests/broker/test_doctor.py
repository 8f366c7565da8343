"""The doctor on Broker-J and RabbitMQ: what it finds out by their protocols and without use, what it leaves alone."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from amqp_core.errors import PreconditionFailed
from amqp_spark.diagnosis import declared
from tests.support.dial_0_9 import dial_0_9, put
from tests.support.process import wait_until
from tests.support.rabbitmq import Rights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.v0_9.client import Client
    from tests.support.brokerj import BrokerJ
    from tests.support.doctor import Doctor
    from tests.support.fixtures import Broker, Connect
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


@pytest.fixture
def names(rabbitmq: RabbitMQNode) -> Iterator[dict[str, str]]:
    """Names of queues on RabbitMQ by what they are; they are deleted after the test."""
    prefix = uuid.uuid4().hex[:12]
    found = {kind: f"test-{prefix}-{kind}" for kind in ("classic", "quorum", "stream", "absent")}
    yield found
    with dial_0_9(rabbitmq) as client:
        for name in found.values():
            client.delete_queue(name)


@pytest.fixture
def client(rabbitmq: RabbitMQNode) -> Iterator[Client]:
    with dial_0_9(rabbitmq) as client:
        yield client


def section(name: str) -> str:
    return f"queue {name!r}"


def test_rabbitmq(doctor: Doctor, rabbitmq: RabbitMQNode, names: dict[str, str], client: Client) -> None:
    limits: dict[str, object] = {"x-max-length": 5, "x-overflow": "reject-publish", "x-message-ttl": 3_600_000}
    client.declare_queue(names["classic"], arguments=limits)
    client.declare_queue(names["quorum"], durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 7})
    client.declare_queue(names["stream"], durable=True, arguments={"x-queue-type": "stream"})
    for kind in ("classic", "quorum"):
        client.bind(names[kind], "amq.fanout", "")
        put(client, names[kind], b"one")
        wait_until(lambda kind=kind: count(client, names[kind]) == 1, "the message to be counted")  # type: ignore[misc]
    asked = [word for kind in ("classic", "quorum", "stream") for word in ("--queue", names[kind])]
    told = doctor.at(rabbitmq, *asked, "--exchange", "amq.fanout")
    assert told.code == 0
    assert told.about("protocols")[1].startswith("AMQP 0-9-1, 0-9;")
    assert "RabbitMQ 4" in told.value("connection", "broker")
    assert told.status("connection", "clock") == "ok"
    about = section(names["classic"])
    assert told.found[about, "type"][:2] == ("warning", "classic, not durable")
    assert told.found[about, "limits"][:2] == ("ok", "x-max-length=5, x-overflow=reject-publish")
    assert told.found[about, "time to live"][:2] == ("warning", "x-message-ttl=3600000")
    about = section(names["quorum"])
    assert told.found[about, "type"][:2] == ("ok", "quorum, durable")
    assert told.found[about, "delivery limit"][:2] == ("warning", "x-delivery-limit=7")
    assert told.status(about, "policies") == "skipped"
    assert told.value(section(names["stream"]), "type") == "stream, durable"
    assert {told.status(section(names[kind]), "read") for kind in ("classic", "quorum", "stream")} == {"ok"}
    assert told.status("exchange 'amq.fanout'", "write") == "ok"
    assert "is a classic queue" in told.value("guarantees", "source, exactly-once")
    for kind in ("classic", "quorum"):
        message = client.get(names[kind])
        assert message is not None
        assert (message.body, message.redelivered) == (b"one", False)
        assert not message.headers.get("x-delivery-count")
        assert client.get(names[kind]) is None, "nothing was published to the exchange"


def count(client: Client, queue: str) -> int:
    info = client.query_queue(queue)
    return -1 if info is None else info.message_count


def test_exactly_once_from_a_quorum_queue(
    doctor: Doctor, rabbitmq: RabbitMQNode, names: dict[str, str], client: Client
) -> None:
    client.declare_queue(names["quorum"], durable=True, arguments={"x-queue-type": "quorum"})
    told = doctor.at(rabbitmq, "--queue", names["quorum"], "--exactly-once")
    assert told.code == 0
    assert told.found["guarantees", "source, exactly-once"][:2] == ("ok", "yes: quorum")
    assert "20 returns" in told.value(section(names["quorum"]), "delivery limit")
    told = doctor.at(rabbitmq, "--queue", names["absent"], "--exactly-once")
    assert (told.code, told.status(section(names["absent"]), "exists")) == (3, "error")


def test_rights_on_rabbitmq(doctor: Doctor, rabbitmq: RabbitMQNode, names: dict[str, str], client: Client) -> None:
    client.declare_queue(names["classic"], durable=True)
    login = ("trader", rabbitmq.config.users["trader"])
    rabbitmq.set_rights("trader", "default", Rights("^$", "^$", f"^{names['classic']}$"))
    try:
        url = rabbitmq.url("default")
        told = doctor(url, "--queue", names["classic"], "--exchange", "amq.topic", login=login)
        refused = doctor(url, login=("trader", "wr0ng-pass"))
    finally:
        rabbitmq.set_rights("trader", "default", Rights())
    assert told.code == 3
    assert told.status(section(names["classic"]), "read") == "ok"
    assert told.status(section(names["classic"]), "properties") == "skipped"
    assert told.status("exchange 'amq.topic'", "write") == "error"
    assert told.status("rights", "declare") == "warning"
    assert refused.code == 3
    assert refused.status("connection", "login") == "error"


def test_the_least_rights_of_exactly_once_from_a_quorum_queue(
    doctor: Doctor, rabbitmq: RabbitMQNode, names: dict[str, str], client: Client
) -> None:
    client.declare_queue(names["quorum"], durable=True, arguments={"x-queue-type": "quorum"})
    login = ("trader", rabbitmq.config.users["trader"])
    arguments = (rabbitmq.url("default"), "--queue", names["quorum"], "--exactly-once")
    lock, queue = r"^amqp-spark\.lock\.", f"^{names['quorum']}$"
    try:
        rabbitmq.set_rights("trader", "default", Rights(f"{lock}|{queue}", "^$", queue))
        told = doctor(*arguments, login=login)
        rabbitmq.set_rights("trader", "default", Rights(queue, "^$", queue))
        locked_out = doctor(*arguments, login=login)
        rabbitmq.set_rights("trader", "default", Rights(lock, "^$", queue))
        of_unknown_type = doctor(*arguments, login=login)
    finally:
        rabbitmq.set_rights("trader", "default", Rights())
    assert told.code == 0
    assert told.found["guarantees", "source, exactly-once"][:2] == ("ok", "yes: quorum")
    assert told.status("rights", "declare") == "ok"
    assert told.status("rights", "write") == told.status("rights", "read") == "skipped"
    assert "not needed" in told.value("rights", "write")
    assert locked_out.code == 3
    assert locked_out.status("rights", "declare") == locked_out.status("guarantees", "source, exactly-once") == "error"
    assert of_unknown_type.code == 3
    assert "could not be learned" in of_unknown_type.value("guarantees", "source, exactly-once")


def test_a_queue_that_is_deleted_meanwhile_is_not_made_again(client: Client, names: dict[str, str]) -> None:
    """Each of the impossible values is refused where there is no queue, so that all declarations of the doctor are."""
    for name, value in declared.IMPOSSIBLE.items():
        with pytest.raises(PreconditionFailed):
            client.declare_queue(names["absent"], durable=True, arguments={name: value})
    assert not declared.ask(client, names["absent"]).is_complete
    assert client.query_queue(names["absent"]) is None


def test_broker_j(doctor: Doctor, broker: Broker, queue: str, connect: Connect) -> None:
    told = doctor.at(broker, "--queue", queue, "--exchange", "amq.topic", "--exactly-once")
    assert told.code == 0
    assert told.value(section(queue), "type").startswith("standard")
    assert told.value("exchange 'amq.topic'", "exists") == "yes, type topic"
    assert told.status(section(queue), "read") == "skipped"
    assert told.status("exchange 'amq.topic'", "write") == "skipped"
    for name in ("declare", "write", "read", "local transactions (tx)", "distributed transactions (dtx)"):
        assert told.status("rights", name) == "ok"
    assert told.status("guarantees", "sink, exactly-once") == "ok"
    info = connect().query_queue(queue)
    assert info is not None
    assert (info.message_count, info.subscriber_count) == (0, 0)


def test_broker_j_over_0_9_1(doctor: Doctor, brokerj_0_9: BrokerJ) -> None:
    told = doctor.at(brokerj_0_9, "--queue", "absent", "--exchange", "absent", "--option", "protocol=0-9-1")
    assert told.code == 3
    assert told.status("queue 'absent'", "exists") == told.status("exchange 'absent'", "exists") == "error"
    assert told.status("rights", "local transactions (tx)") == "ok"
    assert told.status("guarantees", "source") == told.status("guarantees", "sink") == "skipped"
    told = doctor.at(brokerj_0_9, "--option", "protocol=0-9-1")
    assert told.value("guarantees", "source, exactly-once").startswith("yes, with consumerId")


def test_a_broker_that_is_out_of_memory(
    doctor: Doctor, rabbitmq: RabbitMQNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no messages, and says so to those who publish."""
    monkeypatch.setattr("amqp_spark.diagnosis.site.CALL_SECONDS", 3.0)
    rabbitmq.set_memory_alarm(True)
    try:
        told = doctor.at(rabbitmq)
    finally:
        rabbitmq.set_memory_alarm(False)
    assert told.code == 3
    assert told.status("rights", "write") == "error"
    assert "has blocked its publishers for 3 s: low on memory" in told.value("rights", "write")
    assert told.status("rights", "declare") == told.status("rights", "read") == "ok"
