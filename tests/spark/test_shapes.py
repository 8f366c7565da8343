"""Decoding by the shapes of messages gives what the general way gives, of sound and of damaged messages."""

from __future__ import annotations

import random
import struct
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from amqp_spark.arrow.columns import shapes
from amqp_spark.arrow.columns.dialect import AMQP_0_10
from amqp_spark.arrow.columns.wire import Trace
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan
from amqp_spark.arrow.v0_9.decode import columns as columns_0_9
from amqp_spark.arrow.v0_9.decode import located as located_0_9
from tests.support import wire, wire_0_9
from tests.support.choice import all_cases, examples
from tests.support.received import decoded_both_ways

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LONG, STRING, BINARY, DOUBLE = t.LongType(), t.StringType(), t.BinaryType(), t.DoubleType()
U64, F64 = struct.Struct(">Q").pack, struct.Struct(">d").pack
PICKED = t.StructType([t.StructField("price", DOUBLE), t.StructField("a-rather-long-key", STRING)])
SOME = t.StructType(
    [
        t.StructField("routing_key", STRING),
        t.StructField("message_id", STRING),
        t.StructField("redelivered", t.BooleanType()),
        t.StructField("reply_to", t.StructType([t.StructField("routing_key", STRING)])),
        t.StructField("application_headers", PICKED),
        t.StructField("body", BINARY),
    ]
)
ALL = t.StructType([*DEFAULT_SCHEMA.fields, t.StructField("_corrupt_record", STRING)])
SCHEMAS = (SOME, ALL)


def of_0_10(key: bytes = b"ticks", text: bytes = b"EURUSD", *, number: int = 7, body: bytes = b"body") -> bytes:
    """A message whose shape depends on the sizes of ``key`` and ``text``."""
    headers = [
        (b"symbol", 0x95, wire.vbin16(text)),
        (b"price", 0x33, F64(number / 8)),
        (b"a-rather-long-key", 0x85, wire.str8(key)),
    ]
    delivery = wire.delivery(
        redelivered=b"", priority=b"\x04", timestamp=U64(number), exchange=wire.str8(b"x"), routing_key=wire.str8(key)
    )
    properties = wire.message(
        message_id=random.Random(number).randbytes(16),
        reply_to=wire.reply_to(b"", b"answers"),
        app_id=wire.vbin16(text),
        application_headers=wire.map_(headers),
    )
    return wire.transfer(delivery + properties, body)


def of_0_9(key: bytes = b"ticks", text: bytes = b"EURUSD", *, number: int = 7, body: bytes = b"body") -> bytes:
    """The same with 0-9-1."""
    headers = wire_0_9.table(
        (b"symbol", b"S" + wire_0_9.long(text)),
        (b"price", b"d" + F64(number / 8)),
        (b"a-rather-long-key", b"S" + wire_0_9.long(key)),
    )
    properties = wire_0_9.properties(
        headers=headers,
        priority=b"\x04",
        reply_to=wire_0_9.short(b"answers"),
        message_id=wire_0_9.short(b"id-%03d" % (number % 1000)),
        timestamp=U64(number),
        app_id=wire_0_9.short(text[:255]),
    )
    return wire_0_9.delivery(number + 1, body, exchange=b"x", key=key, properties=properties)


MESSAGES = {"0-10": of_0_10, "0-9-1": of_0_9}
both_protocols = pytest.mark.parametrize("protocol", MESSAGES)


def chunk(messages: Iterable[bytes], protocol: str) -> Chunk:
    every = list(messages)
    return Chunk.of(b"".join(every), list(accumulate(map(len, every))), protocol=protocol)


def plan(schema: t.StructType, mode: str = "PERMISSIVE") -> ColumnPlan:
    if mode != "PERMISSIVE":
        schema = t.StructType([field for field in schema.fields if field.name != "_corrupt_record"])
    return ColumnPlan.build(schema, mode=mode, timestamp_unit="auto")


@pytest.fixture
def sorted_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many shapes each batch had that was decoded by them."""
    found: list[int] = []
    sort = shapes.Shapes.sort

    def spied(self: shapes.Shapes, *arguments: object) -> shapes.Alike:
        alike = sort(self, *arguments)  # type: ignore[arg-type]
        found.append(alike.count)
        return alike

    monkeypatch.setattr(shapes.Shapes, "sort", spied)
    return found


@both_protocols
def test_messages_of_several_shapes(protocol: str, sorted_batches: list[int]) -> None:
    of = MESSAGES[protocol]
    chance = random.Random(3)
    keys, texts = (b"a", b"ticks", b"ticks.EUR"), (b"", b"EURUSD", "größer".encode())
    messages = [
        of(chance.choice(keys), chance.choice(texts), number=number, body=chance.randbytes(chance.randrange(9)))
        for number in range(400)
    ]
    for schema in SCHEMAS:
        result = decoded_both_ways(plan(schema), [chunk(messages, protocol)] * 2)
        assert sum(batch.num_rows for batch in result.batches) == 800
    assert sorted_batches == [9, 9]  # the chunks are joined


@both_protocols
def test_each_byte_of_a_message_among_others_is_changed(protocol: str, sorted_batches: list[int]) -> None:
    of = MESSAGES[protocol]
    messages = [of(b"ticks", number=number) for number in range(8)]
    changed = messages[4]
    plans = [plan(SOME), plan(ALL), plan(ALL, "FAILFAST"), plan(SOME, "REJECT")]
    for place in range(len(changed)):
        values = (changed[place] ^ 1, 0, 0xFF)
        for value in values if all_cases() else (values[place % 3],):
            messages[4] = changed[:place] + bytes([value]) + changed[place + 1 :]
            result = decoded_both_ways(plans[(place + value) % len(plans)], [chunk(messages, protocol)])
            assert result.error is not None or sum(batch.num_rows for batch in result.batches) >= 7
    assert len(set(sorted_batches)) > 1, "some changes give another shape, some none at all"


@both_protocols
@settings(max_examples=examples(120))
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12),
    cuts=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 12), st.binary(max_size=12)), max_size=2),
    mode=st.sampled_from(("PERMISSIVE", "FAILFAST", "REJECT")),
    which=st.integers(0, 1),
)
def test_any_sizes_and_cuts(
    protocol: str,
    lengths: list[tuple[int, int]],
    cuts: list[tuple[int, int, bytes]],
    mode: str,
    which: int,
) -> None:
    messages = [
        MESSAGES[protocol](b"k" * key, b"t" * text, number=number) for number, (key, text) in enumerate(lengths * 2)
    ]
    for at, size, junk in cuts:
        number = at % len(messages)
        whole = messages[number]
        messages[number] = whole[:at] + junk + whole[at + size :] or whole
    decoded_both_ways(plan(SCHEMAS[which], mode), [chunk(messages, protocol)])


@both_protocols
def test_too_many_shapes_and_long_headers_are_decoded_in_the_general_way(
    protocol: str, sorted_batches: list[int]
) -> None:
    of = MESSAGES[protocol]
    many = [of(b"k" * number, number=number) for number in range(30)]
    assert decoded_both_ways(plan(SOME), [chunk(many, protocol)]).error is None
    long = [of(text=b"t" * 2000, number=number) for number in range(30)]
    assert decoded_both_ways(plan(SOME), [chunk(long, protocol)]).error is None
    assert not sorted_batches


@both_protocols
@pytest.mark.parametrize("body", [b"", b"b" * 300_000], ids=["empty", "several frames"])
def test_bodies_do_not_matter(protocol: str, body: bytes, sorted_batches: list[int]) -> None:
    messages = [MESSAGES[protocol](number=number) for number in range(4)]
    if protocol == "0-10":
        messages.append(wire.transfer(wire.delivery(routing_key=wire.str8(b"ticks")), body, limit=65535))
    else:
        messages.append(of_0_9(number=5, body=body))
    result = decoded_both_ways(plan(ALL, "FAILFAST"), [chunk(messages, protocol)])
    assert result.batches[0]["body"][4].as_py() == body
    assert sorted_batches == [1 if protocol == "0-9-1" else 2]


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        wire.message(),
        wire.message(application_headers=wire.map_([])),
        wire.message(application_headers=bytes(4)),
        wire.message(application_headers=wire.map_([(b"", 0xF0, b"")])),
        wire.message(application_headers=wire.map_([(b"same", 0xF0, b""), (b"same", 0x02, b"\1")])),
        wire.message(application_headers=wire.map_([(b"\xff", 0x02, b"\1")])),
        wire.message(application_headers=wire.map_([(b"k%d" % number, 0x02, b"\1") for number in range(90)])),
        wire.message() + wire.message(),
        wire.delivery() + wire.message() + wire.struct32(0x0909, 0, b"other"),
    ],
    ids=["none", "empty", "no field", "no entry", "size 0", "no key", "key twice", "no text", "90 keys", "twice", "3"],
)
def test_odd_headers_among_others(header: bytes | None) -> None:
    messages = [of_0_10(), wire.transfer(header, b"odd"), of_0_10(), wire.transfer(header, b"odd")]
    for schema in SCHEMAS:
        decoded_both_ways(plan(schema), [chunk(messages, "0-10")])
        decoded_both_ways(plan(schema), [chunk(messages[1::2], "0-10")])


def test_a_frame_in_between_moves_no_field() -> None:
    messages = [of_0_10(), wire.heartbeat() + of_0_10(), of_0_10()]
    assert decoded_both_ways(plan(ALL, "FAILFAST"), [chunk(messages, "0-10")]).error is None
    between = [of_0_9(), wire_0_9.heartbeat() + of_0_9(), of_0_9()]
    decoded_both_ways(plan(ALL), [chunk(between, "0-9-1")])


def test_one_call_with_both_protocols() -> None:
    chunks = [chunk([MESSAGES[protocol](number=1)] * 3, protocol) for protocol in ("0-10", "0-9-1", "0-10")]
    result = decoded_both_ways(plan(ALL, "FAILFAST"), chunks)
    assert [batch.num_rows for batch in result.batches] == [3, 3, 3]


def test_a_question_that_is_asked_of_misfits_only(sorted_batches: list[int]) -> None:
    """Of a message that does not fit its schema the headers are kept, which no column has asked for."""
    schema = t.StructType([t.StructField("routing_key", STRING), t.StructField("_corrupt_record", STRING)])
    chunks = [chunk([of_0_10(), of_0_10(key)], "0-10") for key in (b"fits", b"\xff", b"\xfe", b"fits")]
    apart = [decoded_both_ways(plan(schema), [each]) for each in chunks]
    assert [result.batches[0]["_corrupt_record"].null_count for result in apart] == [2, 1, 1, 2]
    assert len(sorted_batches) == 4


@both_protocols
def test_batches_for_which_shapes_are_worth_their_cost(protocol: str, sorted_batches: list[int]) -> None:
    message = MESSAGES[protocol]()
    worth = shapes.LEAST_ROWS
    first = chunk([message] * 10_000, protocol)  # as many as a batch has at most
    for rows, expected in ((worth - 1, []), (worth, [1])):
        list(plan(SOME).batches([chunk([message] * rows, protocol)], queue="q", first_position=0))
        assert sorted_batches == expected
    sorted_batches.clear()
    rest = [chunk([message] * rows, protocol) for rows in (shapes.LEAST_KNOWN_ROWS, shapes.LEAST_KNOWN_ROWS - 1)]
    other = wire.transfer(b"") if protocol == "0-9-1" else of_0_9()
    between = chunk([other], "0-10" if protocol == "0-9-1" else "0-9-1")  # chunks of one protocol are joined
    list(plan(SOME).batches([first, between, rest[0], between, rest[1]], queue="q", first_position=0))
    assert sorted_batches == [1, 1]


def test_the_place_of_the_header_belongs_to_a_shape() -> None:
    located = located_0_9.locate(chunk([of_0_9()] * 2, "0-9-1"))
    batch = columns_0_9.Batch(located, range(2), "q", 0)
    heads = batch.head_begin - batch.first
    shape = shapes.Shape(batch, 0, {("method",): lambda each: each.method})
    assert shape.misfits(batch.wire, batch.first, heads) is None
    wrong = shape.misfits(batch.wire, batch.first, heads + np.array([0, 1]))
    assert wrong is not None
    assert wrong.tolist() == [False, True]


def trace(data: bytes, read: Callable[[Trace], object]) -> Trace:
    wire_ = Trace(data, AMQP_0_10)
    read(wire_)
    return wire_


def test_a_trace_has_the_bytes_that_were_read() -> None:
    at = np.array([9])
    found = trace(b"0123456789abcdefghij", lambda each: (each.size(2, at), each.size(1, at + 8), each.peek(">u8", at)))
    assert found.is_complete
    begin, words, deciding = found.decisive()
    assert (begin, words.tobytes()) == (9, b"9abcdefghij" + bytes(5))
    assert deciding.tobytes() == b"\xff\xff" + bytes(6) + b"\xff" + bytes(7)


@pytest.mark.parametrize(
    "read",
    [
        lambda each: each.data,
        lambda each: each.buffer,
        lambda each: each.size(4, np.array([17])),
        lambda each: each.size(4, np.array([-1])),
        lambda each: each.decided(np.array([3]), np.array([21])),
        lambda each: each.peek(">u8", np.array([0])),
    ],
    ids=["data", "buffer", "beyond", "before", "decided beyond", "nothing"],
)
def test_a_trace_says_if_it_does_not_know_what_was_read(read: Callable[[Trace], object]) -> None:
    assert not trace(bytes(20), read).is_complete
