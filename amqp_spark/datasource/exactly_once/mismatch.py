"""Errors for a checkpoint that does not match the state on the broker: both contents, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_spark import places
from amqp_spark.datasource.exactly_once.recovery import ADOPT
from amqp_spark.errors import OffsetError

if TYPE_CHECKING:
    from amqp_spark.datasource.exactly_once.transactional_state import TransactionalState
    from amqp_spark.offsets import QueueOffset
    from amqp_spark.state.records import Mark


def mismatch(owner: TransactionalState, offset: QueueOffset, what: str) -> OffsetError:
    """Build the error for an offset that does not match the state; ``what``: the verb phrase before the offset."""
    state, consumer = owner.state, owner.consumer
    assert state is not None
    if offset.epoch is not None and not offset.is_owned:
        return OffsetError(
            f"{consumer.shown}: the checkpoint {what} {shown(offset)}, which was not written with "
            "deliveryGuarantee=exactly-once: what that query had not accepted is on the queue and comes again. Use a "
            f"new checkpoint location, so that nothing is left out. {ADOPT}: the query goes on with this checkpoint "
            "and what is on the queue"
        )
    if state.finished is None and not owner.entries:
        return OffsetError(
            f"{consumer.shown}: the checkpoint {what} {shown(offset)}, and the broker knows nothing of this consumer: "
            "no batch is owned or was finished. Is it the broker, the virtual host and the consumerId of this "
            "checkpoint? Or was its state deleted, or lost by a broker that was restarted and keeps nothing? "
            f"{ADOPT}: the query goes on with what is on the queue"
        )
    finished = "nothing" if state.finished is None else f"what ends at {_place(state.finished)}"
    owned = ", ".join(_place(entry.batch.mark) for entry in owner.entries) or "nothing"
    return OffsetError(
        f"{consumer.shown}: the checkpoint {what} {shown(offset)}. The state on the broker says that {finished} was "
        f"finished last, and that what ends at {owned} is owned (spool "
        f"{places.shown(consumer.spool)!r}). The checkpoint is older "
        "than what was finished (rolled back), or that of another query, or the state was begun anew: use the "
        f"checkpoint that belongs to it. {ADOPT}: owned batches are read again with this checkpoint, and the query "
        "goes on with what is on the queue"
    )


def shown(offset: QueueOffset) -> str:
    """Format an offset for a sentence."""
    return "the start" if offset.epoch is None else f"epoch {offset.epoch}, position {offset.position}"


def _place(mark: Mark) -> str:
    return f"epoch {mark.epoch}, position {mark.position}"
