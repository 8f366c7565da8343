"""The points themselves: off without the environment, owned by one process, counted per process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from amqp_spark import crashpoints
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints

if TYPE_CHECKING:
    from collections.abc import Iterator

PASS = "from amqp_spark import crashpoints; [crashpoints.reached('read-mid') for _ in range(3)]"


@pytest.fixture
def points() -> Iterator[CrashPoints]:
    points = CrashPoints()
    yield points
    points.close()


def process(points: CrashPoints) -> subprocess.Popen[bytes]:
    """Passes a point three times."""
    environment = os.environ | {crashpoints.VARIABLE: str(points.directory)}
    return subprocess.Popen([sys.executable, "-c", PASS], env=environment)


def test_without_the_environment_a_point_is_nothing() -> None:
    code = "from amqp_spark import crashpoints; print(crashpoints.reached.__name__)"
    environment = {key: value for key, value in os.environ.items() if key != crashpoints.VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "_nothing\n"


def test_a_point_that_is_not_armed_is_passed(points: CrashPoints) -> None:
    points.arm(crashpoints.READ_STARTED, action="kill")
    assert process(points).wait(30) == 0


def test_kill(points: CrashPoints) -> None:
    points.arm(crashpoints.READ_MID, action="kill", after=2)
    assert process(points).wait(30) == -signal.SIGKILL
    assert process(points).wait(30) == 0, "a point is used up by the first that is there"


def test_passed_fewer_times_than_asked_for(points: CrashPoints) -> None:
    points.arm(crashpoints.READ_MID, action="kill", after=3)
    assert process(points).wait(30) == 0


def test_wait(points: CrashPoints) -> None:
    points.arm(crashpoints.READ_MID)
    child = process(points)
    wait_until(lambda: any(points.directory.glob("*.reached")), "the child to be there")
    assert points.take(crashpoints.READ_MID) == child.pid
    assert points.take(crashpoints.READ_MID) is None, "it is taken once"
    assert child.poll() is None
    points.release(crashpoints.READ_MID, child.pid)
    assert child.wait(30) == 0
