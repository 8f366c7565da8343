"""A broker that somebody else runs, named by the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit, urlunsplit


@dataclass(frozen=True)
class ExternalBroker:
    """The broker of ``AMQP_URL``, ``AMQP_USERNAME`` and ``AMQP_PASSWORD`` (guest and guest if not set)."""

    base_url: str
    username: str = "guest"
    password: str = field(default="guest", repr=False)

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the broker that the environment names, or None."""
        base_url = os.environ.get("AMQP_URL")
        if not base_url:
            return None
        return cls(base_url, os.environ.get("AMQP_USERNAME", "guest"), os.environ.get("AMQP_PASSWORD", "guest"))

    def url(self, vhost: str = "default") -> str:
        """Return the URL of a virtual host: as given for "default", with the path replaced for another."""
        if vhost == "default":
            return self.base_url
        return urlunsplit(urlsplit(self.base_url)._replace(path=f"/{vhost}"))

    def log(self) -> str:
        """Return where its log is not."""
        return "(kept by whoever runs this broker)"
