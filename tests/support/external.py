"""An existing broker, named by the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit, urlunsplit


@dataclass(frozen=True)
class ExternalBroker:
    """The broker of ``AMQP_URL``, ``AMQP_USERNAME`` and ``AMQP_PASSWORD`` (guest and guest if not set).

    Tests use ``AMQP_TEST_URL`` and so on: they must not run on a broker in use by others.
    """

    base_url: str
    username: str = "guest"
    password: str = field(default="guest", repr=False)

    @classmethod
    def from_environment(cls, prefix: str = "AMQP") -> Self | None:
        """Return the broker that the variables ``<prefix>_URL`` and so on name, or None."""
        base_url = os.environ.get(f"{prefix}_URL")
        if not base_url:
            return None
        login = (os.environ.get(f"{prefix}_{name}", "guest") for name in ("USERNAME", "PASSWORD"))
        return cls(base_url, *login)

    @classmethod
    def of_tests(cls) -> Self | None:
        """Return the broker of ``AMQP_TEST_URL``, or None."""
        return cls.from_environment("AMQP_TEST")

    def url(self, vhost: str = "default") -> str:
        """Return the URL of a virtual host: as given for "default", with the path replaced for another."""
        if vhost == "default":
            return self.base_url
        return urlunsplit(urlsplit(self.base_url)._replace(path=f"/{vhost}"))

    def log(self) -> str:
        """Return a note that its log is not available."""
        return "(kept by whoever runs this broker)"
