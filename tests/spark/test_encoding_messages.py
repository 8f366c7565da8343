"""Properties and options of the sink in the frames, decoded by the core and compared with its own encoder."""

from __future__ import annotations

import pickle
import struct
import uuid
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from amqp_core.v0_10 import spec
from amqp_spark.arrow.encode import FrameFormat, MessagePlan
from tests.spark.message_support import (
    EVERYTHING,
    FRAME,
    FULL,
    HERE,
    INT,
    LONG,
    OCTETS,
    SHORT,
    TEXT,
    blocks_of,
    expected,
    fields,
    one,
    received,
    sink_options,
    to_batch,
)


def test_every_property_of_a_row_is_sent() -> None:
    message = one(EVERYTHING, FULL)
    assert message.header == expected(FULL)
    assert message.body == b"body"
    assert message.command == spec.MessageTransfer(
        destination="amq.topic",
        accept_mode=spec.MessageAcceptMode.NONE,
        acquire_mode=spec.MessageAcquireMode.PRE_ACQUIRED,
    )


def test_null_is_absent() -> None:
    row = dict.fromkeys(FULL) | {"body": b""}
    message = one(EVERYTHING, row)
    assert message.header == expected(row)
    assert message.delivery == spec.DeliveryProperties()
    assert message.message == spec.MessageProperties()
    assert len(message.frames) == 2


def test_a_body_alone_is_persistent_and_says_its_length() -> None:
    message = one(fields(body=TEXT), {"body": "h€llo"})
    assert message.delivery == spec.DeliveryProperties(delivery_mode=2)
    assert message.message == spec.MessageProperties(content_length=7)
    assert message.body == "h€llo".encode()


@pytest.mark.parametrize("accept_mode", list(spec.MessageAcceptMode))
@pytest.mark.parametrize("exchange", ["", "amq.topic", "x" * 255, "ü"])
def test_the_command_names_the_exchange_of_the_option(accept_mode: int, exchange: str) -> None:
    options = sink_options(exchange=exchange, routingKey="q")
    message = one(fields(body=OCTETS), {"body": b"b"}, options, accept_mode=accept_mode)
    assert message.command == spec.MessageTransfer(exchange, accept_mode, spec.MessageAcquireMode.PRE_ACQUIRED)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
u63 = st.integers(0, 2**63 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "discard_unroutable": st.booleans(),
    "immediate": st.booleans(),
    "priority": st.integers(0, 9),
    "delivery_mode": st.sampled_from([1, 2]),
    "ttl": u63,
    "timestamp": u63,
    "expiration": u63,
    "routing_key": text | st.just("k" * 255),
    "resume_id": text,
    "resume_ttl": u63,
    "content_length": st.integers(-(2**63), 2**63 - 1),
    "message_id": st.uuids().map(str) | st.uuids().map(lambda item: str(item).upper()),
    "correlation_id": st.binary(max_size=20) | st.just(bytes(300)),
    "reply_to": st.fixed_dictionaries({"exchange": st.none() | text, "routing_key": st.none() | text}),
    "content_type": text,
    "content_encoding": text,
    "user_id": st.binary(max_size=9),
    "app_id": st.binary(max_size=9),
    "application_headers": st.fixed_dictionaries(
        {"symbol": st.none() | text, "qty": st.none() | st.integers(-(2**31), 2**31 - 1)}
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[t.StructType, list[dict[str, Any]]]:
    """A random subset of the columns, each with NULL in all, some or no rows."""
    names = draw(st.lists(st.sampled_from(list(VALUES)), unique=True))
    nulls = {name: draw(st.sampled_from(["none", "some", "all"])) for name in names}
    room = 4096 - FRAME
    bodies = st.binary(max_size=30) | st.sampled_from([0, room - 1, room, room + 1, 3 * room + 5]).map(bytes)
    row: dict[str, st.SearchStrategy[Any]] = {"body": bodies}
    for name in names:
        some = VALUES[name]
        row[name] = {"none": some, "some": st.none() | some, "all": st.none()}[nulls[name]]
    schema = t.StructType([EVERYTHING[name] for name in draw(st.permutations([*names, "body"]))])
    return schema, draw(st.lists(st.fixed_dictionaries(row), min_size=1, max_size=8))


@given(tables(), st.booleans(), st.integers(0, 2), st.sampled_from([4096, 65535]))
def test_any_columns_are_sent_as_the_core_would_write_them(
    table: tuple[t.StructType, list[dict[str, Any]]], large: bool, skip: int, limit: int
) -> None:
    schema, rows = table
    skip = min(skip, len(rows))
    blocks = blocks_of(schema, to_batch(schema, rows, large=large, skip=skip), max_frame_size=limit)
    messages = received(blocks, max_frame_size=limit)
    assert [message.header for message in messages] == [expected(row) for row in rows[skip:]]
    assert [message.body for message in messages] == [row["body"] for row in rows[skip:]]
    assert [block.first_row for block in blocks] == ([0] if skip < len(rows) else [])


def test_texts_may_be_binary_and_octets_may_be_text() -> None:
    swapped = {
        name: TEXT if isinstance(EVERYTHING[name].dataType, t.BinaryType) else OCTETS
        for name in ("routing_key", "resume_id", "correlation_id", "content_type", "content_encoding", "user_id")
    }
    row: dict[str, Any] = {name: FULL[name].encode() if isinstance(FULL[name], str) else "text" for name in swapped} | {
        "body": "text"
    }
    message = one(fields(**swapped, body=TEXT), row)
    plain = {name: value.encode() if name in ("correlation_id", "user_id") else value for name, value in row.items()}
    plain |= {name: FULL[name] for name in ("routing_key", "resume_id", "content_type", "content_encoding")}
    assert message.header == expected(plain | {"body": b"text"})


def test_octets_in_a_text_property_are_passed_on_as_they_are() -> None:
    schema = fields(routing_key=OCTETS, body=TEXT)
    (block,) = blocks_of(schema, to_batch(schema, [{"routing_key": b"\xff\xfe", "body": "b"}]))
    assert b"\x02\xff\xfe" in bytes(block.frames)
    assert block.routing_keys is not None
    assert block.routing_keys.to_pylist() == [None], "brokers are asked for texts"


def test_a_uuid_may_be_16_octets() -> None:
    row = {"message_id": uuid.UUID(FULL["message_id"]).bytes, "body": b""}
    assert one(fields(message_id=OCTETS, body=OCTETS), row).message.message_id == uuid.UUID(FULL["message_id"])


@pytest.mark.parametrize("kind", [t.ByteType(), SHORT, INT, LONG], ids=str)
def test_numbers_of_any_width_are_sent(kind: t.DataType) -> None:
    schema = fields(priority=kind, delivery_mode=kind, body=OCTETS)
    message = one(schema, {"priority": 9, "delivery_mode": 1, "body": b""})
    assert (message.delivery.priority, message.delivery.delivery_mode) == (9, 1)


def test_durations_may_be_int() -> None:
    message = one(fields(ttl=INT, resume_ttl=INT, body=OCTETS), {"ttl": 5, "resume_ttl": None, "body": b""})
    assert (message.delivery.ttl, message.delivery.resume_ttl) == (5, None)


@pytest.mark.parametrize(
    ("unit", "sent"), [("auto", 1_700_000_000_123), ("ms", 1_700_000_000_123), ("s", 1_700_000_000)]
)
@pytest.mark.parametrize("kind", [t.TimestampType(), t.TimestampNTZType()], ids=str)
def test_timestamps_are_sent_in_the_unit_of_the_option(unit: str, sent: int, kind: t.DataType) -> None:
    moment = datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_999)
    if isinstance(kind, t.TimestampNTZType):
        moment = moment.replace(tzinfo=None)
    schema = fields(timestamp=kind, expiration=kind, body=OCTETS)
    rows = [
        {"timestamp": moment, "expiration": None, "body": b""},
        {"timestamp": None, "expiration": moment, "body": b""},
    ]
    options = sink_options(timestampUnit=unit)
    first, second = (message.delivery for message in received(blocks_of(schema, to_batch(schema, rows), options)))
    assert (first.timestamp, first.expiration) == (sent, None)
    assert (second.timestamp, second.expiration) == (None, sent)


@pytest.mark.parametrize("number", [-1, 0, 1_700_000_000, -(2**63), 2**63 - 1])
def test_a_time_as_a_number_is_sent_as_it_is(number: int) -> None:
    message = one(fields(timestamp=LONG, expiration=LONG, body=OCTETS), {"timestamp": number, "body": b""})
    assert (message.delivery.timestamp, message.delivery.expiration) == (number, None)


def test_the_time_zone_of_the_session_changes_nothing() -> None:
    schema = fields(timestamp=t.TimestampType(), body=OCTETS)
    moment = datetime(2026, 11, 21, 0, 5, 30, 123_456, tzinfo=UTC)
    zoned: Any = pa.timestamp("us", "America/New_York")
    arrays: list[Any] = [pa.array([moment], zoned), pa.array([b""])]
    batch = pa.RecordBatch.from_arrays(arrays, names=schema.names)
    (message,) = received(blocks_of(schema, batch))
    assert message.delivery.timestamp == int(moment.timestamp() * 1000)


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"routingKey": "of the option"}, "routing_key", "of the option"),
        ({"deliveryMode": "persistent"}, "delivery_mode", 2),
        ({"ttl": "1234"}, "ttl", 1234),
        ({"priority": "3"}, "priority", 3),
        ({"contentType": "application/json"}, "content_type", "application/json"),
    ],
)
@pytest.mark.parametrize("with_column", [True, False])
def test_an_option_overrides_its_column(options: dict[str, object], name: str, value: Any, with_column: bool) -> None:
    schema = EVERYTHING if with_column else fields(body=OCTETS)
    row = FULL if with_column else {"body": b"body"}
    assert one(schema, row, sink_options(**options)).header == expected(row | {name: value})


def test_values_of_a_column_that_an_option_overrides_do_not_matter() -> None:
    schema = fields(priority=INT, routing_key=TEXT, body=OCTETS)
    row = {"priority": 77, "routing_key": "k" * 300, "body": b""}
    message = one(schema, row, sink_options(priority="1", routingKey="k"))
    assert (message.delivery.priority, message.delivery.routing_key) == (1, "k")


def test_the_exchange_of_a_row_counts_when_it_is_asked_for() -> None:
    schema = fields(body=OCTETS, exchange=TEXT, routing_key=TEXT)
    rows = [{"body": b"", "exchange": name, "routing_key": name} for name in ("amq.direct", None, "", "ü")]
    batch = to_batch(schema, rows)
    options = sink_options(exchange="amq.fanout", exchangeFromColumn="true")
    (block,) = blocks_of(schema, batch, options)
    names = ["amq.direct", "amq.fanout", "", "ü"]
    assert [message.command.destination for message in received([block])] == names
    assert block.exchanges is not None
    assert block.exchanges.to_pylist() == names
    assert block.routing_keys is not None
    assert block.routing_keys.to_pylist() == ["amq.direct", None, "", "ü"]
    (block,) = blocks_of(schema, batch, sink_options(exchange="amq.fanout", routingKey="k"))
    assert {message.command.destination for message in received([block])} == {"amq.fanout"}
    assert (block.exchanges, block.routing_keys) == (None, None)


# ---- plans and batches ---------------------------------------------------------------------------------------------


def test_a_plan_pickles() -> None:
    options = sink_options(stampHeaders="true", routingKey="k")
    plan = MessagePlan.build(EVERYTHING, options)
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan
    encoder = copy.encoder(FrameFormat(accept_mode=1, max_frame_size=65535), HERE)
    assert len(received(encoder.blocks(to_batch(EVERYTHING, [FULL]), 0))) == 1


def test_a_batch_without_rows_has_no_blocks() -> None:
    assert blocks_of(EVERYTHING, to_batch(EVERYTHING, [])) == []


def test_a_batch_of_other_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="1 columns"):
        blocks_of(EVERYTHING, to_batch(fields(body=OCTETS), [{"body": b""}]))


def test_frames_and_ends_are_memory_that_is_not_copied() -> None:
    schema = fields(body=OCTETS)
    (block,) = blocks_of(schema, to_batch(schema, [{"body": b"a"}, {"body": b"bc"}]))
    view = memoryview(block.frames)
    assert view.nbytes == block.ends[-1] == len(block.frames)
    assert isinstance(block.ends[0], int)
    assert list(block.ends) == list(memoryview(block.ends))  # type: ignore[arg-type]
    flags, kind, size = struct.unpack_from(">BBH", view)
    assert (flags, kind) == (0x0B, 1)
    assert view[size + 1] == 2
