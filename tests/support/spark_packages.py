"""Packages for ``spark-submit --packages`` in a Maven repository of the cache, so that tests need no network.

Maven decides which jars there are. Ivy, which Spark uses, would decide otherwise and look for others: it finds poms
that name no dependencies, except that of the package, which names all.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.jobs import ROOT
from tests.support.maven import cache_root, cached_directory, fetch_repository

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        with tempfile.TemporaryDirectory() as name:
            pom = Path(name) / "pom.xml"
            pom.write_text(_pom("amqp-spark.tests:packages:1", [package], packaging="pom"), encoding="utf-8")
            fetch_repository(pom, directory)
        jars = {_coordinates_of(jar, directory): jar for jar in directory.rglob("*.jar")}
        for each, jar in jars.items():
            needs = jars.keys() - {package} if each == package else ()
            jar.with_suffix(".pom").write_text(_pom(each, needs), encoding="utf-8")

    return cached_directory(_name(package), fill)


def ivy_settings(package: str, directory: Path) -> dict[str, str]:
    """Settings of Spark that resolve ``--packages`` from the cache; their files are in ``directory``."""
    settings = directory / "ivysettings.xml"
    settings.write_text(_IVY.format(repository(package).as_uri()), encoding="utf-8")
    return {"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(directory / "ivy")}


def _coordinates_of(jar: Path, root: Path) -> str:
    *group, artifact, version, _ = jar.relative_to(root).parts
    return f"{'.'.join(group)}:{artifact}:{version}"


def _pom(of: str, needs: Iterable[str], packaging: str = "jar") -> str:
    dependencies = "".join(f"<dependency>{_elements(need)}</dependency>" for need in sorted(needs))
    return _POM.format(of=_elements(of), packaging=packaging, dependencies=dependencies)


def _elements(package: str) -> str:
    names = ("groupId", "artifactId", "version")
    return "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, package.split(":"), strict=True))


def _name(package: str) -> str:
    _, artifact, version = package.split(":")
    return f"{artifact}-{version}"
