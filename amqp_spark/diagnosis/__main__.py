"""``python -m amqp_spark.diagnosis``."""

from __future__ import annotations

import sys

from amqp_spark.diagnosis.command import main

sys.exit(main(program="python -m amqp_spark.diagnosis"))
