"""Splits a received byte stream into blocks of message transfers and other frames, without decoding their contents.

The cost of a message is linear in its size, however the stream is split: no byte is scanned twice, an incomplete frame
is not scanned before all of it has arrived, and a large message is joined once, when its end has arrived.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from amqp_core.blocks import Block, Pieces
from amqp_core.errors import LimitExceeded
from amqp_core.v0_10._scan import FRAME_HEADER, IN_TRANSFER, OUTSIDE, scan
from amqp_core.v0_10.framing import COMMAND_FRAME_BYTES, MIN_MAX_FRAME_SIZE, MOST_FRAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.errors import ProtocolError
    from amqp_core.v0_10._scan import Scan

LARGEST_MESSAGE_BYTES = (1 << 32) - (1 << 20)
"""No message may be larger, whatever the limit: a frame's offset in a block must fit ``array("I")``."""

# From this many bytes on, the received part of an incomplete message is set aside, and the following bytes are not
# copied until the message ends. A smaller part is joined with the next chunk, once, to share a block with others.
_ASIDE_BYTES = 1 << 15
# Least average size of the frames of a message as large as the limit.
_LEAST_FRAME = MIN_MAX_FRAME_SIZE // 2


class Scanner:
    """Splits the frames of one channel into blocks of transfers and single other frames, in order of arrival.

    The bytes of all frames of a transfer are limited by ``max_message_bytes``. Not thread-safe.
    """

    def __init__(self, channel: int, max_message_bytes: int = LARGEST_MESSAGE_BYTES) -> None:
        self._channel = channel
        self._max_message_bytes = min(max_message_bytes, LARGEST_MESSAGE_BYTES)
        self._inside = OUTSIDE
        self._rest = Pieces()  # bytes to scan once the frame under way is complete
        self._start = 0  # number of its bytes already scanned: they belong to the message under way
        self._aside = Pieces()  # the received part of a large message under way
        self._missing = 0  # bytes that the frame under way, or its header, still lacks
        self._passing = False  # that frame belongs to the message set aside: its bytes go there unscanned
        self._closing = False  # and is its last frame
        self._frames = 0  # of the message under way
        self._sync = False  # whether its sender may have requested its completion
        self.error: ProtocolError | None = None
        self.amid = False
        """Whether the last yielded frame lies inside a transfer, as a control may."""
        self.begun = b""
        """The first bytes of an incomplete transfer that the latest call found to be large."""
        self._announced = False  # whether the message set aside was ``begun`` in some call

    def feed(self, chunk: bytes, max_frame_size: int) -> Iterator[Block | bytes]:
        """Process the next bytes; yield blocks, and every other frame as its bytes.

        ``error`` is set if the iteration ends at a malformed frame or a message beyond the limit; items yielded before
        it are valid. No AmqpError is raised.

        Args:
            chunk: the bytes; all items must be taken before the next call.
            max_frame_size: the negotiated max-frame-size in bytes, header included.
        """
        self.begun = b""
        if len(chunk) < self._missing:
            self._missing -= len(chunk)
            (self._aside if self._passing else self._rest).add(chunk)
            self._check_aside()
            return
        carried = self._rest.nbytes > 0
        data = self._rest.take(chunk) if carried else chunk
        found = self._scan(data, max_frame_size)
        self._sync = self._sync or found.sync
        for item in self._cut(data, found):
            if isinstance(item, Block):
                item.sync = self._sync
                if item.largest > self._max_message_bytes:
                    yield from self._refuse(item)
                    return
            yield item
        self._sync = self._sync and self._inside == IN_TRANSFER
        if found.error is None:
            self._keep(data, found, carried=carried)
        self.error = self.error or found.error

    def _scan(self, data: bytes, max_frame_size: int) -> Scan:
        """Scan new bytes; the frame under way of a message set aside ends in ``data`` without being scanned."""
        start, inside = (self._missing, self._inside) if self._passing else (self._start, self._inside)
        closing = self._passing and self._closing
        found = scan(data, start, self._channel, max_frame_size, OUTSIDE if closing else inside)
        if closing:
            others = [(begin, end, index + 1) for begin, end, index in found.others]
            changes = [index + 1 for index in found.changes]
            found = found._replace(ends=[start, *found.ends], others=others, changes=changes)
        fresh = found.ends or inside != IN_TRANSFER
        self._frames = found.frames if fresh else self._frames + found.frames
        self._inside = found.inside
        return found

    def _cut(self, data: bytes, found: Scan) -> Iterator[Block | bytes]:
        ends = found.ends
        begin = done = 0
        aside_block: Block | None = None
        if self._aside.nbytes and ends:
            # the transfer that was set aside ends in this chunk; frames of `others` before it are yielded below
            frames = self._aside.take(memoryview(data)[: ends[0]])
            aside_block = Block(frames, array("I", (len(frames),)))
            self._announced = False
        amid = frozenset(found.amid)
        for first, end, index in found.others:
            if index > done:
                if aside_block is not None:
                    yield aside_block
                    aside_block, done, begin = None, 1, ends[0]
                if index > done:
                    yield _block(data, begin, found, done, index)
                    begin, done = ends[index - 1], index
            self.amid = first in amid
            yield data[first:end]
            if data[first + 5] & 15 == 1:
                begin = end  # a command is never inside a transfer; controls may be, and stay in its bytes
        if aside_block is not None:
            yield aside_block
            done, begin = 1, ends[0]
        if done < len(ends):
            yield _block(data, begin, found, done, len(ends))

    def _keep(self, data: bytes, found: Scan, *, carried: bool) -> None:
        """Keep the bytes that the next call needs, and record how many must arrive before scanning can continue."""
        begin, following = found.begin, found.next
        available = len(data) - following
        size = int.from_bytes(data[following + 2 : following + 4]) if available >= FRAME_HEADER else FRAME_HEADER
        self._missing = size - available
        self._start, self._passing = following - begin, False
        if self._inside == IN_TRANSFER and (
            self._aside.nbytes or (carried and not begin) or len(data) - begin >= _ASIDE_BYTES
        ):
            self._start = 0
            self._passing = available >= FRAME_HEADER and self._continues(data, following)
            if self._passing:
                self._closing = data[following] & 5 == 5
                self._frames += 1
                self._aside.add(data[begin:])
            else:
                self._aside.add(data[begin:following])
                self._rest.add(data[following:])
            self._check_aside()
        else:
            self._rest.add(data[begin:])

    def _continues(self, data: bytes, at: int) -> bool:
        """Whether the frame whose header is at ``at`` continues the transfer under way."""
        channel = data[at + 6] << 8 | data[at + 7]
        return data[at + 5] & 15 == 1 and channel == self._channel and data[at] & 0x0A != 0x0A

    def _check_aside(self) -> None:
        if not self._announced and self._aside.nbytes >= _ASIDE_BYTES:
            self.begun = self._aside.first()[:COMMAND_FRAME_BYTES]
            self._announced = True
        if self._aside.nbytes > self._max_message_bytes:
            self.error = self._too_large()
        elif self._frames > max(MOST_FRAMES, self._max_message_bytes // _LEAST_FRAME):
            self.error = LimitExceeded(f"the peer cuts a message into {self._frames} frames: it sends empty ones")

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded(
            f"a message is larger than {self._max_message_bytes} bytes, the largest allowed (max message bytes): "
            "raise that limit, or remove the message from its queue"
        )

    def _refuse(self, block: Block) -> Iterator[Block]:
        """Yield the transfers before the first one that is too large, and set the error."""
        begin = 0
        for index, end in enumerate(block.ends):
            if end - begin > self._max_message_bytes:
                if index:
                    yield block.part(0, index, 0, begin)
                break
            begin = end
        self.error = self._too_large()


def _block(data: bytes, begin: int, found: Scan, first: int, last: int) -> Block:
    """Block of the found transfers ``[first, last)``, whose frames begin at ``begin``."""
    ends = found.ends if last - first == len(found.ends) else found.ends[first:last]
    changes = found.changes[bisect_right(found.changes, first) : bisect_left(found.changes, last)]
    if first:
        changes = [index - first for index in changes]
    if begin:
        return Block(data[begin : ends[-1]], array("I", [end - begin for end in ends]), changes=changes)
    frames = data if ends[-1] == len(data) else data[: ends[-1]]
    largest = found.largest if ends is found.ends and not found.others else 0
    return Block(frames, array("I", ends), changes=changes, largest=largest)
