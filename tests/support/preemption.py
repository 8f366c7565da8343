"""A plugin of pytest that delays threads at random, to find tests that depend on the speed of the machine.

In each test its own thread, or all others, or every one, sleeps now and then where a function of ours begins or ends,
as on a machine that gives the processor to others::

    PREEMPTION_SEED=1 .venv/bin/python -m pytest -p tests.support.preemption tests/spark -m "not broker and not spark"

The header names the seed. The same seed delays the same test in the same way, but for the order in which threads run.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

_CHANCE: Final = 0.005
_LONGEST_S: Final = 0.4
_MOST_S: Final = 2.0
"""All sleeps of one test."""
_OURS: Final = ("amqp_core", "amqp_spark", "tests")
_SEED: Final = os.environ.get("PREEMPTION_SEED") or str(random.SystemRandom().randrange(1 << 32))


class _Preemption:
    """Delays the threads of one test; called where functions begin and end."""

    def __init__(self, test: str) -> None:
        self._random = random.Random(f"{_SEED} {test}")
        self._delays_main, self._delays_others = self._random.choice([(True, False), (False, True), (True, True)])
        self._left_s = _MOST_S

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in {"call", "return"} or self._left_s <= 0 or self._random.random() >= _CHANCE:
            return
        is_main = threading.current_thread() is threading.main_thread()
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module in _OURS and (self._delays_main if is_main else self._delays_others):
            seconds = self._random.random() ** 2 * _LONGEST_S
            self._left_s -= seconds
            time.sleep(seconds)


def pytest_report_header() -> str:
    """Name the seed."""
    return f"threads are delayed, PREEMPTION_SEED={_SEED}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Delay the threads while a test runs."""
    preemption = _Preemption(item.nodeid)
    threading.setprofile(preemption)
    sys.setprofile(preemption)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
