"""The embedded broker over AMQP 0-9-1 and 0-9."""
