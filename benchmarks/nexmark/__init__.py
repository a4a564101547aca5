"""Queries on windows: their events, and their results by numpy (both usable without txstorm), and our topologies."""
