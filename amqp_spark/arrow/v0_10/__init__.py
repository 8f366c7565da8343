"""AMQP 0-10 and Arrow, in both directions."""
