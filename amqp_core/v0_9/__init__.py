"""AMQP 0-9-1, 0-9 and the extensions of RabbitMQ: frames, methods, connection and channels, and a blocking client."""
