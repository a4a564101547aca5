"""Benchmarks of stream joins: their rows, the expected results, and the topologies of txstorm."""
