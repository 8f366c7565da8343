"""The public names that packages import when they are first used."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    "package", ["amqp_core", "amqp_spark", "amqp_spark.arrow.decode", "amqp_spark.arrow.encode", "amqp_spark.sink"]
)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    module = importlib.import_module("amqp_spark.sink")
    with pytest.raises(AttributeError, match="nothing"):
        assert module.nothing
