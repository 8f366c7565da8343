"""The tools behind ``make``: what is missing is named, and a cache is whole or not there."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import maven, prerequisites, quick_spark
from tests.support.external import ExternalBroker
from tests.support.ports import free_port
from tests.support.process import wait_until
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "amqp_spark"


def program(directory: Path, name: str, script: str) -> Path:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return file


def test_what_is_missing_is_named_with_the_command_that_installs_it(empty_path: Path) -> None:
    assert prerequisites.missing() == [
        (
            "java 17 or newer is missing; install it with: "
            "sudo apt-get install -y openjdk-17-jdk-headless or brew install openjdk@17"
        ),
        "mvn is missing; install it with: sudo apt-get install -y maven or brew install maven",
    ]
    program(empty_path, "dnf", "exit 1")
    assert prerequisites.missing()[1] == "mvn is missing; install it with: sudo dnf install -y maven"
    done = subprocess.run(
        [sys.executable, "-I", ROOT / "tests/support/prerequisites.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("prerequisite: ") == 2


@pytest.mark.parametrize(
    ("version", "major"),
    [('java version "1.8.0_392"', 8), ('openjdk version "11.0.21" 2023-10-17', 11), ('openjdk version "16" 2021', 16)],
)
def test_a_java_that_is_too_old_is_named(empty_path: Path, version: str, major: int) -> None:
    java = program(empty_path, "java", f"echo '{version}' >&2")
    with pytest.raises(prerequisites.PrerequisiteMissing, match=f"{java} is Java {major}, 17 or newer is needed"):
        prerequisites.require_java()


@pytest.mark.parametrize("version", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16'])
def test_a_java_that_is_new_enough_is_taken_from_java_home_first(
    empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    on_path = program(empty_path, "java", f"echo '{version}' >&2")
    assert prerequisites.require_java() == str(on_path)
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    at_home = program(tmp_path / "jdk" / "bin", "java", f"echo '{version}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert prerequisites.require_java() == str(at_home)


def find_python(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", ROOT / ".ci/find-python"],
        env={"PATH": str(path)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_finds_a_python_that_is_new_enough(empty_path: Path) -> None:
    assert "python 3.11 or newer is missing; install it with:" in find_python(empty_path).stderr
    program(empty_path, "python3", "exit 1")  # answers like one that is too old
    newer = program(empty_path, "python3.12", "exit 0")
    assert find_python(empty_path).stdout.strip() == str(newer)
    chosen = find_python(empty_path, PYTHON="python3")
    assert chosen.returncode == 1
    assert "PYTHON=python3 is not a Python 3.11 or newer" in chosen.stderr


def test_a_cache_directory_is_filled_once_by_whoever_comes_first(cache: Path) -> None:
    fills: list[Path] = []
    both_are_here = threading.Barrier(2)

    def fill(directory: Path) -> None:
        fills.append(directory)
        assert not (cache / "thing").exists()
        (directory / "file").write_text("content", encoding="utf-8")

    def get() -> None:
        both_are_here.wait(30)
        assert maven.cached_directory("thing", fill) == cache / "thing"

    threads = [threading.Thread(target=get) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (cache / "thing" / "file").read_text(encoding="utf-8") == "content"
    assert maven.cached_directory("thing", fill) == cache / "thing"
    assert len(fills) == 1


def test_a_fill_that_fails_leaves_nothing(cache: Path) -> None:
    def fill(directory: Path) -> None:
        (directory / "half").touch()
        raise maven.FetchFailed("no network")

    with pytest.raises(maven.FetchFailed):
        maven.cached_directory("thing", fill)
    assert [entry.name for entry in cache.iterdir()] == [".thing.lock"]
    assert maven.cached_directory("thing", lambda directory: (directory / "whole").touch()) == cache / "thing"
    assert [entry.name for entry in (cache / "thing").iterdir()] == ["whole"]


@pytest.fixture
def fake_maven(empty_path: Path) -> Callable[[str], None]:
    """Puts a java and a Maven on the PATH; the script of the latter finds its output directory in ``$out``."""
    program(empty_path, "java", "echo 'openjdk version \"17\"' >&2")
    for tool in ("cp", "sed"):
        (empty_path / tool).symlink_to(shutil.which(tool, path=os.defpath) or tool)

    def install(script: str) -> None:
        find_out = 'for a in "$@"; do case "$a" in -DoutputDirectory=*) out="${a#*=}";; esac; done'
        program(empty_path, "mvn", f"{find_out}\n{script}")

    return install


def test_an_archive_is_unpacked_if_it_is_the_one_that_was_pinned(
    tmp_path: Path, fake_maven: Callable[[str], None]
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.jar").touch()
    archive = tmp_path / "thing.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "lib", "thing/lib")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    fake_maven(f'cp {archive} "$out/thing.tar.gz"')
    into = tmp_path / "into"
    into.mkdir()
    maven.fetch_archive("g:thing:1:tar.gz", "thing.tar.gz", sha256, into)
    assert (into / "thing" / "lib" / "a.jar").is_file()
    with pytest.raises(maven.FetchFailed, match=f"g:thing:1:tar.gz: sha256 is {sha256}, expected 00"):
        maven.fetch_archive("g:thing:1:tar.gz", "thing.tar.gz", "00", into)


def test_a_failure_of_maven_shows_what_maven_said(tmp_path: Path, fake_maven: Callable[[str], None]) -> None:
    fake_maven("echo '[ERROR] Could not transfer artifact'; exit 1")
    with pytest.raises(maven.FetchFailed, match=r"(?s)repository reachable\?.*Could not transfer artifact"):
        maven.fetch_dependencies(tmp_path / "pom.xml", tmp_path)


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(ephemeral.read_text(encoding="ascii").split()[0]) if ephemeral.exists() else 32_768
    assert all(1024 < free_port() < first for _ in range(50))


def test_waiting_for_what_never_comes_names_it() -> None:
    with pytest.raises(TimeoutError, match="for the end of time"):
        wait_until(lambda: False, "the end of time", timeout_s=0)


def test_the_broker_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    assert ExternalBroker.from_environment() is None
    monkeypatch.setenv("AMQP_URL", "amqp://broker.example.org:5673/market")
    monkeypatch.setenv("AMQP_USERNAME", "trader")
    monkeypatch.setenv("AMQP_PASSWORD", "s3cret")
    given = ExternalBroker.from_environment()
    assert given is not None
    assert given.url() == "amqp://broker.example.org:5673/market"
    assert given.url("durable") == "amqp://broker.example.org:5673/durable"
    assert (given.username, given.password) == ("trader", "s3cret")
    assert "s3cret" not in repr(given)


def test_the_broker_of_the_tests_is_not_that_of_jobs_and_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMQP_URL", "amqp://production.example.org/market")
    monkeypatch.setenv("AMQP_USERNAME", "trader")
    monkeypatch.delenv("AMQP_TEST_URL", raising=False)
    assert ExternalBroker.of_tests() is None
    monkeypatch.setenv("AMQP_TEST_URL", "amqp://127.0.0.1:5673/default")
    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"AMQP_TEST_{name}", raising=False)
    assert ExternalBroker.of_tests() == ExternalBroker("amqp://127.0.0.1:5673/default", "guest", "guest")


def test_private_keys_are_private(tmp_path: Path) -> None:
    material = TlsMaterial.make(tmp_path / "tls")
    for pair in (material.server, material.client, material.wrong_name, material.stranger):
        assert stat.S_IMODE(pair.key_file.stat().st_mode) == 0o600


def test_make_test_runs_a_test_of_every_kill_that_the_readme_names() -> None:
    text = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    table = text[text.index("| victim |") :].partition("\n\n")[0]
    named = re.findall(r"`(test_\w+)(?:::(test_\w+))?`", table)
    assert len(named) > 15
    for module, test in named:
        tree = ast.parse((ROOT / "tests/broker" / f"{module}.py").read_text(encoding="utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        left_out = {
            function.name: any("thorough" in ast.unparse(each) for each in function.decorator_list)
            for function in functions
        }
        assert left_out[test] is False if test else not all(left_out.values()), (module, test)


def test_spark_uses_an_archive_of_classes_if_there_is_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.setenv(name, "")
    quick_spark.configure()
    assert "SharedArchiveFile" not in os.environ["SPARK_SUBMIT_OPTS"]
    assert list(Path(os.environ["SPARK_CONF_DIR"]).iterdir()) == [], "Java refuses an archive with files in a directory"
    archive = quick_spark._archive()
    assert archive.is_relative_to(cache)
    archive.parent.mkdir()
    archive.touch()
    quick_spark.configure()
    assert os.environ["SPARK_SUBMIT_OPTS"].count(f"-XX:SharedArchiveFile={archive}") == 2, "of drivers and executors"


def test_groups_that_make_installs_are_defined() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    assert {"dev", "docs"} <= set(re.findall(r"--group (\w+)", makefile)) <= set(groups)
