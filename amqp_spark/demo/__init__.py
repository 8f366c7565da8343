"""``amqp-spark demo``, ``python -m amqp_spark.demo``: sample messages through a broker and Spark and back, with proof.

The command runs on the embedded broker. Its parts take the URL of any broker.
"""
