"""A job on a terminal: its panel, its warnings, and its metrics, with Spark and the embedded broker."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from amqp_core.v0_10.messages import Message
from amqp_spark.commands.ingest import main
from tests.support.process import wait_until
from tests.support.terminal import standard_error_on, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.box.conftest import Connect010

pytestmark = pytest.mark.spark
COUNT = 100


@pytest.fixture
def arguments(amqp_url: str, connect_0_10: Connect010, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of an ingest of a queue with messages; the login is in the environment."""
    client = connect_0_10(virtual_host=amqp_url.rpartition("/")[2], heartbeat=0)
    client.declare_queue("ticks", durable=True)
    for number in range(COUNT):
        client.publish(Message(b"%d" % number), routing_key="ticks")
    client.confirm()
    for name, value in {"AMQP_URL": amqp_url, "AMQP_USERNAME": "guest", "AMQP_PASSWORD": "guest"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "xterm")
    return ["--queue", "ticks", "--schema", "body STRING", "--format", "noop"]


def panel_of(screen: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The lines above the panel, in it and below; there is one, and it is whole."""
    lines = [line for line in screen if line]
    (top,) = [index for index, line in enumerate(lines) if line.startswith("╭")]
    (bottom,) = [index for index, line in enumerate(lines) if line.startswith("╰")]
    inside = lines[top : bottom + 1]
    assert {len(line) for line in inside} == {100}
    assert all(line[0] == line[-1] == "│" for line in inside[1:-1])
    return lines[:top], inside, lines[bottom + 1 :]


@pytest.fixture
def port_in_use() -> Iterator[int]:
    """A port on which another server listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.usefixtures("spark")
def test_a_panel_with_the_queue_and_a_port_in_use(
    arguments: list[str], port_in_use: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with terminal() as shown, standard_error_on(shown):
        assert main([*arguments, "--available-now", "--metrics-port", str(port_in_use)]) == 0
        sys.stderr.write("after it\n")
    _, inside, below = panel_of(shown.shown())
    assert inside[0].startswith("╭─ ingest: ended, ")
    (queue,) = [line.split() for line in inside if line.startswith("│ ticks ")]
    assert queue[3] == "0"  # the backlog
    assert queue[-2] == "empty"
    assert any(f"all: {COUNT} rows in " in line for line in inside)
    assert below == ["after it"]
    assert capsys.readouterr().out.startswith(f"ingest: {COUNT} rows in ")
    assert f"nothing is served on 127.0.0.1 port {port_in_use}: Address already in use." in caplog.text


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")  # its settings of the environment
def test_a_signal_ends_a_job_with_its_panel(arguments: list[str], port_in_use: int, tmp_path: Path) -> None:
    """A process with a Spark of its own, whose Java and workers write to the terminal, too."""
    with terminal() as shown, (tmp_path / "report").open("wb") as report:
        job = subprocess.Popen(
            [sys.executable, "-m", "amqp_spark", "ingest", *arguments, "--master", "local[1]",
             "--conf", "spark.ui.enabled=false", "--metrics-port", str(port_in_use)],
            stdout=report, stderr=shown.descriptor, start_new_session=True,
        )  # fmt: skip
        with job:
            done = f"all: {COUNT} rows in "
            wait_until(lambda: job.poll() is not None or any(done in line for line in shown.shown()), "all rows", 120)
            job.send_signal(signal.SIGTERM)
            assert job.wait(120) == 143, "\n".join(shown.shown())
    above, inside, _ = panel_of(shown.shown())
    warning = f"metrics: nothing is served on 127.0.0.1 port {port_in_use}: Address already in use."
    assert any(line.startswith(warning) for line in above)
    assert any("WARNING: Using incubator modules" in line for line in above)  # of Java
    assert any(line.startswith("stopped by SIGTERM in ") for line in above)
    assert any(f"warning: {warning}" in line for line in inside)
    assert any(done in line for line in inside)
    assert (tmp_path / "report").read_text().startswith(f"ingest: {COUNT} rows in ")
