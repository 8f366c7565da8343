"""Headers of the sink: what comes encoded is checked and passed on, stamps are added, and a bridge changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from amqp_core.v0_10 import spec
from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10._codec import decode_header, encode_header
from amqp_core.v0_10._read import read_map_typed
from amqp_core.v0_10._write import write_map
from amqp_core.v0_10.type_codes import Typed
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, ColumnPlan
from amqp_spark.arrow.encode import TaskId
from amqp_spark.arrow.rows.stamps import STAMPS
from amqp_spark.arrow.v0_10.encode.headers import checked
from tests.spark.message_support import (
    INT,
    LONG,
    OBJECT,
    OCTETS,
    TEXT,
    blocks_of,
    fields,
    received,
    sink_options,
    to_batch,
)
from tests.support import wire
from tests.support.received import chunk_of
from tests.support.values import typed_maps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.spark.message_support import Received

STREAM = TaskId(query_id="7f3c", batch_id=12, partition=3)
STAMPED = sink_options(stampHeaders="true")

EMPTY_MAP = wire.map_([])
NO_MAP = bytes(4)  # Broker-J may send a null map as size 0 and no count
ENCODED = wire.map_([(b"a", code.INT32, bytes([0, 0, 0, 1]))])
HEADERS: list[tuple[t.DataType, Any, dict[str, Typed]]] = [
    (fields(a=INT, b=TEXT), {"a": 1, "b": None}, {"a": Typed(code.INT32, 1)}),
    (t.MapType(TEXT, LONG), [("a", 1), ("b", None)], {"a": Typed(code.INT64, 1), "b": Typed(code.VOID, None)}),
    (t.VariantType(), OBJECT, {"a": Typed(code.INT32, 1)}),
    (OCTETS, ENCODED, {"a": Typed(code.INT32, 1)}),
    (OCTETS, EMPTY_MAP, {}),
    (OCTETS, NO_MAP, {}),
]


def headers_of(message: Received) -> dict[str, Typed] | None:
    """The application headers with their wire types, cut out of the header segment behind everything else."""
    if message.message.application_headers is None:
        return None
    delivery, properties, _ = decode_header(message.header)
    assert properties is not None
    properties.application_headers = None
    at = len(encode_header(delivery, properties))
    found, end = read_map_typed(message.header, at)
    assert end == len(message.header)
    return found


def stamps(row: int, place: TaskId = STREAM) -> dict[str, Typed]:
    all_of_them = {
        "amqp-spark.query-id": Typed(code.STR16, place.query_id),
        "amqp-spark.batch-id": Typed(code.INT64, place.batch_id),
        "amqp-spark.partition": Typed(code.INT32, place.partition),
        "amqp-spark.row": Typed(code.INT64, row),
    }
    return {name: typed for name, typed in all_of_them.items() if typed.value is not None}


@pytest.mark.parametrize(("kind", "value", "wanted"), HEADERS, ids=lambda item: str(item)[:14])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_stamps_follow_the_headers_of_a_row(
    kind: t.DataType, value: Any, wanted: dict[str, Typed], nulls: bool, large: bool
) -> None:
    schema = fields(body=TEXT, application_headers=kind)
    rows = [{"body": "b", "application_headers": value}] * 2
    if nulls:
        rows.insert(1, {"body": "b", "application_headers": None})
    batch = to_batch(schema, rows, large=large)
    plain = [headers_of(message) for message in received(blocks_of(schema, batch))]
    assert plain == [None if row["application_headers"] is None else wanted for row in rows]
    messages = received(blocks_of(schema, batch, STAMPED, place=STREAM, first_row=40))
    own = [{} if row["application_headers"] is None else wanted for row in rows]
    assert [headers_of(message) for message in messages] == [mine | stamps(40 + i) for i, mine in enumerate(own)]


@pytest.mark.parametrize(
    "place",
    [STREAM, TaskId(None, 5, 0), TaskId(None, None, 2**31 - 1), TaskId("q", None, 1), TaskId("ü", 2**63 - 1, 1)],
)
def test_a_row_without_headers_gets_the_stamps_that_there_are(place: TaskId) -> None:
    schema = fields(body=TEXT)
    blocks = blocks_of(schema, to_batch(schema, [{"body": "x"}] * 2), STAMPED, place=place, first_row=2**40)
    first, second = (headers_of(message) for message in received(blocks))
    assert first == stamps(2**40, place)
    assert second == stamps(2**40 + 1, place)


def test_without_the_option_there_are_no_stamps() -> None:
    schema = fields(body=TEXT)
    (message,) = received(blocks_of(schema, to_batch(schema, [{"body": "x"}]), place=STREAM))
    assert message.message.application_headers is None


@pytest.mark.parametrize("kind", [OCTETS, t.MapType(TEXT, TEXT)], ids=str)
def test_stamps_of_an_earlier_write_are_replaced(kind: t.DataType) -> None:
    schema = fields(body=TEXT, application_headers=kind)
    own = {STAMPS[3]: "old", "amqp-spark.other": "kept", "z": "kept", STAMPS[0]: "old", "long": "v" * 70_0}
    value: Any = write_map(own) if kind == OCTETS else list(own.items())
    rows = [{"body": "x", "application_headers": value}, {"body": "x", "application_headers": None}]
    first, second = received(blocks_of(schema, to_batch(schema, rows), STAMPED, place=STREAM))
    kept = {name: Typed(code.STR16, text) for name, text in own.items() if name not in STAMPS}
    found = headers_of(first)
    assert found is not None
    assert list(found) == [*kept, *STAMPS]
    assert found == kept | stamps(0)
    assert headers_of(second) == stamps(1)


unstamped = typed_maps.filter(lambda item: not set(item) & set(STAMPS))


@given(st.lists(st.none() | unstamped, min_size=1, max_size=5), st.booleans())
def test_encoded_headers_are_passed_on_untouched(maps: Sequence[dict[str, Typed] | None], stamp: bool) -> None:
    schema = fields(body=TEXT, application_headers=OCTETS)
    encoded = [None if item is None else write_map(item) for item in maps]
    batch = to_batch(schema, [{"body": "b", "application_headers": item} for item in encoded])
    for message, octets in zip(received(blocks_of(schema, batch)), encoded, strict=True):
        assert message.header.endswith(octets or b"")
        assert (message.message.application_headers is None) == (octets is None)
    if stamp:
        for row, message in enumerate(received(blocks_of(schema, batch, STAMPED, place=STREAM))):
            entries = (encoded[row] or EMPTY_MAP)[8:]
            assert entries in message.header
            found = headers_of(message)
            assert found is not None
            assert len(found) == len(maps[row] or {}) + 4


@given(st.binary(max_size=60) | st.builds(lambda cut, junk: ENCODED[:cut] + junk, st.integers(0, 20), st.binary()))
def test_what_is_let_through_as_an_encoded_map_is_read_by_the_source(octets: bytes) -> None:
    wrong = checked(pa.array([ENCODED, octets, None, ENCODED], pa.binary()))
    assert set(wrong) <= {1}
    schema = t.StructType([t.StructField("application_headers", fields(nothing=t.LongType()))])
    plan = ColumnPlan.build(schema, mode="FAILFAST", timestamp_unit="auto")
    if not wrong:
        # a map with one entry more than the source asks for is walked to its end
        frames = wire.transfer(
            bytes.fromhex("00000004 0401 0000") + (4 + len(octets)).to_bytes(4) + bytes.fromhex("0403 0001") + octets
        )
        (batch,) = plan.batches([chunk_of(frames)], queue="q", first_position=0)
        assert batch.num_rows == 1


def test_an_encoded_map_of_many_entries_is_checked_to_its_end() -> None:
    entries = [(f"k{i}".encode(), code.STR16, b"\0\x01x") for i in range(300)]
    good = wire.map_(entries)
    bad = wire.map_([*entries, (b"last", code.STR16, b"\xff\xff")])
    wrong = checked(pa.array([good, bad, good, EMPTY_MAP, NO_MAP], pa.binary()))
    assert list(wrong) == [1]
    assert wrong[1].startswith("is no encoded map: ")


INNER = wire.map_([(b"b", code.STR16, b"\0\x01x")])
MALFORMED = [
    (code.MAP, INNER[:4] + b"\0\0\0\x09" + INNER[8:]),
    (code.MAP, INNER[:4] + b"\0\0\0\0" + INNER[8:]),
    (code.MAP, b"\0\0\0\x02\0\0"),
    (code.MAP, b"\0\0\0\x05\0\0\0\x01\x09"),
    (code.MAP, wire.map_([(b"b", code.LIST, b"\0\0\0\x05\0\0\0\x01\xb0")])),
    (code.LIST, b"\0\0\0\x08\0\0\0\x01\x95\xff\xff\0"),
    (code.LIST, wire.list_([(code.INT8, b"\x01"), (code.MAP, b"\0\0\0\x01\0")])),
    (code.ARRAY, b"\0\0\0\x05\x95\0\0\0\x05"),
    (code.ARRAY, b"\0\0\0\x06\xf0\xff\xff\xff\xff\0"),
]
WHOLE = [
    (code.MAP, INNER),
    (code.MAP, bytes(4)),
    (code.LIST, wire.list_([(code.VOID, b""), (code.MAP, INNER), (code.STR16, b"\0\x02\xff\xfe")])),
    (code.ARRAY, bytes(4)),
    (code.ARRAY, b"\0\0\0\x07\x02\0\0\0\x02\x01\x02"),
    (code.ARRAY, b"\0\0\0\x05\xf0\xff\xff\xff\xff"),
    (code.ARRAY, (5 + 2 * len(INNER)).to_bytes(4) + b"\xa8\0\0\0\x02" + INNER + INNER),
]


@pytest.mark.parametrize("entries", [1, 300], ids=["few", "many"])
def test_encoded_maps_are_checked_inside_of_their_values(entries: int) -> None:
    # Broker-J decodes all headers of a transfer: one that is malformed ends the connection, and its row is not named
    before = [(f"k{i}".encode(), code.INT8, b"\x01") for i in range(entries - 1)]
    items = [wire.map_([*before, (b"a", *value)]) for value in MALFORMED + WHOLE]
    wrong = checked(pa.array(items, pa.binary()))
    reason = "is no encoded map: a map, list or array inside of it is malformed"
    assert wrong == dict.fromkeys(range(len(MALFORMED)), reason)


def test_maps_as_deep_as_a_frame_allows_are_checked() -> None:
    deep, bad = INNER, b"\0\0\0\x01\0"
    while len(deep) < 60_000:
        deep, bad = (wire.map_([(b"", code.MAP, item)]) for item in (deep, bad))
    assert list(checked(pa.array([deep, bad], pa.binary()))) == [1]


# ---- a bridge ------------------------------------------------------------------------------------------------------

NUMBERS = {"timestamp": t.LongType(), "expiration": t.LongType(), "application_headers": t.BinaryType()}
READ = t.StructType([t.StructField(f.name, NUMBERS.get(f.name, f.dataType)) for f in DEFAULT_SCHEMA.fields])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


u63 = st.integers(0, 2**63 - 1)
str8 = st.text(max_size=30)
opaque = st.binary(max_size=20)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Header and body as another client sends them."""
    body = draw(st.binary(max_size=50) | st.sampled_from([4084, 4085, 9000]).map(bytes))
    delivery = spec.DeliveryProperties(
        discard_unroutable=draw(st.booleans()),
        immediate=draw(st.booleans()),
        priority=draw(maybe(st.integers(0, 9))),
        delivery_mode=draw(maybe(st.sampled_from([1, 2]))),
        ttl=draw(maybe(u63)),
        timestamp=draw(maybe(u63)),
        expiration=draw(maybe(u63)),
        routing_key=draw(maybe(str8)),
        resume_id=draw(maybe(str8)),
        resume_ttl=draw(maybe(u63)),
    )
    message = spec.MessageProperties(
        content_length=draw(maybe(st.just(len(body)))),
        message_id=draw(maybe(st.uuids())),
        correlation_id=draw(maybe(opaque)),
        reply_to=draw(maybe(st.builds(spec.ReplyTo, exchange=maybe(str8), routing_key=maybe(str8)))),
        content_type=draw(maybe(str8)),
        content_encoding=draw(maybe(str8)),
        user_id=draw(maybe(opaque)),
        app_id=draw(maybe(opaque)),
        application_headers=draw(maybe(typed_maps)),
    )
    return encode_header(delivery, message), body


@given(st.lists(messages(), min_size=1, max_size=5), st.sampled_from([4096, 65535]))
def test_what_the_source_reads_the_sink_writes_with_the_same_octets(
    sent: list[tuple[bytes, bytes]], limit: int
) -> None:
    frames = b"".join(wire.transfer(header, body or None) for header, body in sent)
    plan = ColumnPlan.build(READ, mode="FAILFAST", timestamp_unit="auto")
    blocks = [
        block
        for batch in plan.batches([chunk_of(frames)], queue="q", first_position=0)
        for block in blocks_of(READ, batch, max_frame_size=limit)
    ]
    again = received(blocks, max_frame_size=limit)
    assert [(message.header, message.body) for message in again] == sent


def test_what_a_broker_sets_is_not_passed_on() -> None:
    header = encode_header(
        spec.DeliveryProperties(redelivered=True, exchange="amq.topic", routing_key="k"), spec.MessageProperties()
    )
    plan = ColumnPlan.build(READ, mode="FAILFAST", timestamp_unit="auto")
    (batch,) = plan.batches([chunk_of(wire.transfer(header, b"b"))], queue="q", first_position=0)
    (message,) = received(blocks_of(READ, batch, sink_options(exchange="amq.direct")))
    assert message.delivery == spec.DeliveryProperties(routing_key="k")
    assert message.command.destination == "amq.direct"
