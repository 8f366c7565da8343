"""The advice in the error of a message that does not fit, by the guarantee of the query."""

from __future__ import annotations

import pickle

import pytest

from amqp_spark.datasource.stream_reader import advice
from amqp_spark.errors import UNDECODABLE, MessageFormatError
from amqp_spark.options import SourceOptions

OWNED = {"deliveryGuarantee": "exactly-once", "consumerId": "it's me", "spoolLocation": "/spool"}


def told(queue: str = "ticks", column: str = "body", protocol: str = "0-10", **options: str) -> str:
    error = MessageFormatError(queue, 17, column, "not UTF-8")
    parsed = SourceOptions.parse({"url": "amqp://h", "queue": "ticks"} | options)
    advised = error.with_advice(advice(parsed, error, 5, protocol))
    assert str(pickle.loads(pickle.dumps(advised))) == str(advised)
    return str(advised)


def test_at_least_once_can_reject() -> None:
    text = told()
    for part in ("position 17 of queue 'ticks'", "'body'", "not UTF-8", "Change the schema", "mode=PERMISSIVE"):
        assert part in text
    assert "_corrupt_record STRING" in text
    assert "mode=REJECT" in text
    assert "transactions" not in text


def test_exactly_once_cannot_reject_and_has_a_command() -> None:
    text = told(**OWNED)
    assert "REJECT" not in text
    command = """--consumer-id 'it'"'"'s me' --queue ticks --skip 5:17 --to FILE`"""
    assert command in text
    assert "mode=PERMISSIVE" in text
    assert "--queue 'a b'" in told(queue="a b", **OWNED)
    assert "--queue QUEUE" in told(queue="a\x1b", **OWNED)


def test_with_0_9_1_the_command_can_skip_on_broker_j_only() -> None:
    text = told(protocol="0-9-1", **OWNED)
    assert "read with mode=PERMISSIVE and a column _corrupt_record STRING, or, with Broker-J only, leave" in text
    assert "Broker-J" not in told(**OWNED)


def test_with_0_9_1_rejected_messages_go_elsewhere() -> None:
    text = told(protocol="0-9-1")
    assert "with RabbitMQ, with mode=REJECT (the queue's dead-letter exchange gets it)" in text
    assert "alternate exchange" not in text


def test_at_most_once_has_lost_it() -> None:
    text = told(deliveryGuarantee="at-most-once")
    assert "REJECT" not in text
    assert "goes on behind the message" in text


@pytest.mark.parametrize("options", [{}, OWNED])
def test_a_message_that_cannot_be_decoded_fits_no_schema(options: dict[str, str]) -> None:
    text = told(column=UNDECODABLE, **options)
    assert "cannot be decoded: not UTF-8. Read with mode=PERMISSIVE" in text
    assert "Change the schema" not in text
