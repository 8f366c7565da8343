"""Local and distributed transactions over a client (0-10 sections tx and dtx).

``tx``: one session, begin to commit. ``dtx``: branches identified by an xid, prepared and then resolved by any session
that knows the xid. Important: the timer of a branch also ends a prepared one (qpidd: 60 s unless changed), an xid must
be sent with all three fields, and a call for an unknown xid raises NotFound and ends the session: call
:meth:`Transactions.recover` first.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from amqp_core.api import Xid
from amqp_core.errors import AmqpError, ProtocolError, TransactionFailed
from amqp_core.local_transaction import local_transaction
from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from amqp_core.v0_10.driver import Driver

_FORGOTTEN = (spec.DtxPrepare.NAME, spec.DtxXaStatus.XA_RBTIMEOUT)


class Transactions:
    """The transactional commands of one client's session. Not thread-safe.

    Every method but :meth:`abandon` raises the errors of a call (see :class:`Client`): CommandFailed for a refusal
    (IllegalState for a wrong order of calls, NotFound for an unknown branch), DeadlineExceeded, ConnectionLost,
    ConnectionClosed, SessionDetached, ProtocolError, and UsageError after :meth:`Client.close`. CommandFailed may also
    concern an earlier command of the session, which it has ended. If the broker answers with another status than XA_OK,
    a method about a branch raises TransactionFailed; the session lives then. After an EncodeError nothing was sent.

    Attributes:
        silence_timeout_s: seconds for which the broker may be silent when a transaction ends, and in commands about any
            branch, if that is longer than two heartbeats. Broker-J stores the contents of a branch inside dtx.prepare,
            on the thread that sends heartbeats (up to 10 s for 100,000 durable messages on a busy machine), and other
            commands about branches of the virtual host wait for that. Set it by the size of the transaction.
    """

    def __init__(self, client: Driver) -> None:
        self.silence_timeout_s = 0.0
        self._client = client
        self._selected = ""

    @property
    def is_local(self) -> bool:
        """Whether tx was selected here (tx.select), so that publishes and accepts wait for :meth:`commit`. No I/O."""
        return self._selected == "tx"

    def select(self) -> None:
        """Make the session transactional (tx.select), permanently. Do not mix it with dtx on one session.

        Raises:
            CommandFailed: the broker refused it.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        self._client.call(spec.TxSelect())
        self._selected = "tx"

    def commit(self, sent: Callable[[], None] | None = None, *, silence_timeout_s: float | None = None) -> None:
        """Commit everything published and accepted since the last commit or rollback (tx.commit).

        Args:
            sent: called when the command was sent and its outcome is not known.
            silence_timeout_s: seconds, for this commit, instead of the attribute.

        Raises:
            CommandFailed: the broker refused it, or an earlier command of the transaction.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class. If the command was
                sent, the broker may have committed.
        """
        silence_timeout_s = self.silence_timeout_s if silence_timeout_s is None else silence_timeout_s
        if sent is None:
            self._client.call(spec.TxCommit(), silence_timeout_s=silence_timeout_s)
        else:
            command_id = self._client.send(spec.TxCommit(), sync=True)
            sent()
            # A broker completes the sync after the commit. Only the completion of the commit itself is its answer.
            self._client.call(spec.ExecutionSync(), silence_timeout_s=silence_timeout_s)
            done = partial(self._client.is_complete, command_id)
            self._client.wait_for(done, f"the answer to {spec.TxCommit.NAME}", silence_timeout_s)

    def rollback(self) -> None:
        """Roll back (tx.rollback). qpidd keeps accepted messages acquired by the session until they are released.

        Raises:
            CommandFailed: the broker refused it, or an earlier command of the transaction.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        self._client.call(spec.TxRollback())

    def tx(self) -> AbstractContextManager[None]:
        """Return a context that commits the work of its block, or rolls it back if the block raises.

        It selects tx first, unless that is done (tx.select, tx.commit, tx.rollback).

        Raises:
            BaseException: the error of the block; an AmqpError of the rollback is ignored then.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: those of :meth:`select` and :meth:`commit`.
        """
        return local_transaction(self)

    def dtx_select(self) -> None:
        """Enable distributed transactions on the session (dtx.select).

        Raises:
            CommandFailed: the broker refused it.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        self._client.call(spec.DtxSelect())
        self._selected = "dtx"

    def start(self, xid: Xid, *, join: bool = False, resume: bool = False) -> None:
        """Associate the session with a branch (dtx.start).

        Args:
            xid: id of the branch; all three fields are needed.
            join: the branch exists, and another session works on it, too.
            resume: continue an association that :meth:`end` has suspended. Not together with ``join``.

        Raises:
            CommandInvalid: without :meth:`dtx_select`, or ``join`` and ``resume`` together.
            NotAllowed: the xid is in use, or unknown with ``join``.
            TransactionFailed: the status is not XA_OK.
            EncodeError: a field of the xid is absent, or does not fit its wire type.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        self._xa(spec.DtxStart(xid=_wire(xid), join=join, resume=resume))

    def end(self, xid: Xid, *, fail: bool = False, suspend: bool = False) -> None:
        """End the association (dtx.end). ``suspend`` without an active branch crashes qpidd: avoid it.

        Args:
            xid: id of the branch.
            fail: the work has failed: the branch is to be rolled back.
            suspend: interrupt the association until :meth:`start` resumes it. Not together with ``fail``.

        Raises:
            TransactionFailed: the branch has expired (``is_timeout``), or is rolled back (``is_rollback``).
            IllegalState: the session is not associated with the branch, or the broker does not know it.
            EncodeError: a field of the xid is absent, or does not fit its wire type.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        self._xa(spec.DtxEnd(xid=_wire(xid), fail=fail, suspend=suspend))

    def prepare(self, xid: Xid) -> None:
        """Prepare a branch after :meth:`end` (dtx.prepare).

        Raises:
            TransactionFailed: the branch is not prepared: it has expired (``is_timeout``), the broker has rolled it
                back (``is_rollback``), or it has nothing to commit (``name``: XA_RDONLY).
            NotFound: the broker does not know the branch.
            IllegalState: the branch is not ended.
            EncodeError: a field of the xid is absent, or does not fit its wire type.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class. The branch may be
                prepared: :meth:`recover` on another session lists it then.
        """
        self._xa(spec.DtxPrepare(xid=_wire(xid)))

    def commit_branch(self, xid: Xid, *, one_phase: bool = False) -> None:
        """Commit a prepared branch, or in one phase a branch that is only ended (dtx.commit).

        Args:
            xid: id of the branch; any session may commit it.
            one_phase: the branch is ended and not prepared.

        Raises:
            TransactionFailed: the branch is not committed as requested: it has expired (``is_timeout``), was rolled
                back (``is_rollback``), or the broker has resolved it by itself (``has_committed``, ``is_mixed``).
            NotFound: the broker does not know the branch.
            IllegalState: the branch is still associated, or ``one_phase`` does not fit its state.
            EncodeError: a field of the xid is absent, or does not fit its wire type.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class. The branch may be
                committed.
        """
        self._xa(spec.DtxCommit(xid=_wire(xid), one_phase=one_phase))

    def rollback_branch(self, xid: Xid) -> None:
        """Roll a branch back (dtx.rollback), prepared or not; any session may do so.

        Raises:
            TransactionFailed: the status is not XA_OK; the branch may have expired before (``is_timeout``).
            NotFound: the broker does not know the branch.
            IllegalState: the branch is still associated with a session.
            EncodeError: a field of the xid is absent, or does not fit its wire type.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        self._xa(spec.DtxRollback(xid=_wire(xid)))

    def forget(self, xid: Xid) -> None:
        """Forget a heuristically completed branch (dtx.forget); qpidd does not implement it.

        Raises:
            NotFound: the broker does not know the branch.
            CommandFailed: the broker refused it for another reason.
            EncodeError: a field of the xid is absent, or does not fit its wire type.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        self._client.call(spec.DtxForget(xid=_wire(xid)))

    def get_timeout(self, xid: Xid) -> int:
        """Return the branch's timeout in seconds (dtx.get-timeout); 0: see :meth:`set_timeout`.

        Raises:
            NotFound: the broker does not know the branch.
            ProtocolError: the answer contains no timeout.
            EncodeError: a field of the xid is absent, or does not fit its wire type.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        result = self._client.ask(
            spec.DtxGetTimeout(xid=_wire(xid)), spec.DtxGetTimeoutResult, silence_timeout_s=self.silence_timeout_s
        )
        if result.timeout is None:
            raise ProtocolError("the broker answered dtx.get-timeout without a timeout")
        return result.timeout

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        """Set the branch's timeout in seconds (dtx.set-timeout). 0: ends at once on qpidd, no timeout on Broker-J.

        Args:
            xid: id of the branch.
            seconds: 0 to 2**32 - 1; the broker may permit less (qpidd: option dtx-max-timeout).

        Raises:
            NotFound: the broker does not know the branch.
            InvalidArgument: the broker does not permit so long a timeout (qpidd).
            EncodeError: ``seconds`` is out of its range, or the xid is not complete.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        command = spec.DtxSetTimeout(xid=_wire(xid), timeout=seconds)
        self._client.call(command, silence_timeout_s=self.silence_timeout_s)

    def recover(self) -> list[Xid]:
        """Return the xids of the prepared branches of all clients (dtx.recover): of the whole qpidd, or of the virtual
        host on Broker-J.

        Raises:
            ProtocolError: the answer contains no list of branches, not even an empty one.
            CommandFailed: the broker refused it.
            DeadlineExceeded, ConnectionLost, SessionDetached, ...: as every call, see the class.
        """
        result = self._client.ask(spec.DtxRecover(), spec.DtxRecoverResult, silence_timeout_s=self.silence_timeout_s)
        if result.in_doubt is None:
            raise ProtocolError("the broker answered dtx.recover without its list of branches")
        return [Xid(each.format, each.global_id, each.branch_id) for each in result.in_doubt]

    @contextmanager
    def branch(self, xid: Xid, *, timeout_s: int | None = None) -> Iterator[Xid]:
        """Context that runs its block inside a branch and prepares it; rolls it back if the block or the prepare fails.

        Afterwards the branch is prepared, not committed: commit it with :meth:`commit_branch`. After a
        TransactionFailed of ``dtx.end`` reconnect: Broker-J adds the next work of the session to the dead branch.

        Args:
            xid: id of the branch, new to the broker.
            timeout_s: timeout of the branch in seconds (:meth:`set_timeout`); ``None``: the broker's default.

        Raises:
            BaseException: the error of the block; an AmqpError of the rollback is ignored then.
            TransactionFailed, CommandFailed, EncodeError, ...: those of :meth:`dtx_select`, :meth:`start`,
                :meth:`set_timeout`, :meth:`end` and :meth:`prepare`.
        """
        if self._selected != "dtx":
            self.dtx_select()
        self.start(xid)
        ended = False
        try:
            if timeout_s is not None:
                self.set_timeout(xid, timeout_s)
            yield xid
            ended = True  # also if its status is not XA_OK
            self.end(xid)
            self.prepare(xid)
        except BaseException as error:
            # after a prepare of an expired branch the broker forgets it: another command for it would end the session
            if not isinstance(error, TransactionFailed) or (error.operation, error.status) != _FORGOTTEN:
                self.abandon(xid, ended=ended)
            raise

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        """Roll back a branch that failed, if the session lives; else Broker-J keeps its messages locked forever.

        It sends dtx.end, if that is needed, and dtx.rollback. It raises no AmqpError.

        Args:
            xid: id of the branch.
            ended: whether ``dtx.end`` was sent. Ending a branch twice would end the session, and then it could not be
                rolled back here.

        Returns:
            Whether the broker has confirmed the rollback; else another session may try.
        """
        if not ended:
            try:
                self.end(xid, fail=True)
            except AmqpError:
                pass  # this has rolled it back (qpidd), or the session is gone; the first error is raised
        try:
            self.rollback_branch(xid)
        except AmqpError:
            return False  # the session is gone, or the branch had expired
        return True

    def _xa(self, command: spec.Command) -> None:
        status = self._client.ask(command, spec.XaResult, silence_timeout_s=self.silence_timeout_s).status
        if status is None:
            raise ProtocolError(f"the broker answered {command.NAME} without an xa-status")
        if status != spec.DtxXaStatus.XA_OK:
            known = {choice.value: choice.name for choice in spec.DtxXaStatus}
            raise TransactionFailed(command.NAME, status, known.get(status, "an unknown xa-status"))


def _wire(xid: Xid) -> spec.Xid:
    return spec.Xid(format=xid.format, global_id=xid.global_id, branch_id=xid.branch_id)
