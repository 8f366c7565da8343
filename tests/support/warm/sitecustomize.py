"""First on ``PYTHONPATH`` of a driver: preloads the workers' common imports in the process that forks Python workers.

Otherwise each of the many workers that plan, write and commit would import them anew, most of the cost of a small
query.
"""

from __future__ import annotations

import sys

if "pyspark.daemon" in sys.orig_argv:
    from importlib import import_module

    # A daemon whose workers only plan or commit needs no pandas, most of the time of its start.
    plans = any(argument.startswith("pyspark.sql.worker.") for argument in sys.orig_argv)
    for name in (*(() if plans else ("pandas", "pyarrow.parquet")), "amqp_spark.data_source", "amqp_spark.sink"):
        import_module(name)
