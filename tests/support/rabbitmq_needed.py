"""What becomes of a test that needs a RabbitMQ where none can be had: it is skipped, and in CI it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.choice import in_ci
from tests.support.rabbitmq_install import RabbitMQMissing

if TYPE_CHECKING:
    from tests.support.rabbitmq import RabbitMQNode
    from tests.support.rabbitmq_install import Release

_missing: dict[Release, str] = {}
"""Releases that this process could not get, and why: not every test fetches in vain, and the summary has one line."""


def start_or_skip(node: RabbitMQNode) -> RabbitMQNode:
    """Start a node, and return it. Without a RabbitMQ on this machine skip the test; the reason says what to install.

    Raises:
        RabbitMQMissing: in the continuous integration, where nothing may be missing.
    """
    release = node.config.release
    if not in_ci() and release in _missing:
        pytest.skip(_missing[release])
    try:
        node.start()
    except RabbitMQMissing as error:
        if in_ci():
            raise
        _missing[release] = str(error)
        pytest.skip(str(error))
    return node


def put_together(report: pytest.TestReport) -> None:
    """Give all skips for want of a RabbitMQ one place, so that the summary of the run has one line for them."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason in _missing.values():
            report.longrepr = (__file__, start_or_skip.__code__.co_firstlineno, report.longrepr[2])
