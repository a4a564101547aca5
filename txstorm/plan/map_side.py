"""Map-side stages: parts of bolts that run in the tasks of their sources, before their tuples are distributed.

Each becomes a component of its own in the plan, between a source and the bolt. It does not appear in the topology.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from txstorm.api.bolt import EVERYWHERE, BatchBolt
from txstorm.api.names import DEFAULT_STREAM, map_side_id
from txstorm.api.output import Grouping, OutputFieldsDeclarer
from txstorm.topology.graph import Component, Input, Topology


def with_map_sides(topology: Topology) -> Topology:
    """Return `topology` with the map-side stages and further inputs of its bolts; itself if there are none."""
    components = [one for component in topology.components for one in _divided(topology, component)]
    same = len(components) == len(topology.components) and not any(map(_reads_more, components))
    return topology if same else replace(topology, components=tuple(components))


def _divided(topology: Topology, bolt: Component) -> Iterator[Component]:
    """Yield the map-side stages of `bolt`, one per input that has one, followed by the bolt, which reads from them."""
    inputs: list[Input] = []
    for read in bolt.inputs:
        source = topology.component(read.component)
        part = None
        if isinstance(bolt.object, BatchBolt):
            part = bolt.object.map_side(source.id, read.stream, source.streams[read.stream].fields)
        if part is None:
            inputs.append(read)
            continue
        made = OutputFieldsDeclarer()
        part.declare_output_fields(made)
        stage = Component(
            id=map_side_id(bolt.id, source.id, read.stream),
            kind="batch",
            object=part,
            parallelism=source.parallelism,
            inputs=(Input(source.id, read.stream, Grouping("local_or_shuffle")),),
            streams=made.streams,
            configuration=bolt.configuration,
            part_of=bolt.id,
        )
        yield stage
        inputs.append(Input(stage.id, DEFAULT_STREAM, read.grouping))
        if EVERYWHERE in made.streams:
            inputs.append(Input(stage.id, EVERYWHERE, Grouping("all")))
    if _reads_more(bolt):
        inputs += [Input(source, stream, Grouping("all")) for source, stream in bolt.object.also_reads]
    yield replace(bolt, inputs=tuple(inputs)) if inputs else bolt


def _reads_more(bolt: Component) -> bool:
    return isinstance(bolt.object, BatchBolt) and bool(bolt.object.also_reads)
