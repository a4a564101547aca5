"""Nexmark queries on windows: events, queries, and their results by numpy. Usable without txstorm, as peers need them."""
