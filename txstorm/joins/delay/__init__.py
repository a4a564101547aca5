"""External store joins, in the article's parts: a feed into a store, the hold of left rows, and their look-up.

May import: api, joins, state, storage, windows.
Start: feed.py (`StoreFeed`), then sync.py (`DataDelaySync`) and store_join.py (`StoreJoin`).
"""
