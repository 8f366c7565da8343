"""The column decoder agrees with the generated codec, and arbitrary bytes give only documented errors."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from amqp_core.errors import DecodeError
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_header, encode_header
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan
from amqp_spark.arrow.decode.plan import MODES
from amqp_spark.arrow.v0_10.properties import DELIVERY, MESSAGE
from amqp_spark.errors import MessageFormatError
from tests.support import wire
from tests.support.received import batches_of_random_chunk, chunk_of

if TYPE_CHECKING:
    from amqp_spark.arrow.layout import Layout

NUMBERS = {name: t.LongType() for name in ("ttl", "timestamp", "expiration", "resume_ttl", "content_length")}
RAW = {
    **NUMBERS,
    "priority": t.ShortType(),
    "delivery_mode": t.ShortType(),
    "application_headers": t.BinaryType(),
}
# Numbers as sent and the encoded map: the columns that can be compared with the codec's values as they are.
COMPARED = t.StructType([t.StructField(f.name, RAW.get(f.name, f.dataType)) for f in DEFAULT_SCHEMA.fields])


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


u64 = st.integers(0, 2**63 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
str8 = st.text(max_size=60).filter(lambda text: len(text.encode()) < 256)
opaque = st.binary(max_size=40)
headers = st.dictionaries(str8, st.integers(-(2**31), 2**31 - 1) | st.text(max_size=9) | st.booleans(), max_size=4)
BY_WIRE_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "uint8": st.integers(0, 255),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": u64,
    "datetime": i64,
    "uuid": st.builds(lambda octets: uuid.UUID(bytes=octets), st.binary(min_size=16, max_size=16)),
    "str8": str8,
    "str16": str8,
    "vbin8": opaque,
    "vbin16": opaque,
    "vbin32": opaque,
    "reply-to": st.builds(spec.ReplyTo, exchange=maybe(str8), routing_key=maybe(str8)),
    "map": headers,
}


def properties_of(layout: Layout) -> dict[str, st.SearchStrategy[Any]]:
    """Values of every field; a bit is never absent."""
    values = {field.name: BY_WIRE_TYPE[field.wire] for field in layout.fields}
    return {
        field.name: values[field.name] if field.wire == "bit" else maybe(values[field.name]) for field in layout.fields
    }


delivery_properties = st.builds(spec.DeliveryProperties, **properties_of(DELIVERY))
message_properties = st.builds(spec.MessageProperties, **properties_of(MESSAGE))


def decode(schema: t.StructType, block: bytes | Chunk, mode: str) -> list[dict[str, Any]]:
    plan = ColumnPlan.build(schema, mode=mode, timestamp_unit="auto")
    out: list[dict[str, Any]] = []
    for batch in batches_of_random_chunk(plan, chunk_of(block) if isinstance(block, bytes) else block):
        batch.validate(full=True)
        out += batch.to_pylist()
    return out


def expected(delivery: spec.DeliveryProperties | None, message: spec.MessageProperties | None) -> dict[str, Any]:
    """A row as the codec's objects have it; the map is compared apart from it."""
    row = {field.name: getattr(delivery, field.name, None) for field in DELIVERY.fields}
    row |= {field.name: getattr(message, field.name, None) for field in MESSAGE.fields}
    for name, value in row.items():
        if isinstance(value, uuid.UUID):
            row[name] = str(value)
        elif isinstance(value, spec.ReplyTo):
            row[name] = {"exchange": value.exchange, "routing_key": value.routing_key}
    row.pop("application_headers")
    return row


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    other = (
        "queue",
        "position",
        "body",
        "application_headers",
        "type",
        "cluster_id",
        "delivery_count",
        "stream",
        "offset",
    )
    return {name: value for name, value in row.items() if name not in other}


@given(
    st.lists(st.tuples(maybe(delivery_properties), maybe(message_properties), st.binary(max_size=50)), max_size=6),
    st.sampled_from([65535, 40]),
)
def test_columns_agree_with_the_generated_codec(
    messages: list[tuple[spec.DeliveryProperties | None, spec.MessageProperties | None, bytes]], limit: int
) -> None:
    block = b"".join(
        wire.transfer(encode_header(delivery, message), body, header_limit=limit)
        for delivery, message, body in messages
    )
    rows = decode(COMPARED, block, "FAILFAST")
    assert [comparable(row) for row in rows] == [expected(d, m) for d, m, _ in messages]
    assert [row["body"] for row in rows] == [body for _, _, body in messages]
    texts = [row["application_headers"] for row in decode(DEFAULT_SCHEMA, block, "PERMISSIVE")]
    for row, found, (_, message, _) in zip(rows, texts, messages, strict=True):
        sent = None if message is None else message.application_headers
        assert (row["application_headers"] is None) == (sent is None)
        if sent is not None and found is not None:  # other columns may not fit their default types
            assert found == [(key, text_of(value)) for key, value in sent.items()]


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


GOOD = encode_header(
    spec.DeliveryProperties(priority=4, timestamp=1_700_000_000, exchange="amq.topic", routing_key="ticks"),
    spec.MessageProperties(
        message_id=uuid.UUID(int=7),
        correlation_id=b"corr",
        reply_to=spec.ReplyTo(exchange="", routing_key="answers"),
        content_type="amqp/map",
        application_headers={"symbol": "EURUSD", "qty": 7, "price": 1.5, "list": [1, 2]},
    ),
)
BODY = wire.map_([(b"qty", 0x31, bytes(8))])
WANTED = t.StructType(
    [t.StructField("qty", t.LongType()), t.StructField("symbol", t.StringType()), t.StructField("x", t.LongType())]
)
SCHEMAS = [
    DEFAULT_SCHEMA,
    COMPARED,
    t.StructType([t.StructField("application_headers", WANTED), t.StructField("body", t.VariantType())]),
    t.StructType([t.StructField("application_headers", t.VariantType()), t.StructField("body", WANTED)]),
]
mutations = st.one_of(
    st.binary(max_size=120),
    st.tuples(st.integers(0, len(GOOD)), st.integers(0, 8), st.binary(max_size=8)).map(
        lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]
    ),
)


@given(st.lists(mutations, min_size=1, max_size=3), st.integers(0, 3), st.sampled_from(MODES))
def test_arbitrary_headers_give_rows_or_documented_errors(mutated: list[bytes], index: int, mode: str) -> None:
    good = wire.transfer(GOOD, BODY)
    block = good + b"".join(wire.transfer(header, BODY) for header in mutated) + good
    try:
        rows = decode(SCHEMAS[index], block, mode)
    except MessageFormatError as error:
        refused, rows = error.position, []
    else:
        refused = 0
    if refused:
        assert mode == "FAILFAST"
        assert refused <= len(mutated)
        return
    if mode == "REJECT":
        assert 2 <= len(rows) <= 2 + len(mutated)
    else:
        assert len(rows) == 2 + len(mutated)
    alone = decode(SCHEMAS[index], good, "PERMISSIVE")[0]
    for row, position in ((rows[0], 0), (rows[-1], 1 + len(mutated))):
        assert row == alone | ({"position": position} if "position" in row else {})


@given(mutations)
def test_what_the_codec_takes_the_columns_take_with_the_same_values(header: bytes) -> None:
    try:
        delivery, message, _ = decode_header(header)
    except DecodeError:
        return
    (row,) = decode(COMPARED, wire.transfer(header, b"body"), "PERMISSIVE")
    wanted = expected(delivery, message)
    for name, value in wanted.items():
        if isinstance(value, int) and value >= 2**63:
            wanted[name] = None  # does not fit
    assert comparable(row) == wanted


@given(st.binary(max_size=300), st.integers(0, 2 * len(GOOD)))
def test_arbitrary_frames_give_rows(junk: bytes, at: int) -> None:
    whole = wire.transfer(GOOD, BODY) * 2
    for block in (junk, whole[:at] + junk + whole[at:], whole[:at] + junk + whole[at + len(junk) :]):
        for schema in SCHEMAS:
            ends = sorted({end for end in (len(whole) // 2, len(block)) if 0 < end <= len(block)})
            decode(schema, Chunk.of(block, ends), "PERMISSIVE")


def test_the_layouts_are_those_of_the_hand_made_frames() -> None:
    for layout, names in ((DELIVERY, wire.DELIVERY), (MESSAGE, wire.MESSAGE)):
        flags = {field.name: field.flag for field in layout.fields}
        assert {name: flags[name] for name in names} == {
            name: 1 << (index + 8) % 16 for index, name in enumerate(names)
        }
