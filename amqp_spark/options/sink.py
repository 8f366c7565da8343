"""The options of the sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from amqp_spark.errors import OptionError
from amqp_spark.options.parsing import ConnectionSettings, Given
from amqp_spark.options.table import (
    BEYOND_HEARTBEATS_SECONDS,
    CONNECTION,
    DELIVERY_MODES,
    EXACTLY_ONCE,
    SINK,
    SOURCE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SinkOptions(ConnectionSettings):
    """Checked options of one sink. Times in seconds, ``ttl`` in milliseconds. ``repr`` shows no secret; pickles whole.

    An option that overrides a column is ``None`` if it was not given. ``delivery_mode`` is the number on the wire.
    Build it with :meth:`parse`. It is sent to executors with credentials, since they connect to the broker.
    """

    exchange: str
    exchange_from_column: bool
    routing_key: str | None
    delivery_mode: int | None
    ttl: int | None
    priority: int | None
    content_type: str | None
    timestamp_unit: str
    delivery_guarantee: str
    transactional_id: str | None
    transaction_timeout: int
    batch_id: int | None
    on_unroutable: str
    max_in_flight: int
    stamp_headers: bool

    @property
    def exactly_once(self) -> bool:
        """Whether tasks prepare transaction branches and the driver decides on their commit."""
        return self.delivery_guarantee == EXACTLY_ONCE

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> SinkOptions:
        """Check a dictionary of options (keys in any case; values as text, or Python values).

        Raises OptionError that lists every problem.
        """
        given = Given((*CONNECTION, *SINK), SOURCE, "source", options)
        values = given.values
        mode = values["delivery_mode"]
        values["delivery_mode"] = DELIVERY_MODES.index(mode) + 1 if isinstance(mode, str) else None
        given.problems += _guarantee_problems(values, given)
        if given.problems:
            raise OptionError(given.problems)
        return cls(**cast("dict[str, Any]", values))


def _guarantee_problems(values: Mapping[str, object], given: Given) -> list[str]:
    guarantee = values["delivery_guarantee"]
    problems = []
    if guarantee == EXACTLY_ONCE:
        if "transactionalId" not in given:
            problems.append(
                "option 'transactionalId' is required by deliveryGuarantee=exactly-once: a name for this writer that "
                "stays the same for ever"
            )
        if values["heartbeat"] == 0:
            problems.append(
                "option 'heartbeat' is 0 (off), which deliveryGuarantee=exactly-once does not allow: the broker could "
                "not tell a suspended writer from its successor; allowed: 1 to 65535"
            )
        problems += _timeout_problems(values)
    else:
        problems.extend(
            f"option {name!r} has no use with deliveryGuarantee={guarantee}: leave it out"
            for name in ("transactionalId", "transactionTimeout")
            if name in given
        )
    return problems


def _timeout_problems(values: Mapping[str, object]) -> list[str]:
    heartbeat, timeout = values["heartbeat"], values["transaction_timeout"]
    if not isinstance(heartbeat, int) or not isinstance(timeout, int):  # refused before
        return []
    least = 2 * heartbeat + BEYOND_HEARTBEATS_SECONDS
    if timeout >= least:
        return []
    problem = (
        f"option 'transactionTimeout' is {timeout}, too short for heartbeat={heartbeat}: a restart may have to wait "
        "for two heartbeats until the broker gives up a writer that died, and its transactions must last longer; "
        f"allowed: {least} to 86400, or a shorter heartbeat"
    )
    return [problem]
