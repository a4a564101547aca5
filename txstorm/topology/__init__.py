"""The DSL: a builder that makes a frozen graph, the checks on it, and its pictures. Pure: no I/O, no engine."""
