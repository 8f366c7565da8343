"""Distributed transactions of one session (0-10 section dtx)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqp_core.broker.model.branches import Branch, Outcome, Xid
from amqp_core.broker.v0_10.errors import Code, Failed
from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.broker.rights import Rights

_STATUS: Final = {
    Outcome.OK: spec.DtxXaStatus.XA_OK,
    Outcome.ROLLED_BACK: spec.DtxXaStatus.XA_RBROLLBACK,
    Outcome.TIMED_OUT: spec.DtxXaStatus.XA_RBTIMEOUT,
}


class Distributed:
    """The commands of class dtx. A session may resolve any branch of its virtual host whose work its login may do.

    Args:
        session: whom branches know by identity.
        clock: the time of the model, in seconds.
        rights: of the login.

    Attributes:
        selected: whether dtx.select was sent; the session sets it.
        active: the branch that transfers and accepts of the session belong to.
    """

    def __init__(self, host: VirtualHost, session: object, clock: Callable[[], float], rights: Rights) -> None:
        self.selected = False
        self.active: Branch | None = None
        self._branches = host.branches
        self._session = session
        self._clock = clock
        self._rights = rights

    def leave(self) -> list[Entry]:
        """The session ends: what it is associated with is undone. Return the messages that the caller releases."""
        if not self.selected:
            return []
        self.active = None
        return self._branches.leave(self._session, self._clock())

    def start(self, command: spec.DtxStart) -> spec.XaResult:
        """dtx.start: associate the session with a branch."""
        xid = _xid(command.xid)
        if command.join and command.resume:
            raise Failed(Code.NOT_ALLOWED, "join and resume exclude each other")
        if not self.selected:
            raise Failed(Code.ILLEGAL_STATE, "dtx.select has to come first")
        more = command.join or command.resume
        if self.active is not None and more == (xid in self._branches.by_xid):  # else that is what is wrong
            raise Failed(Code.ILLEGAL_STATE, "this session works on another branch: end or suspend that first")
        if command.resume:
            branch, outcome = self._branches.resume(xid, self._session)
        else:
            self._may_do(xid)
            branch, outcome = self._branches.start(xid, self._session, join=command.join, now=self._clock())
        if outcome is Outcome.OK:
            self.active = branch
        return _result(outcome)

    def end(self, command: spec.DtxEnd) -> spec.XaResult:
        """dtx.end: end or suspend the association."""
        xid = _xid(command.xid)
        if command.suspend and command.fail:
            raise Failed(Code.NOT_ALLOWED, "suspend and fail exclude each other")
        outcome = self._branches.end(xid, self._session, fail=command.fail, suspend=command.suspend, now=self._clock())
        if self.active is not None and self.active.xid == xid:
            self.active = None
        return _result(outcome)

    def prepare(self, command: spec.DtxPrepare) -> spec.XaResult:
        """dtx.prepare."""
        return _result(self._branches.prepare(self._may_do(_xid(command.xid)), self._clock()))

    def commit(self, command: spec.DtxCommit) -> spec.XaResult:
        """dtx.commit."""
        xid = self._may_do(_xid(command.xid))
        return _result(self._branches.commit(xid, self._clock(), one_phase=command.one_phase))

    def rollback(self, command: spec.DtxRollback) -> spec.XaResult:
        """dtx.rollback."""
        return _result(self._branches.rollback(self._may_do(_xid(command.xid))))

    def forget(self, command: spec.DtxForget) -> None:
        """dtx.forget: for branches that were completed by a heuristic decision, which this broker never makes."""
        self._branches.known(_xid(command.xid))
        raise Failed(Code.ILLEGAL_STATE, "the branch was not completed by a heuristic decision")

    def get_timeout(self, command: spec.DtxGetTimeout) -> spec.DtxGetTimeoutResult:
        """dtx.get-timeout."""
        return spec.DtxGetTimeoutResult(timeout=self._branches.known(_xid(command.xid)).timeout_s)

    def set_timeout(self, command: spec.DtxSetTimeout) -> None:
        """dtx.set-timeout."""
        self._branches.set_timeout(self._may_do(_xid(command.xid)), command.timeout or 0, self._clock())

    def _may_do(self, xid: Xid) -> Xid:
        """The name of a branch, if the login has the rights for all that it publishes and accepts.

        Raises:
            Refused: UNAUTHORIZED.
        """
        branch = self._branches.by_xid.get(xid)
        if branch is not None:
            for exchange in {message.exchange for message, _ in branch.published}:
                self._rights.publish(exchange)
            for queue in {entry.queue.name for entry in branch.accepted}:
                self._rights.consume(queue)
        return xid

    def recover(self, _: spec.DtxRecover) -> spec.DtxRecoverResult:
        """dtx.recover: the prepared branches of the virtual host."""
        return spec.DtxRecoverResult(in_doubt=[spec.Xid(*xid) for xid in self._branches.prepared])


def _xid(given: spec.Xid | None) -> Xid:
    if given is None or given.format is None or given.global_id is None or given.branch_id is None:
        raise Failed(Code.INVALID_ARGUMENT, "an xid needs format, global-id and branch-id")
    return Xid(given.format, given.global_id, given.branch_id)


def _result(outcome: Outcome) -> spec.XaResult:
    return spec.XaResult(status=_STATUS[outcome])


HANDLERS: Final[dict[type[spec.Command], Callable[..., Any]]] = {
    spec.DtxStart: Distributed.start,
    spec.DtxEnd: Distributed.end,
    spec.DtxPrepare: Distributed.prepare,
    spec.DtxCommit: Distributed.commit,
    spec.DtxRollback: Distributed.rollback,
    spec.DtxForget: Distributed.forget,
    spec.DtxGetTimeout: Distributed.get_timeout,
    spec.DtxSetTimeout: Distributed.set_timeout,
    spec.DtxRecover: Distributed.recover,
}
