"""Simulated worlds: the shipped protocol against a ledger, tables, a source, an engine and a clock that fail.

The coordinator's machine, the books, planning, taking over, publishing, rewinding and sweeping are the code that ships;
what is around them is simulated, in one thread, and everything that goes wrong comes from a seed. `simulate` runs many
schedules; a violation is told as a story of the smallest schedule that still shows it.
"""

from txstorm.testing.simulation.content import Violation as Violation
from txstorm.testing.simulation.schedule import KINDS as KINDS
from txstorm.testing.simulation.schedule import Schedule as Schedule
from txstorm.testing.simulation.schedule import Strike as Strike
from txstorm.testing.simulation.schedule import drawn as drawn
from txstorm.testing.simulation.search import Found as Found
from txstorm.testing.simulation.search import Report as Report
from txstorm.testing.simulation.search import shrunk as shrunk
from txstorm.testing.simulation.search import simulate as simulate
from txstorm.testing.simulation.search import story as story
from txstorm.testing.simulation.search import trace as trace
from txstorm.testing.simulation.small import Scope as Scope
from txstorm.testing.simulation.small import Search as Search
from txstorm.testing.simulation.small import searched as searched
