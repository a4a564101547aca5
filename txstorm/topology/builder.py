"""Topology builder: collects components and settings, checks them, and builds the frozen graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from txstorm.api.assembly import AssembledBolt
from txstorm.api.bolt import BasicBolt, BatchBolt
from txstorm.api.composite import AnySpout
from txstorm.errors import TopologyError
from txstorm.topology.assembly import inspect_all
from txstorm.topology.checks.validate import Report, validate
from txstorm.topology.declarers import BoltDeclarer, Declaration, Role, SpoutDeclarer
from txstorm.topology.frames import FRAME, FrameBolt, FrameDeclarer
from txstorm.topology.graph import Topology, topological
from txstorm.topology.settings import Settings

AnyBolt = BasicBolt | BatchBolt | AssembledBolt


class TransactionalTopologyBuilder:
    """Builds a topology around one transactional spout; Storm's class of the same name.

    Example:
        builder = TransactionalTopologyBuilder("word-count", "lines", FileSpout("books/*.txt"), parallelism=2)
        builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
        builder.set_committer_bolt("counts", KeepCounts(), 2).fields_grouping("split", ["word"])
        topology = builder.build_topology()

    Args:
        id: the name of the topology and of its data directory.
        spout_id: the spout's component id.
        spout: the spout; use a `CompositeSpout` for several sources.
        parallelism: number of the spout's tasks; None: 1.
    """

    def __init__(self, id: str, spout_id: str, spout: AnySpout, parallelism: int | None = None) -> None:
        self._id = id
        self._declarations = [Declaration(spout_id, spout, parallelism, "spout")]
        self._settings: dict[str, Any] = {}

    def set_bolt(self, id: str, bolt: AnyBolt, parallelism: int | None = None) -> BoltDeclarer:
        """Add a bolt (a committer if it has the `Committer` marker); return the declarer of its inputs."""
        return self._add(id, bolt, parallelism, "bolt")

    def set_committer_bolt(
        self, id: str, bolt: BatchBolt, parallelism: int | None = None, *, external: bool | None = None
    ) -> BoltDeclarer:
        """Add a batch bolt as a committer: its `finish_batch` runs in strict txid order. Return its declarer.

        `external`: whether the bolt has effects outside the transaction; None: as its class declares
        (see `txstorm.api.bolt.BatchBolt`).
        """
        return self._add(id, bolt, parallelism, "committer", external)

    def set_frame_bolt(
        self,
        id: str,
        function: Callable[..., Any],
        parallelism: int | None = None,
        *,
        columns: str | None = None,
    ) -> FrameDeclarer:
        """Add a function of Spark DataFrames, one for each input, that returns a DataFrame; return its declarer.

        It gets the rows of one transaction. Frame bolts read the frame spout and other frame bolts; any other bolt may
        follow. They have as many tasks as the one of them that has most.

        Args:
            id: the component's id.
            function: the function; it is called with DataFrames without rows, to know its columns: by `build_topology`
                if there is a Spark session, otherwise when a run starts, before it plans anything.
            parallelism: number of tasks; None: 1.
            columns: the columns of its result in Spark's DDL, so that `build_topology` knows them without Spark.
        """
        declaration = Declaration(id, FrameBolt(function, columns), parallelism, FRAME)
        self._declarations.append(declaration)
        return FrameDeclarer(declaration)

    def get_spout_declarer(self) -> SpoutDeclarer:
        """Return the declarer of the spout, to configure it and limit its rate."""
        return SpoutDeclarer(self._declarations[0], self._settings)

    def set_setting(self, key: str, value: Any) -> TransactionalTopologyBuilder:
        """Set one setting of the topology, by its name or Storm's key; `build_topology` checks it."""
        self._settings[key] = value
        return self

    def set_settings(self, values: Mapping[str, Any]) -> TransactionalTopologyBuilder:
        """Set several settings of the topology; see `set_setting`."""
        self._settings.update(values)
        return self

    def validate(self) -> Report:
        """Return all faults and warnings of the topology as declared so far, without changing anything."""
        settings, faults = Settings.read(self._settings)
        report = validate(self._id, inspect_all(self._declarations, settings or Settings()))
        return Report((*report.faults, *faults), report.warnings)

    def build_topology(self) -> Topology:
        """Check the topology and build the frozen graph; warnings are logged when it is run.

        Raises:
            TopologyError: the topology has faults; lists all of them at once.
        """
        settings, faults = Settings.read(self._settings)
        made = [replace(one, inputs=[*one.inputs], configuration={**one.configuration}) for one in self._declarations]
        return _built(self._id, made, settings or Settings(), faults)

    def _add(
        self, id: str, bolt: Any, parallelism: int | None, role: Role, external: bool | None = None
    ) -> BoltDeclarer:
        declaration = Declaration(id, bolt, parallelism, role, external=external)
        self._declarations.append(declaration)
        return BoltDeclarer(declaration)

    setFrameBolt = set_frame_bolt  # noqa: N815 - camelCase throughout
    setBolt = set_bolt  # noqa: N815 - Storm's name
    setCommitterBolt = set_committer_bolt  # noqa: N815 - Storm's name
    getSpoutDeclarer = get_spout_declarer  # noqa: N815 - Storm's name
    setSetting = set_setting  # noqa: N815 - camelCase throughout
    setSettings = set_settings  # noqa: N815 - camelCase throughout
    buildTopology = build_topology  # noqa: N815 - Storm's name


def _built(
    id: str, declarations: Sequence[Declaration], settings: Settings, faults: Sequence[str], session: Any = None
) -> Topology:
    """Check what was declared and build the graph; `faults`: those found before, `session`: see `inspect_all`."""
    inspected = inspect_all(declarations, settings, session)
    report = validate(id, inspected)
    if found := (*report.faults, *faults):
        raise TopologyError(str(id), found)
    pending = partial(_built, id, declarations) if any(one.deferred for one in inspected) else None
    return Topology(id, topological([one.component() for one in inspected]), settings, report.warnings, pending)
