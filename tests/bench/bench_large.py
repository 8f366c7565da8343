"""``large_message_ratio``: bytes/s of an AvailableNow query over those of a bare socket loop, with messages of 1 MB.

A batch costs Spark a tenth of a second and more, however little is in it, so that batches are large here, as
docs/operations.md advises for large messages.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tests.bench import queries
from tests.bench.environment import Result, middle, rounded

if TYPE_CHECKING:
    from tests.bench.environment import Environment

_OPTIONS = {"maxBytesPerTrigger": "512m"}


def run(env: Environment) -> list[Result]:
    """Alternate raw loop and query; the ratio is that of the medians."""
    count, body, rounds = env.sizes.large_messages, env.sizes.large_body, env.sizes.rounds
    with env.queue() as queue, env.progress("large_message_ratio", 1 + 2 * rounds) as step:
        env.fill(queue, count, body_bytes=body)
        queries.drain(env, queue, count, options=_OPTIONS)
        step("warm")
        raw, drained = queries.against_raw(
            env, queue, count, body_bytes=body, unit="MB/s", per_message=body / 1e6, step=step, options=_OPTIONS
        )
    raw_s, query_s = middle(raw), middle([each.query_s for each in drained])
    return [
        Result(
            name="large_message_ratio",
            value=raw_s / query_s,
            unit="ratio",
            higher_is_better=True,
            detail={
                "messages": count,
                "body_bytes": body,
                "options": _OPTIONS,
                "mb_per_s": round(count * body / query_s / 1e6),
                "raw_mb_per_s": round(count * body / raw_s / 1e6),
                "raw_s": rounded(raw),
                "query_s": rounded([each.query_s for each in drained]),
                "processor_s": [asdict(each.spent) for each in drained],
                "batches": drained[-1].batches,
                "durations_ms": drained[-1].durations_ms,
            },
        )
    ]
