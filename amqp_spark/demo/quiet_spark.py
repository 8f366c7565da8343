"""A local Spark whose output goes to a file.

Before a program can configure its log, Spark, its launcher and the JVM print warnings that need no action. All of them,
and all that workers print, go through the output of one process, which is redirected here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

_END_SECONDS: Final = 30.0
_SHOWN_LINES: Final = 40
# It lives for seconds: the optimising compiler and a garbage collector with many threads cost more than they gain.
_JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@contextmanager
def quiet_spark(name: str, directory: Path, log: Path) -> Iterator[SparkSession]:
    """Run a Spark of two cores while the context lasts. The process must have had none before.

    Args:
        name: of the application.
        directory: for its own files; made here, and removed at the end.
        log: file that gets all that it prints.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers are the first python3 on the PATH
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # else Spark warns where the name of the machine is not resolved
    os.environ.pop("SPARK_REMOTE", None)  # a server of Spark Connect, which has workers elsewhere
    directory.mkdir()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - --help must not wait for it
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    configuration = SparkConf().setMaster("local[2]").setAppName(name)
    for key, value in {
        "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} {_quoted(f'-Djava.io.tmpdir={directory}')}",
        "spark.local.dir": str(directory),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        configuration.set(key, value)
    with log.open("wb") as output:
        # In a session of its own: a signal for all processes of a terminal is for this one, which ends Java in order.
        settings = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        gateway = launch_gateway(configuration, settings)  # type: ignore[no-untyped-call]  # pyspark has no types here
    process: subprocess.Popen[bytes] = gateway.proc
    try:
        with _text_kept():
            context = SparkContext(conf=configuration, gateway=gateway)
        try:
            yield SparkSession(context)
        finally:
            context.stop()
    finally:
        if process.stdin is not None:
            process.stdin.close()  # by which Java notices that its Python has ended
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _text_kept() -> Iterator[None]:
    """Turn an error into one with the same text: py4j asks the JVM for it, which ends before anyone reads it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting
        raise RuntimeError(str(error)) from None


def end_of(log: Path) -> str:
    """The last lines of a log; empty if there are none."""
    if not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_SHOWN_LINES:])


def _quoted(option: str) -> str:
    """An option of Java as Spark's launcher reads it, which ends options at white space."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
