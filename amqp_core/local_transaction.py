"""A local transaction as a context, for every protocol."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Iterator


class LocalTransactions(Protocol):
    """The calls of a client's local transactions."""

    @property
    def is_local(self) -> bool:
        """Whether they are selected."""

    def select(self) -> None:
        """Select them."""

    def commit(self) -> None:
        """Commit."""

    def rollback(self) -> None:
        """Roll back."""


@contextmanager
def local_transaction(transactions: LocalTransactions) -> Iterator[None]:
    """Commit the work of the block, or roll it back if the block raises; its error is raised, and not one of the
    rollback. Transactions are selected first, unless they are."""
    if not transactions.is_local:
        transactions.select()
    try:
        yield
    except BaseException:
        try:
            transactions.rollback()
        except AmqpError:
            pass  # the session and its transaction are gone
        raise
    transactions.commit()
