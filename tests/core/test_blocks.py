"""A byte stream cut into blocks: nothing lost, nothing twice, in order, however the stream is split."""

from __future__ import annotations

import itertools
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core import blocks, scanning
from amqp_core.blocks import Block
from amqp_core.errors import DecodeError, LimitExceeded, UndecodableMessage
from amqp_core.v0_10 import routing, scanner, spec
from amqp_core.v0_10._codec import encode_command
from amqp_core.v0_10._scan import scan
from amqp_core.v0_10.messages import messages_of
from amqp_core.v0_10.routing import by_destination, destination_of
from amqp_core.v0_10.scanner import Scanner
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.scanning import Scan

# What was seen, in order: a transfer by its body and destination, another frame by its bytes.
Seen = list[tuple[bytes, str] | bytes]


def header(key: bytes = b"k") -> bytes:
    return wire.delivery(routing_key=wire.str8(key)) + wire.message(content_type=wire.str8(b"text/plain"))


def transfer(body: bytes, destination: bytes = b"s1", *, limit: int = 65535, bare: bool = False) -> bytes:
    return wire.transfer(None if bare else header(), body or None, destination=destination, limit=limit)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, Seen, list[bytes]]:
    """Frames of one channel, what they mean (controls apart), and the controls, which may lie inside transfers."""
    data, seen, controls = b"", Seen(), []
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["transfer", "transfer", "transfer", "result", "control"]))
        if kind == "transfer":
            body = b"%d:" % number + draw(st.binary(max_size=80)) if draw(st.booleans()) else b""
            destination = draw(st.sampled_from(["s1", "s2", "a-longer-name"]))
            limit = draw(st.sampled_from([14, 40, 65535]))
            bare = draw(st.booleans()) and not body
            frames = wire.frames_of(transfer(body, destination.encode(), limit=limit, bare=bare))
            if len(frames) > 1 and draw(st.booleans()):
                frames.insert(draw(st.integers(1, len(frames) - 1)), wire.heartbeat())
                controls.append(wire.heartbeat())
            data += b"".join(frames)
            seen.append((body, destination))
        elif kind == "result":
            frames = list(wire.frames_of(wire.result(limit=draw(st.sampled_from([24, 65535])))))
            data += b"".join(frames)
            seen += frames
        else:
            data += wire.completed()
            controls.append(wire.completed())
    return data, seen, controls


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
    runs = list(by_destination(block))
    assert [name for name, part in runs for _ in range(part.count)] == [message.destination for message in messages]
    assert [message for _, part in runs for message in messages_of(part)] == messages
    assert all(one != other for (one, _), (other, _) in itertools.pairwise(runs)), "a run is as long as it can be"
    for index, (start, end) in enumerate(zip(starts, block.ends, strict=True)):
        (alone,) = messages_of(block.part(index, index + 1, start, end))
        assert alone == messages[index]
    assert all(message.routing_key in {"k", ""} for message in messages)
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
    before = scanning._ASIDE_BYTES
    scanning._ASIDE_BYTES = aside
    try:
        assert drain(Scanner(0), chunks_of(data, cuts)) == (expected, controls)
    finally:
        scanning._ASIDE_BYTES = before


@pytest.mark.parametrize("size", [100, 1460, 20_000, 65_536, 300_000])
@pytest.mark.parametrize("limit", [100, 65535])
def test_a_large_message_costs_what_it_weighs(size: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small reads and frames are, what is joined and scanned adds up to little more than was sent."""
    scanned: list[int] = []

    def counting(data: bytes, *args: int) -> Scan:
        scanned.append(len(data))
        return scan(data, *args)

    monkeypatch.setattr(scanner, "scan", counting)
    body = bytes(range(256)) * (1 << 14)
    data = transfer(b"first") + transfer(body, limit=limit) + transfer(b"last")
    seen, _ = drain(Scanner(0), [data[start : start + size] for start in range(0, len(data), size)])
    assert seen == [(b"first", "s1"), (body, "s1"), (b"last", "s1")]
    assert sum(scanned) < 3 * len(data)


def test_small_pieces_of_a_message_are_joined_now_and_then() -> None:
    pieces = blocks.Pieces()
    whole = bytes(range(256)) * 400
    for start in range(0, len(whole), 3):
        pieces.add(whole[start : start + 3])
        assert len(pieces._list) < 2 * blocks._MANY
    assert pieces.nbytes == len(whole)
    assert pieces.take(b"end") == whole + b"end"
    assert pieces.take(b"") == b""
    for _ in range(2 * blocks._MANY):
        pieces.add(bytes(blocks._SMALL_CHUNK))
    assert len(pieces._list) == 2 * blocks._MANY  # large ones are not copied twice


@pytest.mark.parametrize("size", [700, 4096, 1 << 20])
@pytest.mark.parametrize("limit", [4096, 65535])
def test_a_message_beyond_the_limit_is_refused_and_what_came_before_it_is_seen(size: int, limit: int) -> None:
    scanner = Scanner(0, max_message_bytes=100_000)
    fits = b"x" * (100_000 - len(transfer(b"", limit=limit)) - 600)
    data = transfer(b"one") + wire.completed() + transfer(fits, limit=limit) + transfer(b"y" * 100_001, limit=limit)
    data += transfer(b"lost")
    seen, controls = drain(scanner, [data[start : start + size] for start in range(0, len(data), size)])
    assert seen == [(b"one", "s1"), (fits, "s1")]
    assert controls == [wire.completed()]
    assert isinstance(scanner.error, LimitExceeded)
    assert "larger than 100000 bytes, the largest allowed (max message bytes): raise that limit" in str(scanner.error)


def test_the_limit_of_a_message_never_goes_beyond_what_a_block_can_hold() -> None:
    assert Scanner(0, max_message_bytes=1 << 40)._max_message_bytes == scanning.LARGEST_MESSAGE_BYTES


@pytest.mark.parametrize("size", [13, 500, 4096])
def test_empty_frames_count(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MOST_FRAMES", 2000)
    usual = transfer(b"one", limit=40)  # few frames: none of them counts for the next message
    begun = transfer(b"x" * 29, limit=40)[:-13]
    data = usual * 100 + begun + wire.frame(4, wire.BODY, b"") * 3000
    scanner = Scanner(0, max_message_bytes=100_000)
    seen, _ = drain(scanner, [data[start : start + size] for start in range(0, len(data), size)])
    assert seen == [(b"one", "s1")] * 100
    assert isinstance(scanner.error, LimitExceeded)
    assert "it sends empty ones" in str(scanner.error)


def test_a_message_within_its_limit_may_have_as_many_small_frames_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MOST_FRAMES", 10)
    body = bytes(300_000)
    data = transfer(body, limit=4096)
    scanner = Scanner(0, max_message_bytes=400_000)
    seen, _ = drain(scanner, [data[start : start + 5000] for start in range(0, len(data), 5000)])
    assert seen == [(body, "s1")]
    assert scanner.error is None


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_a_block_says_whether_the_sender_asked_for_completion(size: int) -> None:
    asking = transfer(b"asks").replace(bytes.fromhex("0401 0100"), bytes.fromhex("0401 0101"), 1)
    scanner = Scanner(0)

    def syncs(data: bytes) -> list[bool]:
        found = []
        for start in range(0, len(data), size):
            found += [item.sync for item in scanner.feed(data[start : start + size], 65535) if isinstance(item, Block)]
        return found

    assert not any(syncs(transfer(b"one") * 3))
    assert syncs(asking)[-1]
    assert not any(syncs(transfer(b"one") * 3))
    assert syncs(transfer(b"one") + asking)[-1]


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
    with pytest.raises(UndecodableMessage, match="id 7 cannot be decoded: its frames end before it does"):
        list(messages_of(Block(whole[:-1], array("I", [len(whole)]), 7)))
    stump = wire.frame(0x0F, 1, b"\x04\x01")
    with pytest.raises(DecodeError, match="truncated"):
        destination_of(stump, 0)
    with pytest.raises(DecodeError):
        list(messages_of(Block(stump, array("I", [len(stump)]), 0)))


def test_only_transfers_with_another_command_frame_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = b"".join(transfer(b"%d" % n, b"s2" if n in {400, 401} else b"s1") for n in range(1000))
    looked: list[int] = []

    def looking(frames: bytes, start: int) -> str:
        looked.append(start)
        return destination_of(frames, start)

    monkeypatch.setattr(routing, "destination_of", looking)
    (block,) = Scanner(0).feed(frames, 65535)
    assert isinstance(block, Block)
    runs = [(destination, part.count) for destination, part in by_destination(block)]
    assert runs == [("s1", 400), ("s2", 2), ("s1", 598)]
    assert looked == [0, block.ends[399], block.ends[401]]


def test_a_destination_is_found_in_a_command_segment_of_several_frames() -> None:
    """Frames of three octets each, with heartbeats and empty frames between them."""
    name = "d" * 255
    first, *rest = wire.frames_of(wire.assembly(wire.transfer_command(name.encode()), limit=15))
    empty = wire.frame(wire.FIRST_SEGMENT | wire.LAST_SEGMENT, wire.COMMAND, b"")
    frames = wire.heartbeat() + first + b"".join(wire.heartbeat() + empty + each for each in rest)
    assert destination_of(frames, 0) == name
    assert [message.destination for message in messages_of(Block(frames, array("I", [len(frames)]), 0))] == [name]


@pytest.mark.parametrize("limit", [14, 15, 65535])
@pytest.mark.parametrize("cut", range(2, 9))
def test_a_command_segment_that_ends_before_its_destination_is_an_error(cut: int, limit: int) -> None:
    """After any octet: 0401 class and code, 0100 session header, 0700 packing flags, 01 size, 61 name."""
    command = bytes.fromhex("0401 0100 0700 0161")[:cut]
    header = b"" if cut < 8 else wire.message()
    stump = wire.assembly(command, header or None, limit=limit)
    if cut == 8:
        assert destination_of(stump, 0) == "a"
        return
    with pytest.raises(DecodeError, match="truncated before its destination"):
        destination_of(stump, 0)
    before = transfer(b"one") + transfer(b"two")
    ends = array("I", [len(transfer(b"one")), len(before), len(before + stump)])
    runs = by_destination(Block(before + stump, ends, 5))
    destination, part = next(runs)
    assert (destination, part.first_id, part.count) == ("s1", 5, 2)
    with pytest.raises(DecodeError, match="truncated before its destination"):
        next(runs)


def test_whoever_decodes_passes_over_what_is_no_transfer() -> None:
    result = wire.frame(0x0F, 1, encode_command(spec.ExecutionResult(7, spec.QueueQueryResult(queue="q"))))
    first, *rest = wire.frames_of(transfer(b"one", limit=40))
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
