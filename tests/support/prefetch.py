"""Downloads the tests' artifacts from Maven Central before the timeout of any test runs."""

from __future__ import annotations

import sys

from tests.support import brokerj, javapeer
from tests.support.maven import FetchFailed, cache_root
from tests.support.prerequisites import PrerequisiteMissing


def main() -> int:
    """Fill the cache; return the exit code."""
    for name, fetched, fetch in (
        (f"Broker-J {brokerj.VERSION}", brokerj.is_fetched, brokerj.distribution),
        ("the Java JMS client", javapeer.is_fetched, javapeer.jars),
    ):
        if not fetched():
            print(f"setup: fetching {name} into {cache_root()}", flush=True)
        try:
            fetch()
        except (FetchFailed, PrerequisiteMissing) as error:
            print(f"setup: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
