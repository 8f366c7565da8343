"""``python -m tests.matrix``: run the crash matrix, or what is left of it, and print the table.

Every run is appended to build/crash-matrix.jsonl; one that came to a good end is not repeated, one that failed is.
The table is in build/crash-matrix.md, the evidence of failed runs in build/crash-matrix-failures. Exit code 1: a
promise was broken, or a point was not reached.

Each job has a broker of its own, of the kind that --broker names. With --url all use the broker that this names, of any
kind; its virtual host has to keep durable queues. The record is in a file of its own then. The broker itself is among
the victims only with --broker-command, which starts it in the foreground: the matrix runs that, kills it with all that
it has started, and runs it again, with the same store. For example

    python -m tests.matrix --url amqp://localhost:5672/ \
        --broker-command "exec qpidd --port 5672 --auth no --data-dir /tmp/qpidd --store-dir /tmp/qpidd"
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from amqp_core.address import parse_url
from amqp_core.errors import AmqpError
from tests.matrix import flows, runs
from tests.matrix.brokers import Given
from tests.matrix.cases import KINDS, VICTIMS, Case, all_cases, groups, sample
from tests.matrix.place import Place
from tests.matrix.results import BUILD, Record, Result, how_to_repeat, summary, table
from tests.matrix.servers import BROKER_J, SERVERS

if TYPE_CHECKING:
    from collections.abc import Sequence

_GROUP = 8


class Jobs:
    """Threads that take groups of cases from a queue; each has a broker and a driver of its own."""

    def __init__(self, record: Record, seed: int, total: int, given: Given) -> None:
        self._record = record
        self._given = given
        self._seed = seed
        self._groups: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bar = tqdm(total=total, unit="run", file=sys.stderr, dynamic_ncols=True)
        self._bad = 0
        self.stopping = threading.Event()
        self.results: list[Result] = []

    def run(self, work: Sequence[list[Case]], jobs: int, until: float | None) -> None:
        """Run all groups, or those that begin before ``until`` (monotonic seconds)."""
        for group in work:
            self._groups.put(group)
        threads = [threading.Thread(target=self._job, args=(until,), daemon=True) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.5)
        finally:
            self.stopping.set()
            self._bar.close()

    def _job(self, until: float | None) -> None:
        place: Place | None = None
        try:
            while not self.stopping.is_set() and (until is None or time.monotonic() < until):
                try:
                    group = self._groups.get_nowait()
                except queue.Empty:
                    return
                try:
                    if place is None:
                        place = Place(server=self._given.server, given_broker=self._given.make())
                        place.__enter__()
                    results = runs.run(place, group, self._seed)
                except Exception:  # noqa: BLE001 - whatever it is, the other groups shall be run
                    results = [self._broken(case, place) for case in group]
                    if place is not None:
                        place.close()
                        place = None
                self._done(results)
        finally:
            if place is not None:
                place.close()

    def _broken(self, case: Case, place: Place | None) -> Result:
        return Result(
            case=str(case),
            kind=case.kind,
            guarantee=case.guarantee,
            point=case.point,
            victim=case.victim,
            round=case.round,
            seed=self._seed,
            problems=[f"the run broke off: {flows.shortened(traceback.format_exc())}"],
            log=place.driver.log(20_000) if place is not None and place.driver.running else "",
        )

    def _done(self, results: Sequence[Result]) -> None:
        with self._lock:
            for result in results:
                result.broker = self._given.url or ("" if self._given.server is BROKER_J else self._given.server.name)
                self.results.append(result)
                self._record.add(result)
                self._bar.update()
                if not result.good:
                    self._bad += 1
                    what = result.problems[0] if result.problems else f"not reached: {result.missed}"
                    self._bar.write(f"FAILED {result.case}: {what[:300]}", file=sys.stderr)
            lost = sum(each.lost for each in self.results if each.guarantee != "at-most-once")
            twice = sum(each.duplicated for each in self.results if each.guarantee != "at-least-once")
            self._bar.set_postfix(lost=lost, duplicated=twice, failed=self._bad)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m tests.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=1, help="how often everything is run (default: 1)")
    arguments.add_argument("--seed", type=int, default=1, help="decides what varies, and the order (default: 1)")
    arguments.add_argument("--only", action="append", default=[], metavar="TEXT", help="cases with this in their name")
    arguments.add_argument("--victim", action="append", default=[], choices=VICTIMS, help="cases with this victim")
    arguments.add_argument("--case", action="append", default=[], metavar="CASE", help="this case; may be repeated")
    arguments.add_argument("--sample", action="store_true", help="each point once, as make test does")
    arguments.add_argument(
        "--jobs", type=int, help="drivers side by side (default: 2; 1 where one broker is killed for all)"
    )
    arguments.add_argument("--broker", choices=SERVERS, default=BROKER_J.name, help="kind of broker (default: brokerj)")
    arguments.add_argument("--url", help="a broker to use instead of our own, and its virtual host")
    arguments.add_argument("--username", default="guest", help="for --url (default: guest)")
    arguments.add_argument("--password-file", type=Path, metavar="FILE", help="for --url (default: guest)")
    arguments.add_argument("--broker-command", metavar="COMMAND", help="starts the broker of --url in the foreground")
    arguments.add_argument("--minutes", type=float, help="begin nothing after so many minutes")
    arguments.add_argument("--group", type=int, default=_GROUP, help=f"queries struck together (default: {_GROUP})")
    earlier = arguments.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume", action="store_true", help="skip what the record has with a good end: so it is without this, too"
    )
    earlier.add_argument("--fresh", action="store_true", help="delete the record, of all cases and seeds, and run anew")
    arguments.add_argument("--list", action="store_true", help="print the cases and end")
    arguments.add_argument("--table", action="store_true", help="print the table of what was run and end")
    arguments.add_argument("--output", type=Path, help="the record (default: build/crash-matrix.jsonl)")
    return arguments


def parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Given]:
    """Parse and check the command line; end the program if it is inconsistent."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.url is None:
        alone = [name for name in ("broker_command", "password_file") if getattr(options, name) is not None]
        if alone:
            arguments.error(f"--{alone[0].replace('_', '-')} is about the broker of --url, which is missing")
        given = Given(server=SERVERS[options.broker])
    else:
        given = _given(arguments, options)
    if options.jobs is None:
        options.jobs = given.most_jobs or 2
    if options.jobs > (given.most_jobs or options.jobs):
        arguments.error(f"--jobs {options.jobs}: a broker that is killed is killed for all jobs; allowed is 1")
    if options.output is None:
        ours = given.url is None and given.server is BROKER_J
        options.output = BUILD / ("crash-matrix.jsonl" if ours else f"crash-matrix-{given.name}.jsonl")
    return options, given


def _given(arguments: argparse.ArgumentParser, options: argparse.Namespace) -> Given:
    try:
        parse_url(options.url)
        password = "guest" if options.password_file is None else options.password_file.read_text("utf-8").strip("\r\n")
    except AmqpError as error:
        arguments.error(f"--url: {error}")
    except (OSError, UnicodeDecodeError) as error:
        arguments.error(f"--password-file {options.password_file}: {error}")
    return Given(options.url, options.username, password, options.broker_command, SERVERS[options.broker])


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for."""
    if options.case:
        return [Case.parse(text) for text in options.case]
    quorum = SERVERS[options.broker].recognises
    cases = sample(options.seed) if options.sample else all_cases(options.rounds, quorum=quorum)
    if options.only:
        cases = [case for case in cases if any(text in str(case) for text in options.only)]
    if options.victim:
        cases = [case for case in cases if set(options.victim) & set(case.victims)]
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    """Run the matrix; return the exit code."""
    options, given = parsed(argv)
    record = Record(options.output)
    if options.fresh and not (options.table or options.list):
        record.clear()
    record.load()
    cases = chosen(options)
    left_out = {str(case): reason for case in cases if (reason := given.left_out(case)) is not None}
    if left_out and options.case:
        print("\n".join(f"crash-matrix: {case}: {reason}" for case, reason in left_out.items()), file=sys.stderr)
        return 2
    cases = [case for case in cases if str(case) not in left_out]
    if left_out:
        print(f"crash-matrix: {len(left_out)} cases are left out: {'; '.join(set(left_out.values()))}", file=sys.stderr)
    unknown = [str(case) for case in cases if case.kind not in KINDS]
    if unknown:
        print(f"crash-matrix: no such kind: {unknown}; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(map(str, cases)))
        return 0
    begun = time.monotonic()
    if not options.table:
        left = record.left(cases, options.seed)
        until = None if options.minutes is None else begun + 60 * options.minutes
        work = Jobs(record, options.seed, len(left), given)
        try:
            work.run(groups(left, options.group, options.seed), options.jobs, until)
        except KeyboardInterrupt:
            print("crash-matrix: interrupted; run it again to go on", file=sys.stderr)
    results = list(record.results.values())
    text = f"{summary(results)}\n{table(results)}"
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    bad = [result for result in results if not result.good]
    for result in bad:
        print(f"FAILED {result.case}: {(result.problems or ['not reached'])[0][:300]}\n  {how_to_repeat(result)}")
    count = sum(not result.missed for result in results)
    print(f"{count} runs, {len(bad)} failed; written to {options.output.with_suffix('.md')}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
