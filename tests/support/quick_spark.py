"""Speeds up the start of every Spark of the tests: sessions, drivers and executors in their own processes, and jobs.

Spark puts its archive ``pyspark.zip`` before the installed modules, and Python caches no compiled code of an archive:
every reader process and every worker daemon compiles PySpark again, for most of a second. A Spark home without that
archive makes them use the installed PySpark, which is the same. Tests of ``spark-submit`` name the real home, so the
archive is used there.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyspark

from tests.support import jvm
from tests.support.maven import cached_directory

_CONF = Path(__file__).with_name("spark_conf")
_PARTS = ("bin", "sbin", "jars")


def configure() -> None:
    """Configure the environment for processes started from now on."""
    os.environ["SPARK_HOME"] = str(home())
    os.environ["SPARK_CONF_DIR"] = str(_CONF)
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(jvm.SHORT_LIVED)  # of the JVM that only computes Spark's start command


def home() -> Path:
    """A Spark home with the programs and jars of the installed one, without its Python."""
    installed = Path(pyspark.__file__).resolve().parent

    def fill(directory: Path) -> None:
        for part in _PARTS:
            (directory / part).symlink_to(installed / part)

    # the name is derived from the link target: each environment has its own
    return cached_directory(f"spark-home-{hashlib.sha256(os.fsencode(installed)).hexdigest()[:16]}", fill)
