"""Find the boundaries of message transfers in received bytes, without decoding and without an object per frame.

Functions only, ``bytes`` in and lists out, so that the same file runs compiled. Only what delimits an assembly is
looked at: the frame headers (0-10 section 4.4: size, type, track, channel, the first/last flags) and the class and
command code of the frame that opens an assembly. Reserved bits are ignored.

:class:`amqp_core.v0_10.scanner.Scanner` calls :func:`scan` for a connection: it delivers transfers and other frames in
order, reports a broken frame only then, and keeps ``data[found.begin:]``, to go on at ``found.next`` with the next
bytes. :func:`segments` uses the same walk to locate header and body of one transfer.

Command ids count every command: a frame of ``others`` on the command track that opens an assembly takes an id, so runs
of consecutive ids end there; controls take none. Frames of ``others`` that arrive *inside* a transfer (controls may)
are reported when they are seen, that is, before that transfer. They stay in its bytes: whoever decodes the bytes of a
run skips every frame that is not on the command track and every assembly that is not a transfer.

The frames of one run of transfers are ``data[a:b]`` with ``b`` the end of its last transfer and ``a`` any frame
boundary after the end of the command before it (0, the end of the run before, or the end of an ``others`` frame).

Nothing is walked twice: a transfer that is not complete is taken up again at ``next``. The bytes of a big one can be
set aside: the caller goes on with ``data[found.next:]`` and ``start = 0``, and the first end of a later call closes it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final

from amqp_core.errors import DecodeError
from amqp_core.scanning import ALIKE, IN_OTHER, IN_TRANSFER, OUTSIDE, Scan, repeated

FRAME_HEADER: Final = 12

_frame = Struct(">BBHxBH").unpack_from  # flags, type, size, track, channel
_head = Struct(">HHI").unpack_from  # flags and type, size, reserved + track + channel


def segments(data: bytes, begin: int, end: int) -> tuple[list[int], list[int]]:
    """Locate header and body in the frames ``data[begin:end]``; raise DecodeError if they are not one transfer.

    Controls, frames of other channels than 0 and other commands are skipped; no contents are decoded.

    Returns:
        Begin and end of each piece of the header segment, and of each piece of the body segment.
    """
    frames: list[tuple[int, int, int]] = []
    found = scan(data, begin, 0, 0xFFFF, stop=end, pieces=frames)
    if found.error is not None:
        raise found.error
    if found.next < end:
        raise DecodeError("the frames of a transfer end inside a frame", found.next)
    if len(found.ends) != 1 or found.inside == IN_TRANSFER:
        whole = f"{len(found.ends)} whole transfers" if found.ends else "no whole transfer"
        raise DecodeError(f"{whole} in the frames of one", end)
    kinds = [kind for kind, *_ in frames]
    if kinds != sorted(kinds):
        raise DecodeError("the segments of a transfer are not in their order", begin)
    header, body = ([at for each in frames if each[0] == kind for at in each[1:]] for kind in (2, 3))
    return header, body


def scan(
    data: bytes,
    start: int,
    channel: int,
    max_frame: int,
    inside: int = OUTSIDE,
    *,
    stop: int | None = None,
    pieces: list[tuple[int, int, int]] | None = None,
) -> Scan:
    """Walk the frames of ``data`` from ``start`` on; see the module for use.

    With ``inside`` other than ``OUTSIDE`` an assembly is under way: its bytes before ``start`` are ``data[:start]``
    (or were set aside by the caller). ``max_frame`` is the negotiated max-frame-size in bytes, header included.
    Raises nothing: a frame that breaks the framing is returned as ``error``. With ``pieces`` the walk ends at ``stop``,
    and they receive the type, begin and end of the payload of every frame of a transfer.
    """
    ends: list[int] = []
    others: list[tuple[int, int, int]] = []
    changes: list[int] = []
    amid: list[int] = []
    error: DecodeError | None = None
    found = ends.append
    length = len(data) if stop is None else stop
    route = 0x10000 | channel  # as _head reads it: reserved 0, track 1, channel
    command = b""  # the command frame of the transfer before: on one subscription all are equal
    size_of_command = 0
    first_two = _head  # reads it together with the head of the frame behind it
    starts_with = data.startswith
    begin = start if inside == OUTSIDE else 0  # of the assembly under way
    frames = 0  # of the transfer under way
    sync = False
    largest = total = alike = 0  # sizes of transfers, and how many in a row have been as large as the one before
    enough = ALIKE
    at = start
    while True:
        if size_of_command and inside == OUTSIDE and pieces is None:
            # The usual message, three frames: the command frame as before, header in one frame, body in one or none.
            try:
                while True:
                    opening, kind, size, where = first_two(data, begin)
                    if opening != command or where != route or not FRAME_HEADER <= size <= max_frame:
                        break
                    at = body_at = begin + size_of_command + size
                    if kind == 0x0302:
                        kind, size, where = _head(data, at)
                        if kind != 0x0703 or where != route or not FRAME_HEADER <= size <= max_frame:
                            break
                        at += size
                    elif kind == 0x0702:
                        body_at = begin
                    else:
                        break
                    if at > length:
                        break
                    found(at)
                    if at - begin != total:
                        total = at - begin
                        alike = 0
                        largest = max(largest, total)
                        begin = at
                        continue
                    alike += 1
                    if alike < enough:
                        begin = at
                        continue
                    places = (*range(body_at, body_at + 8), *range(begin, begin + size_of_command + 8))
                    begin = at
                    count = repeated(data, places, begin, total)
                    begin += count * total
                    ends += range(at + total, begin + 1, total)
                    alike = 0
                    enough = ALIKE if count else 8 * enough
            except struct_error:  # the data ends inside a frame header
                pass
            at = begin
        if at + FRAME_HEADER > length:
            break
        flags, kind, size, track, where = _frame(data, at)
        if not FRAME_HEADER <= size <= max_frame:
            error = DecodeError(f"frame size {size} is outside {FRAME_HEADER}..{max_frame}", at)
            break
        if kind > 3:
            error = DecodeError(f"frame type {kind} is not one of 0 to 3", at)
            break
        end = at + size
        if end > length:
            break
        if track & 15 != 1 or where != channel:
            others.append((at, end, len(ends)))
            if inside == IN_TRANSFER:
                amid.append(at)
        elif inside == OUTSIDE:
            if flags & 0x0A != 0x0A or kind != 1:
                error = DecodeError("a frame that does not open an assembly where one must begin", at)
                break
            if size < FRAME_HEADER + 2:
                error = DecodeError("a command frame too short to name its command", at)
                break
            begin = at
            if data[at + 12] == 4 and data[at + 13] == 1:
                if pieces is not None:
                    pieces.append((kind, at + FRAME_HEADER, end))
                elif not size_of_command or not starts_with(command, at):
                    changes.append(len(ends))
                    # only a whole command segment with something behind it can begin the next transfer, too
                    command = data[at:end] if flags & 5 == 1 else b""
                    size_of_command = len(command)
                    first_two = Struct(f">{size_of_command}sHHI").unpack_from
                    # A frame that ends before its session header counts as one that has the bit: completion is then
                    # reported without need.
                    if size < FRAME_HEADER + 4 or (data[at + 14] and data[at + 15] & 1):
                        sync = True
                frames = 1
                if flags & 5 == 5:  # nothing but the command: a message without header and body
                    found(end)
                    largest = max(largest, size)
                else:
                    inside = IN_TRANSFER
            else:
                others.append((at, end, len(ends)))
                if flags & 5 != 5:
                    inside = IN_OTHER
        elif flags & 0x0A == 0x0A:
            error = DecodeError("an assembly begins before the one before it has ended", at)
            break
        elif inside == IN_TRANSFER:
            frames += 1
            if pieces is not None:
                pieces.append((kind, at + FRAME_HEADER, end))
            if flags & 5 == 5:
                found(end)
                largest = max(largest, end - begin)
                inside = OUTSIDE
        else:
            others.append((at, end, len(ends)))
            if flags & 5 == 5:
                inside = OUTSIDE
        at = end
        if inside == OUTSIDE:
            begin = at
    if inside != IN_TRANSFER:
        begin, frames = at, 0
    return Scan(ends, others, begin, at, inside, error, changes, frames, sync, largest, amid)
