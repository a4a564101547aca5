"""Simulated worlds: the shipped protocol on a simulated ledger, tables, source, engine and clock that can all fail.

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
