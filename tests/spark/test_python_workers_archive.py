"""Pickles of the data source where the package is in an archive and the archive is not on the path."""

from __future__ import annotations

import os
import pickle
import subprocess
from typing import TYPE_CHECKING

import pytest

from amqp_spark import AmqpDataSource, python_workers
from tests.support.jobs import package_archive, python_without_the_package

if TYPE_CHECKING:
    from pathlib import Path

WRITE = """
import pickle, sys
from amqp_spark import AmqpDataSource
source = AmqpDataSource({"url": "amqp://localhost", "queue": "q"})
for protocol in (2, 5):
    sys.stdout.write(pickle.dumps(source, protocol).hex() + chr(10))
"""
READ = """
import pickle, sys
def archives(): return sum(path.endswith(("amqp.zip", "amqp.whl")) for path in sys.path)
assert archives() == 0, sys.path
for line in sys.stdin.read().split():
    for _ in range(2):
        source = pickle.loads(bytes.fromhex(line))
        print(type(source).__module__, source.options["queue"], source.name())
print(archives())
"""


def run(python: Path, code: str, path: str, given: str = "") -> subprocess.CompletedProcess[str]:
    env = dict(os.environ) | {"PYTHONPATH": path}
    return subprocess.run(
        [str(python), "-c", code], input=given, env=env, cwd=python.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("suffix", ["zip", "whl"])
def test_a_pickle_finds_the_archive_that_it_came_from(tmp_path: Path, suffix: str) -> None:
    python = python_without_the_package(tmp_path)
    archive = package_archive(tmp_path / f"amqp.{suffix}")
    written = run(python, WRITE, str(archive))
    assert written.returncode == 0, written.stderr
    read = run(python, READ, "", written.stdout)
    assert read.stdout.splitlines() == ["amqp_spark.data_source q amqp"] * 4 + ["1"], read.stderr


def test_without_the_archive_the_error_names_the_package(tmp_path: Path) -> None:
    python = python_without_the_package(tmp_path)
    archive = package_archive(tmp_path / "amqp.zip")
    written = run(python, WRITE, str(archive))
    archive.unlink()
    read = run(python, READ, "", written.stdout)
    assert "No module named 'amqp_spark'" in read.stderr


def test_installed_a_pickle_is_an_ordinary_one() -> None:
    assert python_workers.archive() is None
    source = AmqpDataSource({"url": "amqp://localhost", "queue": "q"})
    dumped = pickle.dumps(source)
    assert b"add_path" not in dumped
    assert pickle.loads(dumped).options == source.options


class Session:
    """The part of a session that :func:`python_workers.ship` uses."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.added: list[str] = []

    def addPyFile(self, path: str) -> None:
        self.added.append(path)


@pytest.mark.parametrize(("name", "shipped"), [("amqp.zip", 0), ("amqp.whl", 1)])
def test_a_wheel_is_sent_to_the_workers_as_a_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, shipped: int
) -> None:
    archive = tmp_path / name
    archive.write_bytes(b"content")
    monkeypatch.setattr(python_workers, "archive", lambda: str(archive))
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    session = Session()
    python_workers.ship(session)  # type: ignore[arg-type]
    assert [path.rsplit("/", 1)[1] for path in session.added] == ["amqp.zip"] * shipped


def test_a_wheel_is_sent_once_for_each_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark refuses a second file of a name that it serves already, and `amqp_spark.register` may be repeated."""
    archive = tmp_path / "amqp.whl"
    archive.write_bytes(b"content")
    monkeypatch.setattr(python_workers, "archive", lambda: str(archive))
    sessions = Session(), Session()
    for session in (*sessions, *sessions):
        python_workers.ship(session)  # type: ignore[arg-type]
    assert [len(session.added) for session in sessions] == [1, 1]
