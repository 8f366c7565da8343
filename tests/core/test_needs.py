"""A test that needs what the broker of ``AMQP_TEST_URL`` does not do is skipped, with the reason; no other is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amqp_core.errors import ConnectionFailed
from amqp_core.v0_10 import spec
from tests.conftest import skip_if_needed
from tests.support import capabilities as measured
from tests.support.capabilities import BROKER_J, TEXTS, Capabilities, needs, skip_without
from tests.support.external import ExternalBroker
from tests.support.fakepeer import QPIDD, FakePeer, Peer

ROOT = Path(__file__).resolve().parents[2]


def like_qpidd(peer: Peer) -> None:
    """Takes everything, tells nothing, delivers nothing; has every queue that is asked for, none of them durable."""
    peer.answers[spec.QueueQuery] = lambda asked: spec.QueueQueryResult(
        queue=asked.queue, durable=False, message_count=0, subscriber_count=0
    )
    for command in (spec.DtxStart, spec.DtxEnd, spec.DtxPrepare, spec.DtxRollback):
        peer.answers[command] = lambda _: spec.XaResult(status=spec.DtxXaStatus.XA_OK)
    peer.answers[spec.DtxGetTimeout] = lambda _: spec.DtxGetTimeoutResult(timeout=60)
    peer.answers[spec.DtxRecover] = lambda _: spec.DtxRecoverResult(in_doubt=[])
    peer.open()
    peer.serve()


def given(server: FakePeer) -> ExternalBroker:
    return ExternalBroker(f"amqp://127.0.0.1:{server.port}/default")


LOGIN: dict[str, Any] = {"mechanisms": ("PLAIN",), "server_properties": QPIDD}


def test_a_broker_is_measured_and_not_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_SHOWS_S", 0.1)
    with FakePeer(like_qpidd, **LOGIN) as server:
        found = Capabilities.of(given(server))
    assert {name for name in TEXTS if getattr(found, name)} == {"quiet_deletion"}


def test_a_broker_that_is_not_there_is_an_error_and_lacks_nothing() -> None:
    with FakePeer(like_qpidd, **LOGIN) as server:
        broker = given(server)
    with pytest.raises(ConnectionFailed):
        Capabilities.of(broker)


@pytest.mark.parametrize("call", [needs, lambda *names: skip_without(BROKER_J, names)])
def test_a_capability_that_there_is_not_is_named_with_those_that_there_are(call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=r"no capability rejects_everything; there are is_broker_j, .*counts_held"):
        call("counts_held", "rejects_everything")


def test_what_a_broker_has_is_no_reason_to_skip() -> None:
    skip_without(BROKER_J, ["rejects_unroutable", "counts_held"])


NEEDY = """
import pytest
from tests.support.capabilities import needs

@needs("quiet_deletion")
def test_has(): ...

@needs("quiet_deletion", "rejects_unroutable", "counts_held")
def test_lacks(): raise AssertionError

@pytest.mark.parametrize("one", [1, pytest.param(2, marks=needs("selectors"))])
def test_parameter(one): assert one == 1

def test_durable(connect, durable_queue): raise AssertionError

def test_asks(capabilities): assert capabilities.quiet_deletion and not capabilities.counts_held
"""


def run(directory: Path, **environment: str) -> str:
    """Return pytest's output for the tests of ``NEEDY``, with the fixtures of all tests."""
    (directory / "test_needy.py").write_text(NEEDY, encoding="utf-8")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AMQP_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rs", "-q"]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(directory), str(directory)],
        cwd=ROOT, env=plain | environment, text=True, capture_output=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_only_what_the_broker_lacks_is_skipped(tmp_path: Path) -> None:
    with FakePeer(like_qpidd, **LOGIN) as server:
        output = run(tmp_path, AMQP_TEST_URL=given(server).url())
    assert "3 passed, 3 skipped" in output
    reason = "the broker of AMQP_TEST_URL lacks rejects_unroutable: it rejects a message that it cannot route"
    assert f"{reason} (message.reject); counts_held: it counts" in output
    assert "lacks selectors: it filters" in output
    assert "lacks durable_host: it takes durable queues" in output


def test_with_a_broker_of_our_own_nothing_is_skipped(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AMQP_TEST_URL", raising=False)
    monkeypatch.setenv("AMQP_URL", "amqp://production.example.org/market")
    request.applymarker(needs("keeps_resume_id"))
    assert not BROKER_J.keeps_resume_id
    skip_if_needed(request)
