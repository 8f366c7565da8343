"""Local transactions over a client (0-9-1 section tx), on the channel that consumes.

What is accepted and published there waits for the commit. That channel has no confirms, since a channel has either
them or transactions (RabbitMQ refuses both, 406); the answer to the commit takes their place. Not every broker keeps a
transaction whole when it is killed: see :attr:`amqp_core.api.Capabilities.local_transactions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import MessageRejected, UsageError
from amqp_core.local_transaction import local_transaction
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import ChannelMode
from amqp_core.v0_9.connection import CONSUMING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from amqp_core.api import Xid
    from amqp_core.v0_9.driver import Driver
    from amqp_core.v0_9.settlement import Unsettled


class Transactions:
    """The transactions of one client. Not thread-safe.

    A client that has selected them keeps them until it ends. A refusal, also one of a publish in the transaction, ends
    the client, and nothing is committed. Every method about a branch raises UsageError: there are no distributed
    transactions.

    Attributes:
        silence_timeout_s: seconds for which the broker may be silent while it commits, if that is longer than two
            heartbeats.
    """

    def __init__(self, driver: Driver, unsettled: Unsettled) -> None:
        self.silence_timeout_s = 0.0
        self._driver = driver
        self._unsettled = unsettled
        self._returned: list[spec.BasicReturn] = []

    @property
    def is_local(self) -> bool:
        """Whether publishes and accepts wait for :meth:`commit`. It does no I/O."""
        return self._driver.endpoint.channels[CONSUMING].mode is ChannelMode.TRANSACTIONS

    def select(self) -> None:
        """Make the client transactional (tx.select), permanently.

        Raises:
            CommandFailed: the broker refused it: the client has ended.
            DeadlineExceeded, ConnectionLost, ...: as every call of the client.
        """
        self._driver.call(CONSUMING, spec.TxSelect(), spec.TxSelectOk)
        self._unsettled.begin()

    def commit(self, sent: Callable[[], None] | None = None, *, silence_timeout_s: float | None = None) -> None:
        """Commit everything published and accepted since the last commit or rollback (tx.commit).

        Args:
            sent: called when the method was sent and its outcome is not known.
            silence_timeout_s: seconds, for this commit, instead of the attribute.

        Raises:
            UsageError: without :meth:`select`.
            MessageRejected: it is committed, but for messages that no queue has taken. Broker-J, as it is configured by
                default, closes the connection when such a message is published, and then nothing is committed.
            CommandFailed: the broker refused it, or an earlier method of the transaction: nothing is committed.
            DeadlineExceeded, ConnectionLost, ConnectionClosed, ...: as every call of the client. If the method was
                sent, the broker may have committed.
        """
        silence_timeout_s = self.silence_timeout_s if silence_timeout_s is None else silence_timeout_s
        # not a call, which would send it again on a new channel: that one would commit an empty transaction
        request = self._driver.request(CONSUMING, spec.TxCommit())
        if sent is not None:
            sent()
        self._driver.wait_done(request, silence_timeout_s)
        if request.error is not None:
            raise request.error
        self._unsettled.commit()
        returned, self._returned = self._returned, []
        if returned:
            raise MessageRejected(len(returned), returned[-1].reply_code, returned[-1].reply_text)

    def rollback(self) -> None:
        """Roll back (tx.rollback).

        RabbitMQ keeps the messages that were accepted for this client, which may settle them again. Broker-J delivers
        them again, and all that is not settled, with new tags; it ignores the old ones. To return everything to its
        queue, close the client.

        Raises:
            UsageError: without :meth:`select`.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call of the client.
        """
        self._driver.call(CONSUMING, spec.TxRollback(), spec.TxRollbackOk)
        self._unsettled.roll_back()
        self._returned.clear()

    def tx(self) -> AbstractContextManager[None]:
        """Return a context that commits the work of its block, or rolls it back if the block raises.

        It selects transactions first, unless that is done (tx.select, tx.commit, tx.rollback).

        Raises:
            BaseException: the error of the block; an AmqpError of the rollback is ignored then.
            MessageRejected, CommandFailed, DeadlineExceeded, ...: those of :meth:`select` and :meth:`commit`.
        """
        return local_transaction(self)

    def returned(self, method: spec.BasicReturn) -> None:
        """Take the return of a message of the transaction: the commit that goes on reports it."""
        self._returned.append(method)

    def dtx_select(self) -> None:
        """Refused."""
        self._refuse("A distributed transaction")

    def start(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def end(self, xid: Xid, *, fail: bool = False) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def prepare(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def commit_branch(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def rollback_branch(self, xid: Xid) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def abandon(self, xid: Xid, *, ended: bool) -> bool:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def get_timeout(self, xid: Xid) -> int:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        """Refused."""
        self._refuse(f"Branch {xid}")

    def recover(self) -> list[Xid]:
        """Refused."""
        self._refuse("A list of prepared branches")

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(
            CoreCondition.NOT_SUPPORTED(
                what=what,
                protocol=self._driver.connection.version,
                reason="it has no distributed transactions",
                action="Use AMQP 0-10",
            )
        )
