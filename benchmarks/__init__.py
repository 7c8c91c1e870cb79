"""Measurements that anybody can repeat; docs/benchmarks.rst tells what they gave."""
