from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_core.errors import DecodeError
from amqp_core.scanning import IN_OTHER, IN_TRANSFER, OUTSIDE, Scan
from amqp_core.v0_10 import _scan
from amqp_core.v0_10._scan import scan
from tests.support import wire
from tests.support.choice import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = wire.delivery(routing_key=wire.str8(b"ticks.EURUSD"))
USUAL = wire.transfer(HEADER, b"x" * 40)

# Transfers to two destinations in all shapes that a command segment comes in.
SHAPES = [
    (name, wire.transfer(header, body, destination=name, limit=limit))
    for name in (b"a", b"b")
    for header, body, limit in [
        (HEADER, b"x", 65535),
        (HEADER, None, 65535),
        (HEADER, b"x" * 300, 64),
        (None, None, 65535),
        (HEADER, b"x", 16),
        (None, None, 16),
    ]
]


def everything(data: bytes, channel: int = 0, max_frame: int = 65535) -> Scan:
    return scan(data, 0, channel, max_frame)


def test_three_frame_messages_end_where_their_body_ends() -> None:
    found = everything(USUAL * 3)
    assert found == Scan(
        [len(USUAL), 2 * len(USUAL), 3 * len(USUAL)],
        [],
        3 * len(USUAL),
        3 * len(USUAL),
        OUTSIDE,
        None,
        [0],
        largest=len(USUAL),
        amid=[],
    )


def test_literal_bytes() -> None:
    data = bytes.fromhex(
        "0b01 0014 00 01 0000 00000000  0401 0100 0100 01 61"  # command frame: message.transfer to "a"
        "0302 000c 00 01 0000 00000000"  # an empty header frame
        "0703 000e 00 01 0000 00000000 6869"  # body "hi"
        "0f00 000e 00 00 0000 00000000 010a"  # heartbeat
    )
    assert everything(data) == Scan([46], [(46, 60, 1)], 60, 60, OUTSIDE, None, [0], largest=46, amid=[])


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(wire.transfer(), id="command only"),
        pytest.param(wire.transfer(HEADER), id="no body"),
        pytest.param(wire.transfer(None, b"body"), id="no header"),
        pytest.param(wire.transfer(HEADER, b""), id="empty body frame"),
        pytest.param(wire.transfer(HEADER, b"x" * 5000, limit=1024), id="body in many frames"),
        pytest.param(wire.transfer(HEADER * 9, b"x", header_limit=64), id="header in many frames"),
        pytest.param(wire.transfer(HEADER, b"x", destination=b"d" * 200, limit=100), id="all in many frames"),
    ],
)
def test_every_shape_of_message_is_one_end_alone_and_between_usual_ones(message: bytes) -> None:
    assert everything(message).ends == [len(message)]
    data = USUAL * 2 + message * 2 + USUAL
    found = everything(data)
    n, m = len(USUAL), len(message)
    assert found.ends == [n, 2 * n, 2 * n + m, 2 * n + 2 * m, 3 * n + 2 * m]
    assert found.others == []


@given(st.lists(st.sampled_from(range(len(SHAPES))), max_size=12))
def test_changes_name_every_transfer_that_may_go_elsewhere(chosen: list[int]) -> None:
    """Whatever stands between them: what is not named has the destination of the transfer before it."""
    found = everything(b"".join(SHAPES[shape][1] for shape in chosen))
    assert len(found.ends) == len(chosen)
    names = [SHAPES[shape][0] for shape in chosen]
    different = {index for index, name in enumerate(names) if not index or name != names[index - 1]}
    assert different <= set(found.changes)
    assert found.changes == sorted(set(found.changes))


def test_a_usual_transfer_is_named_only_if_its_command_frame_is_another() -> None:
    large = wire.transfer(HEADER, b"x" * 100_000)
    other = wire.transfer(HEADER, b"x", destination=b"other")
    assert everything(USUAL * 3 + other * 2 + USUAL * 2).changes == [0, 3, 5]
    assert everything(large * 4).changes == [0]


def test_other_frames_are_listed_with_the_number_of_transfers_before_them() -> None:
    beat, result = wire.heartbeat(), wire.result()
    data = beat + USUAL + result + USUAL + USUAL + beat
    found = everything(data)
    assert [(data[b:e], i) for b, e, i in found.others] == [(beat, 0), (result, 1), (beat, 3)]
    assert len(found.ends) == 3


def test_a_control_inside_a_transfer_is_listed_before_it_and_does_not_break_it() -> None:
    head, body = wire.transfer(HEADER), wire.frame(wire.LAST_SEGMENT | 3, wire.BODY, b"x")
    open_head = head[: -len(HEADER) - 12] + wire.frame(3, wire.HEADER, HEADER)
    data = open_head + wire.heartbeat() + body + USUAL
    found = everything(data)
    assert found.ends == [len(data) - len(USUAL), len(data)]
    assert found.others == [(len(open_head), len(open_head) + len(wire.heartbeat()), 0)]


def test_frames_of_another_command_in_several_frames_are_listed_one_by_one() -> None:
    result = wire.result(limit=20)
    data = USUAL + result + USUAL
    found = everything(data)
    assert len(found.others) > 1
    assert b"".join(data[b:e] for b, e, _ in found.others) == result
    assert {i for _, _, i in found.others} == {1}
    assert len(found.ends) == 2


def test_frames_of_another_channel_are_not_transfers_of_this_one() -> None:
    other = wire.transfer(HEADER, b"x", channel=2)
    data = USUAL + other + USUAL
    found = everything(data)
    assert len(found.ends) == 2
    assert len(found.others) == 3
    assert len(everything(data, channel=2).ends) == 1


def test_reserved_bits_are_ignored() -> None:
    command, rest = USUAL[:12], USUAL[12:]
    loud = command[:4] + b"\xff\xf1" + command[6:8] + b"\xff\xff\xff\xff" + rest
    assert len(everything(USUAL + loud + USUAL).ends) == 3
    assert len(everything(bytes([0xFB]) + USUAL[1:]).ends) == 1


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (bytes.fromhex("0b01 000b 0001 0000 00000000"), "frame size 11 is outside 12..4096"),
        (bytes.fromhex("0b01 1001 0001 0000 00000000"), "frame size 4097 is outside 12..4096"),
        (bytes.fromhex("0b04 000c 0001 0000 00000000"), "frame type 4 is not one of 0 to 3"),
        (wire.frame(7, wire.BODY, b"x"), "does not open an assembly"),
        (wire.frame(0x0F, wire.HEADER, b"x"), "does not open an assembly"),
        (wire.frame(0x0F, wire.COMMAND, b"x"), "too short to name its command"),
        (b"HTTP/1.1 400 Bad Request", "frame size 21584 is outside 12..4096"),
    ],
)
def test_a_broken_frame_is_returned_with_its_offset_and_loses_nothing_before_it(frame: bytes, reason: str) -> None:
    found = everything(USUAL * 2 + frame + USUAL, max_frame=4096)
    assert found.ends == [len(USUAL), 2 * len(USUAL)]
    assert isinstance(found.error, DecodeError)
    assert reason in found.error.reason
    assert found.error.offset == found.next == 2 * len(USUAL)


def test_an_assembly_inside_another_is_an_error() -> None:
    opened = USUAL[: -(40 + 12)]
    for head in (b"", USUAL):
        found = everything(head + opened + USUAL)
        assert found.error is not None
        assert "before the one before it has ended" in found.error.reason
        assert found.error.offset == len(head + opened)


def test_a_frame_above_the_limit_is_an_error_in_the_usual_place_too() -> None:
    for big in (wire.transfer(HEADER, b"x" * 5000), wire.transfer(HEADER * 200, b"x"), wire.transfer(HEADER * 200)):
        found = everything(USUAL + big, max_frame=4096)
        assert found.error is not None
        assert len(found.ends) == 1


def test_what_is_left_over_names_the_incomplete_transfer_and_the_frame_to_go_on_with() -> None:
    big = wire.transfer(HEADER, b"x" * 10_000, limit=1024)
    cut = len(big) - 100
    found = everything(USUAL + big[:cut])
    assert found.begin == len(USUAL)
    assert found.inside == IN_TRANSFER
    assert len(USUAL) + cut - 1024 < found.next <= len(USUAL) + cut
    part = wire.result(limit=20)
    found = everything(part[:30])
    assert (found.begin, found.next, found.inside) == (20, 20, IN_OTHER)


# ---- many transfers that are framed alike, against a plain walk --------------------------------------------------


def walked(data: bytes) -> tuple[list[int], list[int], str]:
    """The ends and changes of three-frame transfers, frame by frame, until something else comes, and what it is."""
    ends: list[int] = []
    changes: list[int] = []
    command, begin = b"", 0
    while begin < len(data):
        at = begin
        for number, flags in ((wire.COMMAND, 11), (wire.HEADER, 3), (wire.BODY, 7)):
            if at + 12 > len(data):
                return ends, changes, "incomplete"
            frame = data[at : at + 12]
            size = int.from_bytes(frame[2:4])
            if not 12 <= size <= 4096:
                return ends, changes, "size"
            if frame[1] > 3:
                return ends, changes, "type"
            if at + size > len(data):
                return ends, changes, "incomplete"
            if (frame[0] & 15, frame[1], frame[5] & 15, frame[6:8]) != (flags, number, 1, b"\0\0"):
                return ends, changes, "other"
            if number == wire.COMMAND:
                if size < 14 or data[at + 12 : at + 14] != b"\4\1":
                    return ends, changes, "other"
                if data[at : at + size] != command:
                    changes.append(len(ends))
                    command = data[at : at + size]
            at += size
        ends.append(at)
        begin = at
    return ends, changes, ""


sized = st.integers(0, 3).map(lambda size: wire.transfer(HEADER, b"x" * (40 + size)))


@st.composite
def repeated(draw: st.DrawFn) -> bytes:
    """Stretches of transfers of one size, with a few octets changed and the end cut off."""
    stretches = draw(st.lists(st.tuples(sized, st.integers(1, 40)), min_size=1, max_size=4))
    data = bytearray(b"".join(message * count for message, count in stretches))
    for _ in range(draw(st.integers(0, 2))):
        # most of what can be changed is at the begin of a message
        number = draw(st.integers(0, len(data) // len(USUAL)))
        place = min(number * len(USUAL) + draw(st.integers(0, len(USUAL) - 1)), len(data) - 1)
        data[place] = draw(st.sampled_from([0, 1, 3, 4, 7, 11, 12, 52, 53, 255, data[place] ^ 16]))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=examples(500))
@given(repeated())
def test_what_is_compared_together_is_found_as_by_a_plain_walk(data: bytes) -> None:
    ends, changes, why = walked(data)
    found = everything(data, max_frame=4096)
    assert found.ends[: len(ends)] == ends
    assert found.changes[: len(changes)] == changes
    assert found.largest >= max((b - a for a, b in pairwise([0, *ends])), default=0)
    if why in ("", "incomplete"):
        assert (found.ends, found.others, found.error) == (ends, [], None)
        assert found.largest == max((b - a for a, b in pairwise([0, *ends])), default=0)
    elif why in ("size", "type"):
        assert (found.ends, found.error is not None) == (ends, True)


@pytest.mark.parametrize("octet", range(len(USUAL)))
def test_an_octet_changed_in_one_of_many_transfers_framed_alike(octet: int) -> None:
    for number in (9, 30, 49):
        for value in {0, 1, 12, 255, USUAL[octet] ^ 1, USUAL[octet] ^ 16}:
            data = bytearray(USUAL * 50)
            data[number * len(USUAL) + octet] = value
            ends, changes, why = walked(bytes(data))
            found = everything(bytes(data), max_frame=4096)
            assert found.ends[: len(ends)] == ends
            assert found.changes[: len(changes)] == changes
            if not why:
                assert found.ends == ends
                assert found.changes == changes


def test_transfers_framed_alike_are_not_walked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = 0
    unpack = _scan._head

    def counted(data: bytes, at: int) -> tuple[int, ...]:
        nonlocal heads
        heads += 1
        return unpack(data, at)

    monkeypatch.setattr(_scan, "_head", counted)
    found = everything(USUAL * 1000)
    assert found.ends == list(range(len(USUAL), 1000 * len(USUAL) + 1, len(USUAL)))
    assert heads < 50


# ---- any split of the stream gives the same ------------------------------------------------------------------------


def read_stream(chunks: Iterator[bytes], *, aside: bool) -> tuple[list[bytes], list[tuple[bytes, int]], str | None]:
    """The loop of the module's description: transfers, other frames with the transfers before them, error."""
    transfers: list[bytes] = []
    others: list[tuple[bytes, int]] = []
    rest, start, inside, held = b"", 0, OUTSIDE, b""
    for chunk in chunks:
        data = rest + chunk
        found = scan(data, start, 0, 4096, inside)
        others += [(data[b:e], len(transfers) + i) for b, e, i in found.others]
        begin = 0
        for end in found.ends:
            transfers.append(strip(held + data[begin:end]))
            held, begin = b"", end
        if found.error is not None:
            return transfers, others, found.error.reason
        if aside and found.inside == IN_TRANSFER:
            held += data[found.begin : found.next]
            rest, start, inside = data[found.next :], 0, found.inside
        else:
            rest, start, inside = data[found.begin :], found.next - found.begin, found.inside
    return transfers, others, None


def strip(raw: bytes) -> bytes:
    """The frames of the transfer alone: what is on other tracks, channels or of other commands is dropped."""
    out, at, skipping = b"", 0, True
    while at < len(raw):
        size = int.from_bytes(raw[at + 2 : at + 4], "big")
        piece = raw[at : at + size]
        at += size
        if piece[5] & 15 != 1 or piece[6:8] != b"\0\0":
            continue
        if piece[0] & 0x0A == 0x0A:
            skipping = piece[12:14] != b"\x04\x01"
        if not skipping:
            out += piece
    return out


units = st.sampled_from(
    [
        USUAL,
        wire.transfer(HEADER, b"y" * 9),
        wire.transfer(),
        wire.transfer(HEADER),
        wire.transfer(None, b"b"),
        wire.transfer(HEADER * 3, b"z" * 900, limit=128),
        wire.heartbeat(),
        wire.completed(),
        wire.result(),
        wire.result(limit=16),
    ]
)
splits = st.lists(st.integers(1, 700), max_size=60)


def cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
    yield data[at:]


@given(st.lists(units, max_size=12), splits, st.booleans())
def test_any_split_of_the_stream_gives_the_same_transfers(parts: list[bytes], sizes: list[int], aside: bool) -> None:
    data = b"".join(parts)
    whole = read_stream(iter([data]), aside=False)
    assert whole[0] == [p for p in parts if p[12:14] == b"\x04\x01"]
    assert whole[2] is None
    assert read_stream(cut(data, sizes), aside=aside) == whole


def test_split_into_single_bytes() -> None:
    data = (USUAL + wire.heartbeat() + wire.transfer(HEADER, b"z" * 300, limit=64) + wire.result(limit=16) + USUAL) * 2
    single = [data[i : i + 1] for i in range(len(data))]
    whole = read_stream(iter([data]), aside=False)
    assert len(whole[0]) == 6
    assert read_stream(iter(single), aside=False) == whole
    assert read_stream(iter(single), aside=True) == whole


@settings(max_examples=examples(300))
@given(st.lists(units, max_size=4), st.binary(max_size=200), splits)
def test_arbitrary_bytes_never_raise_and_lose_nothing_before_them(
    parts: list[bytes], junk: bytes, sizes: list[int]
) -> None:
    data = b"".join(parts)
    sound = everything(data, max_frame=4096)
    found = everything(data + junk, max_frame=4096)
    assert found.ends[: len(sound.ends)] == sound.ends
    assert found.others[: len(sound.others)] == sound.others
    assert found.ends == sorted(set(found.ends))
    assert 0 <= found.begin <= found.next <= len(data + junk)
    if found.error is not None:
        assert found.error.offset == found.next
    assert read_stream(cut(data + junk, sizes), aside=False) == read_stream(iter([data + junk]), aside=False)


def test_a_big_message_in_small_chunks_is_walked_once() -> None:
    """Every call takes up where the one before stopped: the frames looked at add up to the frames sent."""
    message = wire.transfer(HEADER, b"x" * 400_000, limit=4096)
    rest, start, inside, walked = b"", 0, OUTSIDE, 0
    for chunk in cut(message, [4000] * 101):
        data = rest + chunk
        found = scan(data, start, 0, 4096, inside)
        assert found.error is None
        walked += found.next - start
        rest, start, inside = data[found.begin :], found.next - found.begin, found.inside
    assert walked == len(message)
    assert (rest, start, inside) == (b"", 0, OUTSIDE)
