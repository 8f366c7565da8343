"""The documents say what the code does: generated tables, links, navigation, names, versions."""

from __future__ import annotations

import ast
import pkgutil
import re
import tomllib
from typing import TYPE_CHECKING

import pytest

import amqp_spark
from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.error_conditions import CoreCondition
from amqp_spark import docs
from amqp_spark.arrow.decode import COLUMNS, DEFAULT_SCHEMA
from amqp_spark.commands import ingest
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OptionError
from amqp_spark.options import CONNECTION, SINK, SOURCE, SinkOptions, SourceOptions
from tests.support.documents import PAGES, README, ROOT, anchors, links

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = [README, ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md", *PAGES]
DEVELOPERS = [ROOT / "tests" / "README.md", ROOT / "tests" / "bench" / "README.md", ROOT / "specs" / "README.md"]
CODE = ("amqp_core", "amqp_spark", "examples", "jobs", "specs", "tests")
CONDITIONS = {condition.title for condition in (*CoreCondition, *BrokerCondition, *SparkCondition)}
VARIABLES = re.compile(r"AMQP_(TEST|FROM|TO)_\w*|AMQP_(URL|USERNAME|PASSWORD|NAME)")


def test_the_generated_tables_are_those_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check", "--directory", str(ROOT / "docs")]) == 0, capsys.readouterr().out


def test_a_table_that_differs_is_shown_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("options.md", "columns.md", "errors.md", "monitoring.md", "troubleshooting.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("| `queue` |", "| `Queue` |"), encoding="utf-8")
    where = ["--directory", str(tmp_path)]
    assert docs.main(["--check", *where]) == 1
    assert "-| `Queue` |" in capsys.readouterr().out
    assert docs.main(where) == 0
    assert docs.main(["--check", *where]) == 0
    assert (tmp_path / "options.md").read_text() == (ROOT / "docs" / "options.md").read_text()


def test_every_option_and_column_is_documented() -> None:
    options = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    columns = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    assert all(f"\n| `{option.name}` |" in options for option in (*CONNECTION, *SOURCE, *SINK))
    assert all(f"\n| `{name}` |" in columns for name in DEFAULT_SCHEMA.fieldNames())
    assert all(column.meaning for column in COLUMNS.values())


def rules() -> list[str]:
    """The rules about options together, of docs/options.md."""
    _, _, text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8").partition("\n## Combinations\n")
    return [" ".join(point.split()) for point in re.split("^- ", text, flags=re.MULTILINE)[1:]]


EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once", "transactionalId": "w"}


@pytest.mark.parametrize(
    ("side", "options", "named"),
    [
        (SourceOptions, {"username": "u", "password": "p", "saslMechanisms": "EXTERNAL"}, "`saslMechanisms` login"),
        (SourceOptions, {"minMessagesPerTrigger": "2", "maxMessagesPerTrigger": "1"},
         "`minMessagesPerTrigger` at most `maxMessagesPerTrigger`"),
        (SourceOptions, {"maxTriggerDelay": "1m"}, "`maxTriggerDelay` needs `minMessagesPerTrigger`"),
        (SourceOptions, {"declare": "ifMissing", "queueType": "quorum", "queueArguments": "x-queue-type=classic"},
         "`queueType` `queueArguments` `x-queue-type`"),
        (SourceOptions, {"numReaders": "2", "minMessagesPerTrigger": "2"}, "`numReaders` `minMessagesPerTrigger`"),
        (SourceOptions,
         {"numReaders": "2", "deliveryGuarantee": "exactly-once", "consumerId": "c", "spoolLocation": "/s"},
         "`numReaders` `deliveryGuarantee=exactly-once`"),
        (SourceOptions, {"numReaders": "2", "queueType": "stream"}, "`numReaders` `queueType=stream`"),
        (SourceOptions, {"numReaders": "2", "transferPort": "65535"}, "`numReaders` `transferPort` 65535"),
        (SinkOptions, {"transactionalId": "w"}, "`transactionalId` `stableMessageId=true`"),
        (SinkOptions, EXACTLY_ONCE | {"transactionTimeout": "74"}, "`transactionTimeout` twice `heartbeat` 15 75"),
        (SinkOptions, EXACTLY_ONCE | {"protocol": "0-9-1"}, "`deliveryGuarantee=exactly-once` `protocol=0-9-1`"),
        (SinkOptions, {"protocol": "0-10", "priority": "10"}, "`priority` 9 `protocol=0-10`"),
    ],
)  # fmt: skip
def test_what_options_exclude_is_documented(
    side: type[SourceOptions | SinkOptions], options: dict[str, str], named: str
) -> None:
    with pytest.raises(OptionError) as refused:
        side.parse({"url": "amqp://h/v", "exchange" if side is SinkOptions else "queue": "q"} | options)
    assert len(refused.value.problems) == 1
    assert any(all(word in rule for word in named.split()) for rule in rules())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"transactionalId": "w", "stableMessageId": "true"}, "`transactionalId` `stableMessageId=true`"),
        (EXACTLY_ONCE | {"transactionTimeout": "75"}, "`transactionTimeout` 75"),
        ({"spark.x": "1", "__internal": "2", "outputMode": "append"}, "`outputMode` `spark.` `__`"),
    ],
)
def test_what_options_allow_is_documented(options: dict[str, str], named: str) -> None:
    SinkOptions.parse({"url": "amqp://h/v"} | options)
    assert any(all(word in rule for word in named.split()) for rule in rules())


def test_options_that_the_documents_name_exist() -> None:
    found: set[str] = set()
    known = {option.name for option in (*CONNECTION, *SOURCE, *SINK)}
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"\.option\(\"([\w.]+)\"", text)) | set(re.findall(r"`((?:tls|retry)\.\w+)", text))
        named |= set(re.findall(r"[{ ]\"([\w.]+)\": \"", text))  # a dict of options
        assert named - {"checkpointLocation"} <= known, path.name
        found |= named
    assert found >= {"url", "queue", "tls.caFile", "retry.maxAttempts"}, "or nothing was looked for"


@pytest.mark.parametrize("path", [*DOCUMENTS, *DEVELOPERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in links(path):
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target
        assert path not in PAGES or linked.resolve().is_relative_to(path.parent), f"{target} is not in the site"


@pytest.mark.parametrize("path", [*DOCUMENTS, *DEVELOPERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_python_names_that_the_documents_name_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for file in set(re.findall(r"\b(?:amqp_core|amqp_spark|jobs|specs|tests|docs)/[\w./-]*\w", text)):
        assert (ROOT / file).exists(), file
    for module in set(re.findall(r"(?<![\w./])\w+\.py\b", text)):
        assert any(module in {path.name for path in (ROOT / top).rglob("*.py")} for top in CODE), module
    for name in set(re.findall(r"(?<![\w./])(?:amqp_core|amqp_spark)(?:\.\w+)+", text)) - {"amqp_spark.whl"}:
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_conditions_that_the_documents_name_exist(path: Path) -> None:
    named = set(re.findall(r"\bAMQP_[A-Z_0-9]+\b", path.read_text(encoding="utf-8")))
    assert {name for name in named if not VARIABLES.fullmatch(name)} <= CONDITIONS


def test_the_changelog_has_the_releases_below_what_is_not_released() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[:2] == ["Unreleased", amqp_spark.__version__]


def texts_of_the_code() -> list[str]:
    """Every string of the connector, with ``{}`` for what is put into it."""
    texts = []
    for path in sorted((ROOT / "amqp_spark").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def pieces_of(fragment: str) -> list[str]:
    """Return the fixed parts of a quoted error: n, m, ellipses and names of queues stand for fields."""
    plain = re.sub(r"\bamqp-spark\.\w+\.…", "…", fragment)
    plain = re.sub(r"\b[nm]\b", "{}", plain)
    return [piece.strip() for piece in plain.split("…") if piece.strip()]


def test_errors_with_remedies_are_those_of_the_code() -> None:
    """A name of a condition is looked up in the table, a quoted text in the code. Errors of Spark are marked."""
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = operations.partition("\n### Remedies\n")[2].partition("\n## ")[0]
    firsts = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| ")][1:]
    quoted = [found for first in firsts for found in re.findall(r"`([^`]+)`( \(Spark\))?", first)]
    fragments = [fragment for fragment, foreign in quoted if not foreign and fragment not in CONDITIONS]
    assert len(quoted) > len(firsts) > 20
    texts = texts_of_the_code()
    missing = []
    for fragment in fragments:
        pieces = pieces_of(fragment)
        assert max(len(piece) for piece in pieces) >= 10, f"{fragment!r} says too little to be looked up"
        missing += [(fragment, piece) for piece in pieces if not any(piece in text for text in texts)]
    assert missing == []


def test_exit_codes_are_documented_as_the_jobs_say() -> None:
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    said = ingest.__doc__
    for code in ("0", "1", "2", "3", "130, 143"):
        assert f"\n| {code} | " in operations
        assert f"{code} " in said


def pages_of(navigation: object) -> list[str]:
    """Files that a navigation names, in its order."""
    if isinstance(navigation, str):
        return [navigation]
    assert isinstance(navigation, list | dict)
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in parts for page in pages_of(part)]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(pages_of(site["nav"])) == [path.name for path in PAGES]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_page_is_reached_from_the_readme_or_the_home_page(path: Path) -> None:
    if path.name != "index.md":
        assert f"(docs/{path.name})" in README.read_text(encoding="utf-8"), "the table of documents lacks it"
