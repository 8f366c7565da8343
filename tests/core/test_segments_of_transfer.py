"""Where the header and the body of one transfer are, however it is cut into frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.errors import DecodeError
from amqp_core.v0_10._scan import segments
from amqp_core.v0_10.type_codes import WIDTHS
from tests.support import wire

HEADER = wire.delivery(routing_key=wire.str8(b"ticks")) + wire.message(content_type=wire.str8(b"text/plain"))
USUAL = wire.transfer(HEADER, b"body")
COMMAND = wire.frame(11, wire.COMMAND, wire.transfer_command())


def parts(data: bytes, begin: int = 0, end: int = -1) -> tuple[bytes, bytes]:
    """Header and body of the transfer in ``data[begin:end]``."""
    header, body = segments(data, begin, len(data) if end < 0 else end)
    return joined(data, header), joined(data, body)


def joined(data: bytes, bounds: list[int]) -> bytes:
    return b"".join(data[first:last] for first, last in zip(bounds[::2], bounds[1::2], strict=True))


def test_literal_bytes() -> None:
    data = bytes.fromhex(
        "0b01 0014 00 01 0000 00000000  0401 0100 0100 01 61"  # command frame: message.transfer to "a"
        "0302 000e 00 01 0000 00000000 4848"  # header
        "0703 000e 00 01 0000 00000000 6869"  # body "hi"
    )
    assert segments(data * 3, 48, 96) == ([80, 82], [94, 96])


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
def test_every_shape_of_message_alone_and_among_others(name: str) -> None:
    message, expected = SHAPES[name]
    assert parts(message) == expected
    assert parts(USUAL + message + USUAL, len(USUAL), len(USUAL) + len(message)) == expected


between = st.sampled_from(
    [wire.heartbeat(), wire.completed(), wire.result(), wire.result(limit=14), wire.transfer(HEADER, b"x", channel=9)]
)


@given(st.sampled_from(sorted(SHAPES)), st.lists(between), st.lists(between))
def test_controls_other_commands_and_other_channels_are_skipped(
    name: str, before: list[bytes], after: list[bytes]
) -> None:
    assert parts(b"".join((*before, SHAPES[name][0], *after))) == SHAPES[name][1]


def test_a_control_inside_a_transfer_is_skipped() -> None:
    header, body = wire.frame(3, wire.HEADER, HEADER), wire.frame(7, wire.BODY, b"body")
    assert parts(COMMAND + wire.heartbeat() + header + body) == (HEADER, b"body")
    assert parts(COMMAND + header + wire.completed() + body) == (HEADER, b"body")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (USUAL[:-1], "end inside a frame"),
        (USUAL[:5], "end inside a frame"),
        (COMMAND, "no whole transfer"),
        (b"", "no whole transfer"),
        (wire.heartbeat(), "no whole transfer"),
        (COMMAND + USUAL, "an assembly begins before the one before it has ended"),
        (USUAL + USUAL, "2 whole transfers in the frames of one"),
        (bytes.fromhex("0f00 0005 0000 0000 00000000"), "frame size 5 is outside 12..65535"),
        (
            COMMAND + wire.frame(3, wire.BODY, b"x") + wire.frame(7, wire.HEADER, HEADER),
            "not in their order",
        ),
        (COMMAND + wire.frame(7, 4, b"x"), "frame type 4 is not one of 0 to 3"),
        (COMMAND + wire.frame(7, 0, b"x"), "not in their order"),
    ],
)
def test_frames_that_are_not_one_transfer_are_an_error(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        segments(data, 0, len(data))


@given(st.binary(max_size=300), st.integers(0, len(USUAL)))
def test_arbitrary_bytes_give_a_transfer_or_a_decode_error(junk: bytes, at: int) -> None:
    for data in (USUAL[:at] + junk + USUAL[at:], USUAL[:at] + junk + USUAL[at + len(junk) :], junk):
        try:
            header, body = segments(data, 0, len(data))
        except DecodeError:
            continue
        bounds = header + body
        assert bounds == sorted(bounds)
        assert not bounds or (bounds[0] >= 12 and bounds[-1] <= len(data))


def test_widths_follow_from_the_high_bits_of_the_type_code() -> None:
    # uint8, int32, double, uuid, bin1024, vbin8, str16, map, dec32, dec64, void
    codes = (0x02, 0x21, 0x33, 0x48, 0x70, 0x80, 0x95, 0xA8, 0xC8, 0xD8, 0xF0)
    assert [WIDTHS[code] for code in codes] == [1, 4, 8, 16, 128, -1, -2, -4, 5, 9, 0]
    assert {WIDTHS[code] for code in (*range(0xB0, 0xC0), *range(0xE0, 0xF0))} == {-9}
