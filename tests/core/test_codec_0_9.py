"""Generated functions and dispatch of 0-9-1 against bytes written by hand, as the brokers send them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from amqp_core.errors import DecodeError, EncodeError
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_header, decode_method, encode_header, encode_method
from amqp_core.v0_9.spec import BasicProperties

METHODS: list[tuple[str, spec.Method]] = [
    (
        "000a 000a 00 09 0000000d 0770726f64756374 53 00000000 00000005 504c41494e 00000005 656e5f5553",
        spec.ConnectionStart(0, 9, {"product": ""}, b"PLAIN", b"en_US"),
    ),
    (
        "000a 000b 00000000 05 504c41494e 00000004 00610062 05 656e5f5553",
        spec.ConnectionStartOk({}, "PLAIN", b"\0a\0b", "en_US"),
    ),
    ("000a 0014 00000002 6869", spec.ConnectionSecure(challenge=b"hi")),
    ("000a 001e 07ff 00020000 003c", spec.ConnectionTune(channel_max=2047, frame_max=131072, heartbeat=60)),
    ("000a 001f 07ff 00020000 003c", spec.ConnectionTuneOk(channel_max=2047, frame_max=131072, heartbeat=60)),
    ("000a 0028 01 2f 00 00", spec.ConnectionOpen(virtual_host="/")),
    ("000a 0028 01 2f 00 01", spec.ConnectionOpen(virtual_host="/", insist=True)),
    ("000a 0029 00", spec.ConnectionOpenOk()),
    ("000a 002a 03 783a31 00", spec.ConnectionRedirect(host="x:1")),
    ("000a 0032 0140 02 6e6f 003c 0028", spec.ConnectionClose(320, "no", class_id=60, method_id=40)),
    ("000a 0033", spec.ConnectionCloseOk()),
    ("000a 003c 06 6d656d6f7279", spec.ConnectionBlocked(reason="memory")),
    ("000a 003d", spec.ConnectionUnblocked()),
    ("000a 0046 00000001 73 01 72", spec.ConnectionUpdateSecret(new_secret=b"s", reason="r")),
    ("000a 0047", spec.ConnectionUpdateSecretOk()),
    ("0014 000a 00", spec.ChannelOpen()),
    ("0014 000b 00000000", spec.ChannelOpenOk()),
    ("0014 0014 01", spec.ChannelFlow(active=True)),
    ("0014 0015 00", spec.ChannelFlowOk()),
    ("0014 0028 0194 00 0032 000a", spec.ChannelClose(404, "", class_id=50, method_id=10)),
    (
        "0028 000a 0000 01 65 05 746f706963 02 00000000",
        spec.ExchangeDeclare(exchange="e", type="topic", durable=True),
    ),
    (
        "0028 000a 0000 01 65 06 66616e6f7574 1d 00000000",
        spec.ExchangeDeclare(exchange="e", type="fanout", passive=True, auto_delete=True, internal=True, no_wait=True),
    ),
    ("0028 001e 0000 01 64 01 73 01 6b 00 00000000", spec.ExchangeBind(destination="d", source="s", routing_key="k")),
    (
        "0028 0028 0000 01 64 01 73 01 6b 01 00000000",
        spec.ExchangeUnbind(destination="d", source="s", routing_key="k", no_wait=True),
    ),
    ("0028 0033", spec.ExchangeUnbindOk()),
    (
        "0032 000a 0000 01 71 02 00000018 0c 782d71756575652d74797065 53 00000006 71756f72756d",
        spec.QueueDeclare(queue="q", durable=True, arguments={"x-queue-type": "quorum"}),
    ),
    ("0032 000b 01 71 00000002 00000001", spec.QueueDeclareOk(queue="q", message_count=2, consumer_count=1)),
    ("0032 0028 0000 01 71 03", spec.QueueDelete(queue="q", if_unused=True, if_empty=True)),
    ("0032 0032 0000 01 71 01 65 00 00000000", spec.QueueUnbind(queue="q", exchange="e")),
    ("003c 000a 00000000 03e8 01", spec.BasicQos(prefetch_count=1000, global_=True)),
    (
        "003c 0014 0000 01 71 01 74 06 00000010 0a 782d7072696f72697479 49 00000005",
        spec.BasicConsume(queue="q", consumer_tag="t", no_ack=True, exclusive=True, arguments={"x-priority": 5}),
    ),
    ("003c 001e 01 74 01", spec.BasicCancel(consumer_tag="t", no_wait=True)),  # as a server sends it
    ("003c 0028 0000 00 01 6b 01", spec.BasicPublish(routing_key="k", mandatory=True)),
    ("003c 0032 0138 08 4e4f5f524f555445 00 01 6b", spec.BasicReturn(312, "NO_ROUTE", routing_key="k")),
    (
        "003c 003c 01 74 0000000000000007 01 01 65 01 6b",
        spec.BasicDeliver(consumer_tag="t", delivery_tag=7, redelivered=True, exchange="e", routing_key="k"),
    ),
    ("003c 0047 ffffffffffffffff 00 00 00 00000000", spec.BasicGetOk(delivery_tag=2**64 - 1)),
    ("003c 0048 00", spec.BasicGetEmpty()),
    ("003c 0050 0000000000000003 01", spec.BasicAck(delivery_tag=3, multiple=True)),
    ("003c 005a 0000000000000003 01", spec.BasicReject(delivery_tag=3, requeue=True)),
    ("003c 0064 01", spec.BasicRecoverAsync(requeue=True)),
    ("003c 006e 01", spec.BasicRecover(requeue=True)),
    ("003c 006f", spec.BasicRecoverOk()),
    ("003c 0078 0000000000000003 02", spec.BasicNack(delivery_tag=3, requeue=True)),
    ("0055 000a 00", spec.ConfirmSelect()),
    ("0055 000b", spec.ConfirmSelectOk()),
    ("005a 000a", spec.TxSelect()),
    ("005a 0015", spec.TxCommitOk()),
]


@pytest.mark.parametrize(("wire", "method"), METHODS, ids=lambda item: getattr(item, "NAME", None))
def test_method(wire: str, method: spec.Method) -> None:
    payload = bytes.fromhex(wire)
    assert encode_method(method) == payload
    assert decode_method(payload) == method


NO_TEXT = "x\udcff"
"""How the octets 78 ff, which are not UTF-8, are shown."""


@pytest.mark.parametrize(
    ("wire", "method"),
    [
        ("003c 0028 0000 02 78ff 02 78ff 00", spec.BasicPublish(exchange=NO_TEXT, routing_key=NO_TEXT)),
        ("003c 0032 0138 00 02 78ff 02 78ff", spec.BasicReturn(312, exchange=NO_TEXT, routing_key=NO_TEXT)),
        (
            "003c 003c 01 74 0000000000000007 00 02 78ff 02 78ff",
            spec.BasicDeliver(consumer_tag="t", delivery_tag=7, exchange=NO_TEXT, routing_key=NO_TEXT),
        ),
        (
            "003c 0047 0000000000000007 00 02 78ff 02 78ff 00000000",
            spec.BasicGetOk(delivery_tag=7, exchange=NO_TEXT, routing_key=NO_TEXT),
        ),
    ],
    ids=lambda item: getattr(item, "NAME", None),
)
def test_where_a_message_goes_may_be_named_with_any_octets(wire: str, method: spec.Method) -> None:
    """Brokers pass them on; what refers to one message must not end the connection."""
    payload = bytes.fromhex(wire)
    assert decode_method(payload) == method
    assert encode_method(method) == payload
    with pytest.raises(DecodeError, match="ends before"):
        decode_method(payload[:-1])


@pytest.mark.parametrize("text", ["x\ud800", "\ud83d\ude00"])
def test_a_surrogate_that_stands_for_no_octet_is_refused(text: str) -> None:
    with pytest.raises(EncodeError, match=r"basic\.publish routing-key: character \d of the text has no utf-8 form"):
        encode_method(spec.BasicPublish(routing_key=text))


def test_bits_that_no_field_has_are_ignored() -> None:
    assert decode_method(bytes.fromhex("003c 0050 0000000000000003 fe")) == spec.BasicAck(delivery_tag=3)


HEADERS: list[tuple[str, BasicProperties, int]] = [
    ("003c 0000 0000000000000000 0000", BasicProperties(), 0),
    ("003c 0000 ffffffffffffffff 1000 02", BasicProperties(delivery_mode=2), 2**64 - 1),
    (
        "003c 0000 0000000000000005 fffc 0161 0162 00000000 0109 0163 0164 0165 0166 000000006553f100 016701680169016a",
        BasicProperties("a", "b", {}, 1, 9, "c", "d", "e", "f", 1700000000, "g", "h", "i", "j"),
        5,
    ),
]


@pytest.mark.parametrize(("wire", "properties", "size"), HEADERS)
def test_content_header(wire: str, properties: BasicProperties, size: int) -> None:
    payload = bytes.fromhex(wire)
    assert encode_header(properties, size) == payload
    assert decode_header(payload) == (properties, size)


def test_the_weight_of_a_content_header_is_ignored() -> None:
    assert decode_header(bytes.fromhex("003c 0001 0000000000000000 0000")) == (BasicProperties(), 0)


BAD: list[tuple[str, str]] = [
    ("", "ends before"),
    ("003c", "ends before"),
    ("003c 0000", "unknown method 60.0"),
    ("ffff ffff", "unknown method 65535.65535"),
    ("003c 0050 0000000000000003", "ends before"),
    ("003c 0050 0000000000000003 01 00", "1 bytes after its arguments"),
    ("0014 000b ffffffff", "ends before"),
    ("003c 001f 02 ff", "str8 ends before"),
    ("003c 001f 01 ff", "not UTF-8"),
    ("0032 000a 0000 01 71 02 00000001", "does not fit"),
    ("0032 000a 0000 01 71 02 00000003 01 61 5a", "unknown type letter 0x5a"),
]


@pytest.mark.parametrize(("wire", "reason"), BAD)
def test_bytes_that_are_no_method_are_refused(wire: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as refused:
        decode_method(bytes.fromhex(wire))
    assert 0 <= refused.value.offset <= len(bytes.fromhex(wire))


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ("003c 0000 00000000000000", "content header ends before"),
        ("003c 0000 0000000000000000", "ends before"),
        ("003d 0000 0000000000000000 0000", "content header of class 61"),
        ("0046 0000 0000000000000000 0000", "content header of class 70"),
        ("003c 0000 0000000000000000 0001 0000", "property flags 0x0001"),
        ("003c 0000 0000000000000000 0002", "property flags 0x0002"),
        ("003c 0000 0000000000000000 8000", "ends before"),
        ("003c 0000 0000000000000000 0000 00", "1 bytes after its properties"),
    ],
)
def test_bytes_that_are_no_content_header_are_refused(wire: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_header(bytes.fromhex(wire))


REFUSED: list[tuple[Any, str]] = [
    (spec.QueueDeclare(queue="q" * 256), "queue.declare queue"),
    (spec.QueueDeclare(arguments={"a": object()}), "queue.declare arguments"),
    (spec.BasicQos(prefetch_count=65536), "basic.qos prefetch-count"),
    (spec.BasicAck(delivery_tag=-1), "basic.ack delivery-tag"),
    (spec.ConnectionStartOk(mechanism="x" * 256), "connection.start-ok mechanism"),
]


@pytest.mark.parametrize(("method", "where"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(method: Any, where: str) -> None:
    with pytest.raises(EncodeError, match=where):
        encode_method(method)


@pytest.mark.parametrize(
    ("properties", "where"),
    [
        (BasicProperties(content_type="x" * 256), "basic content-type"),
        (BasicProperties(priority=256), "basic priority"),
        (BasicProperties(timestamp=2**63), "basic timestamp"),
        (BasicProperties(headers={"k" * 256: 1}), "basic headers key"),
    ],
)
def test_a_property_that_does_not_fit_is_refused_by_name(properties: BasicProperties, where: str) -> None:
    with pytest.raises(EncodeError, match=where):
        encode_header(properties, 0)
    with pytest.raises(EncodeError, match="body size"):
        encode_header(BasicProperties(), -1)


def test_credentials_are_in_no_repr() -> None:
    for method in (
        spec.ConnectionStartOk(response=b"hunter2"),
        spec.ConnectionSecure(challenge=b"hunter2"),
        spec.ConnectionSecureOk(response=b"hunter2"),
        spec.ConnectionUpdateSecret(new_secret=b"hunter2"),
    ):
        assert "hunter" not in repr(method)


def test_methods_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.QueueDeclare().queue = "q"  # type: ignore[misc] # on purpose


@pytest.mark.parametrize("code", ["000a 0032 0194", "0014 0028 0194"], ids=["connection.close", "channel.close"])
def test_an_explanation_that_was_cut_within_a_character_keeps_its_code(code: str) -> None:
    close = decode_method(bytes.fromhex(f"{code} 04 6e6fc32e 0032000a"))
    assert isinstance(close, spec.ConnectionClose | spec.ChannelClose)
    assert (close.reply_code, close.reply_text, close.class_id) == (404, "no\ufffd.", 50)
