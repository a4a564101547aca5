"""Windows over streams: the bolt that a user derives from, and the committer that buffers tuples and fires windows.

May import: nothing else.
Start: bolt.py (what a user declares), rules/firing.py (which windows fire), committer.py (what a transaction does).
"""

from txstorm.windows.bolt import BaseWindowedBolt, WindowedBolt
from txstorm.windows.rules.forms import Count, Duration
from txstorm.windows.window import TupleWindow

__all__ = ["BaseWindowedBolt", "Count", "Duration", "TupleWindow", "WindowedBolt"]
