"""Benchmark suite: the same work for txstorm and its peers, each in a separate process, and the figures to reach."""
