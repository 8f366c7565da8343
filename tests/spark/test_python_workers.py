"""The environment of an executor's Python worker."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from amqp_spark import python_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    before = gc.get_freeze_count()
    monkeypatch.setattr(python_workers, "_spared", False)
    yield monkeypatch
    if gc.get_freeze_count() > before:
        gc.unfreeze()


def test_the_modules_of_a_worker_are_spared_once(new_worker: pytest.MonkeyPatch) -> None:
    new_worker.setattr(TaskContext, "get", object)
    python_workers.spare_collections()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    python_workers.spare_collections()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("new_worker")
def test_outside_of_a_task_the_collector_is_left_alone() -> None:
    before = gc.get_freeze_count()
    python_workers.spare_collections()
    assert gc.get_freeze_count() == before
