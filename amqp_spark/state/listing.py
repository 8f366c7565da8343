"""List the prepared branches of a broker (0-10 command dtx.recover)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.errors import ConnectionLost
from amqp_spark.errors import StateError
from amqp_spark.state.xids import LISTED_NBYTES

if TYPE_CHECKING:
    from amqp_core.api import Client, Xid

MOST_LISTED: Final = 65_000 // LISTED_NBYTES
"""Number of our branches that fit into one frame; qpidd's answer is limited to one frame."""


class ListLost(ConnectionLost):
    """The connection was lost while qpidd listed its prepared branches: by chance, or because it cannot list them."""


class TooManyPrepared(StateError):
    """qpidd ended the connection instead of listing its prepared branches: the list does not fit into one frame."""


def prepared_branches(client: Client) -> list[Xid]:
    """List the prepared branches of all writers (dtx.recover).

    Raises:
        ListLost: see there; a retry on another connection shows which of the two causes applies.
        AmqpError: any other error of the connection.
    """
    try:
        return client.transactions.recover()
    except ConnectionLost as error:
        if not client.capabilities.lists_branches_in_one_frame:
            raise
        raise ListLost(f"while the broker was asked for its prepared transactions: {error}") from error


def too_many() -> TooManyPrepared:
    """Make the error for a list that was refused with :class:`ListLost` on every attempt."""
    return TooManyPrepared(
        "the broker (qpidd) cannot list its prepared transactions (dtx.recover) and ends the connection: it has too "
        f"many of them, of all clients together. The list must fit into one frame (about {MOST_LISTED} of "
        "amqp_spark's). Nothing was changed, and no transactionalId of this broker works until there are fewer. Roll "
        "back those that the logs of the writers name, with `python -m amqp_spark.transactions URL --rollback XID`, "
        "which needs no list; or wait until their timers have ended (option transactionTimeout)"
    )
