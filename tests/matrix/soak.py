"""``python -m tests.matrix.soak --minutes N``: a publisher, an exactly-once query over two queues, and a random killer.

Ids that the publisher does not know the outcome of, since its broker was killed, may arrive or not, but not twice;
every other one must arrive exactly once, with the bytes that were published. Exit code 1: they did not, or something
is left.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil
from tqdm import tqdm

from amqp_core.errors import AmqpError, OutcomeUnknown
from amqp_spark.state.names import CONSUMER, WRITER, Names
from tests.broker.stream_support import depth
from tests.matrix import leftovers
from tests.matrix.ledger import Ledger, body_of
from tests.matrix.place import Place
from tests.matrix.servers import BROKER_J, publish
from tests.support import checkpoints
from tests.support.query_process import Chain, QueryProcessFailed, is_slow_start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.api import Client

NAME = "soak"
SOURCE_QUEUES, TARGET_QUEUE = ("soak-in-a", "soak-in-b"), "soak-out"
VHOST = "durable"
HEARTBEAT_S = 2
VICTIMS = ("driver", "reader", "worker", "broker", "connection", "freeze")
_PER_CONFIRM = 20
_MOST_WAITING = 20_000
"""Maximum number of waiting messages: the publisher must not outrun a query that is killed all the time."""


class Publisher(threading.Thread):
    """Publishes ids without gaps at a steady rate, to random queues, until it is stopped."""

    def __init__(self, place: Place, ledger: Ledger, rate: float, seed: int) -> None:
        super().__init__(name="soak-publisher", daemon=True)
        self._place = place
        self._ledger = ledger
        self._pause_s = _PER_CONFIRM / rate
        self._random = random.Random(f"queues {seed}")
        self.stopping = threading.Event()
        self.next = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - the main thread tells
            self.failure = error

    def _run(self) -> None:
        client: Client | None = None
        while not self.stopping.wait(self._pause_s):
            numbers = range(self.next, self.next + _PER_CONFIRM)
            try:
                if client is None:
                    client = BROKER_J.connect(self._place.broker, VHOST)
                if waiting(client) > _MOST_WAITING:
                    continue
                self.next = numbers.stop
                publish(client, self._random.choice(SOURCE_QUEUES), map(body_of, numbers), durable=True)
            except (AmqpError, OutcomeUnknown, OSError):
                if self.next == numbers.stop:
                    self._ledger.unsure.update(numbers)
                if client is not None:
                    with contextlib.suppress(AmqpError):
                        client.discard()
                client = None
                self.stopping.wait(0.2)
            else:
                self._ledger.sure.update(numbers)
        if client is not None:
            client.close()


def waiting(client: Client) -> int:
    """Number of messages in the source queues."""
    return sum(depth(client, queue) for queue in SOURCE_QUEUES)


class Soak:
    """The query and its random killer."""

    def __init__(self, place: Place, entry: str, seed: int) -> None:
        self._place = place
        self._driver = place.driver
        self._random = random.Random(seed)
        self.ledger = Ledger()
        self.kills: Counter[str] = Counter()
        self.starts = 0
        self.forgotten = 0
        self.errors: list[str] = []
        self.problems: list[str] = []
        common = {
            "url": f"amqp://127.0.0.1:{place.proxy.port}/{VHOST}",
            "username": place.broker.username,
            "password": place.broker.password,
            "heartbeat": str(HEARTBEAT_S),
            "retry.maxAttempts": "200",
            "retry.maxDelay": "0.5",
            "deliveryGuarantee": "exactly-once",
        }
        self._query = Chain(
            name=NAME,
            entry=entry,
            source=common
            | {
                "queue": ",".join(SOURCE_QUEUES),
                "consumerId": NAME,
                "spoolLocation": str(place.directory / "spool"),
                "maxMessagesPerTrigger": "2000",
            },
            options=common | {"routingKey": TARGET_QUEUE, "transactionalId": NAME},
            directory=place.directory,
        )

    def keep_running(self) -> None:
        """Start the query if it does not run."""
        if not self._driver.running:
            self._driver.start()
            self._start()
            return
        try:
            active, error = self._driver.status(self._query)
        except QueryProcessFailed as failure:
            self.errors.append(str(failure))
            self._driver.kill_driver(timeout_s=1.0)
            return
        if not active:
            self._note(error)
            self._start()

    def _note(self, error: str | None) -> None:
        """Record why the query has ended. A checkpoint without a logged batch is deleted, as Spark requires."""
        if checkpoints.is_refused(error):
            reason = checkpoints.forget(self._query.checkpoint)
            if reason is None:
                self.forgotten += 1
                return
            self.problems = [reason]  # it would recur at every start
        if error is not None and not is_slow_start(error):
            self.errors.append(error)

    def _start(self) -> None:
        self.starts += 1
        self._driver.start_query(self._query)

    def kill(self) -> str:
        """Kill a random victim."""
        able: dict[str, Callable[[], bool]] = {
            "driver": self._kill_driver,
            "reader": self._kill_reader,
            "worker": self._kill_worker,
            "broker": self._kill_broker,
            "connection": self._cut,
            "freeze": self._freeze,
        }
        victim = self._random.choice(VICTIMS)
        if able[victim]():
            self.kills[victim] += 1
        return victim

    def _kill_driver(self) -> bool:
        self._driver.kill_driver(timeout_s=2.0)
        return True

    def _kill_reader(self) -> bool:
        readers = self._driver.readers()
        return bool(readers) and self._kill_process(readers[0])

    def _kill_worker(self) -> bool:
        workers = self._driver.workers()
        return bool(workers) and self._kill_process(self._random.choice(workers))

    def _kill_process(self, pid: int) -> bool:
        try:
            self._driver.kill(pid)
        except psutil.NoSuchProcess:
            return False
        return True

    def _kill_broker(self) -> bool:
        self._place.broker.kill9()
        self._place.forget_clients()
        self._place.broker.start()
        return True

    def _cut(self) -> bool:
        self._place.proxy.cut_all()
        return True

    def _freeze(self) -> bool:
        """Suspend the reader for longer than the broker waits for it, or a little less."""
        frozen = []
        for pid in self._driver.readers():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                process.suspend()
                frozen.append(process)
        time.sleep(HEARTBEAT_S * self._random.uniform(0.5, 3.5))
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        return bool(frozen)

    def collect(self) -> None:
        """Receive the published messages; the broker is not killed meanwhile."""
        client = self._place.client(VHOST)
        count = depth(client, TARGET_QUEUE)
        if count:
            subscription = client.subscribe(TARGET_QUEUE, accept=False)
            subscription.grant(count)
            subscription.flush()  # messages in a transaction are counted, but not delivered
            found: list[bytes] = []
            while (message := subscription.take_one(timeout=0.0)) is not None:
                found.append(message.body)
            subscription.cancel()
            self.ledger.take(found)

    def drain(self) -> None:
        """Run the query until its data is drained."""
        for _ in range(20):
            if not self._driver.running:
                self._driver.start()
            else:
                with contextlib.suppress(QueryProcessFailed):
                    self._driver.stop_query(self._query)
            try:
                self._driver.start_query(self._query, availableNow=True)
                error = self._driver.wait(self._query, 300)
            except QueryProcessFailed as failure:
                error = str(failure)
            self._note(error)
            if error is None and not waiting(self._place.client(VHOST)):
                return
        raise AssertionError(f"the query does not come to an end: {''.join(self.errors[-1:])[:2000]}")

    def left(self) -> list[str]:
        """Leftovers at the end."""
        client = self._place.client(VHOST)
        found = []
        for index in range(len(SOURCE_QUEUES)):
            found += leftovers.of_consumer(client, Names(CONSUMER, NAME, index))
        found += leftovers.of_writer(client, Names(WRITER, NAME))
        found += leftovers.of_branches(client, NAME)
        return found + leftovers.of_spool(self._place.directory / "spool")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m tests.matrix.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--minutes", type=float, default=10.0, help="how long the killer is at it (default: 10)")
    arguments.add_argument("--seed", type=int, default=None, help="of the killer (default: another one each time)")
    arguments.add_argument("--rate", type=float, default=100.0, help="messages per second (default: 100)")
    arguments.add_argument("--pause", type=float, default=15.0, help="most seconds between two kills (default: 15)")
    arguments.add_argument("--entry", choices=("stream", "foreachBatch"), default="stream", help="how it publishes")
    return arguments


def run(options: argparse.Namespace, seed: int) -> list[str]:
    """Run the soak; return the problems found."""
    moments = random.Random(f"moments {seed}")
    with Place(slots=4) as place:
        soak = Soak(place, options.entry, seed)
        for queue in (*SOURCE_QUEUES, TARGET_QUEUE):
            place.client(VHOST).declare_queue(queue, durable=True)
        publisher = Publisher(place, soak.ledger, options.rate, seed)
        publisher.start()
        end = time.monotonic() + 60 * options.minutes
        bar = tqdm(total=round(60 * options.minutes), unit="s", file=sys.stderr, dynamic_ncols=True)
        while (begun := time.monotonic()) < end and publisher.failure is None:
            soak.keep_running()
            pause = begun + moments.uniform(1.0, options.pause)
            while time.monotonic() < min(pause, end):
                time.sleep(0.5)
                soak.collect()
                soak.keep_running()
            soak.kill()
            bar.update(round(time.monotonic() - begun))
            ledger = soak.ledger
            shown = {"published": len(ledger.sure), "arrived": ledger.arrived.total(), "starts": soak.starts}
            bar.set_postfix(shown | soak.kills)
        publisher.stopping.set()
        publisher.join(60)
        bar.close()
        soak.drain()
        soak.collect()
        problems = soak.ledger.problems() + soak.problems + soak.left()
        if publisher.failure is not None:
            problems.append(f"the publisher failed: {publisher.failure!r}")
        if problems:
            print(place.driver.log(20_000), file=sys.stderr)
            print("\n".join(error[:2000] for error in soak.errors[-5:]), file=sys.stderr)
    kills = ", ".join(f"{count} x {victim}" for victim, count in sorted(soak.kills.items()))
    ledger = soak.ledger
    print(
        f"soak: {len(ledger.sure)} published, {len(ledger.unsure)} with unknown outcome, {ledger.arrived.total()} "
        "arrived; "
        f"{soak.kills.total()} kills ({kills}), {soak.starts} starts of the query, {len(soak.errors)} errors of it, "
        f"{soak.forgotten} checkpoints deleted in which nothing was logged"
    )
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak from the command line; return the exit code."""
    options = parser().parse_args(argv)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    problems = run(options, seed)
    for problem in problems:
        print(f"soak: {problem}")
    print(f"soak: {'FAILED' if problems else 'exactly once'} (--seed {seed})")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
