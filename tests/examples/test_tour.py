"""The notebook: its cells in the Spark of the tests, and all of it in a kernel of Jupyter."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core import connect
from tests.examples.examples_support import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

TOUR = EXAMPLES / "tour.ipynb"
SENT = 3000
LARGE = 600
"""Messages with a quantity above 400: 100 of each 500."""


def code_cells() -> Iterator[dict[str, Any]]:
    for cell in json.loads(TOUR.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield cell


def test_it_is_kept_without_outputs() -> None:
    for cell in code_cells():
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.spark
def test_its_cells(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    names: dict[str, Any] = {}
    try:
        for number, cell in enumerate(code_cells(), start=1):
            exec(compile("".join(cell["source"]), f"cell {number} of {TOUR.name}", "exec"), names)
        assert spark.table("received").count() == SENT
        assert len(names["frame"]) == LARGE
        assert names["report"].exit_code == 0
        assert names["metrics"].history()["rows_in"].sum() >= SENT
        with connect(names["login"]) as client:
            found = [client.query_queue(queue) for queue in ("ticks", "volumes", "large")]
        assert [queue and queue.message_count for queue in found] == [0, 6, LARGE]
    finally:
        spark.catalog.dropTempView("received")
        if "metrics" in names:
            spark.streams.removeListener(names["metrics"])
        if "broker" in names:
            names["broker"].stop()


@pytest.mark.spark
@pytest.mark.thorough
def test_all_of_it_in_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nbclient import NotebookClient  # noqa: PLC0415 - make test does without
    from nbformat import reads  # noqa: PLC0415

    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    book = reads(TOUR.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises an error with the cell and its traceback
    shown = [
        "".join(output.get("text") or output["data"]["text/plain"])
        for cell in book.cells
        for output in cell.get("outputs", ())
    ]
    assert any(text.startswith("<broker at amqp://") for text in shown)
    assert any("|-- application_headers" in text for text in shown)
    assert str(SENT) in shown
