"""Benchmarks: ``make bench``, or ``python -m tests.bench [name]``."""
