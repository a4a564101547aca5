"""Simulated worlds: the shipped protocol against a ledger, tables, a source, an engine and a clock that fail.

The coordinator's machine, the books, planning, taking over, publishing, rewinding and sweeping are the code that ships;
what is around them is simulated, in one thread, and everything that goes wrong comes from a seed. `simulate` runs many
schedules; a violation is told as a story of the smallest schedule that still shows it.
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
