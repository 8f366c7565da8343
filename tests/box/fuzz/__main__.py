"""``python -m tests.box.fuzz --inputs N [--seed S] [--store FILE]``: feeds N mutated sessions to a broker.

Exit code 1: an input harmed another client or the broker; the message names it. Memory that grows is such a harm.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Final

from tests.box.fuzz.campaign import Campaign, Harm

MOST_GROWTH_KIB: Final = 64 << 10
SAY_EVERY: Final = 20_000


def main() -> int:
    """Run a campaign; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.box.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="number of inputs (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first, to repeat one that did harm")
    parser.add_argument("--seed", type=int, default=0, help="other inputs for each (default: %(default)s)")
    parser.add_argument("--store", type=Path, help="file that keeps what is durable; it must not exist")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for each error of each input
    campaign, begun = Campaign(options.seed, options.store), time.monotonic()

    def progress(number: int) -> None:
        done = number - options.first + 1
        if not done % SAY_EVERY:
            print(f"{done} inputs, {done / (time.monotonic() - begun):.0f}/s", flush=True)

    try:
        report = campaign.run(range(options.first, options.first + options.inputs), progress)
    except Harm as harm:
        traceback.print_exception(harm)
        return 1
    finally:
        campaign.close()
    for title, counts in (("inputs", report.inputs), ("errors", report.errors)):
        print(f"{title}: {counts.total()}")
        for name, count in sorted(counts.items()):
            print(f"  {name}: {count}")
    growth = report.end_kib - report.start_kib
    print(
        f"memory: {report.start_kib} KiB after a tenth, {report.end_kib} KiB at the end, {report.peak_kib} KiB at most"
    )
    if growth > MOST_GROWTH_KIB:
        print(f"memory grew by {growth} KiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
