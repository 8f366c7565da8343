"""How much memory the messages of a broker may take: as a number with a unit, and by default."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEAST: Final = 1 << 20
_SHARE: Final = 0.4
_UNKNOWN: Final = 1 << 30
# Of version 2 of control groups, and of version 1, which containers still have on some systems.
_CGROUPS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_size(text: str) -> int:
    """Parse a size such as ``512M``.

    Raises:
        ValueError: it is none, or less than 1 MiB.
    """
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    size = int(found[1]) * _UNITS[found[2].upper()] if found else 0
    if size < _LEAST:
        raise ValueError(f"{text!r} is not a size of memory: give bytes, or a number with K, M or G, and at least 1M")
    return size


def default_memory_limit(*cgroups: Path) -> int:
    """40 % of the memory of this machine or container, as on RabbitMQ; 1 GiB where that is unknown.

    Args:
        cgroups: files with the limit of a container, of which some may be missing; by default those of this one.
    """
    sizes = []
    try:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        pass  # a system that does not tell
    for cgroup in cgroups or _CGROUPS:
        try:
            sizes.append(int(cgroup.read_text()))
        except (ValueError, OSError):
            pass  # "max", or no container
    sizes = [size for size in sizes if size > 0]
    return int(min(sizes) * _SHARE) if sizes else _UNKNOWN
