"""Free TCP ports that stay free."""

from __future__ import annotations

import random
import socket

# Below the range from which kernels take the ports of outgoing connections: a port that a broker releases for a
# moment, while it restarts, is not given to another connect() meanwhile.
_FIRST, _LAST = 15_000, 31_999
_random = random.SystemRandom()  # processes that start together do not draw the same numbers


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port without a listener at ``host``, outside the range of outgoing connections."""
    for _ in range(1000):
        port = _random.randint(_FIRST, _LAST)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port between {_FIRST} and {_LAST} at {host}")
