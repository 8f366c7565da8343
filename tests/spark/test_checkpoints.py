"""Of checkpoints that Spark refuses, only those are deleted in which a first batch was begun and none was logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.matrix_support import BEGUN, BESIDE, REFUSAL, UUID, checkpoint
from tests.support.checkpoints import forget, is_refused, why_kept

if TYPE_CHECKING:
    from pathlib import Path


def test_a_refusal_is_known_by_its_class() -> None:
    assert is_refused(REFUSAL)
    assert not is_refused(None)
    assert not is_refused("[STREAM_FAILED] Query [id = 37d5] terminated with exception: StateError: offsets not empty")


@pytest.mark.parametrize("begun", [BEGUN, BEGUN[:1], (*BEGUN, f"offsets/.0.{UUID[::-1]}.tmp")])
def test_what_was_begun_and_not_logged_is_deleted(begun: tuple[str, ...], tmp_path: Path) -> None:
    found = checkpoint(tmp_path, *BESIDE, *begun)
    (found / "commits").mkdir()
    (found / "state").mkdir()
    assert forget(found) is None
    assert not found.exists()


@pytest.mark.parametrize(
    "more",
    [
        "offsets/0",
        "offsets/.0.crc",
        "offsets/1",
        f"offsets/.1.{UUID}.tmp",
        "offsets/something",
        "commits/0",
        f"commits/.0.{UUID}.tmp",
        "state/0/0/1.delta",
        f"state/.0.{UUID}.tmp",
    ],
)
def test_what_says_that_a_batch_was_logged_is_kept(more: str, tmp_path: Path) -> None:
    found = checkpoint(tmp_path, *BESIDE, *BEGUN, more)
    reason = forget(found)
    assert reason is not None
    assert repr(more) in reason
    assert all((found / name).exists() for name in (*BESIDE, *BEGUN, more))


@pytest.mark.parametrize("names", [(), BESIDE], ids=["not there", "nothing begun"])
def test_a_refusal_that_this_does_not_explain_is_told(names: tuple[str, ...], tmp_path: Path) -> None:
    found = checkpoint(tmp_path, *names)
    assert why_kept(found) == "Spark refuses a checkpoint in which nothing is logged, nor was begun"
    assert forget(found) is not None
    assert all((found / name).exists() for name in names)
