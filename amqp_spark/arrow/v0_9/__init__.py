"""AMQP 0-9-1 and Arrow, both directions."""
