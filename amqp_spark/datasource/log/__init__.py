"""Logs, which are queues with offsets (RabbitMQ: streams): their ranges can be read again, and nothing is accepted."""
