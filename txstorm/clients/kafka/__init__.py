"""Kafka clusters: administration, reading, exactly-once producing, the schema registry.

May import: nothing else.
Start: cluster.py.
"""
