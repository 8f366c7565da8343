"""The public names that packages import when they are first used."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "package",
    [
        "amqp_core",
        "amqp_spark",
        "amqp_spark.arrow.decode",
        "amqp_spark.arrow.encode",
        "amqp_spark.monitoring",
        "amqp_spark.sink",
    ],
)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(
    "name", ["sink.AmqpBatchSink", "sink.check", "functions.decode_headers", "monitoring.Metrics", "errors.OptionError"]
)
def test_names_of_the_documents_need_the_package_only(name: str) -> None:
    """In a process of its own: here other tests have imported the modules."""
    code = f"import amqp_spark; print(amqp_spark.{name})"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    module = importlib.import_module("amqp_spark.sink")
    with pytest.raises(AttributeError, match="nothing"):
        assert module.nothing


def test_the_core_needs_the_standard_library_only() -> None:
    """Without site-packages (-S)."""
    code = "import amqp_core; print(amqp_core.Client)"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=Path(__file__).parents[2], check=True)


def test_the_core_exports_the_classes_that_its_client_makes() -> None:
    core = importlib.import_module("amqp_core")
    for name in ("Client", "Publisher", "Subscription", "Transactions", "Message", "Rejected", "Capabilities", "Xid"):
        assert inspect.isclass(getattr(core, name))
        assert name in core.__all__
    assert set(core.__all__) >= {
        "DeliveryProperties",
        "MessageProperties",
        "MessageDeliveryMode",
        "errors",
        "parse_url",
    }
