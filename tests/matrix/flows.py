"""Runs a group of cases: to the point, the strike, again to the next one, and then to the end."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import psutil

from tests.broker.stream_support import subscribers
from tests.matrix import leftovers
from tests.matrix.cases import (
    ABSENCE,
    BROKER,
    COMMITTER,
    CONNECTION,
    DRIVER,
    END,
    EXPIRE,
    FREEZE,
    LAPSE,
    MEMORY_BROKER,
    ORPHAN,
    PAUSE,
    POINTS,
    READER,
    TOGETHER,
    WORKER,
)
from tests.matrix.subjects import SHORT_TIMEOUT_S, Subject
from tests.support import checkpoints
from tests.support.process import wait_until
from tests.support.query_process import QueryProcessFailed, is_slow_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.matrix.place import Place

_POLL_S = 0.03
_REACH_S = 90.0
_END_S = 150
_AT_ONCE = 2
_MOST_RESTARTS = 5


def shortened(text: str, most: int = 4000) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= most else f"{text[: most // 2]}\n[...]\n{text[-most // 2 :]}"


class Group:
    """Running cases whose steps have the same victims."""

    def __init__(self, place: Place, subjects: Sequence[Subject]) -> None:
        self._place = place
        self._driver = place.driver
        self._points = place.points
        self._subjects = subjects

    def run(self) -> None:
        """Strike every query as often as its case says, and drain it."""
        steps = len(self._subjects[0].case.steps)
        while any(subject.step < steps for subject in self._subjects):
            waiting = [subject for subject in self._subjects if self._advances(subject)]
            if not waiting:
                break
            self._strike_together(waiting, waiting[0].case.steps[waiting[0].step].victim)
            for subject in waiting:
                subject.step += 1
        self._points.disarm()
        self._drain()

    # -- to the point --------------------------------------------------------------------------------------

    def _advances(self, subject: Subject) -> bool:
        try:
            return self._advance(subject)
        except (QueryProcessFailed, AssertionError, TimeoutError, psutil.Error) as error:
            subject.problems.append(f"the run broke off: {shortened(repr(error) + str(error))}")
            subject.step = len(subject.case.steps)
            return False

    def _advance(self, subject: Subject) -> bool:
        """Continue until the query must wait for the others; return False if it has completed all its steps."""
        steps = subject.case.steps
        while subject.step < len(steps):
            step = steps[subject.step]
            if step.point == END:
                self._to_the_end(subject)
                return True
            if not self._reach(subject, step.point):
                subject.missed.append(step.point)
                subject.step = len(steps)
                return False
            if step.victim in TOGETHER:
                return True
            self._strike(subject, step.victim)
            subject.step += 1
        if subject.started:
            self._finish(subject)  # it survives, and would pass the points of the next case
        return False

    def _arm(self, subject: Subject, index: int) -> None:
        point = subject.case.steps[index].point
        if point != END:
            action = "kill" if subject.kills_itself(index) else "wait"
            self._points.arm(point, action=action, after=subject.plan.after[index])

    def _reach(self, subject: Subject, point: str) -> bool:
        """Run until a process of the query is at the point; return False if the query ends before."""
        if not subject.started:
            self._arm(subject, subject.step)
            self._start(subject)
        subject.held = None
        deadline = time.monotonic() + _REACH_S
        others = {each.reader for each in self._subjects if each is not subject}
        while (held := self._points.take(point)) is None or held in others:
            if held is not None:  # another query, which must wait elsewhere, passed it
                self._points.release(point, held)
                self._arm(subject, subject.step)
            active, error = self._driver.status(subject.query)
            if not active:
                if error is not None and self._again(subject, error):
                    continue
                self._points.unarm(point)
                return (held := self._points.take(point)) is not None and self._hold(subject, held)
            if time.monotonic() > deadline:
                self._points.unarm(point)
                return False
            time.sleep(_POLL_S)
        return self._hold(subject, held)

    def _hold(self, subject: Subject, held: int) -> bool:
        subject.held = held
        if POINTS[subject.case.steps[subject.step].point].where == READER:
            subject.reader = held  # for certain; among the others may be one of a query that has just ended
        elif subject.case.reads:
            known = {each.reader for each in self._subjects}
            subject.reader = max((pid for pid in self._driver.readers() if pid not in known), default=subject.reader)
        return True

    def _start(self, subject: Subject) -> None:
        """Start a query that is to be struck."""
        if subject.struck:
            subject.restarts += 1
        subject.reader = None
        self._driver.start_query(subject.query, **subject.trigger)
        subject.started, subject.ending = True, subject.plan.available_now
        subject.behind = False

    def _again(self, subject: Subject, error: str) -> bool:
        """Restart a failed query, unless it fails too often."""
        if self._counts(subject, error):
            subject.errors.append(error)
        if len(subject.errors) > _MOST_RESTARTS:
            return False
        self._start(subject)
        return True

    def _counts(self, subject: Subject, error: str) -> bool:
        """Whether an error counts against the query. A checkpoint without a logged batch is deleted, as Spark asks."""
        if is_slow_start(error):
            return False
        if not checkpoints.is_refused(error):
            return True
        reason = checkpoints.forget(subject.query.checkpoint)
        if reason is not None and reason not in subject.problems:
            subject.problems.append(reason)
        return reason is not None

    def _to_the_end(self, subject: Subject) -> None:
        """Let an AvailableNow query end by itself."""
        while True:
            if not subject.started:
                self._start(subject)
            error = self._driver.wait(subject.query, _END_S)
            subject.started = False
            if error is None:
                return
            if self._counts(subject, error):
                subject.errors.append(error)
                if len(subject.errors) > _MOST_RESTARTS:
                    subject.problems.append(f"it fails without having been struck: {error[-600:]}")
                    return

    # -- strikes -------------------------------------------------------------------------------------------

    def _strike(self, subject: Subject, victim: str) -> None:
        """Strike one query alone; the others wait at their points, in other processes or threads."""
        point, held = subject.case.steps[subject.step].point, subject.held
        assert held is not None
        last = subject.step + 1 == len(subject.case.steps)
        if not last:
            self._arm(subject, subject.step + 1)
        subject.struck = True
        subject.begun_s = time.monotonic()
        subject.abort_flag.unlink(missing_ok=True)
        if subject.kills_itself(subject.step):
            pass
        elif victim == READER:
            assert subject.reader is not None, "the query has a reader"
            self._driver.kill(subject.reader)
            if held != subject.reader:
                self._points.release(point, held)
        elif victim in {WORKER, COMMITTER}:
            assert held != self._driver.pid, "no worker is at the point"
            self._driver.kill(held)
        elif victim == CONNECTION:
            self._place.proxy.cut_all()
            self._points.release(point, held)
        elif victim == EXPIRE:
            time.sleep(_longer_than_timers())
            self._points.release(point, held)
        else:
            raise AssertionError(victim)
        subject.held = None
        self._late(subject)
        if victim == READER:
            error = self._driver.wait(subject.query, _END_S)
            subject.started = False
            if error is None and not subject.plan.available_now:  # it may have been at its end
                subject.problems.append("the query ended without an error although its reader was killed")

    def _late(self, subject: Subject) -> None:
        subject.send_late(self._place.client(subject.vhost))
        subject.behind = not subject.case.reads and bool(subject.plan.late)

    def _strike_together(self, subjects: Sequence[Subject], victim: str) -> None:
        if victim in {DRIVER, ABSENCE, LAPSE}:
            self._kill_driver(subjects, victim)
        elif victim in {BROKER, MEMORY_BROKER}:
            self._kill_broker(subjects)
        elif victim == FREEZE:
            self._freeze(subjects)
        elif victim == ORPHAN:
            self._orphan(subjects)
        elif victim == PAUSE:
            time.sleep(_longer_than_timers())
            for subject in subjects:
                self._place.client(subject.vhost)
                subject.late_sent = False
                self._late(subject)
                subject.struck = True
        else:
            raise AssertionError(victim)
        for subject in subjects:
            subject.held = None
            subject.begun_s = time.monotonic()

    def _kill_driver(self, subjects: Sequence[Subject], victim: str) -> None:
        self._driver.kill_driver(timeout_s=1.0)  # a worker that waits at a point does not notice the end of its JVM
        self._points.disarm()
        self._nothing_runs()
        for subject in subjects:
            subject.struck = True
            self._late(subject)
        if victim == ABSENCE:
            time.sleep(_longer_than_timers())
        elif victim == LAPSE:
            for subject in subjects:
                self._lapse(subject)
        self._driver.start()

    def _lapse(self, subject: Subject) -> None:
        """Wait until the timers of the writer's prepared branches end, decided or not."""
        client = self._place.client(subject.vhost)
        for xid in leftovers.prepared_of(client.transactions.recover(), subject.name):
            client.transactions.set_timeout(xid, 1)
        wait_until(lambda: not leftovers.of_branches(client, subject.name), "the end of prepared transactions", 30)

    def _nothing_runs(self) -> None:
        """Mark all queries as ended, including those that were not struck: the driver is gone."""
        for subject in self._subjects:
            subject.started = False

    def _kill_broker(self, subjects: Sequence[Subject]) -> None:
        broker = self._place.broker
        young_until = max(subject.declared_at for subject in self._subjects) + self._place.server.settles_s
        time.sleep(max(0.0, young_until - time.monotonic()))  # a young quorum queue may lose what it has confirmed
        broker.kill9()
        self._place.forget_clients()
        broker.start()
        for subject in self._subjects:
            if not subject.plan.durable:
                subject.declare(self._place.client(subject.vhost))
        for subject in subjects:
            subject.struck = True
            self._late(subject)
        for subject in subjects:
            self._go_on(subject)

    def _go_on(self, subject: Subject) -> None:
        """Release the processes at the point of this step, with the next one armed."""
        following = subject.step + 1
        if following < len(subject.case.steps):
            assert len(self._subjects) == 1, "a point that several pass can be armed for one of them only"
            self._arm(subject, following)
        if subject.held is not None:
            self._points.release(subject.case.steps[subject.step].point, subject.held)

    def _freeze(self, subjects: Sequence[Subject]) -> None:
        frozen = []
        for subject in subjects:
            assert subject.reader is not None
            process = psutil.Process(subject.reader)
            process.suspend()
            frozen.append(process)
        try:
            for subject in subjects:
                wait_until(partial(self._is_dropped, subject), "the broker to drop a reader", 60)
                subject.struck = True
                self._late(subject)
        finally:
            for process in frozen:
                process.resume()
        for subject in subjects:
            self._go_on(subject)

    def _is_dropped(self, subject: Subject) -> bool:
        client = self._place.client(subject.vhost)
        if subscribers(client, subject.source_queue):
            return False
        return not leftovers.is_locked(client, subject.consumer)

    def _orphan(self, subjects: Sequence[Subject]) -> None:
        """Start the successor while the broker still considers the orphan alive; the orphan wakes while it works."""
        orphans = []
        for subject in subjects:
            assert subject.reader is not None
            process = psutil.Process(subject.reader)
            process.suspend()
            orphans.append(process)
        self._driver.kill_driver(timeout_s=1.0, spare={process.pid for process in orphans})
        self._driver.start()
        self._nothing_runs()
        for subject in subjects:
            subject.struck = True
            self._late(subject)
        early = subjects[0].plan.late > 0  # by the seed: before or after the takeover
        for number, subject in enumerate(subjects):
            subject.begun_s = time.monotonic()
            self._driver.start_query(subject.query, availableNow=True)
            subject.started = subject.ending = True
            subject.restarts += 1
            if not early:
                self._finish(subject)
            if early or number + 1 == len(subjects):
                for process in [orphans[number]] if early else orphans:
                    process.resume()
        self._points.disarm()
        _gone, left = psutil.wait_procs(orphans, 30)
        for process in left:
            subjects[0].problems.append("an orphan reader has not ended 30 s after it woke up")
            process.kill()

    # -- to the end ----------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Run all queries until their data is drained, a few at once."""
        waiting = deque(self._subjects)
        running: deque[Subject] = deque()
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                subject = waiting.popleft()
                subject.abort_flag.unlink(missing_ok=True)
                if subject.recover_s is None and not (subject.started and subject.ending):
                    self._restart(subject)
                running.append(subject)
            self._finish(running.popleft())

    def _restart(self, subject: Subject) -> None:
        if subject.started:  # it has survived, and does not end by itself
            self._driver.stop_query(subject.query)
        subject.begun_s = subject.begun_s if subject.started else time.monotonic()
        subject.restarts += 1
        self._driver.start_query(subject.query, availableNow=True)
        subject.started = subject.ending = True
        subject.behind = False

    def _finish(self, subject: Subject) -> None:
        """Wait until an AvailableNow query has ended, and restart it as long as data is left."""
        if subject.recover_s is not None:
            return
        for _ in range(_MOST_RESTARTS):
            try:
                error = self._driver.wait(subject.query, _END_S)
            except QueryProcessFailed as failure:
                subject.problems.append(f"it does not end: {failure}"[:4000])
                self._driver.stop_query(subject.query)
                break
            subject.started = False
            if error is None and not self._has_left(subject):
                break
            if error is not None and self._counts(subject, error):
                subject.errors.append(error)
                if MEMORY_BROKER in subject.case.victims and len(subject.errors) > 1:
                    break  # it cannot continue: the lost data is judged by its error
            subject.restarts += 1
            self._driver.start_query(subject.query, availableNow=True)
            subject.behind = False
        else:
            subject.problems.append(f"not drained after {subject.restarts} starts: {subject.errors[-1:]}")
        subject.recover_s = round(time.monotonic() - subject.begun_s, 2) if subject.struck else 0.0

    def _has_left(self, subject: Subject) -> bool:
        if not subject.case.reads:
            return subject.behind
        if subject.server.log:  # reading it removes nothing
            return subject.copies(self._place.client(subject.vhost)).total() < subject.sent
        info = self._place.client(subject.vhost).query_queue(subject.source_queue)
        return bool(info is not None and info.message_count)


def _longer_than_timers() -> float:
    """Seconds that exceed all timers: the short transaction timeout of these cases is the longest."""
    return SHORT_TIMEOUT_S + 2.0
