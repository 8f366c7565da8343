"""AMQP 0-10: everything that is peculiar to this version of the protocol."""
