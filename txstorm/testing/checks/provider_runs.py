"""Runs of a topology whose stateful bolt keeps its state with a provider under check, through crashes at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from txstorm import faults
from txstorm.api.external import State, StateContext, StateProvider
from txstorm.stateful.bolt import StatefulBolt
from txstorm.stateful.providers import open_state
from txstorm.testing.checks.rules import checking, expect
from txstorm.testing.driver import TopologyTestDriver
from txstorm.testing.feed import FeedSpout
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

CRASHES = ("p5.after", "p6.before", "p6.after", "p7.1.before", "p7.1.after", "p8.before")
"""Fault points around the preparation, the decision and the commit."""
WORDS = "abcab"


class CheckedProvider(StateProvider):
    """The provider under check, under a name that a setting can have; like a server, it survives crashes of the run."""

    provider: ClassVar[Any] = None
    conf: ClassVar[Mapping[str, Any]] = {}

    def new_state(self, namespace: str, conf: Mapping[str, Any], context: StateContext | None) -> State:
        """Open a state of the provider under check."""
        return open_state(self.provider, namespace, self.conf, context)


class CheckedCounter(StatefulBolt):
    """Counts words in its state."""

    fields = ("word", "count")

    def prepare(self, context: Any, collector: Any) -> None:
        """Keep the collector."""
        self._collector = collector

    def init_state(self, state: Any) -> None:
        """Keep the state."""
        self._counts = state

    def execute(self, tuple: Any) -> None:  # noqa: A002 - Storm's word
        """Count one word."""
        word = tuple["word"]
        count = self._counts.get(word, 0) + 1
        self._counts.put(word, count)
        self._collector.emit(word, count)


def check_runs(provider: Any, component: str, conf: Mapping[str, Any]) -> None:
    """Run a topology, interrupt it at each step of a commit, and start it again; compare the counts each time.

    Args:
        provider: the provider.
        component: id of the bolt; new in every check.
        conf: configuration of the provider.

    Raises:
        CheckFailed: a word is counted twice, or not at all, or a start fails.
    """
    CheckedProvider.provider, CheckedProvider.conf = provider, conf
    with TopologyTestDriver(_topology(component)) as driver:
        counted: Counter[str] = Counter()
        with checking("state provider: in a topology, a transaction that commits"):
            driver.commit(_feed(driver, counted))
            _compare(driver, component, counted)
        with checking("state provider: in a topology, a transaction that fails in its commit phase, and is replayed"):
            txid = _feed(driver, counted)
            driver.ack(txid)
            driver.fail(txid)
            driver.commit(txid)
            _compare(driver, component, counted)
        for point in CRASHES:
            step = faults.POINTS[point.replace(".1.", ".N.")].replace("table N", "the state")
            with checking(f"state provider: in a topology, a crash at {point} ({step}), and another start"):
                _crash(driver, _feed(driver, counted), point)
                driver.restart(_topology(component))
                driver.commit(driver.committed + len(driver.active))
                _compare(driver, component, counted)


def _topology(component: str) -> Topology:
    builder = TransactionalTopologyBuilder("check", "words", FeedSpout({"default": ("word",)}))
    builder.set_bolt(component, CheckedCounter()).global_grouping("words")
    settings = {"state_provider": f"{__name__}:{CheckedProvider.__name__}", "retry_backoff": 0}
    return builder.set_settings(settings).build_topology()


def _feed(driver: TopologyTestDriver, counted: Counter[str]) -> int:
    counted.update(WORDS)
    return driver.feed({"default": [(word,) for word in WORDS]})


def _crash(driver: TopologyTestDriver, txid: int, point: str) -> None:
    faults.arm(f"{point}:raise:1")
    try:
        driver.commit(txid)
    except faults.InjectedFault:
        return
    finally:
        faults.arm("")
    expect("the injected crash", "a crash", "none")


def _compare(driver: TopologyTestDriver, component: str, counted: Counter[str]) -> None:
    """Compare the counts in the state, and the last of each word that were emitted."""
    state: Any = CheckedProvider().new_state(f"{component}-0", {}, None)
    expect("the counts in the state", dict(counted), dict(state))
    expect("the last committed txid", driver.committed, state.last_committed())
    expect("the last counts that the bolt emitted", dict(counted), dict(driver.emitted(component)))
