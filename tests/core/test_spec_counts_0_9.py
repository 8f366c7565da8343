"""The facts of 0-9 and the generated classes against counts made in the specification itself, by other means."""

from __future__ import annotations

import dataclasses
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amqp_core.v0_9 import _codec, _read, _write, spec, type_codes
from amqp_core.v0_9.unserved import _codec as codec_apart
from amqp_core.v0_9.unserved import spec as spec_apart
from specs.facts_0_9 import APART, CLASSES

SPECS = Path(__file__).parents[2] / "specs"
ORIGINS = {"0-9", "0-9-1", "rabbitmq", "qpid"}


def toml(name: str) -> dict[str, Any]:
    with (SPECS / name).open("rb") as file:
        return tomllib.load(file)


EXPECTED = toml("expected_counts_0_9.toml")
TOP = toml("amqp_0_9/protocol.toml")
TYPES = toml("amqp_0_9/types.toml")["types"]
FACTS = {name: toml(f"amqp_0_9/{name}.toml") for name in CLASSES}
PUBLISHED = [name for name in CLASSES if FACTS[name]["class"]["origin"] == "0-9"]


def methods(name: str, origin: str = "0-9") -> list[dict[str, Any]]:
    """The methods of a class that have this origin."""
    facts = FACTS[name]
    return [entry for entry in facts.get("method", ()) if entry.get("origin", facts["class"]["origin"]) == origin]


def tally(name: str) -> Counter[str]:
    """Count what the XML has of a class, under the names of the expected counts."""
    facts = FACTS[name]["class"]
    found: Counter[str] = Counter(chassis=len(facts["roles"]), property=len(facts.get("properties", ())))
    fields = list(facts.get("properties", ()))
    for method in methods(name):
        found["method"] += 1
        found["chassis"] += len(method.get("handle", ()))
        found["response"] += len(method.get("responses", ()))
        found["synchronous"] += method.get("synchronous", False)
        found["content"] += method.get("content", False)
        fields += method.get("fields", ())
    found["field"] = len(fields)
    found["assert"] = sum(len(field.get("asserts", ())) for field in fields)
    return +found


@pytest.mark.parametrize("name", PUBLISHED)
def test_facts_of_a_class_have_the_expected_counts(name: str) -> None:
    found = tally(name)
    del found["property"]
    assert found == EXPECTED[name]


def test_all_facts_together_have_the_expected_counts() -> None:
    total = sum((tally(name) for name in PUBLISHED), Counter())
    total["class"] = len(PUBLISHED)
    total["domain"] = len(TOP["domains"])
    published = [constant for constant in TOP["constants"] if constant.get("origin", "0-9") == "0-9"]
    total["constant"] = len(published)
    total["soft_error"] = sum(constant.get("class") == "soft-error" for constant in published)
    total["hard_error"] = sum(constant.get("class") == "hard-error" for constant in published)
    outside = sum(len(domain.get("asserts", ())) for domain in TOP["domains"])
    assert outside == EXPECTED["outside_classes"]["assert"]
    total["assert"] += outside
    assert dict(total) == EXPECTED["total"]


def test_what_the_xml_does_not_have_says_where_it_is_from() -> None:
    added = {
        f"{name}.{method.get('name_0_9_1', method['name'])}": origin
        for name in CLASSES
        for origin in ORIGINS - {"0-9"}
        for method in methods(name, origin)
    }
    assert {key: origin for key, origin in added.items() if not key.endswith("-ok")} == {
        "connection.blocked": "rabbitmq",
        "connection.unblocked": "rabbitmq",
        "connection.update-secret": "rabbitmq",
        "exchange.bound": "qpid",
        "exchange.bind": "rabbitmq",
        "exchange.unbind": "rabbitmq",
        "basic.recover": "0-9-1",
        "basic.nack": "rabbitmq",
        "confirm.select": "rabbitmq",
    }
    assert {entry["origin"] for entry in TYPES} == ORIGINS


def test_generated_classes_have_the_expected_counts() -> None:
    total = EXPECTED["total"]
    types = spec.METHOD_TYPES | spec_apart.METHOD_TYPES
    added = sum(len(methods(name, origin)) for name in CLASSES for origin in ORIGINS - {"0-9"})
    assert len(types) == total["method"] + added == len({kind.NAME for kind in types.values()})
    arguments = sum(len(dataclasses.fields(kind)) for kind in types.values())
    extra = sum(
        len(method.get("fields", ()))
        for name in CLASSES
        for origin in ORIGINS - {"0-9"}
        for method in methods(name, origin)
    )
    assert arguments == total["field"] - total["property"] + extra
    headers = (
        spec.BasicProperties,
        spec_apart.FileProperties,
        spec_apart.StreamProperties,
        spec_apart.TunnelProperties,
    )
    assert sum(len(dataclasses.fields(kind)) for kind in headers) == total["property"]
    assert len(spec.CONTENT_CODES | spec_apart.CONTENT_CODES) == total["content"]
    assert len(spec.SOFT_ERRORS) == total["soft_error"]
    assert len(spec.HARD_ERRORS) == total["hard_error"] + 1  # unexpected-frame of 0-9-1


def test_capabilities_are_those_of_rabbitmq() -> None:
    facts = TOP["capabilities"]
    assert {entry["origin"] for entry in facts} == {"rabbitmq"}
    assert [str(capability) for capability in spec.Capability] == [entry["name"] for entry in facts]
    announced = [entry["name"] for entry in facts if entry.get("client")]
    assert [str(capability) for capability in spec.CLIENT_CAPABILITIES] == announced
    assert EXPECTED["rabbitmq"] == {"capability": len(spec.Capability), "client_capability": len(announced)}


def test_classes_that_no_broker_serves_stand_apart() -> None:
    codes = {FACTS[name]["class"]["code"] for name in APART}
    assert not [code for code in spec.METHOD_TYPES if code >> 16 in codes]
    assert {code >> 16 for code in spec_apart.METHOD_TYPES} == codes
    assert not set(vars(_codec)) & {name for name in vars(codec_apart) if name[:7] in {"decode_", "encode_"}} - {
        "decode_method",
        "encode_method",
        "decode_header",
        "encode_header",
    }


@pytest.mark.parametrize("module", [spec, spec_apart])
def test_numbers_and_responses_agree_with_the_facts(module: Any) -> None:
    for code, kind in module.METHOD_TYPES.items():
        name, _, method = kind.NAME.partition(".")
        facts = FACTS[name]
        entry = next(item for item in facts["method"] if item.get("name_0_9_1", item["name"]) == method)
        assert (code >> 16, code & 0xFFFF) == (facts["class"]["code"], entry["code"])
        assert code == kind.CODE
        answers = [answer.NAME for answer in module.RESPONSES.get(kind, ())]
        assert answers == [f"{name}.{answer}" for answer in entry.get("responses", ())]
        assert (code in module.SYNCHRONOUS_CODES) == entry.get("synchronous", False)
        assert (code in module.CONTENT_CODES) == entry.get("content", False)


def test_type_letters_are_those_of_the_facts() -> None:
    found = {value for name, value in vars(type_codes).items() if name.isupper() and isinstance(value, int)}
    assert found == {ord(entry["letter"]) for entry in TYPES}
    assert {code for code in range(256) if type_codes.WIDTHS[code] != -9} == found
    containers = {type_codes.TABLE, type_codes.ARRAY}
    assert set(_read._READERS) | containers == found
    assert set(_write._WRITERS) | containers == {ord(entry["letter"]) for entry in TYPES if entry["written"]}
