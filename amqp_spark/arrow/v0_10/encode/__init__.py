"""Rows of Spark as bytes of AMQP 0-10: values, maps and lists, whole messages."""
