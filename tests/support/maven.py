"""Artifacts from Maven Central, fetched once through Maven and kept outside the source tree.

Every directory made here appears by one rename, complete or not at all, and under a file lock, so that two test
runs that start together on an empty cache fetch once and never see half of an archive.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.prerequisites import require_java, require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Pinned: the version that a bare prefix resolves to differs between Maven releases, and old ones ignore options.
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
FETCH_TIMEOUT_S = 900
_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  {of}
  <packaging>{packaging}</packaging>
  <dependencies>
    {dependencies}
  </dependencies>
</project>
"""


class FetchFailed(RuntimeError):
    """Maven could not fetch an artifact; the text holds the end of its output."""


def cache_root() -> Path:
    """Return the directory of all fetched files: ``$XDG_CACHE_HOME/amqp_spark`` or ``~/.cache/amqp_spark``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "amqp_spark"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it when the process that holds it dies
        yield


def cached_directory(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the cache directory ``name``; if missing, make it by ``fill(empty directory)``."""
    target = cache_root() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock"):
        if not target.is_dir():
            staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            try:
                fill(staging)
                staging.chmod(0o755)  # mkdtemp makes it private
                staging.rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    return target


def run_maven(*arguments: str, cwd: Path | None = None) -> None:
    """Run Maven in batch mode, without a terminal.

    Raises:
        PrerequisiteMissing: Java or Maven is not installed.
        FetchFailed: it ended with an error or took longer than 15 minutes.
    """
    require_java()
    command = [require_program("mvn"), "-B", "-q", "--strict-checksums", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"Maven gave up after {FETCH_TIMEOUT_S} s: {' '.join(arguments)}") from error
    if done.returncode != 0:
        raise FetchFailed(f"Maven failed ({' '.join(arguments)}); is its repository reachable?\n{done.stdout[-3000:]}")


def fetch_archive(coordinates: str, file_name: str, sha256: str, into: Path) -> None:
    """Fetch one ``tar.gz`` artifact and unpack it into the directory ``into``.

    Args:
        coordinates: ``group:artifact:version:type[:classifier]``.
        file_name: the name under which Maven copies the artifact.
        sha256: expected hash of the file (hex).
        into: an existing directory.
    """
    with tempfile.TemporaryDirectory(dir=into.parent) as name:
        run_maven(
            f"{DEPENDENCY_PLUGIN}:copy",
            f"-Dartifact={coordinates}",
            f"-DoutputDirectory={name}",
            "-Dmdep.useBaseVersion=true",
        )
        archive = Path(name) / file_name
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise FetchFailed(
                f"{coordinates}: sha256 is {found}, expected {sha256}; remove it from ~/.m2 and try again"
            )
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")


def pom(of: str, needs: Iterable[str], packaging: str = "jar") -> str:
    """Return a project that has dependencies and nothing else; packages are ``group:artifact:version``."""
    dependencies = "".join(f"<dependency>{_elements(need)}</dependency>" for need in sorted(needs))
    return _POM.format(of=_elements(of), packaging=packaging, dependencies=dependencies)


def _elements(package: str) -> str:
    names = ("groupId", "artifactId", "version")
    return "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, package.split(":"), strict=True))


@contextlib.contextmanager
def written_pom(needs: Iterable[str]) -> Iterator[Path]:
    """Give the file of a project that needs packages."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "pom.xml"
        path.write_text(pom("amqp-spark.tests:packages:1", needs, packaging="pom"), encoding="utf-8")
        yield path


def fetch_dependencies(pom: Path, into: Path) -> None:
    """Copy the jars that ``pom`` depends on, and their dependencies, into the directory ``into``."""
    run_maven(
        f"{DEPENDENCY_PLUGIN}:copy-dependencies",
        "-f",
        str(pom),
        f"-DoutputDirectory={into}",
        "-DincludeScope=runtime",
    )


def fetch_repository(pom: Path, into: Path) -> None:
    """The same, in the layout of a Maven repository, without poms."""
    run_maven(
        f"{DEPENDENCY_PLUGIN}:copy-dependencies",
        "-f",
        str(pom),
        f"-DoutputDirectory={into}",
        "-DincludeScope=runtime",
        "-Dmdep.useRepositoryLayout=true",
    )
