"""``python -m amqp_spark``: the same as ``amqp-spark``."""

from __future__ import annotations

import sys

from amqp_spark.program import main

if __name__ == "__main__":
    sys.exit(main())
