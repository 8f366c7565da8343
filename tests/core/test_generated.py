"""The committed code is what the generator makes of the committed facts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specs import facts_0_9, generate
from specs.facts import FactError, load

ROOT = Path(__file__).parents[2]
CODEC = ["spec.py", "_codec.py", "file_stream/spec.py", "file_stream/_codec.py"]
CODEC_0_9 = ["spec.py", "_codec.py", "unserved/spec.py", "unserved/_codec.py"]
GENERATED = [
    *(f"amqp_core/v0_10/{name}" for name in CODEC),
    *(f"amqp_core/v0_9/{name}" for name in CODEC_0_9),
    "amqp_spark/arrow/v0_10/properties.py",
]


def test_committed_code_is_what_the_facts_say() -> None:
    command = [sys.executable, "specs/generate.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `python specs/generate.py`:\n{done.stdout}{done.stderr}"
    assert done.stdout == ""


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "specs" / "amqp_0_10", tmp_path / "amqp_0_10"))


@pytest.fixture
def facts_of_0_9(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "specs" / "amqp_0_9", tmp_path / "amqp_0_9"))


def change(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text(encoding="utf-8")
    assert text.count(old) >= 1
    (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_changed_fact_is_reported_as_a_diff(
    facts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(facts, "message.toml", '"routing-key", type = "str8"', '"routing-key", type = "str16"')
    monkeypatch.setattr(generate, "FACTS", facts)
    before = (ROOT / "amqp_core/v0_10/_codec.py").read_text(encoding="utf-8")
    assert generate.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert "-        value.routing_key, pos = read_str8(data, pos)" in shown
    assert "+        value.routing_key, pos = read_str16(data, pos)" in shown
    assert (ROOT / "amqp_core/v0_10/_codec.py").read_text(encoding="utf-8") == before


def test_a_changed_fact_of_a_class_that_stands_apart_is_reported_too(
    facts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(facts, "file.toml", '"filename", type = "str8"', '"filename", type = "str16"')
    monkeypatch.setattr(generate, "FACTS", facts)
    assert generate.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("---")] == [
        "--- amqp_core/v0_10/file_stream/_codec.py"
    ]
    assert "+        value.filename, pos = read_str16(data, pos)" in shown


def test_a_changed_fact_of_0_9_is_reported_too(
    facts_of_0_9: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(facts_of_0_9, "basic.toml", '"prefetch-count", domain = "short"', '"prefetch-count", domain = "long"')
    monkeypatch.setattr(generate, "FACTS_0_9", facts_of_0_9)
    assert generate.main(["--check"]) == 1
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("---")] == ["--- amqp_core/v0_9/_codec.py"]
    assert "+    prefetch_count, pos = read_uint32(data, pos)" in shown


def test_generating_again_changes_nothing(facts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "FACTS", facts)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main([]) == 0
    for name in GENERATED:
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    assert generate.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("queue.toml", 'type = "exchange.name"', 'type = "exchange.nam"', "no type exchange.nam"),
        ("queue.toml", 'result = "queue-query-result"', 'result = "gone"', "no struct gone"),
        ("tx.toml", "code = 0x01", 'code = 0x01\nfields = [{ name = "x", type = "dec32" }]', "no type dec32"),
    ],
)
def test_facts_that_name_nothing_are_refused(facts: Path, file: str, old: str, new: str, message: str) -> None:
    change(facts, file, old, new)
    with pytest.raises(FactError, match=message):
        load(facts)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("queue.toml", 'domain = "access-ticket"', 'domain = "ticket"', "no domain ticket"),
        ("queue.toml", 'responses = ["purge-ok"]', 'responses = ["purged"]', "no method purged"),
        ("tx.toml", "code = 20", "code = 10", "two methods have one name or number"),
        (
            "protocol.toml",
            '"connection.start-ok.response"',
            '"connection.start-ok.answer"',
            "no field connection.start-ok",
        ),
    ],
)
def test_facts_of_0_9_that_name_nothing_are_refused(
    facts_of_0_9: Path, file: str, old: str, new: str, message: str
) -> None:
    change(facts_of_0_9, file, old, new)
    with pytest.raises(FactError, match=message):
        facts_0_9.load(facts_of_0_9)


def test_generated_code_is_formatted_and_clean() -> None:
    for tool in (["format", "--check"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *tool, *GENERATED], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
