"""Servers that come with Penstock, for the demo, the tests and the benchmarks."""
