"""Users for brokers in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.broker.users_file import User, save
from tests.core.broker.logins_support import secret

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from amqp_core.broker.rights import Grants

PASSWORD = "sécret"
PLAIN = ("--option", "saslMechanisms=PLAIN")
"""The broker remembers a password that was right; of SCRAM each login costs its client what it costs to guess one."""


def write_users(path: Path, grants: Mapping[str, Grants]) -> Path:
    """A file of users that all have the same password."""
    save(path, {name: User(secret(PASSWORD), each) for name, each in grants.items()})
    return path
