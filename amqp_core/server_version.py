"""The version of a broker, as its properties say it (connection.start)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def version_of(server_properties: Mapping[str, object]) -> tuple[int, ...]:
    """The numbers at the beginning of the version, to be compared: (4, 3, 6); empty if there are none."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", str(server_properties.get("version", "")))
    return () if found is None else tuple(map(int, found[0].split(".")))
