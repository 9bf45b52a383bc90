"""Benchmarks: ratios taken in one run, by hand; never part of the timed-out test suite."""
