"""Packages for ``spark-submit --packages`` in a Maven repository of the cache, so that tests need no network."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from tests.support.jobs import ROOT
from tests.support.maven import cache_root, cached_directory, fetch_repository

_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>amqp-spark.tests</groupId>
  <artifactId>packages</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>
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
            pom.write_text(_POM.format(*map(escape, package.split(":"))), encoding="utf-8")
            fetch_repository(pom, directory)

    return cached_directory(_name(package), fill)


def ivy_settings(package: str, directory: Path) -> dict[str, str]:
    """Settings of Spark that resolve ``--packages`` from the cache; their files are in ``directory``."""
    settings = directory / "ivysettings.xml"
    settings.write_text(_IVY.format(repository(package).as_uri()), encoding="utf-8")
    return {"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(directory / "ivy")}


def _name(package: str) -> str:
    _, artifact, version = package.split(":")
    return f"{artifact}-{version}"
