"""Frames joined into assemblies: any interleaving of channels and tracks, and every order that is not allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.errors import DecodeError, LimitExceeded
from amqp_core.v0_10 import framing
from amqp_core.v0_10.framing import BODY, COMMAND, CONTROL, HEADER, HEADER_SIZE, Assembler, Assembly, Frame, parse_frame
from tests.support import wire

FS, LS, FF, LF = wire.FIRST_SEGMENT, wire.LAST_SEGMENT, wire.FIRST_FRAME, wire.LAST_FRAME
payloads = st.binary(max_size=60)


def frames_of(data: bytes) -> list[Frame]:
    frames, pos = [], 0
    while (parsed := parse_frame(data, pos, 65535)) is not None:
        frame, pos = parsed
        frames.append(frame)
    return frames


def frame(flags: int, kind: int, payload: bytes = b"x", *, track: int = 1, channel: int = 0) -> Frame:
    return Frame(flags, kind, track, channel, payload)


def receive(assembler: Assembler, frames: list[Frame]) -> None:
    for one in frames:
        assembler.receive(one)


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[Frame], dict[tuple[int, int], list[Assembly]]]:
    """Frames of several channels and tracks, each of which is in order, and what they mean."""
    expected: dict[tuple[int, int], list[Assembly]] = {}
    waiting: list[list[Frame]] = []
    for channel in draw(st.sets(st.integers(0, 3), min_size=1)):
        commands: list[Frame] = []
        for _ in range(draw(st.integers(0, 3))):
            parts = (draw(payloads), draw(st.none() | payloads), draw(st.none() | payloads))
            limit = draw(st.integers(13, 40))
            commands += frames_of(wire.assembly(*parts, channel=channel, limit=limit))
            expected.setdefault((channel, 1), []).append(Assembly(channel, 1, *parts))
        controls = []
        for payload in draw(st.lists(payloads, max_size=3)):
            controls.append(frame(0x0F, CONTROL, payload, track=0, channel=channel))
            expected.setdefault((channel, 0), []).append(Assembly(channel, 0, payload, None, None))
        waiting += [commands, controls]
    result = []
    while any(waiting):
        source = draw(st.sampled_from([frames for frames in waiting if frames]))
        result.append(source.pop(0))
    return result, expected


@given(interleaved())
def test_channels_and_tracks_interleave(case: tuple[list[Frame], dict[tuple[int, int], list[Assembly]]]) -> None:
    frames, expected = case
    assembler = Assembler()
    found: dict[tuple[int, int], list[Assembly]] = {}
    for one in frames:
        assembly = assembler.receive(one)
        if assembly is not None:
            found.setdefault((assembly.channel, assembly.track), []).append(assembly)
    assert found == expected


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([frame(FS | FF, COMMAND), frame(0x0F, COMMAND)], "a new assembly began on channel 0 before the last one"),
        ([frame(LS | LF, BODY)], "continues an assembly that never began"),
        ([frame(0x0F, BODY)], "an assembly on track 1 began with a segment of type 3"),
        ([frame(0x0F, CONTROL)], "an assembly on track 1 began with a segment of type 0"),
        ([frame(0x0F, COMMAND, track=0)], "an assembly on track 0 began with a segment of type 1"),
        ([frame(FS | FF, COMMAND), frame(FF, HEADER)], "a segment of type 2 began before the last one ended"),
        ([frame(FS | FF | LF, COMMAND), frame(LF, COMMAND)], "continues a segment that never began"),
        ([frame(FS | FF, COMMAND), frame(LF, HEADER)], "continues a segment that never began"),
        ([frame(FS | FF | LF, COMMAND), frame(FF | LF, COMMAND)], "type 1 follows one of type 1"),
        (
            [frame(FS | FF | LF, COMMAND), frame(FF | LF, BODY), frame(FF | LF, HEADER)],
            "type 2 follows one of type 3",
        ),
        ([frame(FS | FF | LF, CONTROL, track=0), frame(FF | LF, BODY, track=0)], "type 3 follows one of type 0"),
    ],
)
def test_an_order_that_is_not_allowed_is_named(frames: list[Frame], text: str) -> None:
    assembler = Assembler()
    for one in frames[:-1]:
        assert assembler.receive(one) is None
    with pytest.raises(DecodeError, match=text):
        assembler.receive(frames[-1])


def test_the_limit_is_of_the_whole_assembly() -> None:
    assembler = Assembler(limit=34, option="max message bytes")
    assert assembler.receive(frame(0x0F, COMMAND, b"x" * 22)) is not None
    assert assembler.receive(frame(FS | FF | LF, COMMAND, b"x" * 6)) is None
    with pytest.raises(LimitExceeded, match=r"a command of more than 34 bytes arrived .* \(raise max message bytes"):
        assembler.receive(frame(LS | FF, BODY, b"x" * 5))


@pytest.mark.parametrize(("track", "what"), [(0, "control"), (1, "command")])
def test_empty_frames_count(track: int, what: str) -> None:
    assembler = Assembler(limit=200_000)
    assembler.receive(frame(FS | LS | FF, track, b"\x02\x05", track=track))
    empty = [frame(FS | LS, track, b"", track=track)] * (200_000 // HEADER_SIZE)
    with pytest.raises(LimitExceeded, match=f"a {what} of more than"):
        receive(assembler, empty)


def test_the_frames_of_an_assembly_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MOST_FRAMES", 10)
    assembler = Assembler()
    for _ in range(3):
        assembler.receive(frame(FS | LS | FF, COMMAND))
        for _ in range(8):
            assembler.receive(frame(FS | LS, COMMAND))
        assert assembler.receive(frame(FS | LS | LF, COMMAND)) is not None
    assembler.receive(frame(FS | LS | FF, COMMAND))
    with pytest.raises(LimitExceeded, match="a command in more than 10 frames arrived on channel 0"):
        receive(assembler, [frame(FS | LS, COMMAND)] * 10)
