"""Writes the tables of docs/options.md, columns.md, monitoring.md and troubleshooting.md, and docs/errors.md.

``python -m amqp_spark.docs [--check]``; a table stands between ``<!-- table name: ... -->`` and ``<!-- end -->``.

``--check`` writes nothing, prints what differs and exits 1 when something does; a test calls it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.error_conditions import CoreCondition
from amqp_spark.arrow import decode as source
from amqp_spark.arrow import encode as sink
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.monitoring.history import COLUMNS, QUEUE_COLUMNS
from amqp_spark.monitoring.prometheus import METRICS, PREFIX
from amqp_spark.options import CONNECTION, SINK, SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType

    from amqp_core.error_conditions import Condition
    from amqp_spark.monitoring.history import Column
    from amqp_spark.options import Option

_FIELD = re.compile(r"\{(\w+)[^}]*\}")
_TABLE = re.compile(r"(<!-- table (\w+): [^\n]*-->\n).*?(<!-- end -->\n)", re.DOTALL)


def options_table(options: Sequence[Option]) -> str:
    """Format options as a table."""
    head = "| option | type | default | meaning | allowed |\n|---|---|---|---|---|\n"
    return head + "".join(
        _row(f"`{each.name}`", each.kind.name, each.default, each.meaning, _plain(each.kind.allowed))
        for each in options
    )


def columns_table() -> str:
    """Format the columns of the source as a table."""
    rows = [
        _row(f"`{name}`", f"`{_ddl(column.default)}`", column.meaning, column.elsewhere, column.allowed)
        for name, column in source.COLUMNS.items()
    ]
    head = "| column | type without a schema | meaning | with 0-9-1 | types with a schema |\n|---|---|---|---|---|\n"
    return "".join([head, *rows])


def sink_columns_table() -> str:
    """Format the columns of the sink as a table."""
    rows = [
        _row(
            f"`{name}`",
            column.meaning,
            column.elsewhere,
            column.types,
            "" if column.option is None else f"`{column.option}`",
        )
        for name, column in sink.COLUMNS.items()
    ]
    return "".join(["| column | meaning | with 0-9-1 | types | option instead |\n|---|---|---|---|---|\n", *rows])


def wire_types_table() -> str:
    """Format the wire types of Spark's types in maps and lists as a table."""
    rows = [_row(f"`{kind}`", wire, f"`{letter}`", how) for kind, wire, letter, how in sink.WIRE_TYPES]
    return "".join(["| type of Spark | on the wire, 0-10 | 0-9-1 | how |\n|---|---|---|---|\n", *rows])


def table_types_table() -> str:
    """Format the type letters of 0-9-1 as a table."""
    rows = [_row(f"`{letter}`", name) for letter, name in source.TABLE_TYPES]
    return "".join(["| letter | read as |\n|---|---|\n", *rows])


def history_table(columns: Mapping[str, Column]) -> str:
    """Format the columns of a history of metrics as a table."""
    rows = [_row(f"`{name}`", f"`{each.dtype}`", each.unit, each.meaning) for name, each in columns.items()]
    return "".join(["| column | dtype | unit | meaning |\n|---|---|---|---|\n", *rows])


def metrics_table() -> str:
    """Format the metrics for Prometheus as a table."""
    rows = [
        _row(f"`{PREFIX}{name}`", each.kind, ", ".join(f"`{label}`" for label in ("query", *each.labels)), each.meaning)
        for name, each in METRICS.items()
    ]
    return "".join(["| metric | type | labels | meaning |\n|---|---|---|---|\n", *rows])


def conditions_list() -> str:
    """Format all conditions of errors, by name."""
    return "\n".join(map(_condition_section, _conditions()))


def error_texts_table() -> str:
    """Format all errors as a table, by their text."""
    rows = [
        _row(_sentence(each.what, "…"), _sentence(each.action, "…"), f"[{each.title}](errors.md#{each.title.lower()})")
        for each in _conditions()
    ]
    rows.sort(key=lambda row: re.sub(r"[^a-z]", "", row.lower()))
    return "".join(["| text | what to do | condition |\n|---|---|---|\n", *rows])


def written(text: str) -> str:
    """Return a document with its tables replaced by the current ones of the code."""
    tables = {
        "connection": options_table(CONNECTION),
        "source": options_table(SOURCE),
        "sink": options_table(SINK),
        "columns": columns_table(),
        "sink_columns": sink_columns_table(),
        "wire_types": wire_types_table(),
        "table_types": table_types_table(),
        "conditions": conditions_list(),
        "history": history_table(COLUMNS),
        "queue_history": history_table(QUEUE_COLUMNS),
        "metrics": metrics_table(),
        "error_texts": error_texts_table(),
    }
    return _TABLE.sub(lambda match: match[1] + tables[match[2]] + match[3], text)


def _condition_section(condition: Condition) -> str:
    sentences = _sentence(f"{condition.what} {condition.action}", r"`<\1>`")
    texts = (sentences, condition.detail)
    return "\n".join([f"### {condition.title}\n", *(f"{text}\n" for text in texts if text)])


def _conditions() -> list[Condition]:
    every: list[Condition] = [*CoreCondition, *BrokerCondition, *SparkCondition]
    return sorted(every, key=lambda condition: condition.title)


def _sentence(text: str, field: str) -> str:
    return _FIELD.sub(field, _plain(text)).replace("``", "` `")


def _plain(text: str) -> str:
    """Escape what is no link: ``host[:port][,host2]`` looks like one."""
    return text.replace("][", "]\\[")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _ddl(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{field.name} {_ddl(field.dataType)}' for field in kind)}>"
    return kind.simpleString().upper()


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the documents; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m amqp_spark.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 and print a diff if they differ")
    parser.add_argument("--directory", type=Path, default=Path("docs"), help="where they are (default: docs)")
    arguments = parser.parse_args(argv)
    differ = False
    for name in ("options.md", "columns.md", "errors.md", "monitoring.md", "troubleshooting.md"):
        path: Path = arguments.directory / name
        found = path.read_text(encoding="utf-8")
        text = written(found)
        if found == text:
            continue
        differ = True
        if arguments.check:
            now, then = found.splitlines(keepends=True), text.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(now, then, str(path), f"{path} (from the code)"))
        else:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    return 1 if arguments.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
