"""Packages of Debian and its descendants, fetched without root: apt with lists and archives of its own.

Standard library only: ``make`` uses it before there is a virtual environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.maven import FetchFailed

if TYPE_CHECKING:
    from collections.abc import Callable

_APT_TIMEOUT_S = 600
_ATTEMPTS = 3
_PAUSE_S = 5.0
_MOVING_SUITES = ("stable", "testing", "unstable", "sid")


def require_tools() -> None:
    """Raise FetchFailed if this machine has not the programs of packages."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise FetchFailed(f"this machine has no {program}")


def own_apt(work: Path) -> tuple[str, ...]:
    """The command ``apt-get`` with the sources of this machine, and all that it writes in the directory ``work``."""
    for directory in ("lists/partial", "archives/partial"):
        (work / directory).mkdir(parents=True)
    return (
        "apt-get",
        "-qq",
        f"-oDir::State::lists={work}/lists",
        f"-oDir::Cache={work}",
        f"-oDir::Cache::archives={work}/archives",
        "-oAPT::Sandbox::User=",  # what runs as root would become a user that cannot read this directory
        "-oAcquire::Retries=3",
        "-oAcquire::http::Timeout=30",
    )


def repeated(fetch: Callable[[], None]) -> None:
    """Fetch, trying a few times: mirrors fail now and then. Raises the last FetchFailed."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            return fetch()
        except FetchFailed:
            if not left:
                raise
            time.sleep(_PAUSE_S)
    return None


def mirrors() -> list[str]:
    """Return the addresses from which this machine gets its own Debian."""
    uris = re.findall(
        r"^'(\S+)/dists/([^/'\s]+)/(?:In)?Release'", run("apt-get", "update", "--print-uris"), re.MULTILINE
    )
    suites = (*_MOVING_SUITES, _codename())
    return list(dict.fromkeys(base for base, suite in uris if suite in suites))


def _codename() -> str:
    release = Path("/etc/os-release")
    found = (
        re.search(r"^VERSION_CODENAME=(\S+)$", release.read_text("utf-8"), re.MULTILINE) if release.is_file() else None
    )
    return found[1] if found else "stable"


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a program without a terminal; return what it printed. Raises FetchFailed with its last line."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_APT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"{command[0]} gave up after {_APT_TIMEOUT_S} s") from error
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines()
        raise FetchFailed(f"{command[0]}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout
