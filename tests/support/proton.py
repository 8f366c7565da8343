"""python-qpid-proton, the dependency group ``bench``: outside the environment of the tests, which need none of it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.maven import cache_root, cached_directory
from tests.support.prerequisites import PrerequisiteMissing, install_hint

if TYPE_CHECKING:
    from typing import Final

_PROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"
_GROUP: Final = "bench"
_LAST: Final = 1500


def is_installed() -> bool:
    """Whether the package is in the cache."""
    return (cache_root() / _name()).is_dir()


def directory() -> Path:
    """Return the directory with the package, for ``PYTHONPATH``; pip installs it on first use.

    Raises:
        PrerequisiteMissing: pip cannot install it.
    """

    def fill(directory: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--target", str(directory), "--group", f"{_PROJECT}:{_GROUP}"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise PrerequisiteMissing(
                "pip cannot install the dependency group bench (python-qpid-proton), which is compiled on Linux. "
                f"It needs a C compiler and the headers of Python: {install_hint('cc')}\n{done.stdout[-_LAST:]}"
            )

    return cached_directory(_name(), fill)


def _name() -> str:
    group = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["dependency-groups"][_GROUP]
    wanted = hashlib.sha256(json.dumps(group).encode()).hexdigest()[:12]
    return f"{_GROUP}-{sys.implementation.cache_tag}-{wanted}"
