"""Recognise messages that were acknowledged, and that a broker delivers again because it has lost the acknowledgement.

Pure decisions, without I/O. A batch is *in doubt* from before its acknowledgement until the queue is known to keep it.
A quorum queue loses the acknowledgement of a batch as a whole or not at all. So of a batch in doubt all messages come
again, or none. On a new session a message is *withheld* (neither given to Spark nor settled) if it is marked as
redelivered, was delivered more often than the one in the batch, and has its identity; each message of a batch is
matched once. What withheld messages are is decided

- when all messages of the batch have come, and one of them is *sure*: it has a message id, and its identity occurs
  once. Then the batch has come again: all are dropped;
- at the latest when everything that was delivered before has come (``past``). If all have come, and one of them is the
  only one of its identity: dropped. If some have not come: the batch has not come again, and what is withheld merely
  looks like it: kept;
- when all messages of the batch have come, and no more can come before they are settled (``full``): as if everything
  had come.

An identity is not that of one message if it occurs twice in the batches in doubt, or among the messages that have
arrived since. If no message of a batch is the only one of its identity, its messages cannot be told apart from others,
and are kept: rather twice than lost.

A batch whose messages are dropped is acknowledged again. That may take several commands, of which a crash may leave
some out. So it is noted before (``returning``); from then on, each message that is the only one of its identity is
dropped by itself, and others are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqp_core.api import Identity


class Verdict(NamedTuple):
    """What becomes of withheld messages: ids to drop, ids to keep; the batches whose doubt ends with it, and those of
    them that have messages to drop."""

    drop: list[int]
    keep: list[int]
    ended: list[str]
    again: list[str]


@dataclass(slots=True)
class _Doubt:
    """A batch in doubt, and what was matched with it in this session."""

    file: str
    returning: bool
    counts: Counter[bytes]
    noted: dict[bytes, int]
    """Least number of deliveries before, by digest."""
    named: set[bytes]
    left: Counter[bytes] = field(default_factory=Counter)
    matched: list[tuple[bytes, int]] = field(default_factory=list)

    def restart(self) -> None:
        self.left = self.counts.copy()
        self.matched = []

    def match(self, digest: bytes, transfer_id: int) -> None:
        self.left[digest] -= 1
        if not self.left[digest]:
            del self.left[digest]
        self.matched.append((digest, transfer_id))

    @property
    def is_complete(self) -> bool:
        return not self.left


class Recognition:
    """The batches of one queue that are in doubt, by the names of their files, oldest first."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}
        self._occurs: Counter[bytes] = Counter()
        """How often each digest occurs in the batches in doubt."""
        self._repeated: set[bytes] = set()
        """Digests that were seen at more messages than those in doubt."""

    @property
    def files(self) -> list[str]:
        """Files of the batches in doubt."""
        return list(self._doubts)

    @property
    def count(self) -> int:
        """Number of messages in doubt."""
        return sum(doubt.counts.total() for doubt in self._doubts.values())

    @property
    def withheld(self) -> int:
        """Number of messages that are withheld."""
        return sum(len(doubt.matched) for doubt in self._doubts.values())

    @property
    def returning(self) -> list[str]:
        """Files of the batches that have come again, and are acknowledged again."""
        return [doubt.file for doubt in self._doubts.values() if doubt.returning]

    def add(self, file: str, identities: Iterable[Identity | None], *, returning: bool = False) -> None:
        """Add a batch in doubt; a message without an identity is never recognised."""
        doubt = _Doubt(file, returning, Counter(), {}, set())
        for each in identities:
            if each is None:
                continue
            doubt.counts[each.digest] += 1
            doubt.noted[each.digest] = min(each.deliveries, doubt.noted.get(each.digest, each.deliveries))
            if each.named:
                doubt.named.add(each.digest)
        doubt.restart()
        self._occurs.update(doubt.counts)
        self._doubts[file] = doubt

    def remove(self, file: str) -> None:
        """End the doubt of a batch."""
        self._occurs.subtract(self._doubts.pop(file).counts)

    def restart(self) -> None:
        """Begin a session: nothing is withheld."""
        for doubt in self._doubts.values():
            doubt.restart()

    def withholds(self, identity: Identity | None, transfer_id: int) -> bool:
        """Take a message that is marked as redelivered; return whether it is withheld."""
        if identity is None or not self._occurs[identity.digest]:
            return False
        for doubt in self._doubts.values():
            if doubt.left[identity.digest] > 0 and identity.deliveries > doubt.noted[identity.digest]:
                doubt.match(identity.digest, transfer_id)
                return True
        self._repeated.add(identity.digest)
        return False

    @property
    def has_unnamed(self) -> bool:
        """Whether some messages in doubt have no message id, so that equal ones may be others."""
        return any(len(doubt.named) < len(doubt.counts) for doubt in self._doubts.values())

    def arrived(self, identity: Identity | None) -> None:
        """Take a message that is not one of those in doubt: it is not marked as redelivered, or is in another batch."""
        if identity is not None and self._occurs[identity.digest]:
            self._repeated.add(identity.digest)

    def decide(self, *, past: bool, full: bool = False) -> Verdict:
        """Decide as far as possible. ``past``: everything that was delivered before this session has arrived; ``full``:
        what has not arrived does not, until messages are settled."""
        drop: list[int] = []
        keep: list[int] = []
        ended: list[str] = []
        again: list[str] = []
        for doubt in self._doubts.values():
            dropped = len(drop)
            alone = {digest for digest, count in doubt.counts.items() if count == 1 and self._is_alone(digest)}
            sure = any(digest in doubt.named and digest in alone for digest, _ in doubt.matched)
            if doubt.returning:
                if not (past or doubt.is_complete):
                    continue
                drop += [each for digest, each in doubt.matched if digest in alone]
                keep += [each for digest, each in doubt.matched if digest not in alone]
            elif doubt.is_complete and (sure or past or full):
                into = drop if sure or any(digest in alone for digest, _ in doubt.matched) else keep
                into += [each for _, each in doubt.matched]
            elif past and sure:
                drop += [each for digest, each in doubt.matched if digest in alone]
                keep += [each for digest, each in doubt.matched if digest not in alone]
            elif past:
                keep += [each for _, each in doubt.matched]
            else:
                continue
            ended.append(doubt.file)
            if len(drop) > dropped:
                again.append(doubt.file)
        return Verdict(drop, keep, ended, again)

    def mark_returning(self, files: Iterable[str]) -> None:
        """Note that these batches are acknowledged again: what comes now in this session is none of theirs."""
        for file in files:
            self._doubts[file].returning = True
            self._doubts[file].left.clear()

    def _is_alone(self, digest: bytes) -> bool:
        return self._occurs[digest] == 1 and digest not in self._repeated
