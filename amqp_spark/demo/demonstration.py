"""All steps in their order, told line by line, and the proof at the end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from amqp_spark.demo import checks, steps
from amqp_spark.demo.quiet_spark import quiet_spark

if TYPE_CHECKING:
    from pathlib import Path

    from amqp_spark.demo.reporting import Reporter
    from amqp_spark.demo.steps import Place

LOG: Final = "spark.log"
"""Name of the file with all that Spark prints."""
_SHOWN_ROWS: Final = 3


def demonstrate(place: Place, count: int, seed: int, directory: Path, reporter: Reporter) -> bool:
    """Run the demonstration on a broker that has none of its queues; return whether all checks hold.

    Args:
        place: the broker.
        count: number of ticks.
        seed: of the sample data.
        directory: exists and is empty; keeps the rows, and the log of Spark.
        reporter: prints the lines.

    Raises:
        amqp_spark.cli.Stopped: a signal has come.
    """
    rows_at = directory / "ticks"
    steps.declare(place)
    with reporter.step(
        2, f"publishing {count:,} ticks to exchange {steps.EXCHANGE}, which queue {steps.TICKS!r} is bound to"
    ):
        published = steps.publish(place, count, seed, reporter)
    with ExitStack() as stack:
        with reporter.step(3, f"streaming the queue into Parquet: {rows_at}"):
            reporter.detail("starting Spark")
            spark = stack.enter_context(quiet_spark("amqp demo", directory / "spark", directory / LOG))
            reporter.keep_signals()
            reporter.check()
            steps.stream(spark, place, rows_at, directory / "checkpoint", reporter)
            rows = checks.read_rows(rows_at)
            for row in sorted(rows, key=lambda each: each["position"])[:_SHOWN_ROWS]:
                reporter.detail(f"{row['timestamp']:%H:%M:%S} {row['routing_key']:<12} {row['body']}")
            left = steps.waiting(place)
        with reporter.step(4, f"publishing a summary of each symbol, which queue {steps.SUMMARIES!r} is bound to"):
            steps.summarise(spark, place, rows_at)
    with reporter.step(5, "receiving the summaries with the AMQP client alone"):
        summaries = steps.receive(place, reporter)
    reporter.say("6/6 checking")
    results = checks.check_rows(rows, published)
    results["the queue is empty on the broker"] = left == 0
    results |= checks.check_summaries(rows, summaries)
    for text, holds in results.items():
        reporter.say(f"  {'ok  ' if holds else 'FAIL'} {text}")
    return all(results.values())
