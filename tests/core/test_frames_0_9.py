"""Frames of 0-9-1: one by one, as bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.errors import DecodeError, EncodeError, UsageError
from amqp_core.v0_9.framing import (
    BODY,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    Frame,
    FrameReader,
    encode_content,
    encode_frame,
    encode_method_frame,
    parse_frame,
)
from tests.support import wire_0_9 as wire

FRAMES = [
    Frame(METHOD, 0, b"\0\x0a\0\x0b"),
    Frame(8, 0, b""),
    Frame(BODY, 65535, bytes(3000)),
    Frame(HEADER, 7, b"\xce"),
]


def test_literal_bytes() -> None:
    raw = bytes.fromhex("01 0001 00000004 000a000b ce")
    assert encode_frame(METHOD, 1, bytes.fromhex("000a000b")) == raw == wire.frame(1, bytes.fromhex("000a000b"))
    assert parse_frame(raw, 0, 4096) == (Frame(METHOD, 1, bytes.fromhex("000a000b")), len(raw))
    assert HEARTBEAT_FRAME == bytes.fromhex("08 0000 00000000 ce") == wire.heartbeat()


@given(st.lists(st.sampled_from(FRAMES), max_size=8), st.lists(st.integers(1, 2000), max_size=20))
def test_any_split_of_the_stream_gives_the_same_frames(frames: list[Frame], sizes: list[int]) -> None:
    data = b"".join(encode_frame(*frame) for frame in frames)
    reader, seen = FrameReader(), list[Frame]()
    for size in (*sizes, len(data)):
        seen += reader.feed(data[:size], 4096)
        data = data[size:]
    assert seen == frames


def test_a_large_frame_in_small_reads_is_joined_once() -> None:
    reader, raw = FrameReader(), encode_frame(BODY, 1, bytes(100_000))
    for octet in range(len(raw) - 1):
        assert not list(reader.feed(raw[octet : octet + 1], 131072))
    assert list(reader.feed(raw[-1:], 131072)) == [Frame(BODY, 1, bytes(100_000))]


@pytest.mark.parametrize(
    ("raw", "reason", "offset"),
    [
        (wire.frame(4, b"x"), "frame type 4 is not method, header, body or heartbeat", 12),
        (wire.frame(BODY, b"x" * 4089), "a frame of 4097 bytes is larger than 4096, the agreed frame-max", 12),
        (wire.frame(BODY, b"x", end=0xCD), "ends with the octet 0xcd instead of 0xce", 20),
    ],
)
def test_a_malformed_frame_is_an_error_with_its_offset(raw: bytes, reason: str, offset: int) -> None:
    good = wire.frame(METHOD, b"\0\x0a\0\x0b")
    frames = FrameReader().feed(good + raw, 4096)
    assert next(frames) == Frame(METHOD, 1, good[7:-1])
    with pytest.raises(DecodeError, match=reason) as caught:
        next(frames)
    assert caught.value.offset == offset


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 10_000])
def test_a_content_is_cut_into_frames_that_fit(size: int) -> None:
    body = bytes(range(256)) * 40
    body = body[:size]
    raw = b"".join(encode_content(3, b"method", b"header", body, 4096))
    assert raw == wire.content(b"method", b"header", wire.cut(body, 4096), channel=3)
    assert all(len(each) <= 4096 for each in wire.frames_of(raw))


def test_a_method_or_content_header_that_does_not_fit_one_frame_is_refused() -> None:
    assert encode_method_frame(1, bytes(4088), 4096) == wire.frame(METHOD, bytes(4088))
    with pytest.raises(EncodeError, match=r"queue\.declare of 4089 bytes does not fit a frame, which holds 4088"):
        encode_method_frame(1, bytes(4089), 4096, "queue.declare")
    with pytest.raises(EncodeError, match="a content header of 5000 bytes does not fit"):
        encode_content(1, b"m", bytes(5000), b"", 4096)
    with pytest.raises(UsageError, match="no room for a payload"):
        encode_method_frame(1, b"", 8)
