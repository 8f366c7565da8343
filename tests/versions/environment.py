"""A fresh environment with the wheel, one Spark and the test dependencies; and the tests without the source tree."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
_COPIED: Final = ("tests", "jobs")
_PACKAGES: Final = ("amqp_core", "amqp_spark", "pyspark_amqp")
_PROJECT: Final = "pyproject.toml"
# What of the caller's environment would choose other packages, another Spark, or another broker.
_NOT_PASSED_ON: Final = ("PYTHON", "PYSPARK_", "SPARK_", "AMQP_", "VIRTUAL_ENV")
_PROBE: Final = """
import importlib, json, platform, pyspark
files = [importlib.import_module(name).__file__ for name in %r]
print(json.dumps({"spark": pyspark.__version__, "python": platform.python_version(), "files": files}))
"""


class EnvironmentFailed(RuntimeError):
    """An environment could not be made as it has to be; the text says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that is ready for the tests.

    Attributes:
        directory: of the virtual environment.
        tree: the working directory of the tests; it does not have the packages.
        spark: full version.
        python: full version.
    """

    directory: Path
    tree: Path
    spark: str
    python: str

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return _interpreter(self.directory)

    def variables(self) -> dict[str, str]:
        """The environment variables of all that runs in it."""
        return _variables(self.directory)


def build_wheel(directory: Path) -> Path:
    """Build the wheel by way of the sdist, as for a release; return its path.

    Raises:
        EnvironmentFailed: the build failed.
    """
    shutil.rmtree(directory, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), str(ROOT)], "the build")
    (wheel,) = directory.glob("*.whl")
    return wheel


def digest(wheel: Path) -> str:
    """Digest of the code in the wheel and of the project's settings; it does not change with the README."""
    found = hashlib.sha256((ROOT / _PROJECT).read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if ".dist-info/" not in name:
                found.update(name.encode() + b"\0" + archive.read(name))
    return found.hexdigest()[:16]


def copy_tests(directory: Path) -> Path:
    """Copy what the tests need besides the packages into a new directory; return it."""
    shutil.rmtree(directory, ignore_errors=True)
    for name in _COPIED:
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / _PROJECT, directory)
    return directory


def least_versions() -> list[str]:
    """Requirements for pip: of each dependency but Spark the oldest version that the project admits."""
    dependencies = tomllib.loads((ROOT / _PROJECT).read_text(encoding="utf-8"))["project"]["dependencies"]
    found = [re.match(r"([\w-]+)>=([\d.]+)", each) for each in dependencies]
    return [f"{each[1]}=={each[2]}.*" for each in found if each and each[1] != "pyspark"]


def make(
    spark: str, interpreter: Path, wheel: Path, tree: Path, directory: Path, others: Sequence[str] = ()
) -> Environment:
    """Make a new environment, and check that it has the wheel and not the source tree.

    Args:
        spark: the requirement for pip that installs Spark, such as ``pyspark==4.2.0``.
        interpreter: the Python to use.
        wheel: of the package.
        tree: the working directory of the tests.
        directory: of the virtual environment; what is there is deleted.
        others: further requirements.

    Raises:
        EnvironmentFailed: it cannot be made, or imports the package from elsewhere.
    """
    shutil.rmtree(directory, ignore_errors=True)
    _run([str(interpreter), "-m", "venv", "--without-pip", str(directory)], "venv")
    # The pip of this environment reads dependency groups; that of a new one may be too old.
    pip = [sys.executable, "-m", "pip", "--python", str(_interpreter(directory)), "install", "--quiet"]
    wanted = [str(wheel), spark, *others, "--group", f"{ROOT / _PROJECT}:test"]
    _run([*pip, "--disable-pip-version-check", *wanted], "pip install")
    probe = [str(_interpreter(directory)), "-c", _PROBE % (_PACKAGES,)]
    found = json.loads(_run(probe, "the import of the package", cwd=tree, env=_variables(directory)))
    check_files(found["files"], directory)
    return Environment(directory, tree, found["spark"], found["python"])


def check_files(files: Sequence[str], directory: Path) -> None:
    """Check that modules were imported from a directory.

    Raises:
        EnvironmentFailed: one was not.
    """
    elsewhere = [file for file in files if not Path(file).resolve().is_relative_to(directory.resolve())]
    if elsewhere:
        raise EnvironmentFailed(
            f"{', '.join(elsewhere)} is imported instead of the wheel in {directory}. Remove what puts it on sys.path."
        )


def _interpreter(directory: Path) -> Path:
    return directory / "bin" / "python"


def _variables(directory: Path) -> dict[str, str]:
    passed_on = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    path = os.pathsep.join([str(directory / "bin"), os.environ.get("PATH", os.defpath)])
    return passed_on | {"PATH": path, "VIRTUAL_ENV": str(directory)}


def _run(command: Sequence[str], what: str, *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip()[-1500:]
        raise EnvironmentFailed(f"{what} failed with exit code {done.returncode}: {last}")
    return done.stdout
