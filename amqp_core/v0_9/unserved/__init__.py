"""Classes access, file, stream, dtx, tunnel and message of AMQP 0-9, which no known broker serves on 0-9-1: for tests.

Nothing in production imports this (a contract of import-linter): to a connection their methods are unknown ones.
"""
