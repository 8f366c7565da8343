"""Transaction branches: their names (0-10 domain xid), the text form of any xid, and the list of prepared branches.

The global id identifies the owner (writer and query id), the branch id the attempt and the task. They are short: qpidd
lists all prepared branches in one frame or not at all. Both stay below 64 bytes, since some stores have no more room,
and all three fields are always sent, since brokers compare encoded bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from amqp_core.api import Xid
from amqp_core.error_conditions import reason
from amqp_core.errors import ConnectionLost
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.state.names import HASH_CHARACTERS, WRITER, hashed

if TYPE_CHECKING:
    from amqp_core.api import Client

FORMAT: Final = 0x414D5153
"""Format of our xids. Broker-J ignores it, so the global id alone identifies ours."""
LISTED_NBYTES: Final = 65
"""Usual bytes of one of our xids in the answer to dtx.recover: 50 for its ids, and 14 or 15 around them."""
MOST_LISTED: Final = 65_000 // LISTED_NBYTES
"""Number of our branches that fit into one frame; qpidd's answer is limited to one frame."""
_PREFIX: Final = "as2k"
_QUERY_CHARACTERS: Final = 12
"""Characters of the query id's hash: enough to distinguish the few queries of one writer."""
_WRITER_NBYTES: Final = HASH_CHARACTERS // 2
_GLOBAL_NBYTES: Final = _WRITER_NBYTES + _QUERY_CHARACTERS // 2
_TOKEN_NBYTES: Final = 3
_BEGUN_NBYTES: Final = 4
_MOST_FORMAT: Final = 0xFFFFFFFF
_MOST_ID_NBYTES: Final = 0xFF
"""On the wire the format is a uint32, and each id a vbin8."""
_FIRST_PREFIX: Final = "as1k"
"""Prefix of the global ids of the first version, which were longer; its branches may still be prepared."""
_FIRST_BRANCH: Final = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9a-f]+)\.[0-9a-f]{8}")
_PLAIN: Final = re.compile(r"(?!0x)[A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a batch, as the driver begins it: all attempts at all of its tasks belong to it.

    Attributes:
        begun: seconds since 1970, by the clock of the driver.
        token: random; distinguishes runs of the same second. Empty for branches of the first version.
    """

    begun: int
    token: str = ""

    @classmethod
    def new(cls) -> Self:
        """Make a run that begins now."""
        return cls(int(time.time()), secrets.token_hex(_TOKEN_NBYTES))

    def is_followed_by(self, other: Run) -> bool:
        """Whether the other run is different and began after this one."""
        return other.begun > self.begun and other.token != self.token


@dataclass(frozen=True, slots=True)
class Branch:
    """The purpose of a branch of ours: hashes of its writer's transactional id and (the beginning) of its query id, and
    its task. Made by :func:`new_branch`; parsed by :func:`parse_branch`."""

    writer: str
    query_hash: str
    batch: int
    partition: int
    attempt: int
    run: Run

    @property
    def begun(self) -> int:
        """Seconds since 1970."""
        return self.run.begun

    def is_of(self, transactional_id: str, query_id: str | None = None) -> bool:
        """Whether the branch belongs to a writer, and to one of its queries if that is given."""
        ours = self.writer == hashed(WRITER, transactional_id)
        return ours and (query_id is None or self.is_of_query(query_id))

    def is_of_query(self, query_id: str) -> bool:
        """Whether the branch belongs to that query id of its writer."""
        return hashed(query_id).startswith(self.query_hash)


def new_branch(
    transactional_id: str, query_id: str, batch: int, partition: int, attempt: int, *, run: Run | None = None
) -> Xid:
    """Make a unique xid for an attempt; without ``run`` the attempt is a run of its own."""
    run = Run.new() if run is None else run
    whose = hashed(WRITER, transactional_id) + hashed(query_id)[:_QUERY_CHARACTERS]
    branch = (
        run.begun.to_bytes(_BEGUN_NBYTES)
        + bytes.fromhex(run.token)
        + secrets.token_bytes(_TOKEN_NBYTES)
        + b"".join(_packed(number) for number in (attempt, partition, batch))
    )
    return Xid(
        format=FORMAT, global_id=f"{_PREFIX}{_text(bytes.fromhex(whose))}".encode(), branch_id=_text(branch).encode()
    )


def parse_branch(xid: Xid) -> Branch | None:
    """Parse the name of a branch; ``None`` if it is not one of ours."""
    gid, branch = ((each or b"").decode("ascii", "replace") for each in (xid.global_id, xid.branch_id))
    try:
        if gid.startswith(_PREFIX):
            return _parsed(_decoded(gid.removeprefix(_PREFIX)), _decoded(branch))
        if gid.startswith(_FIRST_PREFIX):
            return _parsed_first(gid.removeprefix(_FIRST_PREFIX), branch)
    except (ValueError, IndexError):
        pass
    return None


def _parsed(whose: bytes, branch: bytes) -> Branch:
    if len(whose) != _GLOBAL_NBYTES:
        raise ValueError(whose)
    fixed = _BEGUN_NBYTES + 2 * _TOKEN_NBYTES
    run = Run(int.from_bytes(branch[:_BEGUN_NBYTES]), branch[_BEGUN_NBYTES : _BEGUN_NBYTES + _TOKEN_NBYTES].hex())
    attempt, at = _unpacked(branch, fixed)
    partition, at = _unpacked(branch, at)
    batch, at = _unpacked(branch, at)
    if at != len(branch):
        raise ValueError(branch)
    writer, query_hash = whose[:_WRITER_NBYTES], whose[_WRITER_NBYTES:]
    return Branch(writer.hex(), query_hash.hex(), batch, partition, attempt, run)


def _parsed_first(hashes: str, text: str) -> Branch | None:
    match = _FIRST_BRANCH.fullmatch(text)
    if match is None or len(hashes) != 2 * HASH_CHARACTERS:
        return None
    batch, partition, attempt, begun = match.groups()
    run = Run(int(begun, 16))
    return Branch(hashes[:HASH_CHARACTERS], hashes[HASH_CHARACTERS:], int(batch), int(partition), int(attempt), run)


def _packed(number: int) -> bytes:
    """Encode seven bits per byte, the lowest first; the highest bit of a byte means that more follow."""
    raw = bytearray()
    while number > 0x7F:
        raw.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*raw, number])


def _unpacked(raw: bytes, at: int) -> tuple[int, int]:
    """Decode a number; return it and the index after it. IndexError if the number is truncated."""
    number = shift = 0
    while raw[at] & 0x80:
        number |= (raw[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return number | raw[at] << shift, at + 1


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """The inverse of :func:`_text`; ValueError for any other text."""
    raw = binascii.a2b_base64(text.translate({45: "+", 95: "/"}) + "=" * (-len(text) % 4), strict_mode=True)
    if _text(raw) != text:
        raise ValueError(text)
    return raw


def xid_text(xid: Xid) -> str:
    """``format:global:branch``; ids as plain text if possible, else in hexadecimal with the prefix ``0x``."""
    return f"{xid.format or 0}:{_id_text(xid.global_id or b'')}:{_id_text(xid.branch_id or b'')}"


def parse_xid(text: str) -> Xid:
    """The inverse of :func:`xid_text`; StateError if the text has another format."""
    parts = text.strip().split(":")
    try:
        number, gid, branch = parts
        return Xid(format=_format(number), global_id=_id_bytes(gid), branch_id=_id_bytes(branch))
    except ValueError:
        raise StateError(SparkCondition.XID_INVALID(text=text[:200])) from None


def _format(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _MOST_FORMAT:
        raise ValueError(text)
    return number


def _id_text(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    return text if _PLAIN.fullmatch(text) else f"0x{value.hex()}"


def _id_bytes(text: str) -> bytes:
    if not text.startswith("0x") and not _PLAIN.fullmatch(text):
        raise ValueError(text)
    found = bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if len(found) > _MOST_ID_NBYTES:
        raise ValueError(text)
    return found


class ListLost(ConnectionLost):
    """The connection was lost while qpidd listed its prepared branches: by chance, or because it cannot list them."""


class TooManyPrepared(StateError):
    """qpidd ended the connection instead of listing its prepared branches: the list does not fit into one frame."""


def prepared_branches(client: Client) -> list[Xid]:
    """List the prepared branches of all writers (dtx.recover). ListLost: see there; a retry on another connection shows
    which of the two causes applies."""
    try:
        return client.transactions.recover()
    except ConnectionLost as error:
        if not client.capabilities.lists_branches_in_one_frame:
            raise
        raise ListLost(SparkCondition.PREPARED_LIST_LOST(reason=reason(error))) from error


def too_many() -> TooManyPrepared:
    """Make the error for a list that was refused with :class:`ListLost` on every attempt."""
    return TooManyPrepared(SparkCondition.PREPARED_LIST_TOO_LONG(most=MOST_LISTED))
