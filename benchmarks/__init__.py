"""Measurements; their results are in docs/benchmarks.rst."""
