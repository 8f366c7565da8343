"""Running the jobs against a real broker, as users do: in a process of their own, installed or from an archive."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

import amqp_spark
from amqp_core.v0_10.messages import messages_of
from tests.support.jobs import ROOT, load, package_archive, python_without_the_package

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.messages import Message
    from tests.support.fixtures import Broker, Connect

QUICK = [
    "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=1", "--conf", "spark.log.level=ERROR",
]  # fmt: skip


def login(broker: Broker, side: str = "", vhost: str = "default", **changes: str) -> dict[str, str]:
    """The environment variables of one side of a job."""
    given = {"URL": broker.url(vhost), "USERNAME": broker.username, "PASSWORD": broker.password} | changes
    return {f"AMQP_{side}{name}": value for name, value in given.items()}


def environment(variables: dict[str, str]) -> dict[str, str]:
    """The environment of a job that is a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}
    return kept | variables | {"SPARK_LOCAL_IP": "127.0.0.1"}


def job_path(name: str) -> str:
    """The script of a job."""
    return str(ROOT / "jobs" / f"{name}.py")


def run(*command: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)


@contextmanager
def started(
    command: Sequence[str], env: dict[str, str], directory: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a command; gives the process and the file with its output; kills the process at the end."""
    log = directory / "job.log"
    with log.open("wb") as sink:
        # A session of its own, so that a signal reaches the job only, as from a scheduler.
        job = subprocess.Popen(command, env=env, cwd=directory, stdout=sink, stderr=sink, start_new_session=True)
    try:
        yield job, log
    finally:
        job.kill()
        job.wait()


def submitted(
    name: str, arguments: Sequence[str], *, suffix: str, master: str, env: dict[str, str], directory: Path
) -> subprocess.CompletedProcess[str]:
    """``spark-submit --py-files`` by a Python that lacks our packages."""
    python = str(python_without_the_package(directory))
    empty = directory / "empty"
    empty.mkdir()
    probe = run(python, "-c", "import pyspark, amqp_spark", env=env, cwd=empty)
    assert "No module named 'amqp_spark'" in probe.stderr  # or the test would prove nothing
    package = package_archive(directory / f"amqp_spark-{amqp_spark.__version__}-py3-none-any.{suffix}")
    home = Path(pyspark.__file__).parent
    env = env | {"SPARK_HOME": str(home), "PYSPARK_DRIVER_PYTHON": python, "PYSPARK_PYTHON": python}
    submit = [str(home / "bin" / "spark-submit"), "--master", master, "--py-files", str(package)]
    return run(*submit, job_path(name), *arguments, env=env, cwd=empty)


class Here:
    """Runs jobs in this process; the login is in the environment.

    Tests have the fixture ``spark``, or each job starts and stops a Spark of its own, which takes seconds."""

    def __init__(self, name: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        self._job = load(name)

    def __call__(self, *arguments: str) -> int:
        """The exit code."""
        code: int = self._job.main(arguments)
        return code


def received(client: Client, queue: str) -> list[Message]:
    """Everything that is on a queue; it is accepted. The client is a new one: an idle one loses its connection."""
    subscription = client.subscribe(queue)
    subscription.grant(1_000_000)
    subscription.flush()
    found = [message for block in subscription.take_blocks(0) for message in messages_of(block)]
    client.accept([(message.command_id, message.command_id) for message in found if message.command_id is not None])
    subscription.cancel()
    return found


def left(connect: Connect, queue: str, vhost: str = "default") -> int:
    """Messages that are on a queue."""
    info = connect(vhost).query_queue(queue)
    assert info is not None
    return info.message_count or 0


def error_lines(shown: str, job: str) -> list[str]:
    """The lines in which a job says what is wrong."""
    return [line for line in shown.splitlines() if line.startswith(f"{job}: error:")]
