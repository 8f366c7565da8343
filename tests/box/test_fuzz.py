"""Mutated sessions of all protocols: the broker answers with an error or goes on, and other clients notice nothing."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import TYPE_CHECKING

import pytest

from amqp_core.protocol_header import HEADERS_0_9
from tests.box.fuzz.campaign import KINDS, SIDES, Campaign
from tests.box.fuzz.places import Place
from tests.box.fuzz.side_0_9 import methods_in
from tests.box.fuzz.side_0_10 import operations_in
from tests.support.documents import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.box.fuzz.places import Side


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.name)
def test_the_session_that_is_mutated_is_right(side: Side) -> None:
    place, script = Place(), side.script(Random(0))
    found = side.connect(place)
    found.receive(b"".join([*script.login, *script.session[:-1]]))
    answer = found.take_bytes()
    assert found.is_open
    assert not found.is_closing
    assert side.errors(answer) == (["basic.return 312"] if side.name == "0-9-1" else [])
    assert "q" in place.host.queues
    found.receive(script.session[-1])
    assert found.is_over
    assert "own" not in place.host.queues


@pytest.mark.sampled("seed", every=2)
@pytest.mark.parametrize("seed", range(8))
def test_mutated_sessions_cost_only_their_own_connection(seed: int) -> None:
    report = Campaign(seed).run(range(500))
    assert sorted(report.inputs) == sorted(f"{side.name} {stage}" for side, stage in KINDS)
    assert set(report.inputs.values()) == {125}
    assert {name.split(":")[0] for name in report.errors} == set(report.inputs), "each kind has its errors"


@pytest.mark.thorough
def test_mutated_sessions_take_no_memory() -> None:
    """In a process of its own, as here pytest keeps each line of the log; with 1,000,000 inputs it is the long run."""
    command = [sys.executable, "-m", "tests.box.fuzz", "--inputs", "20000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nmemory: " in done.stdout


def test_mutated_sessions_do_not_damage_the_store(tmp_path: Path) -> None:
    campaign = Campaign(100, tmp_path / "broker.db")
    try:
        campaign.run(range(995, 1005))  # with a restart among them
    finally:
        campaign.close()


def test_an_answer_that_is_cut_off_is_harm() -> None:
    with pytest.raises(AssertionError, match="half a frame"):
        list(methods_in(HEADERS_0_9["0-9-1"] + b"\1\0\0"))
    with pytest.raises(AssertionError, match="half a frame"):
        list(operations_in(b"\0\0\0"))
