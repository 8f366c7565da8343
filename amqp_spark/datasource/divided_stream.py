"""A stream reader whose queues are divided among several processes (option ``numReaders``).

One Python process receives on one core at most. Here each further process (:mod:`reader_process`) receives some of the
queues, with its own buffer and its own endpoint to pull from; executors pull from all of them. This process, which
Spark started, receives nothing: it passes the calls of Spark on, and joins the answers. A queue is always in the same
process, so that the offsets of the query are those of its parts together.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import TYPE_CHECKING, Any, Final, cast

from amqp_spark.datasource import driver_env
from amqp_spark.datasource.micro_batch_stream import IDLE_CALL_SECONDS, early_batch, key
from amqp_spark.datasource.reader_calls import Call, Task
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import ReaderLost
from amqp_spark.offsets import parse_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import InputPartition

    from amqp_spark.connect import Connector
    from amqp_spark.datasource.reader_calls import Answer
    from amqp_spark.options import SourceOptions

ANSWER_SECONDS: Final = 0.5
"""How long a call waits for a process that does not answer: a healthy one answers at once, and when Spark polls in
:data:`.IDLE_WAIT_SECONDS`."""
OTHERS_POLLED_SECONDS: Final = 0.005
"""How long a batch of one process waits for the others while Spark polls, so that they wait for messages themselves."""
OTHERS_BOUNDED_SECONDS: Final = 0.2
"""How long it waits for the others with AvailableNow, where they wait until they have whole batches."""
STOP_SECONDS: Final = 13.0
"""How long a process may take to stop."""

Offsets = dict[str, object]


def parts(options: SourceOptions) -> list[SourceOptions]:
    """Options of each process: its queues, and its share of what bounds the query."""
    count = options.readers
    most = options.max_messages_per_trigger
    return [
        replace(
            options,
            queues=tuple(sorted(options.queues)[index::count]),
            max_messages_per_trigger=None if most is None else (most + index) // count,
            max_bytes_per_trigger=max(1, options.max_bytes_per_trigger // count),
            buffer_bytes=max(1, options.buffer_bytes // count),
            transfer_port=options.transfer_port and options.transfer_port + index,
        )
        for index in range(count)
    ]


class DividedStream:
    """One run of a reader, as :class:`.MicroBatchStream`. Used by one thread."""

    def __init__(self, options: SourceOptions, connector: Connector, *, bounded: bool) -> None:
        self._options = options
        self._bounded = bounded
        self._watch = driver_env.watch_parent()
        if options.query_checkpoint is not None:
            driver_env.stop_in_order()
        settings = driver_env.spark_settings()
        self._readers: list[_Reader] = []
        try:
            for part in parts(options):
                self._readers.append(_Reader(Task(part, connector, bounded, settings, os.getpid())))
        except BaseException:
            self.stop()
            raise
        self._uncommitted: set[str] = set()
        """Ends that were offered to Spark and not committed."""
        self._last_idle = float("-inf")
        self._begins = True
        """Whether Spark has not yet asked for new messages."""

    def latest_offset(self, start: Mapping[str, object]) -> dict:  # type: ignore[type-arg]
        """See :meth:`AmqpStreamReader.latestOffset`. A process that has no answer in time gives it to a later call."""
        parse_offsets(start, self._options.queues)
        begun = time.monotonic()
        patience, until = ANSWER_SECONDS, begun + ANSWER_SECONDS
        if self._bounded:
            patience, until = OTHERS_BOUNDED_SECONDS, math.inf
        elif self._begins:  # it waits for all: with an interval trigger, the next call comes an interval later
            patience = until = math.inf
        elif begun - self._last_idle < IDLE_CALL_SECONDS:
            patience = OTHERS_POLLED_SECONDS
        for reader in self._readers:
            reader.ask(start)
        has_news = False
        while True:
            if not has_news and any(reader.has_news for reader in self._readers):  # perhaps of before this call
                has_news, until = True, time.monotonic() + patience
            waiting = {reader.pipe: reader for reader in self._readers if reader.asked}
            left = None if until == math.inf else max(0.0, until - time.monotonic())
            if not waiting or not (answered := wait(list(waiting), left)):
                break
            for pipe in answered:
                waiting[cast("Connection", pipe)].take_answer()
        self._begins = False
        end = dict(start)
        for reader in self._readers:
            end |= reader.give()
        if end == start:
            self._last_idle = time.monotonic()
        else:
            self._uncommitted.add(key(parse_offsets(end, self._options.queues)))
        return end

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """See :meth:`AmqpStreamReader.partitions`."""
        starts = parse_offsets(start, self._options.queues)
        parse_offsets(end, self._options.queues)
        if start != end and key(starts) in self._uncommitted:
            raise early_batch()
        with_batch = [reader for reader in self._readers if reader.of(start) != reader.of(end)]
        for reader in self._readers:
            if reader in with_batch:
                reader.call("partitions", reader.of(start), reader.of(end))
            elif self._begins:  # a batch of an earlier run comes first: all receive from now on
                reader.call("begin", reader.of(end))
                reader.answer()
        return [partition for reader in with_batch for partition in cast("list[InputPartition]", reader.answer())]

    def commit(self, end: Mapping[str, object]) -> None:
        """See :meth:`AmqpStreamReader.commit`."""
        self._uncommitted.discard(key(parse_offsets(end, self._options.queues)))
        for reader in [reader for reader in self._readers if reader.commit(reader.of(end))]:
            reader.answer()

    def report(self) -> dict | None:  # type: ignore[type-arg]
        """See :meth:`AmqpStreamReader.reportLatestOffset`: as each process had it when it answered last."""
        entries: dict[str, dict[str, Any]] = {}
        for reader in self._readers:
            if reader.report is None:
                return None
            entries |= reader.report
        whole = {"bufferBytes": self._options.buffer_bytes}
        return {queue: entry | {"metrics": entry["metrics"] | whole} for queue, entry in sorted(entries.items())}

    def stop(self) -> None:
        """See :meth:`AmqpStreamReader.stop`."""
        self._watch.pause_for(driver_env.STOPPING_SECONDS)
        for reader in self._readers:
            reader.end()
        deadline = time.monotonic() + STOP_SECONDS
        for reader in self._readers:
            reader.join(deadline)


class _Reader:
    """A further process, which begins to receive with its first call.

    Attributes:
        asked: whether it was asked for a batch and has not answered.
        report: its last one.
    """

    def __init__(self, task: Task) -> None:
        self._queues = task.options.queues
        self.pipe, other = Pipe()
        command = [sys.executable, "-P", "-m", "amqp_spark.datasource.reader_process", str(other.fileno())]
        # The reader's own search path: Spark extends it after the start. The options, with the login, are in the pipe.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with other:
            try:
                self._process = subprocess.Popen(  # noqa: S603  our own program
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(other.fileno(),),
                )
            except OSError as error:
                self.pipe.close()
                raise self._error(f"could not be started: {error.strerror or error}") from error
        self.asked = False
        self.report: dict[str, dict[str, Any]] | None = None
        self._start: Offsets = {}
        self._found: Offsets | None = None
        """The answer to the call for a batch, if Spark has not got it."""
        self._committed: Offsets = {}
        self._waiting_commit: Offsets | None = None
        self._send(task)

    def of(self, offsets: Mapping[str, object]) -> Offsets:
        """The offsets of its queues."""
        return {queue: offsets[queue] for queue in self._queues}

    @property
    def has_news(self) -> bool:
        """Whether it has answered with a batch that Spark has not got."""
        return self._found is not None and self._found != self._start

    def ask(self, start: Mapping[str, object]) -> None:
        """Call for a batch, if there is neither a call nor a batch: its start moves with its own answers only.

        An answer that there is none is as old as its call, and asked for again.
        """
        if self.asked and self.pipe.poll():
            self.take_answer()
        if self._found is not None and not self.has_news:
            self._found = None
        if not self.asked and self._found is None:
            self._start = self.of(start)
            self._send(Call("latest_offset", (self._start,)))
            self.asked = True

    def take_answer(self) -> None:
        """Wait for the answer to the call for a batch, if there is one."""
        if self.asked:
            self.asked = False
            self._found = cast("Offsets", self.answer())
            if self._waiting_commit is not None:
                committed, self._waiting_commit = self._waiting_commit, None
                if self.commit(committed):
                    self.answer()

    def give(self) -> Offsets:
        """The end of its batch, for Spark; its start if it has none, nothing if it has not answered."""
        found, self._found = self._found, None
        return found or {}

    def commit(self, end: Offsets) -> bool:
        """Pass on a commit of Spark, unless it is the last one again; return whether the process will answer. One that
        has not answered accepts already, since it was asked with these offsets, and gets the call after its answer."""
        if end == self._committed:
            return False
        if self.asked:
            self._waiting_commit = end
            return False
        self._committed = end
        self.call("commit", end)
        return True

    def call(self, name: str, *offsets: Offsets) -> None:
        """Make another call; its :meth:`answer` must be taken."""
        self.take_answer()
        self._send(Call(name, offsets))

    def answer(self) -> object:
        """Wait for the answer to a call; raise its error."""
        try:
            answer: Answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if answer.error is not None:
            raise answer.error
        self.report = cast("dict[str, dict[str, Any]] | None", answer.report)
        return answer.value

    def end(self) -> None:
        """Tell the process to stop, also in the middle of a call."""
        self._process.terminate()

    def join(self, deadline: float) -> None:
        """Wait until the process has ended; end it at the deadline. Its unaccepted messages go back to the broker."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.pipe.close()

    def _send(self, message: object) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            raise self._lost() from None

    def _lost(self) -> ReaderLost:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            how = "closed its pipe"
        else:
            how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
        return self._error(how)

    def _error(self, how: str) -> ReaderLost:
        return ReaderLost(SparkCondition.READER_LOST(queues=", ".join(map(repr, self._queues)), how=how))
