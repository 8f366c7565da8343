"""Who may import whom: the contracts of pyproject.toml, and what import-linter cannot say."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Set

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "amqp_core"

# Only the transport does I/O, and it is where a clock is read; of the embedded broker, its third storey does.
IO_MODULES = {"socket", "ssl", "select", "selectors", "socketserver", "asyncio", "subprocess", "http", "urllib.request"}
SERVER = {
    f"amqp_core/broker/{name}.py"
    for name in ("server", "arrival", "peer", "in_process", "__main__", "login_checks", "tls")
}
TRANSPORT = {"amqp_core/transport.py"} | SERVER
PYTEST_PLUGIN = "amqp_core/broker/pytest_plugin.py"
"""Only pytest imports it."""

# State machines and codecs get the time as an argument; what waits has the clock of the transport, which they may not
# import either (a contract of import-linter).
CLOCK_MODULES = {"time", "sched", "datetime", "threading"}


def core_modules() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in CORE.rglob("*.py"))


@cache
def imports_of(name: str) -> frozenset[str]:
    """The modules that a file imports, at its top or anywhere in it."""
    return frozenset(imported(ast.parse((ROOT / name).read_text(encoding="utf-8"), name)))


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def uses(imports: Set[str], modules: set[str]) -> set[str]:
    return {name for name in imports if any(name == module or name.startswith(f"{module}.") for module in modules)}


def test_the_contracts_of_import_linter_are_kept() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_core_to_check() -> None:
    names = set(core_modules())
    assert names >= TRANSPORT
    assert {"amqp_core/v0_10/connection.py", "amqp_core/v0_10/session.py"} <= names


def test_the_core_imports_the_standard_library_only() -> None:
    for name in core_modules():
        tops = {module.partition(".")[0] for module in imports_of(name)}
        known = sys.stdlib_module_names | {"amqp_core"} | ({"pytest"} if name == PYTEST_PLUGIN else set())
        assert tops <= known, name


def test_only_the_transport_does_io() -> None:
    for name in sorted(set(core_modules()) - TRANSPORT):
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"), name)
        for node in list(ast.walk(tree)):  # an annotation is not I/O
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = [ast.Pass()]
        assert not uses(imported(tree), IO_MODULES), name


def test_only_the_transport_reads_a_clock() -> None:
    for name in sorted(set(core_modules()) - TRANSPORT):
        assert not uses(imports_of(name), CLOCK_MODULES), name


@pytest.mark.parametrize("package", ["amqp_core", "amqp_spark", "pyspark_amqp"])
def test_nothing_that_is_installed_needs_the_tests_or_the_generator(package: str) -> None:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))
    assert files
    for name in files:
        assert not uses(imports_of(name), {"tests", "specs", "jobs", "examples"}), name


@pytest.mark.parametrize("apart", ["amqp_core.v0_10.file_stream", "amqp_core.v0_9.unserved"])
@pytest.mark.parametrize("package", ["amqp_core", "amqp_spark", "pyspark_amqp", "jobs", "examples"])
def test_nothing_in_production_has_the_classes_that_no_broker_serves(package: str, apart: str) -> None:
    """The contract of import-linter does not see jobs, the packages around the code, and imports for types alone."""
    folder = ROOT / apart.replace(".", "/")
    assert folder.is_dir()
    files = [path for path in (ROOT / package).rglob("*.py") if folder not in path.parents]
    assert files
    for path in files:
        assert not uses(imports_of(str(path.relative_to(ROOT))), {apart}), path


def test_the_checks_see_an_import_wherever_it_stands() -> None:
    tree = ast.parse("def f():\n    import socket as s\n    from urllib import request\n")
    assert uses(imported(tree), IO_MODULES) == {"socket", "urllib.request"}
    assert not uses({"selections", "timeit"}, IO_MODULES | CLOCK_MODULES)
