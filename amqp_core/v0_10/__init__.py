"""AMQP 0-10: all code that is specific to this version of the protocol."""
