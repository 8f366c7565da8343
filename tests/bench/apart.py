"""Benchmarks that run in a process of their own, since they need another Spark than the others: one per process.

The module of such a benchmark has ``measure(env)``, which finds the figures, and ``settings()`` of its Spark session.
``run(env)`` is what the others have, too; it calls :func:`run` here, which starts this module as the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tests.bench.environment import Environment, Result, Sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 3600


class Module(Protocol):
    """What runs apart."""

    def settings(self) -> Mapping[str, str]: ...

    def measure(self, env: Environment) -> list[Result]: ...


class ApartFailed(RuntimeError):
    """The process ended without figures; it has said why."""


def run(
    module: str,
    env: Environment,
    *,
    interpreter: str = sys.executable,
    directory: Path = ROOT,
    variables: Mapping[str, str] | None = None,
) -> list[Result]:
    """Run a benchmark in a new process, with a broker and a Spark of its own.

    Args:
        module: its name.
        env: has the sizes, and says whether progress is shown.
        interpreter: Python of the process.
        directory: where the packages of the benchmarks are.
        variables: environment of the process; None for that of this one.

    Raises:
        ApartFailed: it failed.
    """
    output = env.directory / f"apart-{uuid.uuid4().hex[:8]}.json"
    command = [interpreter, "-m", __name__, module, str(output), *(["--quiet"] if env.quiet else [])]
    done = subprocess.run(
        command,
        cwd=directory,
        env=dict(os.environ if variables is None else variables),
        input=json.dumps(asdict(env.sizes)),
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ApartFailed(f"{module} ended with exit code {done.returncode}; what it said before that is the reason")
    return cast("list[Result]", json.loads(output.read_text(encoding="utf-8")))


def main() -> None:
    """Find the figures; the sizes come on standard input."""
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", description="Run one benchmark.")
    parser.add_argument("module")
    parser.add_argument("output", type=Path)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    module = cast("Module", importlib.import_module(options.module))
    sizes = Sizes(**json.load(sys.stdin))
    with Environment(sizes=sizes, spark_settings=module.settings(), quiet=options.quiet) as env:
        results = module.measure(env)
    options.output.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
