"""Windows over streams: their forms, event time, and the rules that say which windows fire in a transaction.

May import: nothing else.
Start: forms.py (what a user declares), event_time.py (watermarks and lateness), firing.py (which windows fire).
"""

from txstorm.windows.forms import Count, Duration

__all__ = ["Count", "Duration"]
