"""All steps in their order, told line by line, and the proof at the end."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from amqp_spark.demo import checks, steps
from amqp_spark.demo.quiet_spark import quiet_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_spark.demo.steps import Place

LOG: Final = "spark.log"
"""Name of the file with all that Spark prints."""
_SHOWN_ROWS: Final = 3


def demonstrate(place: Place, count: int, seed: int, directory: Path) -> bool:
    """Run the demonstration on a broker that has none of its queues; return whether all checks hold.

    Args:
        place: the broker.
        count: number of ticks.
        seed: of the sample data.
        directory: exists and is empty; keeps the rows, and the log of Spark.
    """
    rows_at = directory / "ticks"
    steps.declare(place)
    with _step(2, f"publishing {count:,} ticks to exchange {steps.EXCHANGE}, which queue {steps.TICKS!r} is bound to"):
        published = steps.publish(place, count, seed, _detail)
    with ExitStack() as stack:
        with _step(3, f"streaming the queue into Parquet: {rows_at}"):
            _detail("starting Spark")
            spark = stack.enter_context(quiet_spark("amqp demo", directory / "spark", directory / LOG))
            steps.stream(spark, place, rows_at, directory / "checkpoint", _detail)
            rows = checks.read_rows(rows_at)
            for row in sorted(rows, key=lambda each: each["position"])[:_SHOWN_ROWS]:
                _detail(f"{row['timestamp']:%H:%M:%S} {row['routing_key']:<12} {row['body']}")
            left = steps.waiting(place)
        with _step(4, f"publishing a summary of each symbol, which queue {steps.SUMMARIES!r} is bound to"):
            steps.summarise(spark, place, rows_at)
    with _step(5, "receiving the summaries with the AMQP client alone"):
        summaries = steps.receive(place, _detail)
    say("6/6 checking")
    results = checks.check_rows(rows, published)
    results["the queue is empty on the broker"] = left == 0
    results |= checks.check_summaries(rows, summaries)
    for text, holds in results.items():
        say(f"  {'ok  ' if holds else 'FAIL'} {text}")
    return all(results.values())


@contextmanager
def _step(number: int, title: str) -> Iterator[None]:
    """Say what begins, and how long it took."""
    started = time.monotonic()
    say(f"{number}/6 {title}")
    yield
    _detail(f"({elapsed(started)})")


def _detail(text: str) -> None:
    say(f"    {text}")


def elapsed(started: float) -> str:
    """Seconds since a time of the monotonic clock."""
    return f"{time.monotonic() - started:.1f} s"


def say(text: str) -> None:
    """Print one line and flush."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
