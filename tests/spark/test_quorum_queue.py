"""Which queues of RabbitMQ exactly-once reads, as the answers to their declaration say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.errors import DeclaredDifferently
from amqp_spark.datasource.exactly_once.quorum_queue import DELAYED, LIMIT, SINGLE, TYPE, check_quorum, warn_of_limit
from amqp_spark.errors import LogError, UnsupportedModeError

if TYPE_CHECKING:
    from amqp_core.api import Client


def client_of(arguments: dict[str, Any], *, unlimited: bool = True) -> Client:
    """A client of a broker that compares declarations with a queue that has these arguments."""

    def declare_queue(_queue: str, *, arguments: dict[str, Any], **_flags: bool) -> None:
        for name in sorted(has.keys() | arguments.keys()):
            if has.get(name) != arguments.get(name):
                value = has.get(name)
                raise DeclaredDifferently(406, None, "inequivalent", argument=name, current=repr(value), value=value)

    has = arguments
    capabilities = SimpleNamespace(unlimited_deliveries=unlimited)
    return cast("Client", SimpleNamespace(declare_queue=declare_queue, capabilities=capabilities))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({TYPE: "classic"}, UnsupportedModeError, "AMQP_QUEUE_TYPE_REFUSED.*is a classic queue"),
        ({TYPE: "stream"}, LogError, r"AMQP_QUEUE_IS_LOG.*Set queueType=stream"),
        ({TYPE: "quorum", SINGLE: 1, "x-max-length": 5}, UnsupportedModeError,
         f"AMQP_QUEUE_SINGLE_CONSUMER.*declared with {SINGLE}.*Declare the queue without it"),
        ({TYPE: "quorum", DELAYED: "all", LIMIT: -1}, UnsupportedModeError,
         f"AMQP_QUEUE_DELAYS_RETURNS.*declared with {DELAYED} all.*Declare the queue without it"),
    ],
)  # fmt: skip
def test_other_queues_are_refused_with_what_helps(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        check_quorum(client_of(arguments), "q")


def test_a_queue_that_says_that_it_delays_nothing_is_read() -> None:
    assert check_quorum(client_of({TYPE: "quorum", DELAYED: "disabled", LIMIT: 7}), "q") == 7


@pytest.mark.parametrize(
    ("limit", "unlimited", "most"),
    [(None, True, "20"), (7, True, "7"), (7, False, "7"), (-1, True, None), (None, False, None)],
)
def test_a_limit_of_deliveries_is_a_warning(
    caplog: pytest.LogCaptureFixture, limit: int | None, most: str | None, *, unlimited: bool
) -> None:
    client = client_of(
        {TYPE: "quorum", "x-max-length": 5} | ({} if limit is None else {LIMIT: limit}), unlimited=unlimited
    )
    found = check_quorum(client, "q")
    assert found == limit
    warn_of_limit(client, "q", found)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == (most is not None)
    for text in texts:
        assert f"queue 'q': the broker drops or dead-letters a message that comes back more than {most} times" in text
        assert "declare the queue with x-delivery-limit=-1" in text
        assert ("policy" in text) == (limit is None)
