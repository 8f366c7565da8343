"""Rows of Spark as octets of AMQP 0-10: values, maps and lists, whole messages."""
