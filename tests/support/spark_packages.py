"""Packages for ``spark-submit --packages`` in a Maven repository of the cache, so that tests need no network.

Maven decides which jars there are. Ivy, which Spark uses, would decide otherwise and look for others: it finds poms
that name no dependencies, except that of the package, which names all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.jobs import ROOT
from tests.support.maven import cache_root, cached_directory, fetch_repository, pom, written_pom

if TYPE_CHECKING:
    from pathlib import Path

_IVY = """<ivysettings>
  <settings defaultResolver="cache"/>
  <resolvers><ibiblio name="cache" m2compatible="true" root="{}/"/></resolvers>
</ivysettings>
"""


def coordinates(example: str) -> str:
    """The package that an example names: ``group:artifact:version``."""
    (found,) = re.findall(r"--packages (\S+)", (ROOT / "examples" / example).read_text(encoding="utf-8"))
    return str(found)


def is_fetched(package: str) -> bool:
    """Whether the package is in the cache."""
    return (cache_root() / _name(package)).is_dir()


def repository(package: str) -> Path:
    """Return a Maven repository with the package and what it depends on, fetching them on first use."""

    def fill(directory: Path) -> None:
        with written_pom([package]) as needing:
            fetch_repository(needing, directory)
        jars = {_coordinates_of(jar, directory): jar for jar in directory.rglob("*.jar")}
        for each, jar in jars.items():
            needs = jars.keys() - {package} if each == package else ()
            jar.with_suffix(".pom").write_text(pom(each, needs), encoding="utf-8")

    return cached_directory(_name(package), fill)


def jars(package: str) -> list[Path]:
    """Return the package's jar and those that it depends on, for ``spark.jars``, fetching them on first use."""
    return sorted(repository(package).rglob("*.jar"))


def ivy_settings(package: str, directory: Path) -> dict[str, str]:
    """Settings of Spark that resolve ``--packages`` from the cache; their files are in ``directory``."""
    settings = directory / "ivysettings.xml"
    settings.write_text(_IVY.format(repository(package).as_uri()), encoding="utf-8")
    return {"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(directory / "ivy")}


def _coordinates_of(jar: Path, root: Path) -> str:
    *group, artifact, version, _ = jar.relative_to(root).parts
    return f"{'.'.join(group)}:{artifact}:{version}"


def _name(package: str) -> str:
    _, artifact, version = package.split(":")
    return f"{artifact}-{version}"
