"""Finds a Python of a given version on this machine: on the PATH, or among those of pyenv."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROBE = "import sys; print('%d.%d' % sys.version_info[:2])"


def find(version: str) -> Path | None:
    """The first interpreter of this version that runs.

    Args:
        version: major and minor, as in ``3.12``.

    Returns:
        Its path; ``None``: there is none.
    """
    return next((program for program in _candidates(version) if _answer(program, "-c", _PROBE) == version), None)


def how_to_get(version: str) -> str:
    """One sentence on what was looked for, and one on what to do."""
    return (
        f"There is no python{version} on the PATH, and pyenv has no {version}. "
        f"Install it, for instance with 'pyenv install {version}'."
    )


def _candidates(version: str) -> Iterator[Path]:
    for directory in os.get_exec_path():  # all of them: the first may be a shim of pyenv that refuses to run
        program = Path(directory, f"python{version}")
        if os.access(program, os.X_OK):
            yield program
    pyenv = shutil.which("pyenv")
    if pyenv is not None:
        names = [name for name in _answer(pyenv, "versions", "--bare").split() if name.startswith(f"{version}.")]
        for name in sorted(names, key=_number, reverse=True):
            yield Path(_answer(pyenv, "prefix", name), "bin", f"python{version}")


def _number(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdecimal())


def _answer(program: str | Path, *arguments: str) -> str:
    """What a program prints; nothing if it cannot be run or fails."""
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
