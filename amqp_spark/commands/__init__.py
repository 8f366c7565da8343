"""Sub-commands of ``amqp-spark`` that move messages with Spark, and the one that starts the embedded broker.

Each module has ``parser()`` and ``main(argv)``, which returns the exit code. The scripts in ``jobs/`` call the same
functions, for spark-submit.
"""
