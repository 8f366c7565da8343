"""Frames: cutting, parsing and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.errors import DecodeError, EncodeError, LimitExceeded, UsageError
from amqp_core.v0_10.framing import (
    BODY,
    COMMAND,
    HEADER,
    HEADER_SIZE,
    Frame,
    encode_assembly,
    encode_control_frame,
    parse_frame,
)
from tests.support import wire

payloads = st.binary(max_size=300)


def frames_of(data: bytes, limit: int = 65535) -> list[Frame]:
    frames, pos = [], 0
    while (parsed := parse_frame(data, pos, limit)) is not None:
        frame, pos = parsed
        frames.append(frame)
    assert pos == len(data)
    return frames


@given(payloads, st.none() | payloads, st.none() | payloads, st.integers(13, 400), st.integers(0, 65535))
def test_an_assembly_is_cut_to_the_limit(
    command: bytes, header: bytes | None, body: bytes | None, limit: int, channel: int
) -> None:
    segments = [(kind, data) for kind, data in ((COMMAND, command), (HEADER, header), (BODY, body)) if data is not None]
    data = b"".join(encode_assembly(channel, 1, segments, limit))
    assert data == wire.assembly(command, header, body, channel=channel, limit=limit)
    frames = frames_of(data, limit)
    for kind, payload in segments:
        assert b"".join(frame.payload for frame in frames if frame.type == kind) == payload
    assert {frame.channel for frame in frames} == {channel}
    assert {frame.track for frame in frames} == {1}


def test_a_limit_without_room_is_a_mistake_of_ours() -> None:
    with pytest.raises(UsageError, match="12 is not valid: it leaves no room"):
        encode_assembly(0, 1, [(COMMAND, b"x")], HEADER_SIZE)


def test_a_control_is_one_frame() -> None:
    assert encode_control_frame(7, b"\x02\x05") == wire.frame(0x0F, 0, b"\x02\x05", track=0, channel=7)
    assert len(encode_control_frame(0, b"x" * 65523)) == 65535
    with pytest.raises(EncodeError, match="65524 bytes does not fit"):
        encode_control_frame(0, b"x" * 65524)


@given(st.integers(0, 29))
def test_an_incomplete_frame_is_not_read(length: int) -> None:
    frame = wire.frame(0x0F, 1, b"x" * 18)
    assert len(frame) == 30
    assert parse_frame(frame[:length], 0, 65535) is None


def test_reserved_bits_are_passed_over() -> None:
    frame = bytearray(wire.frame(0x0F, 1, b"x"))
    frame[0] |= 0xF0
    frame[5] |= 0xF0
    frame[8:12] = b"\xff" * 4
    parsed = parse_frame(bytes(frame), 0, 65535)
    assert parsed is not None
    assert parsed[0].track == 1
    assert parsed[0].payload == b"x"


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"\x0f\0\0\x0b" + bytes(8), DecodeError, r"11 bytes is smaller than its header of 12 \(at byte 0\)"),
        (b"\x0f\x04\0\x0c" + bytes(8), DecodeError, "segment type 4"),
        (b"\x0f\x01\0\x0c\0\x02" + bytes(6), DecodeError, "track 2"),
        (b"\x0f\x01\x10\x01" + bytes(8), LimitExceeded, "a frame of 4097 bytes arrived where 4096 are the most"),
    ],
)
def test_a_broken_frame_is_named(data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        parse_frame(data, 0, 4096)
