"""A small AMQP broker for tests, demonstrations and single-machine use: model, protocol adapters, server."""
