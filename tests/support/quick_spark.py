"""Lets every Spark of the tests start quicker: sessions, drivers and executors in processes of their own, and jobs.

Spark puts its archive ``pyspark.zip`` in front of the modules that are installed, and Python keeps nothing that it has
compiled from an archive: every reader process and every daemon of workers compiles PySpark again, for most of a second.
A home of Spark without that archive makes them use the installed PySpark, which is the same. Tests of
``spark-submit`` name the real home, so the archive is used there.
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
    """Set it up for what is started from now on, by this process or below it."""
    os.environ["SPARK_HOME"] = str(home())
    os.environ["SPARK_CONF_DIR"] = str(_CONF)
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(jvm.SHORT_LIVED)  # of the Java that only says how Spark is started


def home() -> Path:
    """A home of Spark with the programs and jars of the installed one, and without its Python."""
    installed = Path(pyspark.__file__).resolve().parent

    def fill(directory: Path) -> None:
        for part in _PARTS:
            (directory / part).symlink_to(installed / part)

    # its name tells where the links lead to: each environment has its own
    return cached_directory(f"spark-home-{hashlib.sha256(os.fsencode(installed)).hexdigest()[:16]}", fill)
