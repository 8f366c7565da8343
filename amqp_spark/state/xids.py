"""Names of transaction branches (0-10 domain xid): ours, and how any of them is written as text.

The global id says whose it is (writer and lineage), the branch id which attempt at which part. Both stay below 64
bytes, since some stores have no more room, and all three fields are always sent, since brokers compare encoded bytes.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from typing import Final

from amqp_core.v0_10.spec import Xid
from amqp_spark.errors import StateError
from amqp_spark.state.names import HASH_CHARACTERS, WRITER, hashed

FORMAT: Final = 0x414D5153
"""Format of our xids. Broker-J does not look at it, so the global id alone tells ours."""
_PREFIX: Final = "as1k"
_BRANCH: Final = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)\.([0-9a-f]+)\.[0-9a-f]{8}")
_PLAIN: Final = re.compile(r"(?!0x)[A-Za-z0-9._-]*")


def global_id(transactional_id: str, lineage: str) -> bytes:
    """Global id of all branches of one writer and lineage."""
    return f"{_PREFIX}{hashed(WRITER, transactional_id)}{hashed(lineage)}".encode()


@dataclass(frozen=True, slots=True)
class Branch:
    """What a branch of ours is for. Made by :func:`new_branch`; found again by :func:`parse_branch`.

    Attributes:
        writer: hash of the transactional id.
        lineage: hash of the lineage.
        batch, partition, attempt: the task.
        begun: seconds since 1970.
    """

    writer: str
    lineage: str
    batch: int
    partition: int
    attempt: int
    begun: int

    def is_of(self, transactional_id: str, lineage: str | None = None) -> bool:
        """Whether it belongs to a writer, and to one lineage of it if that is given."""
        ours = self.writer == hashed(WRITER, transactional_id)
        return ours and (lineage is None or self.lineage == hashed(lineage))


def new_branch(transactional_id: str, lineage: str, batch: int, partition: int, attempt: int) -> Xid:
    """An xid that no other attempt has."""
    branch = f"{batch}.{partition}.{attempt}.{int(time.time()):x}.{secrets.token_hex(4)}"
    return Xid(format=FORMAT, global_id=global_id(transactional_id, lineage), branch_id=branch.encode())


def parse_branch(xid: Xid) -> Branch | None:
    """What a branch is for; ``None`` if it is not one of ours."""
    gid, match = xid.global_id or b"", _BRANCH.fullmatch((xid.branch_id or b"").decode("ascii", "replace"))
    if match is None or len(gid) != len(_PREFIX) + 2 * HASH_CHARACTERS or not gid.startswith(_PREFIX.encode()):
        return None
    hashes = gid[len(_PREFIX) :].decode("ascii", "replace")
    batch, partition, attempt, begun = match.groups()
    return Branch(
        hashes[:HASH_CHARACTERS], hashes[HASH_CHARACTERS:], int(batch), int(partition), int(attempt), int(begun, 16)
    )


def xid_text(xid: Xid) -> str:
    """``format:global:branch``, the ids plain where they are plain text, else in hexadecimal with ``0x`` before."""
    return f"{xid.format or 0}:{_id_text(xid.global_id or b'')}:{_id_text(xid.branch_id or b'')}"


def parse_xid(text: str) -> Xid:
    """The reverse of :func:`xid_text`.

    Raises:
        StateError: it is no such text.
    """
    parts = text.strip().split(":")
    try:
        number, gid, branch = parts
        return Xid(format=int(number), global_id=_id_bytes(gid), branch_id=_id_bytes(branch))
    except ValueError:
        raise StateError(
            f"{text[:200]!r} is no xid: it is written format:global-id:branch-id, the ids as they are or as 0x and "
            "hexadecimal digits, as the list of branches shows it"
        ) from None


def _id_text(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    return text if _PLAIN.fullmatch(text) else f"0x{value.hex()}"


def _id_bytes(text: str) -> bytes:
    if text.startswith("0x"):
        return bytes.fromhex(text[2:])
    if not _PLAIN.fullmatch(text):
        raise ValueError(text)
    return text.encode()
