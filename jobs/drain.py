"""``amqp-spark drain`` as a file for spark-submit; the code is ``amqp_spark/commands/drain.py``.

    spark-submit --py-files amqp_spark-*.whl jobs/drain.py --url ...

Without --py-files the package must be installed on all nodes. --help lists the arguments.
"""

from __future__ import annotations

import sys

from amqp_spark.commands.drain import main

if __name__ == "__main__":
    sys.exit(main(program="drain.py"))
