"""Generated functions and dispatch against bytes written by hand, mostly as the brokers send them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp_core.errors import DecodeError, EncodeError
from amqp_core.v0_10 import _codec, spec
from amqp_core.v0_10._codec import (
    decode_command,
    decode_control,
    decode_header,
    decode_struct32,
    encode_command,
    encode_control,
    encode_header,
    encode_struct32,
)
from amqp_core.v0_10.file_stream import _codec as codec_apart
from amqp_core.v0_10.file_stream import spec as spec_apart
from amqp_core.v0_10.spec import DeliveryProperties, MessageProperties, Xid

CONTROLS: list[tuple[str, spec.Control]] = [
    # The first octet of the packing flags is fields 0 to 7, its lowest bit is field 0: 07 00 are the first three.
    (
        "0101 0700 00000004 00000000 0000000c 95 00000001 0005 504c41494e 0000000c 95 00000001 0005 656e5f5553",
        spec.ConnectionStart(server_properties={}, mechanisms=["PLAIN"], locales=["en_US"]),
    ),
    (
        "0102 0f00 00000004 00000000 05 504c41494e 00000004 00610062 05 656e5f5553",
        spec.ConnectionStartOk(client_properties={}, mechanism="PLAIN", response=b"\0a\0b", locale="en_US"),
    ),
    ("0103 0100 00000002 6869", spec.ConnectionSecure(challenge=b"hi")),
    ("0104 0100 00000000", spec.ConnectionSecureOk(response=b"")),
    (
        "0105 0f00 fffe ffff 0000 0078",
        spec.ConnectionTune(channel_max=65534, max_frame_size=65535, heartbeat_min=0, heartbeat_max=120),
    ),
    ("0106 0700 0100 ffff 001e", spec.ConnectionTuneOk(channel_max=256, max_frame_size=65535, heartbeat=30)),
    ("0107 0500 07 64656661756c74", spec.ConnectionOpen(virtual_host="default", insist=True)),
    ("0108 0000", spec.ConnectionOpenOk()),
    ("0109 0100 0003 783a31", spec.ConnectionRedirect(host="x:1")),
    ("010b 0300 0140 02 6e6f", spec.ConnectionClose(reply_code=320, reply_text="no")),
    ("010c 0000", spec.ConnectionCloseOk()),
    ("0201 0300 0002 0001", spec.SessionAttach(name=b"\0\1", force=True)),
    ("0202 0100 0001 73", spec.SessionAttached(name=b"s")),
    ("0203 0100 0001 73", spec.SessionDetach(name=b"s")),
    ("0204 0300 0001 73 01", spec.SessionDetached(name=b"s", code=spec.SessionDetachCode.SESSION_BUSY)),
    ("0205 0100 00000000", spec.SessionRequestTimeout(timeout=0)),
    ("0206 0100 ffffffff", spec.SessionTimeout(timeout=0xFFFFFFFF)),
    ("0207 0300 00000000 0000000000000000", spec.SessionCommandPoint(command_id=0, command_offset=0)),
    ("0208 0100 0000", spec.SessionExpected(commands=[])),
    ("0209 0100 0008 00000001 00000003", spec.SessionConfirmed(commands=[(1, 3)])),
    ("020a 0300 0008 fffffffe 00000001", spec.SessionCompleted(commands=[(0xFFFFFFFE, 1)], timely_reply=True)),
    ("020b 0100 0010 00000000 00000000 00000002 00000002", spec.SessionKnownCompleted(commands=[(0, 0), (2, 2)])),
    ("020c 0400", spec.SessionFlush(completed=True)),
    ("020c 0300", spec.SessionFlush(expected=True, confirmed=True)),
    ("020d 0100 0008 00000005 00000005", spec.SessionGap(commands=[(5, 5)])),
]

COMMANDS: list[tuple[str, spec.Command, bool]] = [
    ("0301 0101 0000", spec.ExecutionSync(), True),
    (
        "0303 0100 7f00 0194 00000007 08 01 00 0004 676f6e65 00000004 00000000",
        spec.ExecutionException(
            error_code=404, command_id=7, class_code=8, command_code=1, field_index=0, description="gone", error_info={}
        ),
        False,
    ),
    ("0401 0100 0100 01 61", spec.MessageTransfer(destination="a"), False),
    ("0401 0101 0700 00 01 00", spec.MessageTransfer(destination="", accept_mode=1, acquire_mode=0), True),
    ("0402 0100 0100 0008 00000000 000003e7", spec.MessageAccept(transfers=[(0, 999)]), False),
    (
        "0403 0100 0700 0008 00000001 00000001 0001 01 78",
        spec.MessageReject(transfers=[(1, 1)], code=spec.MessageRejectCode.UNROUTABLE, text="x"),
        False,
    ),
    (
        "0404 0100 0300 0008 00000001 00000001",
        spec.MessageRelease(transfers=[(1, 1)], set_redelivered=True),
        False,
    ),
    ("0405 0100 0100 0000", spec.MessageAcquire(transfers=[]), False),
    ("0406 0100 0300 01 64 0002 6964", spec.MessageResume(destination="d", resume_id="id"), False),
    (
        "0407 0101 9f00 01 71 01 64 00 00 00000004 00000000",
        spec.MessageSubscribe(queue="q", destination="d", accept_mode=0, acquire_mode=0, exclusive=True, arguments={}),
        True,
    ),
    ("0408 0100 0100 01 64", spec.MessageCancel(destination="d"), False),
    ("0409 0100 0300 01 64 00", spec.MessageSetFlowMode(destination="d", flow_mode=0), False),
    ("040a 0100 0700 01 64 01 ffffffff", spec.MessageFlow(destination="d", unit=1, value=0xFFFFFFFF), False),
    ("040b 0101 0100 01 64", spec.MessageFlush(destination="d"), True),
    ("040c 0100 0100 00", spec.MessageStop(destination=""), False),
    ("0501 0100 0000", spec.TxSelect(), False),
    ("0502 0101 0000", spec.TxCommit(), True),
    ("0503 0100 0000", spec.TxRollback(), False),
    ("0601 0100 0000", spec.DtxSelect(), False),
    (
        "0602 0100 0100 0000000c 0604 0700 00000001 01 67 01 62",
        spec.DtxStart(xid=Xid(format=1, global_id=b"g", branch_id=b"b")),
        False,
    ),
    (
        "0603 0101 0300 0000000c 0604 0700 00000001 01 67 01 62",
        spec.DtxEnd(xid=Xid(format=1, global_id=b"g", branch_id=b"b"), fail=True),
        True,
    ),
    ("060a 0100 0300 00000004 0604 0000 0000003c", spec.DtxSetTimeout(xid=Xid(), timeout=60), False),
    ("0608 0100 0000", spec.DtxRecover(), False),
    (
        "0701 0100 1300 01 78 05 746f706963",
        spec.ExchangeDeclare(exchange="x", type="topic", durable=True),
        False,
    ),
    ("0704 0100 0700 01 71 01 78 01 6b", spec.ExchangeBind(queue="q", exchange="x", binding_key="k"), False),
    (
        "0801 0100 7900 01 71 0000000d 00000001 01 61 95 0004 62636465",
        spec.QueueDeclare(queue="q", durable=True, exclusive=True, auto_delete=True, arguments={"a": "bcde"}),
        False,
    ),
    ("0802 0100 0700 01 71", spec.QueueDelete(queue="q", if_unused=True, if_empty=True), False),
    ("0804 0100 0100 01 71", spec.QueueQuery(queue="q"), False),
]

COMMANDS_APART: list[tuple[str, spec_apart.Command, bool]] = [
    ("0901 0100 0700 00000001 0002", spec_apart.FileQos(prefetch_size=1, prefetch_count=2, global_=True), False),
    ("0a08 0101 0f00 00 0000000000000001 00 01 71", spec_apart.StreamDeliver("", 1, "", "q"), True),
]


@pytest.mark.parametrize(("wire", "value"), CONTROLS, ids=[value.NAME for _, value in CONTROLS])
def test_controls_both_ways(wire: str, value: spec.Control) -> None:
    raw = bytes.fromhex(wire)
    assert decode_control(raw) == value
    assert encode_control(value) == raw


@pytest.mark.parametrize(("wire", "value", "sync"), COMMANDS, ids=[value.NAME for _, value, _ in COMMANDS])
def test_commands_both_ways(wire: str, value: spec.Command, sync: bool) -> None:
    raw = bytes.fromhex(wire)
    assert decode_command(raw) == (value, sync)
    assert encode_command(value, sync) == raw


@pytest.mark.parametrize(("wire", "value", "sync"), COMMANDS_APART, ids=[value.NAME for _, value, _ in COMMANDS_APART])
def test_commands_of_file_and_stream_both_ways(wire: str, value: spec_apart.Command, sync: bool) -> None:
    raw = bytes.fromhex(wire)
    assert codec_apart.decode_command(raw) == (value, sync)
    assert codec_apart.encode_command(value, sync) == raw
    with pytest.raises(DecodeError, match=f"unknown command 0x{value.CODE:04x}"):
        decode_command(raw)
    with pytest.raises(DecodeError, match="bytes after its arguments"):
        codec_apart.decode_command(raw + b"x")


def test_commands_of_other_classes_are_unknown_to_the_codec_of_file_and_stream() -> None:
    with pytest.raises(DecodeError, match="unknown command 0x0301"):
        codec_apart.decode_command(encode_command(spec.ExecutionSync()))
    with pytest.raises(DecodeError, match="unknown struct 0x0401"):
        codec_apart.decode_struct32(encode_struct32(DeliveryProperties()), 0)


def test_what_the_codec_of_file_and_stream_requires() -> None:
    codec_apart.check_required(spec_apart.StreamDeliver(queue="q"))
    with pytest.raises(EncodeError, match=r"stream\.deliver cannot be sent without queue, which is required"):
        codec_apart.check_required(spec_apart.StreamDeliver())


def test_properties_of_file_and_stream() -> None:
    raw = bytes.fromhex("0000000b 0901 4001 02 6162 03 636c75")
    value = spec_apart.FileProperties(filename="ab", cluster_id="clu")
    assert codec_apart.decode_struct32(raw, 0) == (value, len(raw))
    assert codec_apart.encode_struct32(value) == raw
    with pytest.raises(DecodeError, match="its size is 12 bytes, its fields take 11"):
        codec_apart.decode_struct32((12).to_bytes(4) + raw[4:] + b"x", 0)
    with pytest.raises(DecodeError, match=r"stream\.stream-properties: packing flags 0x2000"):
        codec_apart.decode_struct32(bytes.fromhex("00000004 0a01 2000"), 0)
    assert decode_header(raw) == (None, None, [raw]), "kept as bytes, as every struct that a message does not have"


def test_a_segment_may_start_later_in_the_data() -> None:
    assert decode_control(b"????" + bytes.fromhex("010a 0000"), 4) == spec.ConnectionHeartbeat()
    assert decode_command(b"????" + bytes.fromhex("0301 0100 0000"), 4) == (spec.ExecutionSync(), False)


# --- what the brokers send ---

XIDS = "0000000c 0604 0700 00000001 01 67 01 620000000f 0604 0700 fffffffe 02 6768 03 626364"


def test_recover_result_of_both_brokers() -> None:
    raw = bytes.fromhex("0302 0100 0300 00000009 00000030 0603 0100 00000028 ab 00000002" + XIDS)
    xids = [Xid(1, b"g", b"b"), Xid(0xFFFFFFFE, b"gh", b"bcd")]
    value = spec.ExecutionResult(command_id=9, value=spec.DtxRecoverResult(in_doubt=xids))
    assert decode_command(raw) == (value, False)
    assert encode_command(value) == raw


@pytest.mark.parametrize(
    "tail", [pytest.param("00000005 ab 00000000", id="qpidd"), pytest.param("00000000", id="Broker-J")]
)
def test_empty_recover_results_of_both_brokers(tail: str) -> None:
    array = bytes.fromhex(tail)
    size = (4 + len(array)).to_bytes(4)
    raw = bytes.fromhex("0302 0100 0300 00000009") + size + bytes.fromhex("0603 0100") + array
    value = spec.ExecutionResult(command_id=9, value=spec.DtxRecoverResult(in_doubt=[]))
    assert decode_command(raw) == (value, False)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        ("00000006 02 00000001 05", "array of type 0x02 where dtx.xid belongs"),
        ("0000000d ab 00000001 00000004 0601 0000", "struct 0x0601 where dtx.xid belongs"),
        ("00000009 ab 00000001 00000000", "size 0 in an array"),
        ("0000000e ab 00000001 00000004 0604 0000 00", "its size is 14 bytes, its fields take 13"),
        ("0000000d ab 00000001 00000005 0604 0000 00", "its size is 5 bytes, its fields take 4"),
    ],
)
def test_recover_results_with_anything_but_xids_are_refused(array: str, reason: str) -> None:
    raw = bytes.fromhex(array)
    with pytest.raises(DecodeError, match=reason):
        decode_struct32((4 + len(raw)).to_bytes(4) + bytes.fromhex("0603 0100") + raw, 0)


def test_result_without_fields() -> None:
    raw = bytes.fromhex("0302 0100 0300 00000003 00000004 0801 0000")
    assert decode_command(raw) == (spec.ExecutionResult(command_id=3, value=spec.QueueQueryResult()), False)


def test_queue_query_result() -> None:
    raw = bytes.fromhex("0302 0100 0300 00000003 00000012 0801 c900 05 7469636b73 000007d0 00000001")
    result = spec.QueueQueryResult(queue="ticks", durable=False, exclusive=True, message_count=2000, subscriber_count=1)
    assert decode_command(raw) == (spec.ExecutionResult(command_id=3, value=result), False)


def test_struct_of_size_zero_is_none() -> None:
    assert decode_command(bytes.fromhex("0302 0100 0300 00000003 00000000"))[0] == spec.ExecutionResult(command_id=3)
    assert decode_command(bytes.fromhex("0604 0100 0100 00000000"))[0] == spec.DtxCommit()
    properties = decode_struct32(bytes.fromhex("00000006 0403 0800 0000"), 0)[0]
    assert properties == MessageProperties()


def test_fragments_are_a_generic_array() -> None:
    empty = bytes.fromhex("0208 0300 0000 00000005 00 00000000")
    assert decode_control(empty) == spec.SessionExpected(commands=[], fragments=[])
    fragment = spec.SessionCommandFragment(command_id=1, byte_ranges=[(0, 9)])
    raw = bytes.fromhex("00000001 0010 0000000000000000 0000000000000009")
    assert _codec.encode_session_command_fragment(fragment) == raw
    assert _codec.decode_session_command_fragment(raw, 0) == (fragment, len(raw))
    with pytest.raises(EncodeError, match=r"session.command-fragment byte-ranges: it cannot be absent"):
        _codec.encode_session_command_fragment(spec.SessionCommandFragment(command_id=1))


def test_required_fields_may_be_absent() -> None:
    for control in spec.CONTROL_TYPES.values():
        assert decode_control(encode_control(control())) == control()
    for command in spec.COMMAND_TYPES.values():
        assert decode_command(encode_command(command())) == (command(), False)
    for apart in spec_apart.COMMAND_TYPES.values():
        assert codec_apart.decode_command(codec_apart.encode_command(apart())) == (apart(), False)
    assert encode_command(spec.MessageTransfer()) == bytes.fromhex("0401 0100 0000")


def test_operations_without_fields_have_flags() -> None:
    assert encode_control(spec.ConnectionHeartbeat()) == bytes.fromhex("010a 0000")
    assert decode_control(bytes.fromhex("010a 0000")) == spec.ConnectionHeartbeat()
    assert encode_command(spec.ExecutionSync(), sync=True) == bytes.fromhex("0301 0101 0000")
    with pytest.raises(DecodeError):
        decode_control(bytes.fromhex("010a"))


def test_fragment_properties_defaults() -> None:
    assert spec.FragmentProperties() == spec.FragmentProperties(first=True, last=True)
    raw = bytes.fromhex("00000004 0402 0000")
    assert decode_struct32(raw, 0)[0] == spec.FragmentProperties(first=False, last=False)
    assert encode_struct32(spec.FragmentProperties(first=False, last=False)) == raw
    assert encode_struct32(spec.FragmentProperties()) == bytes.fromhex("00000004 0402 0300")


# --- headers ---


def test_header_with_every_field() -> None:
    delivery = DeliveryProperties(True, True, True, 9, 2, 60000, 1700000000, 1700000060, "amq.topic", "a.b", "rid", 7)
    message = MessageProperties(
        3,
        UUID("00112233-4455-6677-8899-aabbccddeeff"),
        b"cc",
        spec.ReplyTo("x", "key"),
        "text",
        "gzip",
        b"guest",
        b"app",
        {"qty": 42},
    )
    raw = bytes.fromhex(
        "00000039 0401 ff0f"
        "09 02 000000000000ea60 000000006553f100 000000006553f13c 09 616d712e746f706963 03 612e62 0003 726964"
        "0000000000000007"
        "00000051 0403 ff01 0000000000000003 00112233445566778899aabbccddeeff 0002 6363 0008 0300 01 78 03 6b6579"
        "04 74657874 04 677a6970 0005 6775657374 0003 617070 0000000d 00000001 03 717479 21 0000002a"
    )
    assert encode_header(delivery, message) == raw
    assert decode_header(raw) == (delivery, message, [])


def test_header_structs_in_any_order_and_unknown_ones_kept_raw() -> None:
    fragment, unknown = bytes.fromhex("00000004 0402 0300"), bytes.fromhex("00000003 ff07 99")
    message = encode_struct32(MessageProperties(content_length=1))
    delivery = encode_struct32(DeliveryProperties(priority=4))
    decoded = decode_header(unknown + message + fragment + delivery)
    assert decoded == (DeliveryProperties(priority=4), MessageProperties(content_length=1), [unknown, fragment])
    assert encode_header(*decoded) == delivery + message + unknown + fragment
    assert decode_header(b"") == (None, None, [])
    assert encode_header(None, None) == b""


@pytest.mark.parametrize(
    ("wire", "reason", "offset"),
    [
        ("00000004 0401 0000 00000004 0401 0000", "message.delivery-properties twice", 8),
        ("00000004 0403 0000 00000004 0403 0000", "message.message-properties twice", 8),
        ("00000005 0401 0000 00", "its size is 5 bytes, its fields take 4", 0),
        ("00000003 0401 00 00", "its size is 3 bytes", 0),
        ("00000004 0401 00f0", "packing flags 0x00f0", 6),
        ("00000004 0403 0080", "packing flags 0x0080", 6),
        ("00000004 0403", "vbin32 ends", 0),
        ("ffffffff", "vbin32 ends", 0),
        ("000000", "vbin32 ends", 0),
    ],
)
def test_bad_headers(wire: str, reason: str, offset: int) -> None:
    with pytest.raises(DecodeError, match=reason) as refused:
        decode_header(bytes.fromhex(wire))
    assert refused.value.offset == offset


# --- what is refused ---


@pytest.mark.parametrize(
    ("decode", "wire", "reason"),
    [
        (decode_control, "", "uint16 ends"),
        (decode_control, "01", "uint16 ends"),
        (decode_control, "0000 0000", "unknown control 0x0000"),
        (decode_control, "010d 0000", "unknown control 0x010d"),
        (decode_control, "0401 0000", "unknown control 0x0401"),
        (decode_control, "010a 0001", "connection.heartbeat: packing flags 0x0001"),
        (decode_control, "010a 0000 00", "connection.heartbeat: 1 bytes after its arguments"),
        (decode_control, "0105 1000", "connection.tune: packing flags 0x1000"),
        (decode_control, "0106 0100 01", "uint16 ends"),
        (decode_command, "", "uint16 ends"),
        (decode_command, "010a 0100 0000", "unknown command 0x010a"),
        (decode_command, "0401", "uint8 ends"),
        (decode_command, "0401 01", "uint8 ends"),
        (decode_command, "0401 0102 0000", "session.header: packing flags 0x0002"),
        (decode_command, "0401 0200 0000 00", "session.header: its size is 2 bytes"),
        (decode_command, "0401 0100", "uint16 ends"),
        (decode_command, "0401 0100 0800", "message.transfer: packing flags 0x0800"),
        (decode_command, "0401 0100 0100 05 61", "str8 ends"),
        (decode_command, "0301 0100 0000 ffff", "execution.sync: 2 bytes after its arguments"),
        (decode_command, "0302 0100 0200 00000004 ffff 0000", "unknown struct 0xffff"),
        (decode_command, "0302 0100 0200 00000003 0801 0000", "its size is 3 bytes, its fields take 4"),
        (decode_command, "0602 0100 0100 00000004 0601 0000", "struct 0x0601 where dtx.xid belongs"),
        (decode_command, "0602 0100 0100 00000005 0604 0000 00", "dtx.xid: its size is 5 bytes, its fields take 4"),
    ],
)
def test_segments_that_are_refused(decode: Any, wire: str, reason: str) -> None:
    raw = bytes.fromhex(wire)
    with pytest.raises(DecodeError, match=reason) as refused:
        decode(raw)
    assert 0 <= refused.value.offset <= len(raw)


def test_reply_to_of_a_wrong_size_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"message.reply-to: its size is 3 bytes, its fields take 2"):
        decode_struct32(bytes.fromhex("00000009 0403 0800 0003 0000 00"), 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (spec.MessageFlow(value=2**32), "message.flow value: 4294967296 is not a uint32"),
        (spec.QueueDeclare(queue="q" * 256), "queue.declare queue: bytes of length 256 is not at most 255 bytes"),
        (spec.MessageAccept(transfers=[(0, 2**32)]), "message.accept transfers"),
        (spec.QueueDeclare(arguments={"k": object()}), "queue.declare arguments"),
        (spec.DtxStart(xid=Xid(global_id=bytes(256))), "dtx.xid global-id"),
    ],
)
def test_encode_errors_name_the_field(value: spec.Command, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        encode_command(value)


def test_credentials_are_in_no_repr() -> None:
    assert "hunter2" not in repr(spec.ConnectionStartOk(mechanism="PLAIN", response=b"\0me\0hunter2"))
    assert "hunter2" not in repr(spec.ConnectionSecureOk(response=b"hunter2"))
    assert "hunter2" not in repr(spec.ConnectionSecure(challenge=b"hunter2"))


def test_an_explanation_that_was_cut_within_a_character_keeps_its_code() -> None:
    close = decode_control(bytes.fromhex("010b 0300 0140 04 6e6fc32e"))
    assert close == spec.ConnectionClose(reply_code=320, reply_text="no\ufffd.")
    exception = decode_command(bytes.fromhex("0303 00 2100 0194 0003 6e6fc3"))[0]
    assert exception == spec.ExecutionException(error_code=404, description="no\ufffd")
    reject = decode_command(bytes.fromhex("0403 00 0700 0008 00000000 00000000 0000 03 6e6fc3"))[0]
    assert reject == spec.MessageReject(transfers=[(0, 0)], code=0, text="no\ufffd")
