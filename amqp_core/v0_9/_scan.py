"""Find the boundaries of deliveries in received bytes, without decoding and without an object per frame.

Functions only, ``bytes`` in and lists out. Only what delimits a delivery is looked at: the frame headers and end octets
(0-9-1 section 2.3.5), class and code of methods, the consumer tag of basic.deliver, and the body size of content
headers.

:class:`amqp_core.v0_9.scanner.Scanner` calls :func:`scan` for a connection: it delivers deliveries and other frames in
order, reports a broken frame only then, and keeps ``data[found.begin:]``, to go on at ``found.next`` with the next
bytes. :func:`pieces` locates content header and body of one delivery.

Frames that arrive *inside* a delivery (heartbeats and frames of other channels may) are reported when they are seen,
that is, before that delivery, and stay in its bytes: code that decodes a delivery skips every frame that is not on the
channel of its first frame, which is always its basic.deliver.

Nothing is walked twice: a delivery that is not complete is taken up again at ``next``. The bytes of a big one can be
set aside: the caller goes on with ``data[found.next:]`` and ``start = 0``, and the first end of a later call closes it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any, Final

from amqp_core.errors import DecodeError
from amqp_core.scanning import ALIKE, IN_OTHER, IN_TRANSFER, OUTSIDE, Scan, repeated
from amqp_core.v0_9.framing import (
    BODY,
    FRAME_END,
    FRAME_HEADER,
    HEADER,
    KINDS,
    METHOD,
    OVERHEAD,
    wrong_end,
    wrong_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    _Read = Callable[[bytes, int], tuple[Any, ...]]

BASIC: Final = 60
DELIVER: Final = 60 << 16 | 60
WITH_CONTENT: Final = frozenset((DELIVER, 60 << 16 | 40, 60 << 16 | 50, 60 << 16 | 71))
"""Class and code of the methods that a content follows: basic.deliver, publish, return, get-ok."""
NO_HEADER: Final = -1
"""The content header has not come: the number of body bytes that are left is not known."""

_AROUND_TAG: Final = 4 + 1 + 8 + 1 + 1 + 1
"""Least bytes of basic.deliver besides the consumer tag: class and code, four sizes or flags, delivery tag."""
_LEAST_CONTENT_HEADER: Final = 2 + 2 + 8 + 2
_TAG_SIZE: Final = FRAME_HEADER + 4  # where it is in the frame of basic.deliver

_frame = Struct(">BHI").unpack_from  # type, channel, size
_method = Struct(">I").unpack_from  # class and code
_content = Struct(">HHQ").unpack_from  # class, weight, body size
_body_frame = Struct(">4sI").unpack_from  # the octet before it with type and channel, size


def scan(
    data: bytes,
    start: int,
    channel: int,
    max_frame: int,
    inside: int = OUTSIDE,
    left: int = NO_HEADER,
    max_header: int = 0,
) -> tuple[Scan, int]:
    """Walk the frames of ``data`` from ``start`` on; see the module for use. Raises nothing.

    Args:
        data: the bytes. Of a content under way, those before ``start`` (or they were set aside by the caller).
        start: offset of the first frame to be looked at.
        channel: the channel whose deliveries are sought.
        max_frame: the agreed frame-max in bytes, header and end octet included.
        inside: whether a content is under way, and of which method.
        left: body bytes that this content still lacks; ``NO_HEADER`` before its header.
        max_header: limit of the frame of a content header, if that is more.

    Returns:
        What was found, and ``left`` for the next call.
    """
    ends: list[int] = []
    others: list[tuple[int, int, int]] = []
    changes: list[int] = []
    amid: list[int] = []
    error: DecodeError | None = None
    found = ends.append
    length = len(data)
    room = max_frame - OVERHEAD
    tag = b""  # class, code and consumer tag with its size, of the delivery before
    opening = b""  # its frame header and tag
    first_two: _Read = _frame  # reads the opening and the frame of the content header, up to the body size
    before = 0  # bytes of its basic.deliver, and of the next frame besides the payload
    openings: dict[bytes, tuple[_Read, int]] = {}  # the last two of other sizes of basic.deliver
    of_header, of_body = (bytes((FRAME_END, kind)) + channel.to_bytes(2) for kind in (HEADER, BODY))
    begin = start if inside == OUTSIDE else 0  # of the content under way
    frames = 0  # of the delivery under way
    largest = total = alike = 0  # sizes of deliveries, and how many in a row have been as large as the one before
    enough = ALIKE
    at = start
    while True:
        if tag and inside == OUTSIDE:
            # The usual delivery: the consumer as before, and the body in one frame or none.
            try:
                while True:
                    same, front, size, number, body = first_two(data, begin)
                    if same != opening:
                        known = openings.get(same)
                        if known is None:
                            break
                        opening = same
                        first_two, before = known
                        continue
                    if front != of_header or number != BASIC or not _LEAST_CONTENT_HEADER <= size <= room:
                        break
                    at = after = begin + before + size
                    if body:
                        front, size = _body_frame(data, after - 1)
                        if front != of_body or size != body or size > room:
                            break
                        at += OVERHEAD + size
                    if at > length or data[at - 1] != FRAME_END:
                        break
                    found(at)
                    size = at - begin
                    if size != total:
                        total = size
                        alike = 0
                        if size > largest:  # noqa: PLR1730 - a call of max() for each message
                            largest = size
                        begin = at
                        continue
                    alike += 1
                    if alike < enough:
                        begin = at
                        continue
                    head = begin + before - OVERHEAD
                    places = [*range(begin, begin + len(opening)), *range(head - 1, head + 9)]
                    places += range(head + 11, head + 19)  # without the weight
                    if body:
                        places += range(after - 1, after + FRAME_HEADER)
                    places.append(at - 1)
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
        kind, where, size = _frame(data, at)
        end = at + OVERHEAD + size
        if kind not in KINDS or (size > room and (kind != HEADER or size > max_header - OVERHEAD)):
            error = wrong_frame(kind, size, at, max_frame)
            break
        if end > length:
            break
        if data[end - 1] != FRAME_END:
            error = wrong_end(data[end - 1], end - 1)
            break
        if where != channel or kind > BODY:
            others.append((at, end, len(ends)))
            if inside == IN_TRANSFER:
                amid.append(at)
        elif inside == OUTSIDE:
            if kind != METHOD or size < 4:
                error = DecodeError("a frame that is not a method where one must begin", at)
                break
            (number,) = _method(data, at + FRAME_HEADER)
            begin = at
            left = NO_HEADER
            if number != DELIVER:
                others.append((at, end, len(ends)))
                if number in WITH_CONTENT:
                    inside = IN_OTHER
            else:
                least = _AROUND_TAG + (data[at + _TAG_SIZE] if size > 4 else 0)
                if size < least:
                    error = DecodeError(f"a basic.deliver of {size} bytes is too short for its fields", at)
                    break
                opening = data[at : at + _TAG_SIZE + 1 + data[at + _TAG_SIZE]]
                if opening[FRAME_HEADER:] != tag:
                    changes.append(len(ends))
                    tag = opening[FRAME_HEADER:]
                    openings.clear()
                first_two = Struct(f">{len(opening)}s{end - 1 - at - len(opening)}x4sIHxxQ").unpack_from
                before = end - at + OVERHEAD
                openings[opening] = first_two, before
                frames = 1
                inside = IN_TRANSFER
        else:
            if left == NO_HEADER:
                left, error = _body_bytes(data, at, kind, size)
            elif kind != BODY:
                error = DecodeError(f"a frame of type {kind} came where {left} bytes of a body are missing", at)
            elif size > left:
                error = DecodeError(f"a body is longer by {size - left} bytes than its header announced", at)
            else:
                left -= size
            if error is not None:
                break
            if inside == IN_TRANSFER:
                frames += 1
                if not left:
                    found(end)
                    largest = max(largest, end - begin)
            else:
                others.append((at, end, len(ends)))
            if not left:
                inside = OUTSIDE
        at = end
        if inside == OUTSIDE:
            begin = at
    if inside != IN_TRANSFER:
        begin, frames = at, 0
    return Scan(ends, others, begin, at, inside, error, changes, frames, largest=largest, amid=amid), left


def _body_bytes(data: bytes, at: int, kind: int, size: int) -> tuple[int, DecodeError | None]:
    """The body size that the frame at ``at``, which must be a content header, announces."""
    if kind != HEADER:
        return NO_HEADER, DecodeError(f"a frame of type {kind} came where a content header must follow", at)
    if size < _LEAST_CONTENT_HEADER:
        return NO_HEADER, DecodeError(f"a content header of {size} bytes is too short for its fields", at)
    number, _, body = _content(data, at + FRAME_HEADER)
    if number != BASIC:
        return NO_HEADER, DecodeError(f"a content header of class {number} follows a method of class {BASIC}", at)
    return body, None


def parts(data: bytes, begin: int, end: int) -> tuple[list[int], list[int], list[int]]:
    """Locate the parts of the delivery whose frames are ``data[begin:end]``; frames of other channels are skipped.

    Returns:
        Begin and end of the payload of the method, of the content header, and of each piece of the body.

    Raises:
        DecodeError: they are not the frames of one delivery.
    """
    channel = -1
    kinds: list[int] = []
    bounds: list[int] = []
    at = begin
    while at < end:
        kind, where, size = _frame(data, at) if at + FRAME_HEADER <= end else (0, 0, end)
        after = at + OVERHEAD + size
        if after > end:
            raise DecodeError("the frames of a delivery end inside a frame", at)
        if channel < 0:
            channel = where
        if where == channel and kind <= BODY:
            kinds.append(kind)
            bounds += (at + FRAME_HEADER, after - 1)
        at = after
    if kinds[:2] != [METHOD, HEADER] or any(kind != BODY for kind in kinds[2:]):
        raise DecodeError("the frames of a delivery are not method, content header and body", begin)
    if bounds[1] - bounds[0] < _AROUND_TAG or _method(data, bounds[0]) != (DELIVER,):
        raise DecodeError("the first frame of a delivery is not basic.deliver", begin)
    if bounds[3] - bounds[2] < _LEAST_CONTENT_HEADER:
        raise DecodeError("the content header of a delivery is too short for its fields", bounds[2])
    body = bounds[4:]
    announced = _content(data, bounds[2])[2]
    if sum(body[1::2]) - sum(body[::2]) != announced:
        raise DecodeError(f"the body of a delivery does not have the {announced} bytes announced", begin)
    return bounds[:2], bounds[2:4], body
