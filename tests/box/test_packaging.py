"""What would be published: sdist and wheel, and the first screen of the README after ``pip install``."""

from __future__ import annotations

import email.parser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import amqp_spark
from tests.support.box_process import BoxProcess
from tests.support.jobs import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message

STEM = f"amqp_spark-{amqp_spark.__version__}"
INFO = f"{STEM}.dist-info"
PACKAGES = ("amqp_core", "amqp_spark", "pyspark_amqp")
GENERATED = tuple(f"amqp_core/{protocol}/{name}.py" for protocol in ("v0_10", "v0_9") for name in ("_codec", "spec"))
MADE_HERE = "git clone"
"""Commands that begin so fetch what the wheel stands for here."""


class Distribution(NamedTuple):
    """What one build made; the files by their names in the archive, those of the sdist below its directory."""

    directory: Path
    sdist: Mapping[str, bytes]
    wheel: Mapping[str, bytes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build the sdist, and the wheel from it: the sdist has what is needed."""
    directory = tmp_path_factory.mktemp("dist")
    run("build", "--no-isolation", "--outdir", directory, ROOT)
    assert {path.name for path in directory.iterdir()} == {f"{STEM}.tar.gz", f"{STEM}-py3-none-any.whl"}
    with tarfile.open(directory / f"{STEM}.tar.gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive if not member.isdir()}
        assert all(members.values()), "links"
        sdist = {name.removeprefix(f"{STEM}/"): file.read() for name, file in members.items() if file is not None}
    with zipfile.ZipFile(directory / f"{STEM}-py3-none-any.whl") as wheel:
        return Distribution(directory, sdist, {name: wheel.read(name) for name in wheel.namelist()})


def run(module: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources(*directories: str) -> set[str]:
    """Names of the files of the packages in the source tree, or of other directories."""
    found = {path for each in directories or PACKAGES for path in (ROOT / each).rglob("*") if path.is_file()}
    return {path.relative_to(ROOT).as_posix() for path in found if path.suffix != ".pyc"}


def test_indexes_accept_the_metadata_and_the_description(built: Distribution) -> None:
    assert run("twine", "check", "--strict", *sorted(built.directory.iterdir())).count("PASSED") == 2


def test_the_wheel_has_the_packages_and_nothing_else(built: Distribution) -> None:
    names = set(built.wheel)
    assert {name for name in names if not name.startswith(f"{INFO}/")} == sources()
    assert names >= {f"{INFO}/licenses/LICENSE", "amqp_core/py.typed", "amqp_spark/py.typed", *GENERATED}
    assert b"pytest11" in built.wheel[f"{INFO}/entry_points.txt"]


def test_the_sdist_has_the_packages_and_the_documents_and_nothing_else(built: Distribution) -> None:
    beside = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert set(built.sdist) == sources() | sources("docs", "examples", "jobs") | beside


def test_no_file_names_the_machine_that_built_it(built: Distribution) -> None:
    places = {os.fsencode(f"{place}/") for place in (ROOT, Path.home(), Path(sys.prefix)) if place != Path("/")}
    for name, content in [*built.sdist.items(), *built.wheel.items()]:
        assert not [place for place in places if place in content], name


def test_the_metadata_says_what_the_project_says(built: Distribution) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in (built.sdist["PKG-INFO"], built.wheel[f"{INFO}/METADATA"]):
        metadata: Message = email.parser.Parser().parsestr(text.decode())
        assert metadata["Name"] == "amqp-spark"
        assert metadata["Version"] == amqp_spark.__version__
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert metadata.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
        assert set(metadata.get_all("Classifier", [])) == set(project["classifiers"])
        assert metadata.get_all("Provides-Extra", []) == sorted(project.get("optional-dependencies", {}))


def first_screen() -> str:
    """The section of the README that a user tries first."""
    found = re.search(
        r"^## Try it\n(.*?)^## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


def commands(section: str) -> list[str]:
    """The command lines of a section, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


class BrokerOfTheReadme(BoxProcess):
    """The broker as the README starts it, except for its port."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        super().__init__(durable=False)
        self._given, self._variables = command, environment

    def _command(self, work_dir: Path) -> list[str]:
        return [*self._given, "--port", str(self.port)]

    def _environment(self, work_dir: Path) -> Mapping[str, str]:
        return self._variables


@pytest.mark.thorough  # test_demo and test_readme run the same without the installation of all dependencies
@pytest.mark.timeout(1800)  # Spark is a large download where pip has none in its cache
@pytest.mark.spark
def test_the_first_screen_of_the_readme_works_in_an_empty_environment(built: Distribution, tmp_path: Path) -> None:
    environment, here = tmp_path / "venv", tmp_path / "here"
    here.mkdir()
    venv.create(environment, symlinks=True, with_pip=True)
    ours = ("PYTHON", "PYSPARK_", "SPARK_", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    variables |= {"VIRTUAL_ENV": str(environment), "PATH": os.pathsep.join([f"{environment}/bin", os.environ["PATH"]])}

    def words(command: str) -> list[str]:
        program, *arguments = shlex.split(command)
        found = shutil.which(program, path=variables["PATH"])
        assert found is not None, command
        return [found, *arguments]

    def run_here(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    install, *others, broker = [line for line in commands(first_screen()) if not line.startswith(MADE_HERE)]
    assert install == "pip install ."
    run_here(*words("pip install --quiet"), *built.directory.glob("*.whl"))
    assert others
    for command in others:
        assert "every message arrived exactly once" in run_here(*words(command))
    with BrokerOfTheReadme(words(broker), variables) as server:
        (code,) = re.findall(r"```python\n(.*?)```", first_screen(), re.DOTALL)
        assert "localhost:5672" in code
        (here / "first.py").write_text(code.replace("localhost:5672", f"localhost:{server.port}"), encoding="utf-8")
        shown = run_here(*words("python first.py"))
    assert sorted(re.findall(r"\|\s*(\w+)\|\s*(\w+)\|", shown))[1:] == [("hello", "hello"), ("world", "hello")], shown
