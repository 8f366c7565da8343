"""Deliveries of 0-9-1 found in a byte stream: nothing lost, nothing twice, in order, however the stream is split."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_core import scanning
from amqp_core.blocks import Block
from amqp_core.errors import AmqpError, DecodeError, LimitExceeded
from amqp_core.scanning import COMMAND_FRAME_BYTES, IN_OTHER, IN_TRANSFER, OUTSIDE, Scan
from amqp_core.v0_9 import _scan, scanner
from amqp_core.v0_9._scan import NO_HEADER, parts, scan
from amqp_core.v0_9.routing import by_consumer_tag, consumer_tag_of
from amqp_core.v0_9.scanner import Scanner, delivery_tag
from tests.support import wire_0_9 as wire
from tests.support.choice import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

# What was seen, in order: a delivery by its consumer tag, delivery tag and body, another frame by its bytes.
Seen = list[tuple[str, int, bytes] | bytes]

PROPERTIES = b"\x80\0" + wire.short(b"text/plain")
GET_OK = wire.content(b"\0\x3c\0\x47" + bytes(8) + b"\0\0\0" + bytes(4), wire.content_header(5), [b"abc", b"de"])
EMPTY_GET_OK = wire.content(b"\0\x3c\0\x47" + bytes(8) + b"\0\0\0" + bytes(4), wire.content_header(0), [])
QOS_OK = wire.frame(wire.METHOD, b"\0\x3c\0\x0b")
OF_OTHER_CHANNEL = wire.content(b"\0\x3c\0\x32" + bytes(20), wire.content_header(3), [b"abc"], channel=2)
USUAL = wire.delivery(1, b"x" * 40, properties=PROPERTIES)


def everything(data: bytes, max_frame: int = 131072) -> Scan:
    return scan(data, 0, 1, max_frame)[0]


def pieces_of(data: bytes, bounds: list[int]) -> list[bytes]:
    return [data[begin:end] for begin, end in zip(bounds[::2], bounds[1::2], strict=True)]


def run(count: int, first: int = 1, body: bytes = b"x" * 40) -> bytes:
    return b"".join(wire.delivery(first + index, body, properties=PROPERTIES) for index in range(count))


# ---- one walk ------------------------------------------------------------------------------------------------------


def test_literal_bytes() -> None:
    data = bytes.fromhex(
        "01 0001 00000013 003c 003c 01 61 0000000000000007 00 00 02 6b6b ce"  # basic.deliver to "a", tag 7, key "kk"
        "02 0001 0000000e 003c 0000 0000000000000002 0000 ce"
        "03 0001 00000002 6869 ce"
        "08 0000 00000000 ce"
    )
    assert everything(data) == Scan([59], [(59, 67, 1)], 67, 67, OUTSIDE, None, [0], largest=59, amid=[])
    assert parts(data, 0, 59) == ([7, 26], [34, 48], [56, 58])
    assert (delivery_tag(data, 0), consumer_tag_of(data, 0)) == (7, "a")


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(wire.delivery(1), id="no body"),
        pytest.param(wire.delivery(1, b"x" * 5000, limit=1024), id="body in many frames"),
        pytest.param(wire.delivery(1, b"x" * 40, consumer=b"", key=b""), id="no names"),
        pytest.param(wire.delivery(1, b"x", consumer=b"c" * 255, exchange=b"e" * 255, key=b"k" * 255), id="long names"),
        pytest.param(
            wire.content(wire.deliver_method(1), wire.content_header(3), [b"", b"ab", b"", b"c"]), id="empty frames"
        ),
    ],
)
def test_every_shape_of_message_is_one_end_alone_and_between_usual_ones(message: bytes) -> None:
    assert everything(message).ends == [len(message)]
    found = everything(USUAL * 2 + message * 2 + USUAL)
    n, m = len(USUAL), len(message)
    assert found.ends == [n, 2 * n, 2 * n + m, 2 * n + 2 * m, 3 * n + 2 * m]
    assert (found.others, found.error) == ([], None)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"long-tag"]), st.sampled_from([0, 1, 2, 90])), max_size=30))
def test_changes_are_where_the_consumer_tag_differs(chosen: list[tuple[bytes, int]]) -> None:
    found = everything(b"".join(wire.delivery(1, b"x" * size, consumer=name, limit=40) for name, size in chosen))
    names = [name for name, _ in chosen]
    assert len(found.ends) == len(chosen)
    assert found.changes == [index for index, name in enumerate(names) if not index or name != names[index - 1]]


def test_other_frames_are_listed_with_the_number_of_deliveries_before_them() -> None:
    data = wire.heartbeat() + USUAL + QOS_OK + USUAL + OF_OTHER_CHANNEL + USUAL + GET_OK + EMPTY_GET_OK + USUAL
    found = everything(data)
    listed = [(wire.heartbeat(), 0), (QOS_OK, 1), *((each, 2) for each in wire.frames_of(OF_OTHER_CHANNEL))]
    listed += [(each, 3) for each in wire.frames_of(GET_OK + EMPTY_GET_OK)]
    assert [(data[b:e], i) for b, e, i in found.others] == listed
    assert (len(found.ends), found.amid, found.error) == (4, [], None)


def test_frames_inside_a_delivery_are_listed_before_it_and_do_not_break_it() -> None:
    method, header, *body = wire.frames_of(wire.delivery(1, b"x" * 100, limit=58))
    between = [wire.heartbeat(), OF_OTHER_CHANNEL, wire.heartbeat()]
    data = method + between[0] + header + between[1] + body[0] + between[2] + body[1] + USUAL
    found = everything(data)
    assert found.ends == [len(data) - len(USUAL), len(data)]
    assert b"".join(data[b:e] for b, e, _ in found.others) == b"".join(between)
    assert list(found.amid) == [b for b, _, _ in found.others]
    located = parts(data, 0, found.ends[0])
    assert [len(data[slice(*each)]) for each in located[:2]] == [len(method) - 8, len(header) - 8]
    assert pieces_of(data, located[2]) == [b"x" * 50, b"x" * 50]


DELIVER = wire.frame(wire.METHOD, wire.deliver_method(1))
TEN = wire.frame(wire.HEADER, wire.content_header(10))


@pytest.mark.parametrize(
    ("frames", "reason", "offset"),
    [
        (wire.frame(4, b"x"), "frame type 4 is not method, header, body or heartbeat", 0),
        (b"AMQP\0\0\x09\x01", "frame type 65", 0),
        (wire.frame(wire.BODY, bytes(4089)), "a frame of 4097 bytes is larger than 4096, the agreed frame-max", 0),
        (wire.frame(wire.METHOD, bytes(4), end=0), "ends with the octet 0x00 instead of 0xce", 11),
        (wire.frame(wire.HEADER, wire.content_header(1)), "not a method where one must begin", 0),
        (wire.frame(wire.BODY, b"x"), "not a method where one must begin", 0),
        (wire.frame(wire.METHOD, b"\0\x3c\0"), "not a method where one must begin", 0),
        (wire.frame(wire.METHOD, b"\0\x3c\0\x3c"), "a basic.deliver of 4 bytes is too short for its fields", 0),
        (wire.frame(wire.METHOD, b"\0\x3c\0\x3c\x09" + bytes(19)), "basic.deliver of 24 bytes is too short", 0),
        (DELIVER + wire.frame(wire.BODY, b"x"), "type 3 came where a content header must follow", len(DELIVER)),
        (DELIVER + DELIVER, "type 1 came where a content header must follow", len(DELIVER)),
        (DELIVER + wire.frame(wire.HEADER, bytes(13)), "a content header of 13 bytes is too short", len(DELIVER)),
        (DELIVER + wire.frame(wire.HEADER, bytes(14)), "a content header of class 0", len(DELIVER)),
        (DELIVER + TEN + DELIVER, "type 1 came where 10 bytes of a body are missing", len(DELIVER + TEN)),
        (DELIVER + TEN + wire.frame(wire.BODY, bytes(11)), "longer by 1 bytes than its header", len(DELIVER + TEN)),
        (GET_OK[:-10] + USUAL, "type 1 came where 2 bytes of a body are missing", len(GET_OK) - 10),
    ],
)
@pytest.mark.parametrize("before", [0, 2, 50])
@pytest.mark.parametrize("split", [1, 100_000])
def test_a_broken_frame_is_an_error_with_its_offset_and_what_came_before_is_seen(
    frames: bytes, reason: str, offset: int, before: int, split: int
) -> None:
    data = run(before) + frames + USUAL
    found = everything(data, 4096)
    assert len(found.ends) == before
    assert isinstance(found.error, DecodeError)
    assert reason in found.error.reason
    assert found.error.offset == before * len(USUAL) + offset
    tested = Scanner(1)
    seen = drain(tested, [data[at : at + split] for at in range(0, len(data), split)], 4096)
    assert [each for each in seen if isinstance(each, tuple)] == [
        ("c1", tag, b"x" * 40) for tag in range(1, before + 1)
    ]
    assert reason in str(tested.error)


@pytest.mark.parametrize("octet", range(len(USUAL)))
def test_an_octet_changed_in_one_of_many_deliveries_framed_alike(octet: int) -> None:
    """They are compared together, but found as by a walk frame by frame."""
    for number in (9, 30, 49):
        for value in {0, 1, 12, 206, 255, USUAL[octet] ^ 1, USUAL[octet] ^ 16} - {USUAL[octet]}:
            data = bytearray(USUAL * 50)
            data[number * len(USUAL) + octet] = value
            found = everything(bytes(data), 4096)
            plain = walked(bytes(data))
            assert (found.ends, found.error is None, found.changes) == plain


def walked(data: bytes) -> tuple[list[int], bool, list[int]]:
    """Ends of deliveries, whether all is well, and changes of the consumer tag: each frame scanned alone."""
    ends: list[int] = []
    tags: list[bytes] = []
    inside, left, at, well = OUTSIDE, NO_HEADER, 0, True
    while at < len(data):
        stop = at + 8 + int.from_bytes(data[at + 3 : at + 7])
        found, left = scan(data[at:stop], 0, 1, 4096, inside, left)
        well = found.error is None
        if not well or not found.next:
            break
        if inside == OUTSIDE and found.inside == IN_TRANSFER:
            tags.append(data[at + 11 : at + 12 + data[at + 11]])
        ends += [stop] * len(found.ends)
        inside, at = found.inside, stop
    changes = [index for index, tag in enumerate(tags) if not index or tag != tags[index - 1]]
    return ends, well, changes


def test_deliveries_framed_alike_are_not_walked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = 0
    unpack = _scan._body_frame

    def counted(data: bytes, at: int) -> tuple[Any, ...]:
        nonlocal heads
        heads += 1
        return unpack(data, at)

    monkeypatch.setattr(_scan, "_body_frame", counted)
    found = everything(run(1000))
    assert found.ends == list(range(len(USUAL), 1000 * len(USUAL) + 1, len(USUAL)))
    assert heads < 50


def test_what_is_left_over_names_the_incomplete_delivery_and_the_frame_to_go_on_with() -> None:
    big = wire.delivery(1, b"x" * 10_000, limit=1024)
    found, left = scan(USUAL + big[:-100], 0, 1, 131072)
    assert (found.begin, found.inside, left) == (len(USUAL), IN_TRANSFER, 10_000 - 9 * 1016)
    assert len(USUAL) + len(big) - 100 - 1024 < found.next < len(USUAL) + len(big) - 100
    found, left = scan(GET_OK[:-12], 0, 1, 131072)
    assert (found.begin, found.next, found.inside, left) == (len(GET_OK) - 21, len(GET_OK) - 21, IN_OTHER, 5)
    found, left = scan(USUAL[:-60], 0, 1, 131072)
    assert (found.begin, found.inside, left) == (0, IN_TRANSFER, NO_HEADER)


# ---- blocks --------------------------------------------------------------------------------------------------------


def drain(tested: Scanner, chunks: Sequence[bytes], max_frame: int = 131072) -> Seen:
    """Feed everything; return what was seen."""
    seen = Seen()
    for chunk in chunks:
        for item in tested.feed(chunk, max_frame):
            seen += look_into(item) if isinstance(item, Block) else [item]
        if tested.error is not None:
            break
    return seen


def look_into(block: Block) -> list[tuple[str, int, bytes] | bytes]:
    """Locate what a block has, and prove what its attributes say."""
    frames = block.frames
    starts = [0, *block.ends[:-1]]
    assert block.ends[-1] == block.nbytes
    assert block.largest == max(end - start for start, end in zip(starts, block.ends, strict=True))
    names = [consumer_tag_of(frames, start) for start in starts]
    runs = list(by_consumer_tag(block))
    assert [name for name, part in runs for _ in range(part.count)] == names
    assert [delivery_tag(part.frames, 0) for _, part in runs] == [part.first_id for _, part in runs]
    found: list[tuple[str, int, bytes] | bytes] = []
    for index, (start, end) in enumerate(zip(starts, block.ends, strict=True)):
        assert delivery_tag(frames, start) == block.first_id + index
        body = b"".join(pieces_of(frames, parts(frames, start, end)[2]))
        found.append((names[index], block.first_id + index, body))
    return found


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, Seen]:
    """Frames, and what must be seen: frames inside a delivery before it."""
    data, seen, tag = b"", Seen(), 0
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["delivery", "delivery", "delivery", "run", "method", "get-ok", "between"]))
        if kind == "delivery":
            tag += 1
            body = b"%d:" % number + draw(st.binary(max_size=80)) if draw(st.booleans()) else b""
            name = draw(st.sampled_from(["c1", "c2", "a-longer-name"]))
            limit = draw(st.sampled_from([9, 40, 65535]))
            frames = wire.frames_of(wire.delivery(tag, body, consumer=name.encode(), limit=limit))
            if draw(st.booleans()):
                inside = draw(st.sampled_from([wire.heartbeat(), *wire.frames_of(OF_OTHER_CHANNEL)]))
                frames.insert(draw(st.integers(1, len(frames) - 1)), inside)
                seen.append(inside)
            data += b"".join(frames)
            seen.append((name, tag, body))
        elif kind == "run":
            count = draw(st.integers(1, 40))
            data += run(count, tag + 1)
            seen += [("c1", tag + index, b"x" * 40) for index in range(1, count + 1)]
            tag += count
        else:
            other = {"method": QOS_OK, "get-ok": GET_OK, "between": OF_OTHER_CHANNEL + wire.heartbeat()}[kind]
            data += other
            seen += wire.frames_of(other)
    return data, seen


def chunks_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    marks = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@settings(max_examples=examples(300))
@given(streams(), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_split_shows_the_same(stream: tuple[bytes, Seen], cuts: list[int]) -> None:
    data, expected = stream
    assert drain(Scanner(1), [data]) == expected
    assert drain(Scanner(1), chunks_of(data, cuts)) == expected


@given(streams())
def test_single_bytes_show_the_same(stream: tuple[bytes, Seen]) -> None:
    data, expected = stream
    assert drain(Scanner(1), [data[i : i + 1] for i in range(len(data))]) == expected


@settings(max_examples=examples(300))
@given(streams(), st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 100))
def test_a_large_message_is_set_aside_and_found_again(stream: tuple[bytes, Seen], cuts: list[int], aside: int) -> None:
    data, expected = stream
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_ASIDE_BYTES", aside)
        assert drain(Scanner(1), chunks_of(data, cuts)) == expected


@settings(max_examples=examples(300))
@given(
    streams(),
    st.lists(st.integers(0, 10_000), max_size=4),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(1, 100),
)
def test_changed_octets_are_an_error_of_amqp_or_nothing(
    stream: tuple[bytes, Seen], cuts: list[int], changes: list[tuple[int, int]], aside: int
) -> None:
    data = bytearray(stream[0] or USUAL)
    for place, value in changes:
        data[place % len(data)] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_ASIDE_BYTES", aside)
        for chunks in ([bytes(data)], chunks_of(bytes(data), cuts)):
            tested = Scanner(1)
            for chunk in chunks:
                for item in tested.feed(chunk, 4096):
                    assert not isinstance(item, Block) or item.ends[-1] == item.nbytes
                if tested.error is not None:
                    assert isinstance(tested.error, AmqpError)
                    break


@settings(max_examples=examples(300))
@given(st.binary(max_size=300), st.lists(st.integers(0, 10_000), max_size=4))
def test_arbitrary_bytes_after_deliveries_lose_nothing_before_them(junk: bytes, cuts: list[int]) -> None:
    tested = Scanner(1)
    seen = drain(tested, chunks_of(run(20) + junk, cuts), 4096)
    assert seen[:20] == [("c1", tag, b"x" * 40) for tag in range(1, 21)]


@pytest.mark.parametrize("size", [100, 1460, 20_000, 65_536, 300_000])
@pytest.mark.parametrize("limit", [100, 131072])
def test_a_large_message_costs_what_it_weighs(size: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small reads and frames are, what is joined and scanned adds up to little more than was sent."""
    scanned: list[int] = []

    def counting(data: bytes, start: int, channel: int, *rest: int) -> tuple[Scan, int]:
        scanned.append(len(data))
        return scan(data, start, channel, *rest)

    monkeypatch.setattr(scanner, "scan", counting)
    body = bytes(range(256)) * (1 << 14)
    data = wire.delivery(1, b"first") + wire.delivery(2, body, limit=limit) + wire.delivery(3, b"last")
    tested, seen, begun = Scanner(1), Seen(), []
    for start in range(0, len(data), size):
        seen += drain(tested, [data[start : start + size]])
        begun += [consumer_tag_of(tested.begun, 0)] if tested.begun else []
        assert tested.under_way_bytes == 0 or len(body) < tested.under_way_bytes < len(data)
    assert seen == [("c1", 1, b"first"), ("c1", 2, body), ("c1", 3, b"last")]
    assert begun == ["c1"]
    assert tested.under_way_bytes == 0
    assert sum(scanned) < 3 * len(data)


@pytest.mark.parametrize("size", [700, 40_000, 300_000])
@pytest.mark.parametrize("limit", [4096, 131072])
def test_of_a_large_message_that_is_dropped_the_first_bytes_are_left(size: int, limit: int) -> None:
    """It is counted, and what follows it is found."""
    large = wire.delivery(2, b"x" * 3_000_000, consumer=b"c2", limit=limit)
    data = wire.delivery(1, b"one") + large + wire.delivery(3, b"y" * 100_000) + run(3, first=4)
    tested = Scanner(1)
    found: list[Block] = []
    dropped = False
    for start in range(0, len(data), size):
        found += [item for item in tested.feed(data[start : start + size], 131072) if isinstance(item, Block)]
        if tested.under_way_bytes and not dropped:
            tested.drop_under_way()
            dropped = True
            assert len(large) * 0.9 < tested.under_way_bytes <= len(large)
    assert tested.error is None
    assert dropped
    assert [delivery_tag(block.frames, 0) for block in found if consumer_tag_of(block.frames, 0) == "c2"] == [2]
    (head,) = (block for block in found if consumer_tag_of(block.frames, 0) == "c2")
    assert len(head.frames) <= COMMAND_FRAME_BYTES
    assert list(head.ends) == [len(head.frames)]
    others = [item for block in found if block is not head for item in look_into(block)]
    assert [each[1] for each in others if isinstance(each, tuple)] == [1, 3, 4, 5, 6]
    assert tested.under_way_bytes == 0


@pytest.mark.parametrize("size", [700, 4096, 1 << 20])
@pytest.mark.parametrize("limit", [4096, 131072])
def test_a_message_beyond_the_limit_is_refused_and_what_came_before_it_is_seen(size: int, limit: int) -> None:
    tested = Scanner(1, max_message_bytes=100_000)
    fits = b"x" * 99_000
    data = wire.delivery(1, b"one") + QOS_OK + wire.delivery(2, fits, limit=limit)
    data += wire.delivery(3, b"y" * 100_001, limit=limit) + wire.delivery(4, b"lost")
    taken = 0
    seen = Seen()
    for start in range(0, len(data), size):
        taken += size
        seen += drain(tested, [data[start : start + size]])
        if tested.error is not None:
            break
    assert seen == [("c1", 1, b"one"), QOS_OK, ("c1", 2, fits)]
    assert isinstance(tested.error, LimitExceeded)
    assert "larger than 100000 bytes, the largest allowed (max message bytes): raise that limit" in str(tested.error)
    if size < 10_000:
        assert taken < 150_000, "it is refused by the size it announces"


LONG = b"\x20\0" + (60_000).to_bytes(4) + (b"\x01hS" + (59_993).to_bytes(4) + bytes(59_993))
"""Properties with headers of 60,000 bytes."""


@pytest.mark.parametrize("size", [1, 700, 4096, 1 << 20])
def test_a_content_header_may_be_larger_than_frame_max(size: int) -> None:
    """Brokers cut bodies only: the header has the size that it had in the frames of whoever published it."""
    got = wire.content(b"\0\x3c\0\x47" + bytes(8) + b"\0\0\0" + bytes(4), wire.content_header(2, LONG), [b"ab"])
    data = run(9) + wire.delivery(10, b"y" * 9000, properties=LONG, limit=4096) + run(9, 11) + got
    data += wire.delivery(20, b"", properties=LONG) + run(9, 21)
    tested = Scanner(1, max_message_bytes=100_000)
    seen = drain(tested, [data[start : start + size] for start in range(0, len(data), size)], max_frame=4096)
    assert tested.error is None
    bodies = [b"x" * 40] * 9
    expected = Seen(("c1", tag, body) for tag, body in enumerate((*bodies, b"y" * 9000, *bodies), 1))
    expected += [*wire.frames_of(got), ("c1", 20, b""), *(("c1", tag, b"x" * 40) for tag in range(21, 30))]
    assert seen == expected


@pytest.mark.parametrize("size", [700, 1 << 20])
def test_a_content_header_beyond_the_limit_of_messages_is_refused_by_the_size_it_announces(size: int) -> None:
    tested = Scanner(1, max_message_bytes=50_000)
    data = run(9) + wire.delivery(10, b"y", properties=LONG) + run(9, 11)
    assert (
        len(drain(tested, [data[start : start + size] for start in range(0, 2000 + size, size)], max_frame=4096)) == 9
    )
    assert isinstance(tested.error, LimitExceeded)
    assert "larger than 50000 bytes, the largest allowed (max message bytes): raise that limit" in str(tested.error)


@pytest.mark.parametrize("size", [8, 500, 4096])
def test_empty_frames_count(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MOST_FRAMES", 2000)
    data = run(100) + DELIVER.replace(bytes(7) + b"\1", bytes(7) + b"\x65", 1) + TEN + wire.frame(wire.BODY) * 3000
    tested = Scanner(1, max_message_bytes=100_000)
    seen = drain(tested, [data[start : start + size] for start in range(0, len(data), size)])
    assert len(seen) == 100
    assert isinstance(tested.error, LimitExceeded)
    assert "it sends empty ones" in str(tested.error)


def test_the_end_octet_of_a_frame_that_is_not_scanned_is_checked() -> None:
    data = bytearray(wire.delivery(1, b"x" * 100_000) + USUAL)
    data[len(data) - len(USUAL) - 1] = 0xCF
    tested = Scanner(1)
    assert drain(tested, [bytes(data[at : at + 3000]) for at in range(0, len(data), 3000)]) == []
    assert "ends with the octet 0xcf instead of 0xce" in str(tested.error)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([b"a", b"b"]), st.integers(0, 90)), min_size=1, max_size=40),
    st.integers(1, 4000),
)
@settings(max_examples=examples(300))
def test_a_block_is_cut_where_delivery_tags_have_a_gap(chosen: list[tuple[int, bytes, int]], size: int) -> None:
    """Ids of a block are its first one and those that follow; ids of other messages would be settled otherwise."""
    tags = list(itertools.accumulate(gap for gap, _, _ in chosen))
    bodies = [b"%d" % number + bytes(length) for number, (_, _, length) in enumerate(chosen)]
    data = b"".join(
        wire.delivery(tag, body, consumer=name) for tag, body, (_, name, _) in zip(tags, bodies, chosen, strict=True)
    )
    tested = Scanner(1)
    expected = [(name.decode(), tag, body) for (_, name, _), tag, body in zip(chosen, tags, bodies, strict=True)]
    assert drain(tested, [data[start : start + size] for start in range(0, len(data), size)]) == expected
    assert tested.error is None


@pytest.mark.parametrize("tag", [5, 3])
def test_delivery_tags_that_do_not_ascend_are_an_error(tag: int) -> None:
    tested = Scanner(1)
    data = run(2) + wire.delivery(5, b"x") + wire.delivery(tag, b"y")
    assert drain(tested, [data]) == [("c1", 1, b"x" * 40), ("c1", 2, b"x" * 40), ("c1", 5, b"x")]
    assert f"delivery tag {tag} follows 5" in str(tested.error)


def test_delivery_tags_ascend_from_one_piece_of_the_stream_to_the_next() -> None:
    tested = Scanner(1)
    assert len(drain(tested, [run(3), QOS_OK, run(2, first=9), run(1, first=10)])) == 6
    assert "delivery tag 10 follows 10" in str(tested.error)


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (USUAL[:-1], "end inside a frame"),
        (DELIVER + TEN[:5], "end inside a frame"),
        (DELIVER, "not method, content header and body"),
        (DELIVER + TEN + TEN, "not method, content header and body"),
        (QOS_OK + TEN, "not basic.deliver"),
        (wire.frame(wire.METHOD, bytes(30)) + TEN, "not basic.deliver"),
        (DELIVER + wire.frame(wire.HEADER, bytes(13)), "too short for its fields"),
        (DELIVER + TEN, "does not have the 10 bytes announced"),
        (b"", "not method, content header and body"),
    ],
)
def test_frames_that_are_not_one_delivery_have_no_parts(frames: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        parts(frames, 0, len(frames))


def test_a_consumer_tag_beyond_the_frames_is_an_error() -> None:
    for size in (0, 11, 12, 13):
        with pytest.raises(DecodeError, match="truncated before its consumer tag ends"):
            consumer_tag_of(USUAL[:size], 0)
    assert consumer_tag_of(USUAL, 0) == "c1"
