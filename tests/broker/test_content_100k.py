"""Messages of mixed size with every property, through the source and compared field by field.

``make test`` reads 6,000 of them, ``make test-all`` 100,000.

The query meets what can go wrong in Spark on its way: two actions per batch, tasks whose first attempt fails, a batch
that was planned and not committed, a restart from the checkpoint.
"""

from __future__ import annotations

import random
import struct
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from amqp_core.v0_10 import spec, type_codes
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.type_codes import Datetime, Typed
from amqp_spark.arrow.decode import DEFAULT_SCHEMA
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.choice import all_cases
from tests.support.process import wait_until
from tests.support.query_process import Query, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

COUNT = 100_000 if all_cases() else 6_000
LARGE = {777, COUNT // 3, COUNT - 2}  # 5 MB
FRAME_AND_ONE = range(500, COUNT, 5_000)  # 64 KiB + 1
ALTERNATE_HEADERS = 3  # every so many messages have all headers


@dataclass(frozen=True)
class Header:
    """A header as it goes out, as text in MAP<STRING, STRING>, and as a value of its type in a STRUCT."""

    sent: object
    text: str | None
    kind: str
    value: object


HEADERS: dict[str, Header] = {
    "boolean": Header(sent=True, text="true", kind="BOOLEAN", value=True),
    "int8": Header(Typed(type_codes.INT8, -128), "-128", "TINYINT", -128),
    "uint8": Header(Typed(type_codes.UINT8, 255), "255", "SMALLINT", 255),
    "int16": Header(Typed(type_codes.INT16, -32768), "-32768", "SMALLINT", -32768),
    "uint16": Header(Typed(type_codes.UINT16, 65535), "65535", "INT", 65535),
    "int32": Header(Typed(type_codes.INT32, -(2**31)), "-2147483648", "INT", -(2**31)),
    "uint32": Header(Typed(type_codes.UINT32, 2**32 - 1), "4294967295", "BIGINT", 2**32 - 1),
    "int64": Header(Typed(type_codes.INT64, -(2**63)), "-9223372036854775808", "BIGINT", -(2**63)),
    "uint64": Header(Typed(type_codes.UINT64, 2**63 - 1), "9223372036854775807", "BIGINT", 2**63 - 1),
    "float": Header(Typed(type_codes.FLOAT, 0.5), "0.5", "FLOAT", 0.5),
    "double": Header(1e300, "1e+300", "DOUBLE", 1e300),
    "str8": Header(Typed(type_codes.STR8, "€"), "€", "STRING", "€"),
    "str16": Header("Grüße 🚀", "Grüße 🚀", "STRING", "Grüße 🚀"),
    "vbin32": Header(b"\x00\xff", '{"base64":"AP8="}', "BINARY", b"\x00\xff"),
    # Broker-J makes an int64 of a datetime, and of a decimal the octets of scale and number.
    "datetime": Header(
        Datetime(1_700_000_000), "1700000000", "TIMESTAMP", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    ),
    "uuid": Header(uuid.UUID(int=5), str(uuid.UUID(int=5)), "STRING", str(uuid.UUID(int=5))),
    "decimal": Header(
        Decimal("-1.25"), '{"base64":"Av////////+D"}', "BINARY", b"\x02" + (-125).to_bytes(8, "big", signed=True)
    ),
    "void": Header(None, None, "STRING", None),
    "map": Header({"a": 1, "l": [1, "x"]}, '{"a":1,"l":[1,"x"]}', "STRUCT<a: INT>", {"a": 1}),
    "list": Header([1, 2, None], "[1,2,null]", "ARRAY<INT>", [1, 2, None]),
}
TYPED_SCHEMA = ", ".join(f"`{name}`: {header.kind}" for name, header in HEADERS.items())


def body(number: int) -> bytes:
    """Of 0 bytes, 1 byte, some hundred, one byte more than a frame can have, and 5 MB."""
    if number in LARGE:
        return random.Random(number).randbytes(5 << 20)
    if number in FRAME_AND_ONE:
        return random.Random(number).randbytes((64 << 10) + 1)
    if number % 10 < 2:
        return b"\xa5" * (number % 10)
    return struct.pack(">Q", number * 0x9E3779B97F4A7C15 % 2**64) * (number % 37 + 1)


def has(number: int, bit: int) -> bool:
    """Whether a message has the property of this number; half of the messages do, in all combinations."""
    return bool(number * 2_654_435_761 >> (bit + 8) & 1)


def headers(number: int) -> dict[str, object] | None:
    if not has(number, 12):
        return None
    sent: dict[str, object] = {"number": number, "text": f"text {number % 100}"}
    if number % ALTERNATE_HEADERS == 0:
        sent |= {name: header.sent for name, header in HEADERS.items()}
    return sent


def message(number: int, *, durable: bool) -> Message:
    delivery = spec.DeliveryProperties(routing_key=f"k.{number}", delivery_mode=2 if durable else None)
    properties = spec.MessageProperties(application_headers=headers(number))
    for bit, (_, (target, name, value)) in enumerate(OPTIONAL.items()):
        if has(number, bit):
            setattr(delivery if target == "delivery" else properties, name, value(number))
    return Message(body=body(number), delivery=delivery, properties=properties)


# Column -> where it belongs, the field, and its value on the wire. In the order of their bits.
OPTIONAL: dict[str, tuple[str, str, Callable[[int], Any]]] = {
    "priority": ("delivery", "priority", lambda n: n % 10),
    "timestamp": ("delivery", "timestamp", lambda n: 1_700_000_000 + n if n % 2 else 1_700_000_000_123 + n),
    "expiration": ("delivery", "expiration", lambda n: 4_000_000_000_000 + n),
    "content_length": ("message", "content_length", lambda n: len(body(n))),
    "message_id": ("message", "message_id", lambda n: uuid.UUID(int=n << 64 | n)),
    "correlation_id": ("message", "correlation_id", lambda n: b"\x00\xff" + n.to_bytes(4, "big")),
    "reply_to": ("message", "reply_to", lambda n: spec.ReplyTo("amq.direct" if n % 2 else None, f"r{n}")),
    "content_type": ("message", "content_type", lambda n: "text/plain" if n % 2 else "application/octet-stream"),
    "content_encoding": ("message", "content_encoding", lambda _: "none"),
    "user_id": ("message", "user_id", lambda n: b"user %d" % n),
    "app_id": ("message", "app_id", lambda n: b"\xfe" * (n % 300)),
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seen(column: str, number: int, value: object) -> object:
    """The value of a column for a value on the wire."""
    match value:
        case int() if column in {"timestamp", "expiration"}:
            return EPOCH + (timedelta(milliseconds=value) if value > 10**11 else timedelta(seconds=value))
        case uuid.UUID():
            return str(value)
        case spec.ReplyTo():
            return {"exchange": value.exchange, "routing_key": value.routing_key}
        case _:
            return value


def expected_headers(number: int, *, typed: bool) -> object:
    if headers(number) is None:
        return None
    full = number % ALTERNATE_HEADERS == 0
    text = f"text {number % 100}"
    if typed:
        return {"number": number, "text": text} | {
            name: header.value if full else None for name, header in HEADERS.items()
        }
    return [("number", str(number)), ("text", text)] + (
        [(name, header.text) for name, header in HEADERS.items()] if full else []
    )


def expected(schema: pa.Schema, queue: str, *, durable: bool, typed: bool) -> pa.Table:
    """All rows in the order of the messages, without the columns that the broker decides."""
    numbers = range(COUNT)
    columns: dict[str, list[object]] = {name: [] for name in schema.names}
    for name, column in columns.items():
        if name in OPTIONAL:
            bit = list(OPTIONAL).index(name)
            value = OPTIONAL[name][2]
            column += [seen(name, n, value(n)) if has(n, bit) else None for n in numbers]
    columns["queue"] = [queue] * COUNT
    columns["exchange"] = ["amq.topic"] * COUNT  # the broker's: where it was published
    # Broker-J does not pass on: discard-unroutable, immediate, resume-id, resume-ttl.
    for name in ("discard_unroutable", "immediate"):
        columns[name] = [False] * COUNT
    for name in ("resume_id", "resume_ttl", "ttl", "type", "cluster_id", "delivery_count", "stream", "offset"):
        columns[name] = [None] * COUNT
    columns["delivery_mode"] = [2 if durable else None] * COUNT
    columns["routing_key"] = [f"k.{n}" for n in numbers]
    columns["application_headers"] = [expected_headers(n, typed=typed) for n in numbers]
    columns["body"] = [body(n) for n in numbers]
    return pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names})


@pytest.fixture(scope="module")
def driver() -> Iterator[QueryProcess]:
    with QueryProcess(settings={"spark.driver.memory": "3g"}) as process:
        yield process


def publish(client: Client, queue: str, *, durable: bool) -> None:
    client.declare_queue(queue, durable=durable)
    client.bind(queue, "amq.topic", "k.#")
    with client.transactions.tx():  # one write to the store, not one for each message
        for number in range(COUNT):
            client.publish(message(number, durable=durable), "amq.topic")
    client.confirm()
    client.unbind(queue, "amq.topic", "k.#")


@pytest.mark.thorough
@pytest.mark.sampled("vhost", every=2)
@needs("takes_any_user_id", "rewrites_headers")
@pytest.mark.parametrize("vhost", ["default", "durable"])
def test_content(driver: QueryProcess, broker: Broker, connect: Connect, tmp_path: Path, vhost: str) -> None:
    durable = vhost == "durable"
    name = f"content-{uuid.uuid4().hex[:8]}"
    publish(connect(vhost), name, durable=durable)
    schema = None
    if durable:  # there the headers are read with their types
        columns = [f"{f.name} {f.dataType.simpleString()}" for f in DEFAULT_SCHEMA if f.name != "application_headers"]
        schema = f"{', '.join(columns)}, application_headers STRUCT<number: INT, text: STRING, {TYPED_SCHEMA}>"
    query = Query(
        name=name,
        options={
            "url": broker.url(vhost),
            "username": broker.username,
            "password": broker.password,
            "queue": name,
            "maxBytesPerTrigger": "24m" if all_cases() else "5m",  # more than two batches
        },
        directory=tmp_path,
        schema=schema,
        sink_options={"twice": True, "fail_task_of": 1, "fail_batch": 2, "fail_when": str(tmp_path / "fail")},
    )

    driver.start_query(query, availableNow=True)
    # The accept of batch 1 goes out when batch 2 is planned. A query that fails before the broker has it is killed with
    # its reader, and batch 1 comes again, which is the right of at-least-once.
    client = connect(vhost, heartbeat=0)
    wait_until(lambda: query.batches() == [0, 1], "two batches are written", 240)
    written = sum(table.num_rows for table in query.tables().values())
    wait_until(lambda: depth(client, name) <= COUNT - written, "the broker has the accept of both", 120)
    (tmp_path / "fail").touch()
    assert "batch 2 fails, as it was told to" in str(driver.wait(query, 240))
    assert query.batches() == [0, 1]
    query.sink_options = {"twice": True, "fail_task_of": 3}
    driver.drain([query], 240)

    tables = query.tables()
    assert tables.pop(2).num_rows == 0, "a batch of a run that ended holds nothing: its messages come again"
    for table in tables.values():
        positions = [int(str(position)) for position in table["position"].to_pylist()]
        assert positions == list(range(positions[0], positions[0] + table.num_rows))
    assert not any(tables[0]["redelivered"].to_pylist())
    rows = pa.concat_tables(tables.values())
    assert rows["redelivered"].null_count == 0
    compare(rows, name, durable=durable)
    assert depth(client, name) == 0
    client.delete_queue(name)


def compare(rows: pa.Table, queue: str, *, durable: bool) -> None:
    """Every column of every message; the first difference is shown."""
    assert rows.num_rows == COUNT
    order = sorted(range(COUNT), key=[int(str(key)[2:]) for key in rows["routing_key"].to_pylist()].__getitem__)
    rows = rows.drop_columns(["position", "redelivered"])
    wanted = expected(rows.schema, queue, durable=durable, typed=durable)
    for name in rows.schema.names:
        got, want = rows[name].combine_chunks().take(pa.array(order)), wanted[name].combine_chunks()
        if not got.equals(want):
            pairs = enumerate(zip(got.to_pylist(), want.to_pylist(), strict=True))
            number, (is_, should) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
            raise AssertionError(f"message {number}, {name}: {str(is_)[:500]} instead of {str(should)[:500]}")


@pytest.mark.thorough
def test_union_with_itself(driver: QueryProcess, broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> None:
    client = connect()
    for number in range(1000):
        client.publish(Message(body=b"%d" % number), routing_key=queue)
    client.confirm()
    query = Query(
        name=queue,
        options={
            "url": broker.url(),
            "username": broker.username,
            "password": broker.password,
            "queue": queue,
            "maxMessagesPerTrigger": "300",
            "transfer": "pull",
        },
        directory=tmp_path,
        schema="body STRING, position BIGINT",
        union=True,
        sink_options={"twice": True, "fail_task_of": 1},
    )

    driver.drain([query])

    rows = query.rows()
    assert sorted((row["position"], row["body"]) for row in rows) == [
        (number, str(number)) for number in range(1000) for _ in range(2)
    ]
    info = client.query_queue(queue)
    assert info is not None
    assert info.message_count == 0
