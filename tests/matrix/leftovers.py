"""Exactly-once state left on the broker and in the spool, seen from outside: what can be browsed is not acquired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import ResourceLocked
from amqp_spark.spool.directories import PARTIAL
from amqp_spark.spool.identity import IDENTITY
from amqp_spark.spool.spooled_record import SpooledRecord
from amqp_spark.state.records import DONE, ConsumerState, WriterState
from amqp_spark.state.xids import parse_branch, xid_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from amqp_core.api import Client, Xid
    from amqp_spark.state.names import Names


def browse(client: Client, queue: str) -> list[bytes] | None:
    """The bodies in a queue; ``None`` if the queue does not exist."""
    info = client.query_queue(queue)
    if info is None:
        return None
    if not client.capabilities.browse:
        return _taken(client, queue, info.message_count or 0)
    subscription = client.subscribe(queue, accept=False, acquire=False)
    subscription.grant(max(1, info.message_count or 0))
    subscription.flush()
    found: list[bytes] = []
    while (message := subscription.take_one(timeout=0.0)) is not None:
        found.append(message.body)
    subscription.cancel()
    return found


def _taken(client: Client, queue: str, count: int) -> list[bytes]:
    """The bodies in a queue that no consumer holds; they go back at once."""
    fetcher = client.fetcher(queue)
    fetcher.grant(count)
    taken = [message for _ in range(count) if (message := fetcher.take_one(timeout=0.0)) is not None]
    client.release([(message.transfer_id, message.transfer_id) for message in taken], sync=True)
    return [message.body for message in taken]


def state_of(client: Client, names: Names) -> bytes | None:
    """The state message; ``None`` if the queue does not exist, or does not have exactly one."""
    return _only(browse(client, names.state))


def of_consumer(client: Client, names: Names) -> list[str]:
    """Leftovers of a consumer on the broker."""
    return consumer_left(browse(client, names.state), locked=is_locked(client, names))


def consumer_left(states: Sequence[bytes] | None, *, locked: bool) -> list[str]:
    """Leftovers according to the messages in the state queue of a consumer."""
    body = _only(states)
    if body is None:
        return ["the state queue of the consumer does not hold exactly one message"]
    return _owned(body) + ["the lock of the consumer is held"] * locked


def of_spooled_state(client: Client, names: Names, spool: Path, *, orphaned: bool) -> list[str]:
    """Leftovers of a consumer whose state is in its spool."""
    return spooled_left(names, spool, locked=is_locked(client, names), orphaned=orphaned)


def spooled_left(names: Names, spool: Path, *, locked: bool, orphaned: bool = False) -> list[str]:
    """Leftovers according to the files of a spool.

    ``orphaned``: a process that had lost its lock went on. What it wrote is of an earlier epoch, which nobody reads and
    the next start deletes, as it does with a file that is not whole.
    """
    states = sorted(spool.glob(f"{names.state}.*"))  # by epoch and serial number
    latest = [path for path in states if _epoch(path) == _epoch(states[-1])] if orphaned else states
    if len(latest) != 1:
        return [f"the spool has {len(states)} states of the consumer, and not exactly one"]
    record = SpooledRecord.load(latest[0].read_bytes())
    found = _owned(record.state)
    if record.doubts:
        found.append(f"{len(record.doubts)} batches are in doubt still: {dict(record.doubts)}")
    known = {IDENTITY, *(path.name for path in states)}
    left = sorted(path.name for path in spool.iterdir() if path.name not in known)
    left = [name for name in left if not (orphaned and name.endswith(PARTIAL))]
    if left:
        found.append(f"{len(left)} files are left in the spool: {left[:4]}")
    return found + ["the lock of the consumer is held"] * locked


def _epoch(state: Path) -> str:
    return state.name.rpartition(".")[0].rpartition(".")[2].partition("-")[0]


def _owned(state: bytes) -> list[str]:
    owned = ConsumerState.load(state).owned
    return [f"{len(owned)} batches are owned still: {owned}"] if owned else []


def of_writer(client: Client, names: Names) -> list[str]:
    """Leftovers of a writer on the broker."""
    markers = browse(client, names.markers)
    return writer_left(browse(client, names.state), markers or (), locked=is_locked(client, names))


def writer_left(states: Sequence[bytes] | None, markers: Sequence[bytes], *, locked: bool) -> list[str]:
    """Leftovers according to the messages in the queues of a writer."""
    body = _only(states)
    if body is None:
        return ["the state queue of the writer does not hold exactly one message"]
    state = WriterState.load(body)
    found = [f"the decision of batch {state.batch} is {state.state}"] if state.state != DONE else []
    if markers:
        found.append(f"{len(markers)} markers are left: {markers[:2]!r}")
    return found + ["the lock of the writer is held"] * locked


def of_branches(client: Client, transactional_id: str) -> list[str]:
    """Prepared branches of a writer."""
    return branches_left(client.transactions.recover(), transactional_id)


def branches_left(prepared: Iterable[Xid], transactional_id: str) -> list[str]:
    """Prepared branches of a writer, from a list of all prepared ones."""
    ours = prepared_of(prepared, transactional_id)
    return [f"{len(ours)} branches are prepared still: {xid_text(ours[0])}"] if ours else []


def prepared_of(prepared: Iterable[Xid], transactional_id: str) -> list[Xid]:
    """Select the branches of a writer."""
    return [xid for xid in prepared if (branch := parse_branch(xid)) and branch.is_of(transactional_id)]


def of_spool(directory: Path) -> list[str]:
    """Files in a spool."""
    if not directory.is_dir():
        return []
    files = sorted(path.name for path in directory.iterdir() if path.name != IDENTITY)
    return [f"{len(files)} files are left in the spool: {files[:4]}"] if files else []


def _only(states: Sequence[bytes] | None) -> bytes | None:
    return states[0] if states is not None and len(states) == 1 else None


def is_locked(client: Client, names: Names) -> bool:
    """Whether the lock of a consumer or writer is held."""
    try:
        return client.query_queue(names.lock) is not None
    except ResourceLocked:  # 0-9-1: so a queue of another connection is queried
        return True
