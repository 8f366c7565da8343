"""A byte stream cut into blocks: nothing lost, nothing twice, in order, however the stream is split."""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.errors import DecodeError, LimitExceeded, ProtocolError
from amqp_core.v0_10 import blocks, spec
from amqp_core.v0_10._codec import encode_command
from amqp_core.v0_10.blocks import Block, Scanner
from amqp_core.v0_10.messages import destination_of, messages_of
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What was seen, in order: a transfer by its body and destination, another frame by its bytes.
Seen = list[tuple[bytes, str] | bytes]


def header(key: bytes = b"k") -> bytes:
    return wire.delivery(routing_key=wire.str8(key)) + wire.message(content_type=wire.str8(b"text/plain"))


def transfer(body: bytes, destination: bytes = b"s1", *, limit: int = 65535) -> bytes:
    return wire.transfer(header(), body or None, destination=destination, limit=limit)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, Seen, list[bytes]]:
    """Frames of one channel, what they mean (controls apart), and the controls, which may lie inside transfers."""
    data, seen, controls = b"", Seen(), []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["transfer", "transfer", "transfer", "result", "control"]))
        if kind == "transfer":
            body = b"%d:" % number + draw(st.binary(max_size=80)) if draw(st.booleans()) else b""
            destination = draw(st.sampled_from(["s1", "s2", "a-longer-name"]))
            frames = list(split_frames(transfer(body, destination.encode(), limit=draw(st.sampled_from([40, 65535])))))
            if len(frames) > 1 and draw(st.booleans()):
                frames.insert(draw(st.integers(1, len(frames) - 1)), wire.heartbeat())
                controls.append(wire.heartbeat())
            data += b"".join(frames)
            seen.append((body, destination))
        elif kind == "result":
            frames = list(split_frames(wire.result(limit=draw(st.sampled_from([24, 65535])))))
            data += b"".join(frames)
            seen += frames
        else:
            data += wire.completed()
            controls.append(wire.completed())
    return data, seen, controls


def split_frames(data: bytes) -> Iterator[bytes]:
    pos = 0
    while pos < len(data):
        size = int.from_bytes(data[pos + 2 : pos + 4])
        yield data[pos : pos + size]
        pos += size


def chunks_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    marks = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(marks)]


def drain(scanner: Scanner, chunks: Sequence[bytes]) -> tuple[Seen, list[bytes]]:
    """Feed everything; return what was seen and the controls."""
    seen, controls, next_id = Seen(), list[bytes](), 0
    for chunk in chunks:
        for item in scanner.feed(chunk, 65535):
            if isinstance(item, Block):
                item.first_id = next_id
                next_id += item.count
                seen += look_into(item)
            elif item[5] & 15 == 0:
                controls.append(item)
            else:
                seen.append(item)
        if scanner.error is not None:
            break
    return seen, controls


def look_into(block: Block) -> list[tuple[bytes, str] | bytes]:
    """Decode a block, and prove what its attributes say."""
    assert block.ends[-1] == block.nbytes
    starts = [0, *block.ends[:-1]]
    sizes = [end - start for start, end in zip(starts, block.ends, strict=True)]
    assert min(sizes) > 0
    assert block.largest == max(sizes)
    messages = list(messages_of(block))
    assert [message.command_id for message in messages] == list(range(block.first_id, block.first_id + block.count))
    assert [message.destination for message in messages] == [destination_of(block.frames, start) for start in starts]
    for index, (start, end) in enumerate(zip(starts, block.ends, strict=True)):
        (alone,) = messages_of(block.part(index, index + 1, start, end))
        assert alone == messages[index]
    assert all(message.routing_key == "k" for message in messages)
    return [(message.body, message.destination) for message in messages]


@given(streams(), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_split_shows_the_same(stream: tuple[bytes, Seen, list[bytes]], cuts: list[int]) -> None:
    data, expected, controls = stream
    assert drain(Scanner(0), [data]) == (expected, controls)
    assert drain(Scanner(0), chunks_of(data, cuts)) == (expected, controls)


@given(streams())
def test_single_bytes_show_the_same(stream: tuple[bytes, Seen, list[bytes]]) -> None:
    data, expected, controls = stream
    assert drain(Scanner(0), [data[i : i + 1] for i in range(len(data))]) == (expected, controls)


@given(streams(), st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 100))
def test_a_large_message_is_set_aside_and_found_again(
    stream: tuple[bytes, Seen, list[bytes]], cuts: list[int], aside: int
) -> None:
    data, expected, controls = stream
    before = blocks._ASIDE_BYTES
    blocks._ASIDE_BYTES = aside
    try:
        assert drain(Scanner(0), chunks_of(data, cuts)) == (expected, controls)
    finally:
        blocks._ASIDE_BYTES = before


def test_a_message_of_many_chunks_is_copied_once_per_chunk_at_most() -> None:
    body = bytes(range(256)) * 4096 * 4
    data = transfer(b"first") + transfer(body) + transfer(b"last")
    scanner = Scanner(0)
    kept = 0
    seen = Seen()
    for start in range(0, len(data), 65536):
        for item in scanner.feed(data[start : start + 65536], 65535):
            assert isinstance(item, Block)
            item.first_id = len(seen)
            seen += look_into(item)
        kept = max(kept, len(scanner._rest))
    assert seen == [(b"first", "s1"), (body, "s1"), (b"last", "s1")]
    assert kept < 1 << 19


def test_a_message_beyond_every_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_ASIDE_BYTES", 1000)
    monkeypatch.setattr(blocks, "_LARGEST_MESSAGE", 100_000)
    scanner = Scanner(0)
    data = transfer(b"x" * 200_000, limit=4096)
    for start in range(0, len(data), 4096):
        assert not list(scanner.feed(data[start : start + 4096], 65535))
        if scanner.error is not None:
            break
    assert isinstance(scanner.error, LimitExceeded)
    assert "more than 100000 bytes" in str(scanner.error)


@pytest.mark.parametrize("split", [False, True])
def test_what_came_before_a_broken_frame_is_seen(split: bool) -> None:
    data = transfer(b"one") + wire.completed() + transfer(b"two") + b"\x0f\x09\x00\x0c" + bytes(8) + transfer(b"three")
    scanner = Scanner(0)
    seen, controls = drain(scanner, [data[i : i + 1] for i in range(len(data))] if split else [data])
    assert seen == [(b"one", "s1"), (b"two", "s1")]
    assert controls == [wire.completed()]
    assert isinstance(scanner.error, DecodeError)
    assert "frame type 9" in str(scanner.error)


def test_a_block_that_is_cut_off_or_truncated_is_an_error() -> None:
    whole = transfer(b"body")
    with pytest.raises(ProtocolError, match="block of command id 7 ends inside a frame"):
        list(messages_of(Block(whole[:-1], array("I", [len(whole)]), 7)))
    stump = wire.frame(0x0F, 1, b"\x04\x01")
    with pytest.raises(DecodeError, match="truncated"):
        destination_of(stump, 0)
    with pytest.raises(DecodeError):
        list(messages_of(Block(stump, array("I", [len(stump)]), 0)))


def test_whoever_decodes_passes_over_what_is_no_transfer() -> None:
    result = wire.frame(0x0F, 1, encode_command(spec.ExecutionResult(7, spec.QueueQueryResult(queue="q"))))
    first, *rest = split_frames(transfer(b"one", limit=40))
    two = transfer(b"two")
    frames = b"".join([wire.completed(), first, wire.heartbeat(), *rest, result, wire.heartbeat(), two])
    messages = list(messages_of(Block(frames, array("I", [len(frames) - len(two), len(frames)]), 3)))
    assert [(message.body, message.command_id) for message in messages] == [(b"one", 3), (b"two", 4)]


def test_a_transfer_without_destination_header_and_body() -> None:
    frames = wire.frame(0x0F, 1, bytes.fromhex("0401 0100 0000"))
    (message,) = messages_of(Block(frames, array("I", [len(frames)]), 3))
    assert (message.body, message.destination, message.routing_key, message.headers) == (b"", "", "", {})
    assert destination_of(frames, 0) == ""


def test_a_block_says_what_it_is() -> None:
    frames = transfer(b"1") + transfer(b"22")
    block = Block(frames, array("I", [len(frames) - 1 - len(transfer(b"1")), len(frames)]), 5)
    assert repr(block) == f"Block(2 transfers from id 5, {len(frames)} bytes)"
    assert (block.count, block.nbytes) == (2, len(frames))
