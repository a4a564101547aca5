"""Text form of the compiled plan, an indented tree: where each component runs and finishes, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from txstorm.api.assembly import AssembledCommitter
from txstorm.api.external import ManagedState, MapState, Outlet, TargetDeclaration
from txstorm.api.join_store import StoreUse
from txstorm.api.names import DEFAULT_STREAM, counted
from txstorm.api.state import MERGE, SPARK, CollectionState, KeyedState, SinkTable
from txstorm.display import duration_text
from txstorm.plan.commit_jobs import obstacles
from txstorm.plan.stages import Edge, Plan, Stage, compile_plan
from txstorm.topology.frames import FRAME
from txstorm.topology.graph import Component, Topology
from txstorm.topology.pictures.model import kind_word, printable


@dataclass(frozen=True)
class Branch:
    """One line of the tree, with the branches below it."""

    line: str
    below: Sequence[Branch] = field(default_factory=tuple)


def explain(plan: Topology | Plan, *, why: bool = False) -> str:
    """Describe the plan of a topology, or an already compiled plan, as a tree of text lines.

    If there is a Spark session, it is followed by Spark's plan of each frame bolt, for one transaction.

    Args:
        plan: the topology, or its plan.
        why: whether to say of each committer why a job cannot commit its large transactions.
    """
    compiled = plan if isinstance(plan, Plan) else compile_plan(plan)
    roots = [_processing(compiled), *_crossing(compiled), _commit(compiled, why=why)]
    head = f"plan of topology {printable(compiled.topology.id)}"
    warnings = [f"warning: {one}" for one in compiled.topology.warnings]
    hint = [] if why else _driver_only(compiled)
    frames = [line for one in compiled.topology.components for line in _spark_plan(compiled.topology, one)]
    return "\n".join([head, *(line for root in roots for line in _drawn(root)), *hint, *warnings, *frames])


def _driver_only(plan: Plan) -> list[str]:
    """Return a line that names the committers of `_large` that a job cannot commit; empty if there is none."""
    names = [name for name in plan.commit if plan.topology.component(name).kind == "committer" and _reasons(plan, name)]
    if not names:
        return []
    how = "txstorm explain --why, or explain(…, why=True), says why"
    return [f"large commits in the driver, not as a job: {printable(', '.join(names))}; {how}"]


def _processing(plan: Plan) -> Branch:
    stages = [_stage(plan, stage) for stage in plan.stages]
    depth = counted(len(stages), "Spark stage")
    return Branch(f"processing phase: finishes many txids at once; one job a pack, {depth}", stages)


def _stage(plan: Plan, stage: Stage) -> Branch:
    components = [plan.topology.component(name) for name in stage.components]
    inside = [Branch(_headline(one), [*_read_frames(one), *_arrivals(plan, one.id)]) for one in components]
    return Branch(f"stage {stage.level}: {counted(stage.tasks, 'task')}", inside)


def _read_frames(component: Component) -> list[Branch]:
    """Return one branch per DataFrame that a frame bolt reads."""
    reads = component.inputs if component.kind == FRAME else ()
    return [Branch(f"from {printable(one.component)} as a DataFrame, in Spark's plan of the pack") for one in reads]


def _spark_plan(topology: Topology, component: Component) -> list[str]:
    """Return the lines of Spark's plan of a frame bolt, whose inputs are scans in it; none for other components."""
    if component.kind != FRAME:
        return []
    text = component.object.spark_plan([topology.component(one.component).object.columns for one in component.inputs])
    head = f"Spark's plan of {printable(component.id)} for one transaction:"
    return [head, *(f"  {line}" for line in text.splitlines() if line)] if text else []


def _arrivals(plan: Plan, name: str) -> list[Branch]:
    return [Branch(_arrival(plan, edge)) for edge in plan.in_edges(name)]


def _arrival(plan: Plan, edge: Edge) -> str:
    if plan.fused(edge):
        way = "no exchange"
    elif edge.local:
        way = "exchange, task i to task i"
    else:
        way = f"exchange, {edge.sources} → {counted(edge.targets, 'task')}"
    return f"from {_source(edge)} by {printable(edge.grouping)}: {way}"


def _crossing(plan: Plan) -> list[Branch]:
    """Return one branch per edge that leads from the processing phase to the driver."""
    edges = [edge for edge in plan.edges if edge.boundary]
    lines = [
        Branch(f"{_source(edge)} → {edge.target} by {printable(edge.grouping)}: {counted(edge.targets, 'task')}")
        for edge in edges
    ]
    return [Branch("reaches the driver, in files beyond spill_bytes", lines)] if lines else []


def _commit(plan: Plan, *, why: bool) -> Branch:
    if not plan.commit:
        return Branch("commit phase: nothing finishes here; a txid commits when it is processed")
    steps = [_step(plan, place, name, why=why) for place, name in enumerate(plan.commit, 1)]
    decided = ", each decided before the next" if plan.topology.external else ""
    return Branch(f"commit phase: finishes one txid after the other, in the driver, in this order{decided}", steps)


def _step(plan: Plan, place: int, name: str, *, why: bool) -> Branch:
    component = plan.topology.component(name)
    inputs = [Branch(f"from {_source(edge)} by {printable(edge.grouping)}") for edge in plan.in_edges(name)]
    large = _large(plan, name, why=why) if component.kind == "committer" else []
    return Branch(f"{place}. {_headline(component)}", [*inputs, *_tables(plan.topology, name), *large])


def _large(plan: Plan, name: str, *, why: bool) -> list[Branch]:
    """Return a branch that says that a job can commit the committer's large transactions; if `why`, also why not."""
    if plan.topology.component(name).reads_frames:
        return [Branch("rows beyond an eighth of spill_bytes: staged by the tasks of the frames")]
    reasons = _reasons(plan, name)
    if not reasons:
        return [Branch("large commits: as a job, by key")]
    return [Branch("large commits: in the driver, not as a job", [Branch(one) for one in reasons])] if why else []


def _reasons(plan: Plan, name: str) -> list[str]:
    """Return the reasons why a job cannot commit the committer's large transactions; empty if it can."""
    if plan.topology.component(name).reads_frames:
        return []
    settings = plan.topology.settings
    off = settings.large_commit_rows is None and settings.large_commit_bytes is None
    return obstacles(plan, name) or (["large_commit_rows and large_commit_bytes are none"] if off else [])


def _tables(topology: Topology, name: str) -> list[Branch]:
    owner = topology.component(name).object
    states = [
        Branch(f"state {state.name}: {_columns(state)}, {_kept(owner, state)}{_writer(state)}")
        for state in topology.states.get(name, ())
    ]
    sinks = [Branch(f"sink {sink.name}: sinks/{sink.name}{_writer(sink)}") for sink in topology.sinks.get(name, ())]
    return states + sinks + [Branch(text) for one in topology.targets.get(name, ()) if (text := _outside(one))]


def _outside(one: TargetDeclaration) -> str:
    """Describe what is committed outside of the tables; nothing for hooks alone."""
    match one:
        case ManagedState(provider=None):
            return ""
        case ManagedState():
            whose = "shared by its tasks" if one.shared else "one per task"
            return f"state {one.name}: in {type(one.provider).__name__}, {whose}, kept until removed"
        case Outlet():
            return f"outlet {one.name}: {type(one.writer).__name__}"
        case MapState():
            return f"map {one.name}: {_store(one)}"
        case StoreUse():
            done = "filled once a transaction is decided" if one.fills else "looked up in each transaction"
            return f"store {type(one.store).__name__}: {done}"
        case _:
            return f"{one.committed_as} {one.name}: a kind of this topology's code"


def _store(one: MapState) -> str:
    """Describe a map: its kind, its backend, and its delivery guarantee."""
    guarantee = "exactly once" if one.marked else "at least once"
    return f"{one.kind}, in {type(one.backend).__name__}, {guarantee}"


def _columns(state: KeyedState) -> str:
    order = f", in the order of {printable(', '.join(state.order))}" if isinstance(state, CollectionState) else ""
    keys = f"by {printable(', '.join(state.key)) or 'no key'}{order}"
    tables = f"state/{state.name}" if state.layout == MERGE else f"state/{state.name}, changes/{state.name}"
    return f"{tables}, {keys}"


def _kept(owner: Any, state: KeyedState) -> str:
    """Describe for how long the rows of a state are kept; ready-made components know it of the states they manage."""
    known = owner.retention(state.name) if isinstance(owner, AssembledCommitter) else None
    if known is not None:
        return str(known)
    return "kept until removed" if state.ttl is None else f"kept for {duration_text(state.ttl)}"


def _writer(table: KeyedState | SinkTable) -> str:
    return ", published with Spark" if table.writer == SPARK else ""


def _headline(component: Component) -> str:
    kind = kind_word(component.kind, external=component.external)
    if component.part_of is not None:
        kind = f"map-side stage of {printable(component.part_of)}"
    about = f"{kind}, {counted(component.parallelism, 'task')}"
    return f"{printable(component.id)}: {about}"


def _source(edge: Edge) -> str:
    return edge.source if edge.stream == DEFAULT_STREAM else f"{edge.source}/{printable(edge.stream)}"


def _drawn(branch: Branch) -> list[str]:
    lines = [branch.line]
    for child in branch.below:
        last = child is branch.below[-1]
        first, *rest = _drawn(child)
        lines.append(("└─ " if last else "├─ ") + first)
        lines.extend(("   " if last else "│  ") + line for line in rest)
    return lines
