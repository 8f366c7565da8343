"""Splits a received byte stream into blocks of message transfers and other frames, without decoding their contents.

The cost of a message is linear in its size, however the stream is split: no byte is scanned twice, an incomplete frame
is not scanned before all of it has arrived, and a large message is joined once, when its end has arrived. What a frame
looks like is known by the subclass of each protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from amqp_core.blocks import Block, Pieces
from amqp_core.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from amqp_core.errors import DecodeError, ProtocolError

OUTSIDE: Final = 0
"""Between messages."""
IN_TRANSFER: Final = 1
"""Inside a message transfer whose last frame has not come yet."""
IN_OTHER: Final = 2
"""Inside another command with content, whose frames are handed out one by one."""

ALIKE: Final = 8
"""After so many transfers of one size the next ones are compared with them together: that costs a fifth of walking, but
as much as walking this many where it finds nothing."""
LARGEST_MESSAGE_BYTES = (1 << 32) - (1 << 20)
"""No message may be larger, whatever the limit: a frame's offset in a block must fit ``array("I")``."""
MOST_FRAMES = 1 << 18
"""Most frames of one received message. At the smallest frame limit they hold 1 GiB, so no sender needs more; each one
costs time and memory to decode, even an empty one."""
COMMAND_FRAME_BYTES = 1 << 10
"""So many first bytes contain the command frame of a transfer, in which only names are long, unless the sender splits
it into several frames."""

# From this many bytes on, the received part of an incomplete message is set aside, and the following bytes are not
# copied until the message ends. A smaller part is joined with the next chunk, once, to share a block with others.
_ASIDE_BYTES = 1 << 15
# Least average size of the frames of a message as large as the limit: half of the smallest frame limit.
_LEAST_FRAME = 2048


class Scan(NamedTuple):
    """What one walk over received bytes found; all offsets count from the start of ``data``."""

    ends: list[int]
    """End offset of every complete transfer, in order."""
    others: list[tuple[int, int, int]]
    """``(begin, end, index)`` of every other frame, in order; ``index`` transfers of ``ends`` come before it."""
    begin: int
    """First byte to keep: where the incomplete transfer begins, or ``next`` if there is none."""
    next: int
    """First frame that was not looked at (it is not complete, or it is the broken one)."""
    inside: int
    """``OUTSIDE``, ``IN_TRANSFER`` or ``IN_OTHER``, to be passed to the next call."""
    error: DecodeError | None
    """The frame at ``next`` is broken: the connection cannot go on. What was found before it is valid."""
    changes: list[int]
    """Index in ``ends`` of each transfer that opens in ``data`` with another command frame than the one before it, or
    in a way that was not compared: all others go to the same destination as the one before. The last one may be of the
    transfer that is not complete."""
    frames: int = 0
    """How many frames of the incomplete transfer this call has walked."""
    sync: bool = False
    """Some transfer that began in this call has the sync bit in its session header."""
    largest: int = 0
    """Bytes of the largest transfer of ``ends``; exact where ``others`` is empty."""
    amid: Sequence[int] = ()
    """``begin`` of every frame of ``others`` that lies inside a transfer."""


def repeated(data: bytes, places: Iterable[int], begin: int, size: int) -> int:
    """How many transfers of ``size`` bytes from ``begin`` on are framed as the one before them; 0 if they are few.

    ``places`` are the offsets of all bytes of that one which say how it is framed, up to where the last of its frames
    ends. Each is compared in all transfers together, so that as many as have the same in every place are framed alike.
    """
    count = (len(data) - begin) // size
    for place in places:
        if count < ALIKE:
            return 0
        column = data[place + size : place + size * count + 1 : size]
        same = data[place : place + 1]
        if column != same * count:
            count = len(column) - len(column.lstrip(same))
    return count


class BlockScanner(ABC):
    """Splits the frames of one channel into blocks of transfers and single other frames, in order of arrival.

    The bytes of all frames of a transfer are limited by ``max_message_bytes``. Not thread-safe.
    """

    frame_header: ClassVar[int]
    """Bytes of a frame that must be there for its size to be known."""

    def __init__(self, max_message_bytes: int = LARGEST_MESSAGE_BYTES) -> None:
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
        """Whether the last yielded frame lies inside a transfer."""
        self.begun = b""
        """The first bytes of an incomplete transfer that the latest call found to be large."""
        self._announced = False  # whether the message set aside was ``begun`` in some call

    @property
    def under_way_bytes(self) -> int:
        """Bytes of the message under way, as many as are known of, once a large part has arrived; 0 otherwise."""
        return self._aside.nbytes + self._lacking() if self._announced else 0

    def drop_under_way(self) -> None:
        """Keep of the message under way, which is large, its first bytes only: they are yielded as if they were all."""
        if self._announced:
            self._aside.drop(COMMAND_FRAME_BYTES)

    def _lacking(self) -> int:
        """Bytes that the message set aside is known to lack."""
        return 0

    @abstractmethod
    def _walk(self, data: bytes, start: int, inside: int, max_frame_size: int) -> Scan:
        """Find transfers and other frames from ``start`` on; up to there the frame is one that was passed by."""

    @abstractmethod
    def _frame_size(self, data: bytes, at: int) -> int:
        """Bytes of the whole frame whose header is at ``at``."""

    @abstractmethod
    def _continues(self, data: bytes, at: int) -> bool:
        """Whether the frame whose header is at ``at`` continues the transfer under way."""

    @abstractmethod
    def _pass_by(self, data: bytes, at: int) -> bool:
        """Take note that this frame will not be scanned; return whether it is the last one of its transfer."""

    @abstractmethod
    def _ends_block(self, data: bytes, at: int) -> bool:
        """Whether no later transfer may have this frame of ``others`` among its bytes."""

    def feed(self, chunk: bytes, max_frame_size: int) -> Iterator[Block | bytes]:
        """Process the next bytes; yield blocks, and every other frame as its bytes.

        ``error`` is set if the iteration ends at a malformed frame or a message beyond the limit; items yielded before
        it are valid. No AmqpError is raised.

        Args:
            chunk: the bytes; all items must be taken before the next call.
            max_frame_size: the negotiated limit of a frame in bytes, header included.
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
        found = self._walk(data, start, OUTSIDE if closing else inside, max_frame_size)
        if closing and found.next >= start:
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
            if self._ends_block(data, first):
                begin = end
        if aside_block is not None:
            yield aside_block
            done, begin = 1, ends[0]
        if done < len(ends):
            yield _block(data, begin, found, done, len(ends))

    def _keep(self, data: bytes, found: Scan, *, carried: bool) -> None:
        """Keep the bytes that the next call needs, and record how many must arrive before scanning can continue."""
        begin, following = found.begin, found.next
        available = len(data) - following
        size = self._frame_size(data, following) if available >= self.frame_header else self.frame_header
        self._missing = size - available
        self._start, self._passing = following - begin, False
        if self._inside == IN_TRANSFER and (
            self._aside.nbytes or (carried and not begin) or len(data) - begin >= _ASIDE_BYTES
        ):
            self._start = 0
            self._passing = available >= self.frame_header and self._continues(data, following)
            if self._passing:
                self._closing = self._pass_by(data, following)
                self._frames += 1
                self._aside.add(data[begin:])
            else:
                self._aside.add(data[begin:following])
                self._rest.add(data[following:])
            self._check_aside()
        else:
            self._rest.add(data[begin:])

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
