"""Aggregates of windows per key, computed on columns: partial aggregates per pane or session, combined in the commit.

May import: windows.
Start: aggregate.py (what a user declares), cells.py (how aggregates combine), open_windows.py (what is kept and fires).
"""

from txstorm.windows.aggregates.aggregate import WindowAggregate
from txstorm.windows.aggregates.top import TopPerWindow

__all__ = ["TopPerWindow", "WindowAggregate"]
