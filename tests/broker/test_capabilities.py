"""The capabilities that are measured of a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.capabilities import BROKER_J, Capabilities

if TYPE_CHECKING:
    from tests.support.fixtures import OwnBroker

pytestmark = pytest.mark.broker


def test_the_broker_of_the_tests_does_what_they_take_for_granted(own_broker: OwnBroker) -> None:
    assert Capabilities.of(own_broker()) == BROKER_J


@pytest.mark.thorough
def test_a_broker_without_the_durable_host_has_everything_else(own_broker: OwnBroker) -> None:
    found = Capabilities.of(own_broker(durable=False))
    assert found.lacking(vars(BROKER_J)) == ["durable_host", "keeps_resume_id"]
