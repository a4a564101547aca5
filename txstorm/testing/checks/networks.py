"""Probe networks: topologies of probes described by a few lines of text, and their execution.

One line per component: ``id kind parallelism : source[/stream] grouping, …``. Kinds are ``basic``, ``batch`` and
``commit``; with a star, they process record batches. The first line is the spout: ``id kind parallelism``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Grouping
from txstorm.engine.port import Engine
from txstorm.results.read import read_sink, read_state, rows_json
from txstorm.runtime.run import run
from txstorm.testing.checks import probes
from txstorm.testing.checks.rules import CheckFailed
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

SIZES = (13, 0, 7, 1)
"""Number of spout tuples in each transaction of a network."""

KINDS: dict[str, type[probes.ProbeBasic | probes.ProbeBatch]] = {
    "basic": probes.ProbeBasic,
    "basic*": probes.ProbeBasicRows,
    "batch": probes.ProbeBatch,
    "batch*": probes.ProbeBatchRows,
    "commit": probes.ProbeBatch,
    "commit*": probes.ProbeBatchRows,
}
KEYED = ("fields", "partial_key")
GROUPINGS = ("shuffle", "fields", "global", "all", "none", "local_or_shuffle", "partial_key", "custom")


@dataclass(frozen=True)
class Source:
    """One subscription of a node."""

    component: str
    stream: str
    grouping: str


@dataclass(frozen=True)
class Node:
    """One component of a network."""

    id: str
    kind: str
    tasks: int
    inputs: tuple[Source, ...]

    @property
    def finishes(self) -> bool:
        """Whether the node has a `finish_batch`, that is, whether it is a batch bolt or committer."""
        return self.kind.rstrip("*") in ("batch", "commit")


def parse(text: str) -> list[Node]:
    """Parse the description of a network; return its nodes, the spout first."""
    return [_node(line) for line in text.strip().splitlines()]


def _node(line: str) -> Node:
    head, _, tail = line.strip().partition(":")
    id, kind, tasks = head.split()
    return Node(id, kind, int(tasks), tuple(_source(one) for one in tail.split(",") if one.strip()))


def _source(text: str) -> Source:
    name, grouping = text.split()
    component, _, stream = name.partition("/")
    return Source(component, stream or DEFAULT_STREAM, grouping)


def streams_of(nodes: Sequence[Node], id: str) -> dict[str, int]:
    """Return the streams that node `id` emits: stream → number of tasks of its direct subscribers (0: not direct)."""
    out: dict[str, int] = {}
    for node in nodes:
        for source in node.inputs:
            if source.component == id:
                direct = node.tasks if source.grouping == "direct" else 0
                out[source.stream] = min(out.get(source.stream, direct), direct)
    return out


def commit_phase(nodes: Iterable[Node]) -> set[str]:
    """Return the ids of the committers and of all nodes downstream of them."""
    inside: set[str] = set()
    for node in nodes:
        if node.kind.startswith("commit") or any(source.component in inside for source in node.inputs):
            inside.add(node.id)
    return inside


def build(text: str, sizes: Sequence[int] = SIZES, **settings: Any) -> Topology:
    """Build the topology of a network, with a witness that subscribes to the log of every component."""
    nodes = parse(text)
    spout = nodes[0]
    source = probes.Numbers(streams_of(nodes, spout.id), list(sizes), spout.kind.endswith("*"))
    builder = TransactionalTopologyBuilder("net", spout.id, source, spout.tasks)
    for node in nodes[1:]:
        bolt = KINDS[node.kind](streams_of(nodes, node.id))
        if node.kind.startswith("commit"):
            assert isinstance(bolt, probes.ProbeBatch)
            declarer = builder.set_committer_bolt(node.id, bolt, node.tasks)
        else:
            declarer = builder.set_bolt(node.id, bolt, node.tasks)
        for one in node.inputs:
            declarer.grouping(one.component, grouping(one.grouping), one.stream)
    witness = builder.set_committer_bolt("witness", probes.Witness())
    for node in nodes:
        witness.global_grouping(node.id, "log")
    builder.set_settings({"compact_on_stop": False, **settings})
    return builder.build_topology()


def grouping(kind: str) -> Grouping:
    """Return the grouping of `kind`; groupings by fields use the field ``key``."""
    fields = ("key",) if kind in KEYED else ()
    return Grouping(kind, fields, probes.EvenAndZero() if kind == "custom" else None)


@dataclass(frozen=True)
class Seen:
    """Result of a run: the rows of the witness's sink, and its state as JSON."""

    log: list[dict[str, Any]]
    totals: str


def observe(topology: Topology, engine: Engine, data_dir: Path, timeout: float | None = None) -> Seen:
    """Run a network to the end of its input; raise the error of the run, or `CheckFailed` after `timeout` seconds."""
    handle = run(topology, engine=engine, data_dir=data_dir, available_now=True)
    try:
        if not handle.awaitTermination(timeout):
            raise CheckFailed(
                f"expected the run to end, got {handle.in_flight} in flight after {timeout} s; is a future never done?"
            )
    finally:
        handle.stop()
    return Seen(read_sink(data_dir, "log").to_pylist(), rows_json(read_state(data_dir, "totals")))


def random_network(seed: int) -> str:
    """Return a random network of up to seven components, with any mix of kinds, groupings, streams and parallelism."""
    rng = random.Random(seed)  # noqa: S311 - a network
    lines = [f"c0 {rng.choice(('spout', 'spout*'))} {rng.randint(1, 4)}"]
    for index in range(1, rng.randint(4, 7)):
        kind = rng.choice(("basic", "basic*", "batch", "batch*", "commit", "commit*"))
        inputs = {}
        for _ in range(rng.randint(1, 3)):
            source = f"c{rng.randrange(max(0, index - 3), index)}"
            stream = rng.choice(("", "", "/more", "/aimed"))
            inputs[source + stream] = "direct" if stream == "/aimed" else rng.choice(GROUPINGS)
        subscriptions = ", ".join(f"{source} {grouping}" for source, grouping in inputs.items())
        lines.append(f"c{index} {kind} {rng.randint(1, 4)} : {subscriptions}")
    return "\n".join(lines)


NETWORKS = {
    "groupings": """
        numbers spout 3
        shuffled basic 2 : numbers shuffle
        keyed batch 3 : numbers fields
        one batch* 2 : shuffled global
        every basic* 3 : shuffled all
        none batch 4 : numbers none
        directed batch 3 : keyed/aimed direct
        local basic 3 : keyed local_or_shuffle
        partly batch* 4 : numbers partial_key
        own basic 3 : shuffled custom
        """,
    "one-task-everywhere": """
        numbers spout 1
        x basic 1 : numbers shuffle
        b batch 1 : x fields
        c batch* 1 : b global, x all, numbers shuffle
        """,
    "parallelism-all-different": """
        numbers spout* 4
        x basic 1 : numbers shuffle
        b basic* 3 : x all
        c batch 2 : b fields
        d batch* 4 : c shuffle
        """,
    "several-streams": """
        numbers spout 2
        split batch 2 : numbers/even fields, numbers/odd all, numbers shuffle
        low basic 2 : split/low shuffle
        high batch* 3 : split/high fields, split/low shuffle
        aimed batch 2 : split/to direct, numbers/to direct
        """,
    "diamond": """
        numbers spout 2
        left basic 2 : numbers shuffle
        right batch 3 : numbers fields
        join batch 2 : left fields, right fields
        sum commit 2 : join fields, left fields
        """,
    "deep-with-edges-that-skip": """
        numbers spout 2
        x basic 3 : numbers shuffle
        b batch 2 : x fields
        c basic 3 : b shuffle
        d batch* 2 : c fields, numbers fields
        e basic 4 : d shuffle, x all
        f batch 2 : e fields, b local_or_shuffle, numbers local_or_shuffle
        g commit 2 : f fields, x fields, numbers fields
        """,
    "local-edges-over-levels": """
        numbers spout 3
        a basic 3 : numbers local_or_shuffle
        far batch 3 : numbers fields
        b batch 3 : a local_or_shuffle, far local_or_shuffle
        c batch* 3 : b local_or_shuffle, a local_or_shuffle
        d basic 2 : c local_or_shuffle
        e batch 2 : d local_or_shuffle, a shuffle
        """,
    "committers-in-the-middle": """
        numbers spout 2
        a batch 2 : numbers shuffle
        b commit 2 : a fields
        c batch 3 : a fields, b fields
        d commit 2 : c fields
        e basic 2 : d local_or_shuffle, a shuffle
        f batch* 2 : e shuffle, b/aimed direct
        """,
    "committers-first": """
        numbers spout* 2
        a commit* 3 : numbers fields
        b commit 2 : a shuffle, numbers all
        c basic* 2 : b partial_key
        d commit 1 : c global, a custom
        """,
    "basic-only": """
        numbers spout 2
        a basic 2 : numbers local_or_shuffle
        b basic* 3 : a shuffle
        c basic 3 : b local_or_shuffle
        """,
}
"""Predefined networks, which together cover all features of a graph: name → description."""
