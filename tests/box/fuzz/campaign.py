"""Feeds mutated sessions to one broker, and checks after each that it harmed nobody."""

from __future__ import annotations

import gc
import itertools
import resource
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from amqp_core.broker.server import WIRES
from amqp_core.broker.store.store import Store
from tests.box.fuzz.mutating import STAGES, mutated, pieces
from tests.box.fuzz.places import Place, Side, Witness
from tests.box.fuzz.side_0_9 import Side09
from tests.box.fuzz.side_0_10 import Side010

if TYPE_CHECKING:
    from collections.abc import Callable

SIDES: Final[tuple[Side, ...]] = (Side09(), Side010())
KINDS: Final = tuple(itertools.product(SIDES, STAGES))
RESTART_EVERY: Final = 1000
_WARM: Final = 0.1


class Harm(AssertionError):
    """An input did what it must not do; the text says which input, and what."""


@dataclass
class Report:
    """What a campaign has seen.

    Attributes:
        inputs: numbers by protocol and stage.
        errors: numbers of errors that the broker sent to the clients that deserved them.
        start_kib, end_kib: resident memory after the first tenth, and at the end.
        peak_kib: the most at any time.
    """

    inputs: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    start_kib: int = 0
    end_kib: int = 0
    peak_kib: int = 0


class Campaign:
    """Inputs of one seed: the same each time, and each independent of those before it.

    Args:
        store: file that keeps what is durable; the broker is started again from it every thousand inputs.
    """

    def __init__(self, seed: int, store: Path | None = None) -> None:
        self._seed = seed
        self._path = store
        self._store: Store | None = None
        self.report = Report()
        self._start()

    def run(self, numbers: range, progress: Callable[[int], None] = lambda _: None) -> Report:
        """Feed the inputs with these numbers.

        Raises:
            Harm: one did what it must not do.
        """
        warm = numbers.start + int(len(numbers) * _WARM)
        for number in numbers:
            if number == warm:
                self.report.start_kib = resident_kib()
            if self._path is not None and number % RESTART_EVERY == RESTART_EVERY - 1:
                self._restart()
            try:
                self._feed(number)
            except Exception as error:
                repeat = f"--seed {self._seed} --first {number} --inputs 1"
                raise Harm(f"{type(error).__name__}: {error} (again with {repeat})") from error
            progress(number)
        self.report.end_kib = resident_kib()
        self.report.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return self.report

    def close(self) -> None:
        """Let go of the store."""
        if self._store is not None:
            self._store.close()

    def _start(self) -> None:
        if self._path is not None:
            self._store = Store(self._path, WIRES, now=1_000_000.0)
        self._place = Place(None if self._store is None else self._store.host("/"))
        self._witnesses: list[Witness] = [side.witness(self._place) for side in SIDES]
        self._queues = [witness.queue for witness in self._witnesses]

    def _restart(self) -> None:
        """End the process, as it were, and begin anew with what the store has."""
        self.close()
        self._start()
        self._place.tidy(self._queues)

    def _feed(self, number: int) -> None:
        side, stage = KINDS[number % len(KINDS)]
        chance = Random(f"{self._seed} {number}")
        data = mutated(side.script(chance), stage, chance)
        self.report.inputs[f"{side.name} {stage}"] += 1
        answer = self._send(side, data, chance)
        for error in side.errors(answer):
            self.report.errors[f"{side.name} {stage}: {error}"] += 1
        self._look(number)

    def _send(self, side: Side, data: bytes, chance: Random) -> bytes:
        """What the broker answers to an input, until it has closed the connection or all is sent."""
        place, answers = self._place, []
        bad = side.connect(place)
        for piece in pieces(data, chance):
            bad.receive(piece)
            answers.append(bad.take_bytes())
            self._commit()
            bad.written()
            answers.append(bad.take_bytes())
            if bad.is_over or bad.is_closing:
                break
        place.pass_time()
        answers.append(bad.take_bytes())
        bad.lost()
        self._commit()
        return b"".join(answers)

    def _look(self, number: int) -> None:
        """Each witness sends a message to the next one; nothing is left of the input."""
        host = self._place.host
        body = b"still here %d" % number
        for witness, target in zip(self._witnesses, self._queues[1:] + self._queues[:1], strict=True):
            witness.publish(target, body)
        for witness in self._witnesses:
            wrong = witness.check(body)
            assert not wrong, f"the client at '{witness.queue}': {wrong}"
        for queue in host.queues.values():
            consumers = 1 if queue.name in self._queues else 0
            assert queue.consumer_count == consumers, f"queue '{queue.name}' has {queue.consumer_count} consumers"
            assert not queue.unsettled_count, f"queue '{queue.name}' has messages that nobody holds"
        self._place.tidy(self._queues)
        self._commit()

    def _commit(self) -> None:
        if self._store is not None:
            self._store.commit()


def resident_kib() -> int:
    """Memory of this process, when all that can be freed is free."""
    gc.collect()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])
