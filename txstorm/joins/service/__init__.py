"""Ready-made joins: topologies that a configuration file describes, over two Kafka topics of JSON records.

May import: api, clients, joins, sinks, spouts, topology, windows.
Start: configuration.py.
"""
