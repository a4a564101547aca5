"""Kafka client: topics and offsets, reading of offset ranges, exactly-once producing, and the schema registry.

May import: nothing else.
Start: cluster.py.
"""
