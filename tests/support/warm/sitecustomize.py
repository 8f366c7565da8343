"""First on ``PYTHONPATH`` of a driver: what forks Spark's Python workers imports at once what they all need.

Each of the many workers that plan, write and commit would import it anew, which is most of what a small query costs.
"""

from __future__ import annotations

import sys

if "pyspark.daemon" in sys.orig_argv:
    from importlib import import_module

    for name in ("pandas", "pyarrow.parquet", "amqp_spark.data_source", "amqp_spark.sink"):
        import_module(name)
