"""Simulated worlds: the shipped protocol on a simulated ledger, tables, source, engine and clock that can all fail.

Coordinator, books, planning, take-over, publishing, rewinding and sweeping are the shipped code. Their environment is
simulated on one thread, and every fault is drawn from a seed. `simulate` runs many schedules and reports a violation
with the trace of the smallest schedule that still shows it. Not a user tool, so it is not part of `testing`; it
imports neither pyspark nor deltalake itself.

May import: runtime and everything below it.
Start: world.py.
"""

from txstorm.simulation.exhaustive import Scope as Scope
from txstorm.simulation.exhaustive import Search as Search
from txstorm.simulation.exhaustive import searched as searched
from txstorm.simulation.expected import Violation as Violation
from txstorm.simulation.schedule import KINDS as KINDS
from txstorm.simulation.schedule import Schedule as Schedule
from txstorm.simulation.schedule import Strike as Strike
from txstorm.simulation.schedule import drawn as drawn
from txstorm.simulation.search import Found as Found
from txstorm.simulation.search import Report as Report
from txstorm.simulation.search import shrunk as shrunk
from txstorm.simulation.search import simulate as simulate
from txstorm.simulation.search import story as story
from txstorm.simulation.search import trace as trace
