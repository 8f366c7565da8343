"""Actions that change state: resolve branches by hand and forget states, each under the lock of its owner."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_core.error_conditions import reason
from amqp_core.errors import NotFound, ResourceLocked, TransactionFailed, UnauthorizedAccess
from amqp_core.printable import printable
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.options.kinds import shown_location
from amqp_spark.state.names import lock_queue
from amqp_spark.state.xids import parse_branch
from amqp_spark.transactions.branch_status import (
    DECIDED,
    FOREIGN,
    ORPHAN,
    UNDECIDED,
    UNKNOWN,
    decisions,
    find_writer,
    identified,
)
from amqp_spark.transactions.browse import WAIT_SECONDS, browse
from amqp_spark.transactions.consumer_status import look_at_consumer
from amqp_spark.transactions.report import quoted
from amqp_spark.transactions.writer_status import look_at_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from amqp_core.api import Client, Xid
    from amqp_spark.state.records import WriterState
    from amqp_spark.transactions.branch_status import BranchStatus
    from amqp_spark.transactions.browse import Found
    from amqp_spark.transactions.consumer_status import ConsumerQueue
    from amqp_spark.transactions.writer_status import WriterStatus

COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"
LOCK_SECONDS: Final = 5.0
"""Seconds to try for a lock: a writer holds it only while it commits a batch."""
_BETWEEN_SECONDS: Final = 0.25


_OF_ANOTHER: Final = (
    "its transaction manager does not know of it: if that decides otherwise, a part of its transaction is lost or "
    "wrongly done"
)
_UNDECIDED_COMMIT: Final = (
    "its rows are published without a decision, and may come twice: when its batch runs again, its writer takes them "
    "over only if they are the same"
)
_CONSEQUENCES: Final[Mapping[tuple[str, str], str]] = {
    (COMMIT, FOREIGN): _OF_ANOTHER,
    (ROLLBACK, FOREIGN): _OF_ANOTHER,
    (COMMIT, DECIDED): "its rows are published, as its writer would do at its next start",
    (COMMIT, UNDECIDED): _UNDECIDED_COMMIT,
    (ROLLBACK, UNDECIDED): (
        "its rows are not published by it: if its batch still runs, the batch fails and is replayed whole"
    ),
    (COMMIT, UNKNOWN): _UNDECIDED_COMMIT,
    (ROLLBACK, UNKNOWN): "its rows are lost if its writer had decided to commit it, which is unknown without its state",
    (COMMIT, ORPHAN): "its rows are published, and come twice: another attempt was decided, or its query was given up",
    (ROLLBACK, ORPHAN): "its rows are not published by it, and need not be: its writer continued without it",
}
"""Effect of each action on a branch, by action and standing; a decided branch is never rolled back."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A branch and the action on it."""

    action: str
    prepared: BranchStatus

    def question(self) -> str:
        """Describe the branch and the effect of the action."""
        each = self.prepared
        branch = each.branch
        if branch is None:
            what = "a branch that was not written by amqp_spark"
        else:
            of = "of a writer without state" if each.transactional_id is None else f"of {quoted(each.transactional_id)}"
            what = f"{each.standing}: batch {branch.batch}, partition {branch.partition} {of}"
        return f"{self.action} {each.text}\n  {what}\n  {_CONSEQUENCES[self.action, each.standing]}"


def choose(client: Client, wanted: Sequence[tuple[str, Xid]], *, under_lock: bool = False) -> list[Resolution]:
    """Identify the branches to be resolved, without a list of all branches: a broker may be unable to make one.

    ``under_lock``: the client itself holds the locks of their writers; it is unusable after an error. StateError: one
    of them does not exist, or must not be resolved in this way.
    """
    writers = _writers(
        client, {branch.writer for _, xid in wanted if (branch := parse_branch(xid))}, wait=not under_lock
    )
    named = decisions(writers)
    found: list[Resolution] = []
    for action, xid in wanted:
        prepared = identified(xid, writers, named)
        if action == ROLLBACK and prepared.standing == DECIDED:
            owner = f"writer {quoted(prepared.transactional_id or '')}"
            raise StateError(SparkCondition.BRANCH_DECIDED(xid=prepared.text, owner=owner))
        found.append(Resolution(action, prepared))
    for each in found:
        try:
            client.transactions.get_timeout(each.prepared.xid)
        except NotFound as error:
            raise _not_prepared(each) from error
    return found


def _writers(client: Client, digests: Collection[str], *, wait: bool) -> Mapping[str, Found[WriterState]]:
    """States of writers; another session may hold them for a moment."""
    deadline = time.monotonic() + (LOCK_SECONDS if wait else 0.0)
    while True:
        writers = {digest: find_writer(client, digest) for digest in digests}
        if not any(each.held and each.state is None for each in writers.values()) or time.monotonic() >= deadline:
            return writers
        time.sleep(_BETWEEN_SECONDS)


def _not_prepared(each: Resolution) -> StateError:
    return StateError(SparkCondition.BRANCH_NOT_PREPARED(xid=each.prepared.text))


def resolve(connect: Callable[[], Client], resolution: Resolution) -> None:
    """Commit or roll back a prepared branch (dtx.commit, dtx.rollback); one of ours under the lock of its writer.
    StateError: its writer is at work at this moment, or the branch has changed. TransactionFailed: the broker has
    committed what was to be rolled back, or a part of the branch, or does not say."""
    before = resolution.prepared
    with contextlib.ExitStack() as stack:
        if before.branch is None:
            client = stack.enter_context(connect())
        else:
            digest = before.branch.writer
            client = stack.enter_context(locked(connect, [lock_queue(digest)], "writer of the branch"))
        # check again, now that no other process can decide
        (now,) = choose(client, [(resolution.action, before.xid)], under_lock=True)
        if now.prepared.standing != before.standing:
            change = f"The branch {before.text} ({before.standing} before, {now.prepared.standing} now)"
            raise StateError(SparkCondition.STATE_CHANGED(subject=change))
        try:
            if resolution.action == COMMIT:
                client.transactions.commit_branch(before.xid)
            else:
                client.transactions.rollback_branch(before.xid)
        except NotFound as error:
            raise _not_prepared(resolution) from error
        except TransactionFailed as error:
            if error.has_committed is False:  # an expired branch still answers get-timeout
                raise _not_prepared(resolution) from error
            if not (error.has_committed and resolution.action == COMMIT):  # else the broker has done it by itself
                raise


@contextlib.contextmanager
def locked(connect: Callable[[], Client], locks: Sequence[str], whose: str) -> Iterator[Client]:
    """A client that holds locks; they are released with it. StateError: another session holds one, or the login lacks
    the permission."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        client = connect()
        try:
            for lock in locks:
                client.declare_lock(lock)
            break
        except ResourceLocked as error:  # the session is over
            client.close()
            if time.monotonic() >= deadline:
                raise in_use(whose) from error
            time.sleep(_BETWEEN_SECONDS)
        except UnauthorizedAccess as error:
            client.close()
            raise StateError(
                SparkCondition.PERMISSION_MISSING(action="declare a queue as a lock", owner=whose, reason=reason(error))
            ) from error
        except BaseException:
            client.close()
            raise
    with client:
        yield client
        for lock in locks:
            client.delete_queue(lock)


# --- forget


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The states of an identity (``consumer 'a'``) that are to be deleted, under ``locks``, with the data that is
    ``lost`` and that is ``left``, a line each. The ``states``, queues with their messages, must be unchanged when the
    locks are held."""

    whose: str
    locks: tuple[str, ...]
    queues: tuple[str, ...]
    lost: tuple[str, ...]
    left: tuple[str, ...]
    states: tuple[tuple[str, bytes | None], ...]

    def question(self) -> str:
        """Describe the deletion and the data lost with it."""
        lines = [f"forget {self.whose}: delete {', '.join(self.queues)}"]
        return "\n  ".join([*lines, *self.lost, *self.left])


def forget_consumer(client: Client, consumer_id: str, *, spool: str | None = None) -> Forgetting:
    """Determine the effects of forgetting a consumer. StateError: there is nothing to forget, or it is in use."""
    queues = look_at_consumer(client, consumer_id, spool=spool)
    whose = f"consumer {quoted(consumer_id)}"
    _must_be_free(whose, [each.found.held for each in queues], there=any(each.found.exists for each in queues))
    kept = [each for each in queues if each.found.exists]
    return Forgetting(
        whose,
        tuple(each.names.lock for each in kept),
        tuple(each.found.queue for each in kept),
        tuple(line for each in kept for line in _lost_of_consumer(each)),
        (
            *(
                f"files stay in the spool {printable(shown_location(each))}: the next start refuses them, and reads "
                "them again with the option adoptState=true; delete them to give their messages up"
                for each in sorted({each.location for each in kept if each.location and each.files})
            ),
            "the next start needs a new checkpoint, or the option adoptState=true",
        ),
        tuple((each.found.queue, each.found.body) for each in kept),
    )


def _lost_of_consumer(each: ConsumerQueue) -> Iterator[str]:
    state = each.found.state
    if state is None:
        yield f"the state in {each.found.queue} cannot be read ({printable(each.found.problem)}): batches may be owned"
    elif state.owned:
        rows = sum(batch.count for batch in state.owned)
        yield (
            f"queue {quoted(state.queue)}: {len(state.owned)} owned batch(es) with {rows:,} messages that are in the "
            "spool and nowhere else; which of them Spark has committed is no longer known"
        )
    else:
        yield f"queue {quoted(state.queue)}: no batch is owned, no message is lost"


def forget_writer(client: Client, transactional_id: str) -> Forgetting:
    """Determine the effects of forgetting a writer. StateError: there is nothing to forget, it is in use, or a decision
    would be lost."""
    writer = look_at_writer(client, transactional_id)
    whose = f"writer {quoted(transactional_id)}"
    markers = client.query_queue(writer.names.markers) is not None
    _must_be_free(whose, [writer.found.held], there=writer.found.exists or markers)
    waiting = [each.text for each in writer.prepared if each.standing == DECIDED]
    if waiting:
        raise StateError(SparkCondition.BRANCHES_DECIDED(owner=whose, count=len(waiting), xids=", ".join(waiting)))
    queues = [writer.names.state] if writer.found.exists else []
    queues += [writer.names.markers] if markers else []
    left = (f"{len(writer.prepared)} prepared branch(es) of it stay: roll them back with --rollback",)
    return Forgetting(
        whose,
        (writer.names.lock,),
        tuple(queues),
        tuple(_lost_of_writer(writer)),
        left if writer.prepared else (),
        ((writer.found.queue, writer.found.body),) if writer.found.exists else (),
    )


def _lost_of_writer(writer: WriterStatus) -> Iterator[str]:
    state = writer.found.state
    if state is None:
        yield f"the state cannot be read ({printable(writer.found.problem)})"
    elif state.batch >= 0:
        yield f"it is no longer known that batch {state.batch} of query {quoted(state.query_id)} was published"
    yield "the next start begins anew: a batch that Spark replays is published again, also if it was published before"
    yield "stop its query first: between two batches it holds no lock"


def _must_be_free(whose: str, held: Sequence[bool], *, there: bool) -> None:
    if any(held):
        raise in_use(whose)
    if not there:
        raise StateError(SparkCondition.STATE_NOT_FOUND(owner=whose))


def in_use(whose: str) -> StateError:
    """Error: a query holds the lock of a state."""
    remedy = "Stop that query first; of one that died, the broker releases the lock within two heartbeats"
    reason = "a live query holds its lock"
    return StateError(SparkCondition.STATE_IN_USE(owner=f"The {whose}", reason=reason, remedy=remedy))


def forget(connect: Callable[[], Client], forgetting: Forgetting) -> None:
    """Delete the queues, under the lock. StateError: another session holds it, or the state has changed since the
    question."""
    with locked(connect, forgetting.locks, forgetting.whose) as client:
        for queue, body in forgetting.states:
            bodies = (
                [] if client.query_queue(queue) is None else browse(client, queue, wait=WAIT_SECONDS if body else 0.0)
            )
            if (bodies[-1] if bodies else None) != body:
                raise StateError(SparkCondition.STATE_CHANGED(subject=f"The state of {forgetting.whose}"))
        for queue in forgetting.queues:
            client.delete_queue(queue)
