"""AMQP 0-10 of the embedded broker: bytes in, calls of the model, bytes out."""
