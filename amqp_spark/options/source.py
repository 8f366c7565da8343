"""The options of the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from amqp_spark.errors import OptionError
from amqp_spark.options.parsing import ConnectionSettings, Given
from amqp_spark.options.table import (
    AT_LEAST_ONCE,
    CONNECTION,
    EXACTLY_ONCE,
    FAILFAST,
    PERMISSIVE,
    REJECT,
    SINK,
    SOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SourceOptions(ConnectionSettings):
    """Checked options of one source. Sizes in bytes, times in seconds. ``repr`` shows no secret; pickles whole.

    Build it with :meth:`parse`. Send executors the copy of :meth:`for_executors`.
    """

    queues: tuple[str, ...]
    consumer_id: str | None
    exclusive: bool
    delivery_guarantee: str
    spool_location: str | None
    adopt_state: bool
    query_checkpoint: str | None
    max_messages_per_trigger: int | None
    min_messages_per_trigger: int
    max_trigger_delay: float
    max_bytes_per_trigger: int
    buffer_bytes: int
    num_partitions: int
    bind: tuple[tuple[str, str], ...]
    declare: str
    selector: str | None
    mode: str
    corrupt_column: str | None
    timestamp_unit: str
    transfer: str
    transfer_host: str | None
    transfer_port: int

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> SourceOptions:
        """Check a dictionary of options (keys in any case; values as text, or Python values).

        Raises OptionError that lists every problem.
        """
        given = Given((*CONNECTION, *SOURCE), SINK, "sink", options)
        _set_sizes(given.values, given.problems)
        given.problems += _delay_problems(given.values, given)
        given.problems += _guarantee_problems(given.values, given)
        if given.problems:
            raise OptionError(given.problems)
        return cls(**cast("dict[str, Any]", given.values))

    @property
    def exactly_once(self) -> bool:
        """Whether batches are stored in a spool when they are accepted."""
        return self.delivery_guarantee == EXACTLY_ONCE

    @property
    def client_name(self) -> str:
        """Client name sent to the broker."""
        return "amqp_spark" if self.consumer_id is None else f"amqp_spark {self.consumer_id}"

    def for_executors(self) -> SourceOptions:
        """Return a copy without credentials, to be pickled for executors, which never connect to the broker."""
        return replace(self, username=None, password=None, password_file=None, tls_key_file=None)


def _set_sizes(values: dict[str, object], problems: list[str]) -> None:
    batch, held = values["max_bytes_per_trigger"], values["buffer_bytes"]
    if batch is None:
        batch = min(_DEFAULT_MAX_BYTES, held) if isinstance(held, int) else _DEFAULT_MAX_BYTES
    assert isinstance(batch, int)
    if isinstance(held, int) and held < batch:
        problems.append(
            f"option 'bufferBytes' is {held} and 'maxBytesPerTrigger' {batch}: the buffer must hold at least one batch "
            f"(allowed: {batch} or more)"
        )
    values["max_bytes_per_trigger"] = batch
    values["buffer_bytes"] = 2 * batch if held is None else held


def _delay_problems(values: Mapping[str, object], given: Given) -> list[str]:
    least, most = values["min_messages_per_trigger"], values["max_messages_per_trigger"]
    if "maxTriggerDelay" in given and "minMessagesPerTrigger" not in given and not given.problems:
        return ["option 'maxTriggerDelay' has no use without 'minMessagesPerTrigger': give that, too, or leave it out"]
    if isinstance(least, int) and isinstance(most, int) and least > most:
        return [f"option 'minMessagesPerTrigger' is {least}, 'maxMessagesPerTrigger' {most}; allowed: 1 to {most}"]
    return []


def _guarantee_problems(values: dict[str, object], given: Given) -> list[str]:
    guarantee, mode = values["delivery_guarantee"], values["mode"]
    problems: list[str] = []
    if guarantee == EXACTLY_ONCE:
        problems.extend(
            f"option {name!r} is required by deliveryGuarantee=exactly-once: {what}"
            for name, what in (
                ("consumerId", "a name for this consumer that stays the same for ever"),
                ("spoolLocation", "a directory as durable as the checkpoint"),
            )
            if name not in given
        )
        if values["heartbeat"] == 0:
            problems.append(
                "option 'heartbeat' is 0 (off), which deliveryGuarantee=exactly-once does not allow: the broker could "
                "not tell a suspended consumer from its successor; allowed: 1 to 65535"
            )
    else:
        problems.extend(
            f"option {name!r} has no use with deliveryGuarantee={guarantee}: leave it out"
            for name in ("spoolLocation", "adoptState")
            if name in given
        )
    if mode == REJECT and guarantee != AT_LEAST_ONCE:
        problems.append(
            f"option 'mode' is REJECT, which is not possible with deliveryGuarantee={guarantee} (the message is "
            f"accepted before its rows are decoded); allowed: {FAILFAST}, {PERMISSIVE}"
        )
    return problems
