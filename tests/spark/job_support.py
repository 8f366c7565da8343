"""Shared code of the tests of several jobs, without Spark and without a broker."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

SECRET = "s3cret"


def without_spark(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a job that must not start Spark, with no login in the environment."""
    for side in ("", "FROM_", "TO_"):
        for what in ("URL", "USERNAME", "PASSWORD"):
            monkeypatch.delenv(f"AMQP_{side}{what}", raising=False)
    monkeypatch.setattr("amqp_spark.cli.spark.spark_session", must_not_be_called)
    return importlib.import_module(f"amqp_spark.commands.{name}")


def must_not_be_called(*_: object, **__: object) -> None:
    raise AssertionError("Spark was started for a command line that is wrong")


def help_of(job: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of ``--help``."""
    with pytest.raises(SystemExit) as ended:
        job.main(["--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out
