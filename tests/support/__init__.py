"""Helpers of the tests, the demo and the benchmarks: real brokers, peers and faults."""
