from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.errors import DecodeError
from amqp_core.v0_10._columns import WIDTHS, Located, locate
from tests.support import wire

HEADER = wire.delivery(routing_key=wire.str8(b"ticks")) + wire.message(content_type=wire.str8(b"text/plain"))
USUAL = wire.transfer(HEADER, b"body")


def parts(found: Located) -> list[tuple[bytes, bytes]]:
    """Header and body of every transfer, as the description of Located says."""
    out = []
    for index, (begin, head_end, end) in enumerate(zip(found.head_begin, found.head_end, found.end, strict=True)):
        pieces = found.odd.get(index, [head_end + 12, end])
        body = b"".join(found.data[b:e] for b, e in zip(pieces[::2], pieces[1::2], strict=True))
        out.append((found.data[begin:head_end], body))
    return out


def test_literal_bytes() -> None:
    data = bytes.fromhex(
        "0b01 0014 00 01 0003 00000000  0401 0100 0100 01 61"  # command frame: message.transfer to "a", channel 3
        "0302 000e 00 01 0003 00000000 4848"  # header
        "0703 000e 00 01 0003 00000000 6869"  # body "hi"
    )
    assert parts(locate(data * 3)) == [(b"HH", b"hi")] * 3
    assert locate(data * 3).end == [48, 96, 144]


def test_an_empty_block_has_no_transfers() -> None:
    assert locate(b"") == Located(b"", [], [], [], {}, joined=False, broken={})


SHAPES = {
    "usual": (USUAL, (HEADER, b"body")),
    "no body": (wire.transfer(HEADER), (HEADER, b"")),
    "empty body frame": (wire.transfer(HEADER, b""), (HEADER, b"")),
    "command only": (wire.transfer(), (b"", b"")),
    "no header": (wire.transfer(None, b"b"), (b"", b"b")),
    "empty header": (wire.transfer(b"", b"b"), (b"", b"b")),
    "body in frames": (wire.transfer(HEADER, bytes(range(256)), limit=80), (HEADER, bytes(range(256)))),
    "header in frames": (wire.transfer(HEADER, b"b", header_limit=20), (HEADER, b"b")),
    "all in frames": (wire.transfer(HEADER, b"b" * 99, destination=b"d" * 90, limit=40), (HEADER, b"b" * 99)),
    "other destination": (wire.transfer(HEADER, b"b", destination=b"x"), (HEADER, b"b")),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_message_alone_and_among_usual_ones(name: str) -> None:
    message, expected = SHAPES[name]
    assert parts(locate(message)) == [expected]
    assert parts(locate(USUAL * 2 + message * 2 + USUAL)) == [SHAPES["usual"][1]] * 2 + [expected] * 2 + [
        SHAPES["usual"][1]
    ]


between = st.sampled_from([wire.heartbeat(), wire.completed(), wire.result(), wire.result(limit=14)])


@given(st.lists(st.sampled_from(sorted(SHAPES)) | between, max_size=15))
def test_controls_and_other_commands_are_skipped(items: list[str | bytes]) -> None:
    data = b"".join(SHAPES[item][0] if isinstance(item, str) else item for item in items)
    assert parts(locate(data)) == [SHAPES[item][1] for item in items if isinstance(item, str)]


def test_a_control_inside_a_transfer_is_skipped() -> None:
    command = wire.frame(11, wire.COMMAND, wire.transfer_command())
    header, body = wire.frame(3, wire.HEADER, HEADER), wire.frame(7, wire.BODY, b"body")
    for data in (
        command + wire.heartbeat() + header + body,
        command + header + wire.completed() + body,
        USUAL + command + header + wire.completed() + body,
    ):
        assert parts(locate(data + USUAL))[-2:] == [(HEADER, b"body")] * 2


def test_frames_of_another_channel_are_skipped() -> None:
    data = USUAL + wire.transfer(HEADER, b"other", channel=9) + USUAL
    assert parts(locate(data)) == [(HEADER, b"body")] * 2


def test_a_transfer_with_segments_in_the_wrong_order_is_broken_and_the_others_are_not() -> None:
    command, header = wire.frame(11, wire.COMMAND, wire.transfer_command()), wire.frame(7, wire.HEADER, HEADER)
    wrong = command + wire.frame(3, wire.BODY, b"x") + header
    found = locate(USUAL + wrong + USUAL)
    assert found.broken == {1: "a frame of type 2 follows one of type 3 inside a transfer"}
    assert parts(found) == [(HEADER, b"body"), (b"", b""), (HEADER, b"body")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (USUAL[:-1], "does not fit the block"),
        (USUAL + USUAL[:30], "ends inside a transfer"),
        (USUAL + USUAL[:5], "ends inside a frame header"),
        (USUAL + wire.frame(11, wire.COMMAND, wire.transfer_command()), "ends inside a transfer"),
        (wire.frame(11, wire.COMMAND, wire.transfer_command()) + USUAL, "begins before the one before it has ended"),
        (bytes.fromhex("0f00 0005 0000 0000 00000000"), "a frame of 5 bytes does not fit"),
    ],
)
def test_frames_that_do_not_fit_together_are_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        locate(data)


@given(st.binary(max_size=300), st.integers(0, len(USUAL) * 3))
def test_arbitrary_bytes_give_transfers_or_a_decode_error(junk: bytes, at: int) -> None:
    data = USUAL * 3
    for mutated in (data[:at] + junk + data[at:], data[:at] + junk + data[at + len(junk) :], junk):
        try:
            found = locate(mutated)
        except DecodeError:
            continue
        assert len(found.head_begin) == len(found.head_end) == len(found.end)
        assert all(b <= h <= len(found.data) for b, h in zip(found.head_begin, found.head_end, strict=True))


def test_widths_follow_from_the_high_bits_of_the_type_code() -> None:
    # uint8, int32, double, uuid, bin1024, vbin8, str16, map, dec32, dec64, void
    codes = (0x02, 0x21, 0x33, 0x48, 0x70, 0x80, 0x95, 0xA8, 0xC8, 0xD8, 0xF0)
    assert [WIDTHS[code] for code in codes] == [1, 4, 8, 16, 128, -1, -2, -4, 5, 9, 0]
    assert {WIDTHS[code] for code in (*range(0xB0, 0xC0), *range(0xE0, 0xF0))} == {-9}
