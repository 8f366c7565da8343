"""The file of a spooled batch: its transfers exactly as received, the end of each one, and a footer with a checksum.

All numbers little-endian; every byte is covered by the checksum or compared::

    "AMQPSPOL" | version u32 | length of the header u32 | CRC-32 of the header u32
    header     JSON, UTF-8: consumerId, queue, epoch, sequence, begin, count, bytes, and protocol unless it is 0-10
    frames     the transfers
    ends       count times u64: the offset in the frames where each transfer ends
    footer     length of the frames u64 | count u64 | CRC-32 of everything before u32 | "SPOLEND."

CRC-32 detects damage, not malice: a user with write access to the spool can read the messages anyway. It detects every
error burst of up to 32 bits, and costs a tenth of the write.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Bytes: TypeAlias = bytes | bytearray | memoryview

VERSION: Final = 1
FIRST_PROTOCOL: Final = "0-10"
"""Protocol of the transfers of a file, and of a whole spool, that names none."""

_MAGIC: Final = b"AMQPSPOL"
_CLOSING: Final = b"SPOLEND."
_HEAD: Final = struct.Struct("<8sIII")
_LENGTHS: Final = struct.Struct("<QQ")
_CLOSE: Final = struct.Struct("<I8s")
HEAD_BYTES: Final = _HEAD.size
FOOT_BYTES: Final = _LENGTHS.size + _CLOSE.size
END_BYTES: Final = 8
"""Size of one entry of the ends."""
_MAX_HEADER_BYTES: Final = 1 << 16
_PIECE_BYTES: Final = 1 << 20


class Unreadable(Exception):
    """A file cannot be used; the text gives the reason."""


class OtherVersion(Unreadable):
    """A file has the format of another version of this package; the text is that version."""


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a file: the batch has transfers ``[begin, begin + count)`` of an epoch, ``nbytes`` bytes in total, as
    they were received with ``protocol``."""

    consumer_id: str
    queue: str
    epoch: int
    sequence: int
    begin: int
    count: int
    nbytes: int
    protocol: str = FIRST_PROTOCOL

    def dump(self) -> bytes:
        """The start of the file, up to the frames."""
        values = {name: getattr(self, field) for name, (field, _kind) in _FIELDS.items()}
        if self.protocol == FIRST_PROTOCOL:  # so that versions without this field can read the file
            del values[_PROTOCOL]
        text = json.dumps(values, separators=(",", ":")).encode()
        return _HEAD.pack(_MAGIC, VERSION, len(text), zlib.crc32(text)) + text

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.dump()) + self.nbytes + self.count * END_BYTES + FOOT_BYTES


_PROTOCOL: Final = "protocol"
_FIELDS: Final = {
    "consumerId": ("consumer_id", str),
    "queue": ("queue", str),
    "epoch": ("epoch", int),
    "sequence": ("sequence", int),
    "begin": ("begin", int),
    "count": ("count", int),
    "bytes": ("nbytes", int),
    _PROTOCOL: ("protocol", str),
}


class Checksum:
    """A running checksum; its text goes into the record on the broker."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: Bytes) -> None:
        """Add bytes to the checksum."""
        self._value = zlib.crc32(data, self._value)

    @property
    def value(self) -> int:
        """The value as stored in the footer."""
        return self._value

    @property
    def text(self) -> str:
        """The text as stored in :class:`amqp_spark.state.records.OwnedBatch`."""
        return checksum_text(self._value)


def header_length(head: Bytes) -> int:
    """Length of the header in bytes, from the first ``HEAD_BYTES`` of a file."""
    data = bytes(head)
    if not data:
        raise Unreadable("is empty")
    if len(data) < HEAD_BYTES:
        raise Unreadable(f"ends after {len(data)} bytes")
    magic, version, length, _checksum = _HEAD.unpack(data)
    if magic != _MAGIC:
        raise Unreadable("does not begin like a file of the spool")
    if version != VERSION:
        raise OtherVersion(version)
    if length > _MAX_HEADER_BYTES:
        raise Unreadable("is damaged in its header")
    return int(length)


def load_header(head: Bytes, text: Bytes) -> Header:
    """Parse the header from the first ``HEAD_BYTES`` of a file and the text that follows them."""
    length, data = header_length(head), bytes(text)
    if len(data) != length:
        raise Unreadable("ends inside its header")
    _magic, _version, _length, checksum = _HEAD.unpack(bytes(head))
    if zlib.crc32(data) != checksum:
        raise Unreadable("is damaged in its header")
    try:
        values: Any = json.loads(data)
    except ValueError:
        values = None
    if isinstance(values, dict):
        values = {_PROTOCOL: FIRST_PROTOCOL} | values
    if not isinstance(values, dict) or set(values) != set(_FIELDS):
        raise Unreadable("has a header with other fields")
    for name, (_field, kind) in _FIELDS.items():
        if type(values[name]) is not kind or (kind is int and values[name] < 0):
            raise Unreadable(f"has no readable {name} in its header")
    return Header(**{field: values[name] for name, (field, _kind) in _FIELDS.items()})


def pieces(header: Header, parts: Sequence[memoryview], ends: Bytes, checksum: Checksum) -> Iterator[Bytes]:
    """Generate the whole file in pieces of moderate size; only small parts are copied.

    ``checksum`` is complete when all pieces were taken. The last piece is the footer.
    """
    for piece in _regrouped((memoryview(header.dump()), *parts, memoryview(ends).cast("B"))):
        checksum.add(piece)
        yield piece
    lengths = _LENGTHS.pack(header.nbytes, header.count)
    checksum.add(lengths)
    yield lengths + _CLOSE.pack(checksum.value, _CLOSING)


def _regrouped(parts: Iterable[memoryview]) -> Iterator[Bytes]:
    waiting: list[memoryview] = []
    size = 0
    for part in parts:
        if size + len(part) > _PIECE_BYTES and waiting:
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting, size = [], 0
        if len(part) >= _PIECE_BYTES:
            for at in range(0, len(part), _PIECE_BYTES):
                yield part[at : at + _PIECE_BYTES]
        elif len(part):
            waiting.append(part)
            size += len(part)
    if waiting:
        yield b"".join(waiting)


def check_footer(foot: Bytes, header: Header, size: int) -> str:
    """Return the checksum in the footer (the last ``FOOT_BYTES`` of ``size``) after comparing all lengths."""
    expected = header.file_bytes
    if size < expected:
        raise Unreadable(f"ends after {size} of {expected} bytes")
    if size > expected:
        raise Unreadable(f"has {size} bytes instead of {expected}")
    data = bytes(foot)
    nbytes, count = _LENGTHS.unpack_from(data)
    checksum, closing = _CLOSE.unpack_from(data, _LENGTHS.size)
    if (nbytes, count) != (header.nbytes, header.count) or closing != _CLOSING:
        raise Unreadable("is damaged in its footer")
    return checksum_text(checksum)


def checksum_text(value: int) -> str:
    """Readable text of a checksum."""
    return f"crc32:{value:08x}"


def covered(size: int) -> int:
    """Number of bytes that the checksum covers in a file of ``size`` bytes."""
    return size - _CLOSE.size
