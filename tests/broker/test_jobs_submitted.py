"""The jobs one after the other, each by ``spark-submit`` with the package installed, from another directory."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.broker.job_support import QUICK, environment, job_path, left, login, run

if TYPE_CHECKING:
    import subprocess

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.thorough
def test_spark_submit_with_the_package_installed(broker: Broker, connect: Connect, queue: str, tmp_path: Path) -> None:
    home = Path(pyspark.__file__).parent
    both = login(broker) | login(broker, "FROM_") | login(broker, "TO_")
    spark = {"SPARK_HOME": str(home), "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": sys.executable}

    def submit(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", job_path(name)]
        done = run(*command, *arguments, *QUICK, env=environment(both) | spark, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    other = f"{queue}-{uuid.uuid4().hex[:8]}"
    connect().declare_queue(other)
    try:
        rows = "select cast(id as string) as body, uuid() as message_id from range(500)"
        assert "publish: 500 messages" in submit("publish", "--sql", rows, "--routing-key", queue).stdout
        where = ["--queue", queue, "--exchange", "", "--routing-key", other, "--checkpoint", str(tmp_path / "bridge")]
        assert "bridge: 500 rows" in submit("bridge", *where, "--available-now").stdout
        assert left(connect, queue) == 0
        files = ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "drain")]
        assert "500" in submit("drain", "--queue", other, *files).stdout
        assert left(connect, other) == 0
    finally:
        connect().delete_queue(other)
    bodies: list[bytes] = pq.read_table(tmp_path / "out", columns=["body"]).column("body").to_pylist()  # type: ignore[assignment]  # the sink's rows have no NULL
    assert sorted(bodies) == sorted(b"%d" % number for number in range(500))
