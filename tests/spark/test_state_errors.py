"""Errors of the state of exactly-once: they name its owner, the cause and the remedy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.error_conditions import reason
from amqp_core.errors import NotImplementedByPeer, UnauthorizedAccess
from amqp_spark.errors import StateError
from amqp_spark.state.names import CONSUMER, WRITER, Names
from amqp_spark.state.queue import StateQueue, loaded
from amqp_spark.state.records import ConsumerState, WriterState

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_10.client import Client


@pytest.mark.parametrize(
    "refusal",
    [
        NotImplementedByPeer(540, 3, "no transactions here", "tx.select"),
        UnauthorizedAccess(403, 3, "not for you", "tx.select"),
    ],
)
def test_a_broker_that_refuses_local_transactions(refusal: Exception) -> None:
    def select() -> None:
        raise refusal

    client = SimpleNamespace(transactions=SimpleNamespace(is_local=False, select=select))
    queue = StateQueue(cast("Client", client), Names(CONSUMER, "orders"))
    with pytest.raises(StateError) as failed:
        queue.swap(b"{}")
    told = str(failed.value)
    assert "does not let this login use local transactions (tx)" in told
    assert f"deliveryGuarantee=exactly-once needs for {CONSUMER} 'orders'" in told
    assert reason(refusal) in told
    assert "nothing was changed" in told


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b"hello", "was not written by amqp_spark"),
        (b'{"version":2,"kind":"x"}', "has version 2; this amqp_spark knows version 1"),
        (b'{"version":1,"kind":"x"}', "is that of a x"),
    ],
)
@pytest.mark.parametrize(
    ("names", "load", "command"),
    [
        (Names(CONSUMER, "my orders"), ConsumerState.load, "--consumer-id 'my orders' --forget"),
        (Names(WRITER, "w1"), WriterState.load, "--transactional-id w1 --forget"),
    ],
)
def test_a_message_that_is_no_state(
    names: Names, load: Callable[[bytes], Any], command: str, body: bytes, wrong: str
) -> None:
    with pytest.raises(StateError) as failed:
        loaded(names, load, body)
    told = str(failed.value)
    assert told.startswith(
        f"[AMQP_STATE_UNREADABLE] The state queue {names.state!r} of {names.kind} {names.identity!r} cannot be used: "
    )
    assert wrong in told
    assert f"`amqp-spark transactions URL {command}`" in told


def test_an_identity_that_cannot_be_shown_is_not_put_into_a_command() -> None:
    assert Names(CONSUMER, "a\nb").tool() == "`amqp-spark transactions URL --consumer-id ID`"
