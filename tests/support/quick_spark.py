"""Speeds up the start of every Spark of the tests: sessions, drivers and executors in their own processes, and jobs.

Spark puts its archive ``pyspark.zip`` before the installed modules, and Python caches no compiled code of an archive:
every reader process and every worker daemon compiles PySpark again, for most of a second. A Spark home without that
archive makes them use the installed PySpark, which is the same. Tests of ``spark-submit`` name the real home, so the
archive is used there.

Java loads Spark's classes from an archive (class data sharing) that :func:`make_archive` makes once: this halves
the CPU that a start needs. Without the archive, or where the class path is another one, Java does without.

Spark's usual writer of checkpoint logs starts eight programs (``chmod``, ``readlink``) per micro-batch on a local disk
where Hadoop's native library is missing; another writer of Spark starts two. ``make test`` uses that one, and Java's
cheapest way to start a program; ``make test-all``, the crash matrix and the benchmarks keep the defaults of users.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.support import jvm
from tests.support.choice import all_cases
from tests.support.maven import cache_root, cached_directory

_PARTS = ("bin", "sbin", "jars")
_ARCHIVE = "classes.jsa"
_LOG_WRITER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_FEWER_PROGRAMS = (
    "-Djdk.lang.Process.launchMechanism=VFORK",
    f"-Dspark.sql.streaming.checkpointFileManagerClass={_LOG_WRITER}",
)
_PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(9).selectExpr("id % 3 AS k", "CAST(id AS STRING) AS v").write.parquet(sys.argv[1] + "/in")
read = spark.readStream.schema("k BIGINT, v STRING").parquet(sys.argv[1] + "/in")
write = read.writeStream.foreachBatch(lambda rows, _: rows.groupBy("k").count().toArrow())
write.option("checkpointLocation", sys.argv[1] + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def configure() -> None:
    """Configure the environment for processes started from now on."""
    directory = home()
    os.environ["SPARK_HOME"] = str(directory)
    # An archive of classes needs the same class path always, and no files in its directories: so no configuration file.
    os.environ["SPARK_CONF_DIR"] = str(directory / "conf")
    os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(jvm.SHORT_LIVED)  # of the JVM that only computes Spark's start command
    archive = _archive()
    _use(f"-XX:SharedArchiveFile={archive}" if archive.exists() else "")


def _use(*options: str) -> None:
    """Options of the JVMs of drivers, and without further ones of executors."""
    common = " ".join([*jvm.SHORT_LIVED, "-Xlog:disable", *options]).strip()
    driver = common if all_cases() else " ".join([common, *_FEWER_PROGRAMS])
    os.environ["SPARK_SUBMIT_OPTS"] = f'{driver} -Dspark.executor.defaultJavaOptions="{common}"'


def home() -> Path:
    """A Spark home with the programs and jars of the installed one, without its Python; its configuration is empty."""
    installed = Path(pyspark.__file__).resolve().parent

    def fill(directory: Path) -> None:
        (directory / "conf").mkdir()
        for part in _PARTS:
            (directory / part).symlink_to(installed / part)

    return cached_directory(f"spark-{_key()}", fill)


def make_archive() -> None:
    """Make the archive of classes, unless it is there."""

    def fill(directory: Path) -> None:
        _use(f"-XX:ArchiveClassesAtExit={directory / _ARCHIVE}")
        command = [sys.executable, "-c", _PROGRAM, str(directory / "work")]
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"Spark does not start:\n{done.stderr[-3000:]}")
        shutil.rmtree(directory / "work")

    configure()
    cached_directory(_archive().parent.name, fill)


def _archive() -> Path:
    return cache_root() / f"classes-{_key()}" / _ARCHIVE


def _key() -> str:
    # each environment, and each Spark in it, has its own: Java compares the paths
    installed = Path(pyspark.__file__).resolve().parent
    return hashlib.sha256(os.fsencode(f"{installed} {pyspark.__version__}")).hexdigest()[:16]


if __name__ == "__main__":
    make_archive()
