"""The side of Spark: versions of driver and workers, whether ``format("amqp")`` is found, and retries.

Without a session only what is installed here is reported: Spark is not started.
"""

from __future__ import annotations

import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from amqp_spark.cli.errors import EXIT_FAILED, explain
from amqp_spark.cli.progress import counted
from amqp_spark.demo.java import JavaMissing, require_java
from amqp_spark.diagnosis.findings import Status, listed, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from amqp_spark.diagnosis.findings import Report

SECTION: Final = "Spark"
_ON_WORKERS: Final = ("pyspark", "pyarrow", "pandas", "numpy")
_PACKAGES: Final = (*_ON_WORKERS, "cryptography")
"""What the driver needs."""
_MOST_TASKS: Final = 16
_LOCAL: Final = re.compile(r"local(\[[^,\]]*(,\s*1\s*)?\])?")
"""Masters that run a task once."""
_FAILURES: Final = "spark.task.maxFailures"
"""How often a task of a cluster may fail: with 1 it is not run again."""


def examine(report: Report, find: Callable[[], SparkSession | None]) -> None:
    """Report versions, and with a session the workers, the data source and the retries.

    Args:
        find: returns the session, which it may start; ``None``: there is none. What it raises becomes a finding.
    """
    here = {"Python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}
    report.ok(SECTION, "driver", listed(f"{name} {version}" for name, version in here.items()))
    missing = [name for name in _PACKAGES if here[name] == _ABSENT]
    if missing:
        advice = f"pip install {' '.join(missing)}"
        report.fail(SECTION, "packages", f"{listed(missing)} missing", advice, exit_code=EXIT_FAILED)
    try:
        session = find()
    except JavaMissing:
        _java(report)
        return
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting
        _java(report)
        value, advice = explain(error)[0].partition("\n")[0][:200], "See what Spark has printed, and its master"
        report.fail(SECTION, "session", f"Spark does not start: {value}", advice, exit_code=EXIT_FAILED)
        return
    if session is None:
        _java(report)
        advice = "Add --spark, or make a session before amqp_spark.doctor"
        report.skip(SECTION, "workers, format", "not tried: Spark is not started", advice)
        return
    report.ok(SECTION, "session", f"Spark {session.version}, {_java_of(session)}")
    _workers(report, session, here)
    _format(report, session)
    _retries(report, session)


_ABSENT: Final = "(absent)"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _ABSENT


def _java(report: Report) -> None:
    try:
        report.ok(SECTION, "Java", require_java())
    except JavaMissing as error:
        value, advice = told(error)
        report.fail(SECTION, "Java", value, advice, exit_code=EXIT_FAILED)


def _java_of(session: SparkSession) -> str:
    """The Java of the driver; Spark Connect does not tell it."""
    machine = getattr(session, "_jvm", None)
    return "Java not told by Spark Connect" if machine is None else f"Java {_property(machine)}"


def _property(machine: Any) -> str:
    return str(machine.java.lang.System.getProperty("java.version"))


def _workers(report: Report, session: SparkSession, here: dict[str, str]) -> None:
    """Run a small job that tells the versions of the workers."""
    tasks = min(_MOST_TASKS, _parallelism(session))
    try:
        rows = session.range(0, tasks, 1, tasks).mapInArrow(_teller(), "versions string").collect()
    except Exception as error:  # noqa: BLE001 - whatever keeps a worker from starting
        advice = "Set PYSPARK_PYTHON to an interpreter of every node that has pyspark, pyarrow, pandas and amqp-spark"
        report.fail(SECTION, "workers", explain(error)[0].partition("\n")[0][:200], advice, exit_code=EXIT_FAILED)
        return
    texts = sorted({row[0] for row in rows})
    wanted = [f"{name} {here[name]}" for name in ("Python", *_ON_WORKERS)]
    differing = [text for text in texts if any(each not in text for each in wanted)]
    if differing:
        advice = "Give driver and workers the same versions (PYSPARK_PYTHON)"
        report.warn(SECTION, "workers", "; ".join(texts), advice)
    else:
        report.ok(SECTION, "workers", f"{'; '.join(texts)} ({counted(tasks, 'task', 'tasks')})")
    if any(f"amqp_spark {_ABSENT}" in text for text in texts):
        advice = "Install amqp-spark on every node, or ship it with --py-files and call amqp_spark.register(spark)"
        report.warn(SECTION, "package on workers", "amqp_spark cannot be imported there", advice)


def _teller() -> Any:
    """The function of the job: made here so that it is pickled whole, and works where amqp_spark is missing."""
    absent, packages = _ABSENT, _ON_WORKERS

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.util  # noqa: PLC0415 - on the worker
        import platform  # noqa: PLC0415
        from importlib import metadata  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415

        for _ in batches:
            pass
        told = [f"Python {platform.python_version()}"]
        for name in packages:
            try:
                told.append(f"{name} {metadata.version(name)}")
            except metadata.PackageNotFoundError:
                told.append(f"{name} {absent}")
        if importlib.util.find_spec("amqp_spark") is None:
            told.append(f"amqp_spark {absent}")
        yield pa.RecordBatch.from_pydict({"versions": [", ".join(told)]})

    return tell


def _parallelism(session: SparkSession) -> int:
    try:
        return session.sparkContext.defaultParallelism
    except Exception:  # noqa: BLE001 - Spark Connect has no context
        return 1


def _format(report: Report, session: SparkSession) -> None:
    """Look the data source up; with a schema Spark runs nothing of it."""
    try:
        options = {"url": "amqp://localhost", "queue": "doctor"}
        session.read.format("amqp").options(**options).schema("body BINARY").load()
    except Exception as error:  # noqa: BLE001 - it differs by version of Spark
        value = explain(error)[0].partition("\n")[0][:200]
        advice = "Call amqp_spark.register(spark), or install amqp-spark into the Python that Spark starts"
        report.fail(SECTION, 'format("amqp")', f"not found: {value}", advice, exit_code=EXIT_FAILED)
    else:
        report.ok(SECTION, 'format("amqp")', "found")


def _master(session: SparkSession) -> str:
    """The master that Spark runs with: a session's setting may be another one, which has no effect any more."""
    try:
        return str(session.sparkContext.master)
    except Exception:  # noqa: BLE001 - Spark Connect has no context
        return session.conf.get("spark.master", "") or ""


def _retries(report: Report, session: SparkSession) -> None:
    master = _master(session)
    if _LOCAL.fullmatch(master):
        advice = "Write local[n,4] as master: a task that lost its connection is then run again"
        report.add(SECTION, "retries of tasks", Status.WARNING, f"none: {master} runs each task once", advice)
    elif not master.startswith("local[") and session.conf.get(_FAILURES, "4") == "1":
        advice = f"Set {_FAILURES} to 4, Spark's default: a task that lost its connection is then run again"
        report.add(SECTION, "retries of tasks", Status.WARNING, f"none: {_FAILURES} is 1", advice)
    else:
        report.ok(SECTION, "retries of tasks", f"as configured, master {master or '(not told)'}")
