"""Kafka spouts: topics as replayable ranges of offsets.

May import: spouts, clients.kafka.
Start: spout.py.
"""
