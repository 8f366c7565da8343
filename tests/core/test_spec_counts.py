"""The facts and the generated classes against counts made in the specification itself, by other means."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections import Counter
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from amqp_core.v0_10 import _codec, _read, _write, spec, type_codes
from amqp_core.v0_10.file_stream import _codec as codec_apart
from amqp_core.v0_10.file_stream import spec as spec_apart
from specs.facts import APART, CLASSES, load

SPECS = Path(__file__).parents[2] / "specs"
TESTS = Path(__file__).parent


def toml(name: str) -> dict[str, Any]:
    with (SPECS / name).open("rb") as file:
        return tomllib.load(file)


EXPECTED = toml("expected_counts.toml")
TYPES = toml("amqp_0_10/types.toml")
GENERATED = (spec, spec_apart)
FACTS = {name: toml(f"amqp_0_10/{name}.toml") for name in CLASSES}


def tally(facts: dict[str, Any]) -> Counter[str]:
    """Count what one file of facts holds, under the names of the expected counts."""
    found: Counter[str] = Counter()
    for kind in ("domain", "struct", "control", "command"):
        for entry in facts.get(kind, ()):
            found[kind] += 1
            found["enum"] += "choices" in entry
            found["choice"] += len(entry.get("choices", ()))
            found["struct_with_code"] += kind == "struct" and "code" in entry
            found["field"] += sum(not field.get("extension") for field in entry.get("fields", ()))
            found["extension"] += sum(field.get("extension", False) for field in entry.get("fields", ()))
            found["required_field"] += sum(field.get("required", False) for field in entry.get("fields", ()))
            found["exception"] += len(entry.get("errors", ()))
            found["response"] += len(entry.get("responses", ()))
            found["result"] += "result" in entry
            found["segments"] += "header" in entry
            found["implement"] += len(entry.get("handle", ()))
    found["role"] += len(facts.get("class", {}).get("roles", ()))
    return +found


@pytest.mark.parametrize("name", CLASSES)
def test_facts_of_a_class_have_the_expected_counts(name: str) -> None:
    found = tally(FACTS[name])
    kinds = ("control", "command", "domain", "choice", "struct", "field", "exception", "response", "result")
    assert {kind: found[kind] for kind in kinds if found[kind]} == EXPECTED[name]


def test_all_facts_together_have_the_expected_counts() -> None:
    total = sum((tally(facts) for facts in FACTS.values()), tally(TYPES))
    del total["extension"]
    total["class"] = len(FACTS)
    total["type"] = len(TYPES["type"])
    total["type_with_code"] = sum("code" in entry for entry in TYPES["type"])
    total["type_with_fixed_width"] = sum("width" in entry for entry in TYPES["type"])
    total["constant"] = len(TYPES["constant"])
    assert dict(total) == EXPECTED["total"]
    outside = tally(TYPES)
    assert {kind: outside[kind] for kind in ("domain", "choice")} == EXPECTED["outside_classes"]


def test_generated_classes_have_the_expected_counts() -> None:
    types = [item for module in GENERATED for item in vars(module).values() if isinstance(item, type)]
    classes = [item for item in types if dataclasses.is_dataclass(item)]
    enums = [item for item in types if issubclass(item, IntEnum)]
    total = EXPECTED["total"]
    assert len(classes) == total["struct"] + total["control"] + total["command"]
    extensions = sum(tally(facts)["extension"] for facts in FACTS.values())
    assert sum(len(dataclasses.fields(item)) for item in classes) - extensions == total["field"]
    assert len(spec.STRUCT_TYPES | spec_apart.STRUCT_TYPES) == total["struct_with_code"]
    assert len(spec.CONTROL_TYPES) == total["control"]
    assert len(spec.COMMAND_TYPES | spec_apart.COMMAND_TYPES) == total["command"]
    assert len(spec.RESULT_TYPES) == total["result"]
    assert len(spec.CONTENT_CODES | spec_apart.CONTENT_CODES) == total["segments"]
    assert len([item for item in enums if item is not IntEnum]) == total["enum"]
    assert sum(len(item) for item in enums if item is not IntEnum) == total["choice"]


def test_classes_file_and_stream_stand_apart_and_are_complete() -> None:
    codes = {FACTS[name]["class"]["code"]: name for name in APART}
    tables: tuple[dict[int, Any], ...] = (spec.STRUCT_TYPES, spec.CONTROL_TYPES, spec.COMMAND_TYPES)
    assert not [code for table in tables for code in table if code >> 8 in codes]
    for name in APART:
        kinds: dict[str, dict[int, Any]] = {"struct": spec_apart.STRUCT_TYPES, "command": spec_apart.COMMAND_TYPES}
        for kind, table in kinds.items():
            mine = [item for code, item in table.items() if codes[code >> 8] == name]
            assert sorted(item.NAME for item in mine) == sorted(f"{name}.{fact['name']}" for fact in FACTS[name][kind])
            assert len(mine) == EXPECTED[name][kind]
            for function in ("decode", "encode"):
                assert all(hasattr(codec_apart, f"{function}_{_function(item)}") for item in mine)
                assert not any(hasattr(_codec, f"{function}_{_function(item)}") for item in mine)


def _function(item: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", item.__name__).lower()


def test_type_codes_are_those_of_the_facts() -> None:
    coded = {entry["name"].replace("-", "_").upper(): entry["code"] for entry in TYPES["type"] if "code" in entry}
    coded["UUID_"] = coded.pop("UUID")  # UUID is the class
    integers = {name: value for name, value in vars(type_codes).items() if name.isupper() and isinstance(value, int)}
    constants = {name: value for name, value in integers.items() if name[:4] != "MAX_"}
    assert constants == coded


def test_every_type_has_a_read_and_a_write_function() -> None:
    for entry in TYPES["type"]:
        name = entry["name"].replace("-", "_")
        assert callable(getattr(_read, f"read_{name}"))
        assert callable(getattr(_write, f"write_{name}"))


def test_class_codes_and_codes_within_a_class_are_unique() -> None:
    assert sorted(facts["class"]["code"] for facts in FACTS.values()) == list(range(1, 11))
    model = load(SPECS / "amqp_0_10")
    for group in (model.structs, model.controls, model.commands):
        codes = [item.code for item in group if item.code is not None]
        assert len(set(codes)) == len(codes)


def test_responses_and_errors_name_what_exists() -> None:
    codes = {choice["name"] for domain in FACTS["execution"]["domain"] for choice in domain["choices"]}
    for facts in FACTS.values():
        for kind in ("control", "command"):
            names = {entry["name"] for entry in facts.get(kind, ())}
            for entry in facts.get(kind, ()):
                assert set(entry.get("responses", ())) <= names
                assert {error["code"] for error in entry.get("errors", ())} <= codes


def test_every_erratum_is_held_by_tests_that_exist() -> None:
    errata = toml("amqp_0_10/errata.toml")["erratum"]
    assert len(errata) >= 10
    for erratum in errata:
        assert erratum["tests"], erratum["id"]
        for name in erratum["tests"]:
            file, _, function = name.partition("::")
            assert re.search(rf"^def {function}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE), name
