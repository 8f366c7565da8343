"""Errors of the broker's own surroundings; what it refuses its clients is in ``model.errors``."""

from __future__ import annotations

from amqp_core.errors import AmqpError


class UnusableFile(AmqpError):
    """A file that the broker was given cannot be used: that of its users, or a certificate."""
