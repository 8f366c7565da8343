"""The examples that are programs, each run as its user runs it."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.examples.examples_support import COUNT, EXAMPLES, ConnectServer, run, succeeds
from tests.support.jobs import package_archive, python_without_the_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.examples.examples_support import Queues

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer.running(tmp_path_factory.mktemp("connect")) as running:
        yield running


def test_spark_connect_with_a_client_that_lacks_the_package(
    server: ConnectServer, queues: Queues, tmp_path: Path
) -> None:
    client = str(python_without_the_package(tmp_path))
    environment = queues.environment(tmp_path) | {"SPARK_REMOTE": server.url}
    environment.pop("PYTHONPATH", None)
    probe = run(client, "-c", "import pyspark, amqp_spark", env=environment, directory=tmp_path)
    assert "No module named 'amqp_spark'" in probe.stderr  # or the test would not prove the second line of the example
    shown = succeeds(client, str(EXAMPLES / "connect.py"), env=environment, directory=tmp_path)
    quantities = dict.fromkeys((tick.symbol for tick in queues.sent), 0)
    for tick in queues.sent:
        quantities[tick.symbol] += tick.qty
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    assert table == [["symbol", "sum(qty)"], *([name, str(qty)] for name, qty in sorted(quantities.items()))]
    assert queues.depth("ticks") == 0


def test_executors_in_processes_of_their_own(queues: Queues, tmp_path: Path) -> None:
    succeeds(sys.executable, str(EXAMPLES / "local_cluster.py"), env=queues.environment(tmp_path), directory=tmp_path)
    assert queues.depth("ticks") == 0
    assert queues.bodies("large") == queues.large


def test_a_wheel_for_py_files(queues: Queues, tmp_path: Path) -> None:
    python = str(python_without_the_package(tmp_path))
    environment = queues.environment(tmp_path) | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    environment.pop("PYTHONPATH", None)
    wheel = package_archive(tmp_path / "amqp_spark-0.1.0-py3-none-any.whl")
    shown = succeeds("sh", str(EXAMPLES / "py_files.sh"), str(wheel), env=environment, directory=tmp_path)
    assert "1,000 rows" in shown
    assert len(pq.read_table(tmp_path / "data" / "py_files", columns=["body"])) == COUNT
    assert queues.depth("ticks") == 0


def test_a_pipeline(server: ConnectServer, queues: Queues, tmp_path: Path) -> None:
    specification = tmp_path / "pipeline" / "spark-pipeline.yml"
    shutil.copytree(EXAMPLES / "pipeline", specification.parent)
    text = specification.read_text(encoding="utf-8")
    (storage,) = [line for line in text.splitlines() if line.startswith("storage: ")]
    text = text.replace(storage, f"storage: {(tmp_path / 'storage').as_uri()}")
    specification.write_text(text, encoding="utf-8")
    succeeds(
        "spark-pipelines",
        "--remote",
        server.url,
        "run",
        "--spec",
        str(specification),
        env=queues.environment(tmp_path),
        directory=tmp_path,
    )
    assert queues.depth("ticks") == 0
    assert queues.bodies("large") == queues.large
    tables = server.directory / "spark-warehouse"
    assert len(pq.read_table(tables / "ticks", columns=["message_id"])) == COUNT
    volumes = pq.read_table(tables / "volumes").to_pylist()
    assert sum(row["volume"] for row in volumes) == sum(tick.qty for tick in queues.sent)
    assert sorted(row["symbol"] for row in volumes) == sorted({tick.symbol for tick in queues.sent})
