"""Where the parts of many transfers are, found at once: the same as the plain walk over each of them alone."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_core.errors import DecodeError
from amqp_core.v0_10._scan import segments
from amqp_spark.arrow.columns.located import Chunk, Located, joined
from amqp_spark.arrow.v0_10.decode.located import locate
from tests.support import wire
from tests.support.choice import examples
from tests.support.received import chunk_of

HEADER = wire.delivery(routing_key=wire.str8(b"ticks")) + wire.message(content_type=wire.str8(b"text/plain"))
USUAL = wire.transfer(HEADER, b"body")
COMMAND = wire.frame(11, wire.COMMAND, wire.transfer_command())
SHAPES = [
    USUAL,
    USUAL,
    wire.transfer(HEADER * 2, b"another body"),
    wire.transfer(HEADER),
    wire.transfer(HEADER, b""),
    wire.transfer(),
    wire.transfer(None, b"b"),
    wire.transfer(b"", b"b"),
    wire.transfer(HEADER, bytes(range(256)), limit=80),
    wire.transfer(HEADER, b"b", header_limit=20),
    wire.transfer(HEADER, b"b" * 99, destination=b"d" * 90, limit=40),
    wire.transfer(HEADER, b"b", destination=b"x"),
    wire.heartbeat() + USUAL,
    COMMAND + wire.frame(3, wire.HEADER, HEADER) + wire.completed() + wire.frame(7, wire.BODY, b"body"),
    COMMAND + wire.heartbeat() + wire.frame(3, wire.HEADER, HEADER) + wire.frame(7, wire.BODY, b"body"),
    COMMAND[:4] + b"\xff\xf1" + COMMAND[6:8] + b"\xff" * 4 + COMMAND[12:] + USUAL[len(COMMAND) :],  # reserved bits
]

Part = tuple[bytes, bytes] | str


def found(located: Located) -> list[Part]:
    """Header and body of every transfer, or why there are none."""
    out: list[Part] = []
    bodies = located.bodies(range(len(located.places.end))).to_pylist()
    for row, (begin, end) in enumerate(zip(located.places.head_begin, located.places.head_end, strict=True)):
        header, body = located.wire.data[begin:end], bodies[row]
        assert body is not None
        assert located.bodies(range(row, row + 1)).to_pylist() == [body]
        if row in located.broken:
            assert (header, body) == (b"", b"")
            out.append(located.broken[row])
        else:
            out.append((header, body))
    return out


def plain(chunk: Chunk) -> list[Part]:
    """The same, one transfer after the other."""
    frames = bytes(chunk.frames)
    out: list[Part] = []
    for begin, end in pairwise((0, *struct.unpack(f">{len(chunk.ends) // 4}I", chunk.ends))):
        try:
            parts = segments(frames, begin, end)
        except DecodeError as error:
            out.append(error.reason)
        else:
            header, body = (b"".join(frames[a:b] for a, b in zip(each[::2], each[1::2], strict=True)) for each in parts)
            out.append((header, body))
    return out


def chunk_with(messages: list[bytes]) -> Chunk:
    ends: list[int] = []
    for message in messages:
        ends.append((ends[-1] if ends else 0) + len(message))
    return Chunk.of(b"".join(messages), ends)


@given(st.lists(st.sampled_from(SHAPES), max_size=30))
def test_every_shape_of_message_among_others(messages: list[bytes]) -> None:
    chunk = chunk_with(messages)
    assert chunk == chunk_of(chunk.frames)  # type: ignore[arg-type]  # as the scanner finds them
    parts = found(locate(chunk))
    assert parts == plain(chunk)
    assert not any(isinstance(part, str) for part in parts)


def test_no_transfers() -> None:
    assert found(locate(Chunk(b"", b""))) == []
    assert found(locate(Chunk(wire.heartbeat(), b""))) == []


@st.composite
def damaged(draw: st.DrawFn) -> tuple[list[bytes], set[int]]:
    """Messages, and which of them have some octet that is not as it was, all as long as they were."""
    messages = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=12))
    touched = draw(st.sets(st.integers(0, len(messages) - 1), max_size=3))
    for index in touched:
        octets = bytearray(messages[index])
        for _ in range(draw(st.integers(1, 3))):
            octets[draw(st.integers(0, len(octets) - 1))] = draw(st.sampled_from([0, 1, 3, 7, 11, 12, 64, 255]))
        messages[index] = bytes(octets)
    return messages, touched


@settings(max_examples=examples(400))
@given(damaged())
def test_a_damaged_message_costs_itself_only(case: tuple[list[bytes], set[int]]) -> None:
    messages, touched = case
    parts = found(locate(chunk_with(messages)))
    assert parts == plain(chunk_with(messages))
    for index, message in enumerate(messages):
        if index not in touched:
            assert [parts[index]] == plain(chunk_with([message]))


@pytest.mark.parametrize("octet", range(len(COMMAND) + 12 + len(HEADER) + 12))
def test_every_octet_of_the_frames_is_looked_at_as_the_plain_walk_does(octet: int) -> None:
    for value in (0, 1, 2, 3, 7, 11, 15, 255, USUAL[octet] ^ 1):
        bad = USUAL[:octet] + bytes([value]) + USUAL[octet + 1 :]
        chunk = chunk_with([USUAL, USUAL, bad, USUAL])
        assert found(locate(chunk)) == plain(chunk)


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=10))
def test_arbitrary_frames_and_ends_give_what_the_plain_walk_gives_or_an_error(junk: bytes, ends: list[int]) -> None:
    for frames in (junk, USUAL * 2 + junk):
        chunk = Chunk.of(frames, ends)
        if any(a >= b for a, b in pairwise((0, *ends))) or max(ends, default=0) > len(frames):
            with pytest.raises(DecodeError, match="the ends of the transfers do not fit the frames"):
                locate(chunk)
        else:
            assert found(locate(chunk)) == plain(chunk)


@given(st.lists(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=5), min_size=1, max_size=5), st.booleans())
def test_joined_runs_are_one_run(groups: list[list[bytes]], viewed: bool) -> None:
    chunks = [chunk_with(group) for group in groups]
    if viewed:
        chunks = [Chunk(memoryview(chunk.frames), chunk.ends) for chunk in chunks]
    whole = joined(chunks)
    assert whole == chunk_with([message for group in groups for message in group])
    assert isinstance(whole.frames, bytes)
