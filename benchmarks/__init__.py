"""The benchmarks: ``python -m benchmarks``, or ``scripts/bench``; docs/benchmarks.md says what they measure."""
