"""``amqp-spark ingest`` as a file for spark-submit; the code is ``amqp_spark/commands/ingest.py``.

    spark-submit --py-files amqp_spark-*.whl jobs/ingest.py --url ...

Without --py-files the package must be installed on all nodes. --help lists the arguments.
"""

from __future__ import annotations

import sys

from amqp_spark.commands.ingest import main

if __name__ == "__main__":
    sys.exit(main(program="ingest.py"))
