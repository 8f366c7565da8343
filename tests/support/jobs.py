"""Loads the scripts in ``jobs/``, which are no package, and prepares runs without an installation."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pyspark

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> Any:
    """Load ``jobs/<name>.py`` as a module; only its definitions are executed."""
    specification = importlib.util.spec_from_file_location(f"job_{name}", ROOT / "jobs" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


def package_archive(path: Path) -> Path:
    """Write the packages into an archive with the layout of a pure wheel; return ``path``."""
    with zipfile.ZipFile(path, "w") as target:
        for package in ("amqp_core", "amqp_spark", "pyspark_amqp"):
            for file in sorted((ROOT / package).rglob("*")):
                if file.suffix == ".py" or file.name == "py.typed":
                    target.write(file, file.relative_to(ROOT))
    return path


def packages_of_others(directory: Path) -> Path:
    """Make a directory with all packages of this interpreter, except ours."""
    packages = directory / "site-packages"
    packages.mkdir()
    for entry in Path(pyspark.__file__).resolve().parents[1].iterdir():
        if "amqp" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    return packages


def python_without_the_package(directory: Path) -> Path:
    """Make an interpreter in ``directory`` with all packages of this one, except ours."""
    packages = packages_of_others(directory)
    interpreter = directory / "python"
    real = Path(sys.executable).resolve()
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}${{PYTHONPATH:+:$PYTHONPATH}}" exec "{real}" -S "$@"\n')
    interpreter.chmod(0o755)
    return interpreter


def installed_from_a_wheel(directory: Path) -> Path:
    """Build the wheel, and install it in a new environment that has the packages of others; return its Python."""
    wheels = directory / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    environment = directory / "venv"
    venv.create(environment, symlinks=True)  # without pip, which takes seconds: ours installs it
    python = environment / "bin" / "python"
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "others.pth").write_text(f"{packages_of_others(directory)}\n", encoding="utf-8")
    return python
