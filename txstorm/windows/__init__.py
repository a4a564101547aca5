"""Windows over streams: their forms, event time, and the rules that say which windows fire in a transaction.

May import: nothing else.
Start: bolt.py (what a user declares), event_time.py (watermarks and lateness), firing.py (which windows fire),
committer.py (what a transaction does).
"""

from txstorm.windows.aggregates.aggregate import WindowAggregate
from txstorm.windows.aggregates.top import TopPerWindow
from txstorm.windows.bolt import BaseWindowedBolt, WindowedBolt
from txstorm.windows.forms import Count, Duration
from txstorm.windows.window import TupleWindow

__all__ = ["BaseWindowedBolt", "Count", "Duration", "TopPerWindow", "TupleWindow", "WindowAggregate", "WindowedBolt"]
