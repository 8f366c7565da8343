"""Options of the source over AMQP 0-9-1: what is declared, subscribed to, refused, and warned of."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import PreconditionFailed
from amqp_spark.errors import UnsupportedModeError
from tests.spark.driver import Driver
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    from tests.spark.reader_support import Readers


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker(protocol="0-9-1")


def test_options_of_rabbitmq_become_arguments(fake: FakeBroker, readers: Readers) -> None:
    options = {"queueType": "quorum", "queueArguments": "x-max-length=10;x-overflow=reject-publish"}
    Driver(readers("new", declare="ifMissing", consumerPriority=5, consumerTimeout="2h", **options)).latest()
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": -1, "x-max-length": 10, "x-overflow": "reject-publish"}
    assert fake.declared["new"] == arguments
    assert fake.subscriptions[0]["arguments"] == {"x-priority": 5, "x-consumer-timeout": 7_200_000}


@pytest.mark.parametrize(
    ("options", "unlimited", "expected"),
    [
        ({}, True, {"x-delivery-limit": -1}),
        ({"queueArguments": "x-max-length=5"}, True, {"x-delivery-limit": -1, "x-max-length": 5}),
        ({}, False, None),
        ({"queueType": "classic"}, True, {"x-queue-type": "classic"}),
        ({"queueType": "quorum"}, False, {"x-queue-type": "quorum"}),
        ({"queueArguments": '{"x-queue-type": "quorum", "x-delivery-limit": 5}'}, True,
         {"x-queue-type": "quorum", "x-delivery-limit": 5}),
    ],
)  # fmt: skip
def test_a_quorum_queue_is_declared_without_a_limit_of_deliveries_where_the_server_knows_that(
    fake: FakeBroker, readers: Readers, options: dict[str, str], *, unlimited: bool, expected: dict[str, object] | None
) -> None:
    fake.lacks = frozenset() if unlimited else frozenset({"unlimited_deliveries"})
    Driver(readers("new", declare="ifMissing", **options)).latest()
    assert fake.declared["new"] == expected


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ("invalid arg 'x-delivery-limit' for queue 'new' of queue type rabbit_classic_queue", {"x-max-length": 5}),
        ("invalid arg 'x-max-length' for queue 'new' in vhost '/': -1", None),
    ],
)
def test_a_queue_of_a_type_that_has_no_limit_of_deliveries_is_declared_without_it(
    fake: FakeBroker, readers: Readers, refused: str, expected: dict[str, object] | None
) -> None:
    """Its type is the default of the virtual host, which the broker does not tell."""
    fake.fails["declare"] = [PreconditionFailed(406, None, f"PRECONDITION_FAILED - {refused}", "queue.declare")]
    driver = Driver(readers("new", declare="ifMissing", queueArguments="x-max-length=5"))
    if expected is None:
        with pytest.raises(PreconditionFailed, match="x-max-length"):
            driver.latest()
        return
    driver.latest()
    assert fake.declared["new"] == expected


@pytest.mark.parametrize(
    ("options", "lacks", "named"),
    [
        ({"selector": "a = 1"}, "selectors", "'selector' has the value 'a = 1', and AMQP 0-9-1 of .* has no"),
        ({"consumerPriority": 1}, "consumer_priorities", "'consumerPriority' has the value 1, .* no consumer"),
        ({"mode": "REJECT"}, "rejections", "'mode' has the value 'REJECT', .* Allowed: FAILFAST, PERMISSIVE"),
        ({"consumerTimeout": "1h"}, "consumer_timeouts", "'consumerTimeout' has the value '3600s'"),
        ({"declare": "ifMissing", "queueType": "quorum"}, "queue_types", "has the value 'quorum', .* no queue types"),
        ({"deliveryGuarantee": "exactly-once", "consumerId": "c"}, "local_transactions",
         r"'deliveryGuarantee' has the value 'exactly-once'.*transactions\. Allowed: at-least-once, at-most-once"),
    ],
)  # fmt: skip
def test_what_the_broker_cannot_serve_is_refused_before_anything_is_sent(
    fake: FakeBroker, readers: Readers, tmp_path: Any, options: dict[str, str | int], lacks: str, named: str
) -> None:
    fake.lacks = frozenset({lacks})
    if "consumerId" in options:
        fake.lacks |= {"counts_deliveries"}  # quorum queues, from which exactly-once needs no transaction
        options = options | {"spoolLocation": str(tmp_path)}
    with pytest.raises(UnsupportedModeError, match=named):
        Driver(readers("new", **options)).rows(1)
    assert fake.subscriptions == []
    assert fake.declared == {}


def test_a_refused_consumer_timeout_names_the_option(fake: FakeBroker, readers: Readers) -> None:
    def refuse(name: str) -> None:
        if name == "subscribe":
            raise PreconditionFailed(
                406, None, "PRECONDITION_FAILED - invalid arg 'x-consumer-timeout'", "basic.consume"
            )

    fake.on_command = refuse
    with pytest.raises(PreconditionFailed) as raised:
        Driver(readers(consumerTimeout="1h")).rows(1)
    assert "option 'consumerTimeout' set to 3600s. Remove consumerTimeout" in str(raised.value)
    assert any("invalid arg 'x-consumer-timeout'" in note for note in raised.value.__notes__)


def test_exclusive_without_effect_is_a_warning(
    fake: FakeBroker, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    fake.consumers["q"] = 1
    fake.on_command = lambda name: fake.consumers.update(q=-fake.consumers["q"]) if name == "subscribe" else None
    with caplog.at_level(logging.WARNING):
        Driver(readers(exclusive="true")).latest()
    assert any("x-single-active-consumer" in record.getMessage() for record in caplog.records)
