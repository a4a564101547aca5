"""State in Delta: the rules of an update, the index of keys, the handles of committers, and the tables.

One group of consecutive txids flows through here as: handles collect writes (`handle`), the group's change rows
are staged as Parquet (`staging`), an intent names them (`intent`), the tables publish them (`table`, `store`).
"""
