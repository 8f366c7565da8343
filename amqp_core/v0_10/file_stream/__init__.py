"""Classes file and stream of AMQP 0-10, which are optional and which no broker known has: what they are, for tests.

Nothing in production imports this (a contract of import-linter): to a connection their commands are unknown ones.
"""
