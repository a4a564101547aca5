"""Layered graph layout from left to right (Sugiyama's method): layers, order within layers, vertical positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from txstorm.topology.pictures.model import Picture

SWEEPS = 8
ROUNDS = 12
GAP = 30.0
BEND = 0.0
"""Height of the point where a link passes through a layer."""

Point = tuple[str, ...]
"""An item of a layer: a node ``(id,)``, or ``(source, target, stream, layer)`` where a link passes through."""


@dataclass(frozen=True)
class Layout:
    """Positions of all nodes and links.

    Attributes:
        layers: the points of each layer, from top to bottom.
        centers: the vertical centre of every point; the topmost edge is at 0.
        routes: for each link of the picture, the points that it passes through, including its ends.
        height: the total height.
    """

    layers: tuple[tuple[Point, ...], ...]
    centers: Mapping[Point, float]
    routes: tuple[tuple[Point, ...], ...]
    height: float

    def layer(self, node: str) -> int:
        """Return the layer of a node."""
        return next(i for i, layer in enumerate(self.layers) if (node,) in layer)


def lay_out(topology: Picture, height_of: Callable[[str], float]) -> Layout:
    """Lay out `topology`, with node heights from `height_of` and the commit phase right of the processing phase."""
    depth = _depths(topology)
    routes = tuple(_route(link.source, link.target, link.stream, depth) for link in topology.links)
    layers: list[list[Point]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in topology.nodes:
        layers[depth[node.id]].append((node.id,))
    for route in routes:
        for point in route[1:-1]:
            layers[int(point[-1])].append(point)
    links = [pair for route in routes for pair in pairwise(route)]
    ordered = _ordered(layers, links)
    heights = {point: height_of(point[0]) if len(point) == 1 else BEND for layer in ordered for point in layer}
    centers = _centered(ordered, links, heights)
    top = min(centers[point] - heights[point] / 2 for point in centers)
    bottom = max(centers[point] + heights[point] / 2 for point in centers)
    shifted = {point: center - top for point, center in centers.items()}
    return Layout(tuple(tuple(layer) for layer in ordered), shifted, routes, bottom - top)


def _depths(topology: Picture) -> dict[str, int]:
    """Return the layer of each node: its longest path from the spout; commit-phase nodes come after all others."""
    depth: dict[str, int] = {}
    for commits in (False, True):
        first = max(depth.values(), default=-1) + 1 if commits else 0
        for node in (one for one in topology.nodes if one.commits == commits):
            before = (depth[link.source] + 1 for link in topology.links if link.target == node.id)
            depth[node.id] = max([first, *before])
    return depth


def _route(source: str, target: str, stream: str, depth: Mapping[str, int]) -> tuple[Point, ...]:
    between = range(depth[source] + 1, depth[target])
    return ((source,), *((source, target, stream, str(layer)) for layer in between), (target,))


Links = Sequence[tuple[Point, Point]]


def _neighbours(links: Links) -> tuple[dict[Point, list[Point]], dict[Point, list[Point]]]:
    before: dict[Point, list[Point]] = {}
    after: dict[Point, list[Point]] = {}
    for source, target in links:
        before.setdefault(target, []).append(source)
        after.setdefault(source, []).append(target)
    return before, after


def _ordered(layers: Sequence[Sequence[Point]], links: Links) -> list[list[Point]]:
    """Sort layers by mean position of neighbours, sweeping back and forth; return the order with fewest crossings."""
    before, after = _neighbours(links)
    current = [list(layer) for layer in layers]
    best, fewest = [list(layer) for layer in current], _crossings(current, links)
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        indices = range(1, len(current)) if forth else range(len(current) - 2, -1, -1)
        for i in indices:
            place = {point: at for at, point in enumerate(current[i - 1 if forth else i + 1])}
            near = before if forth else after
            current[i] = _by_mean(current[i], place, near)
        crossings = _crossings(current, links)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in current], crossings
    return best


def _by_mean(layer: Sequence[Point], place: Mapping[Point, int], near: Mapping[Point, Sequence[Point]]) -> list[Point]:
    def key(item: tuple[int, Point]) -> float:
        known = [place[one] for one in near.get(item[1], ()) if one in place]
        return sum(known) / len(known) if known else float(item[0])

    return [point for _, point in sorted(enumerate(layer), key=key)]


def _crossings(layers: Sequence[Sequence[Point]], links: Links) -> int:
    place = {point: (i, at) for i, layer in enumerate(layers) for at, point in enumerate(layer)}
    ends = sorted((place[source], place[target]) for source, target in links)
    return sum(
        1
        for i, (source, target) in enumerate(ends)
        for other_source, other_target in ends[i + 1 :]
        if other_source[0] == source[0] and (source < other_source) and (target > other_target)
    )


def _centered(layers: Sequence[Sequence[Point]], links: Links, heights: Mapping[Point, float]) -> dict[Point, float]:
    """Move every point towards the mean of its neighbours, as far as the order and the gaps allow."""
    before, after = _neighbours(links)
    centers: dict[Point, float] = {}
    for layer in layers:
        centers.update(zip(layer, _stacked(layer, heights), strict=True))
    for turn in range(ROUNDS):
        near = (before, after)[turn % 2] if turn < ROUNDS - 2 else {**after, **before}
        for layer in layers if turn % 2 == 0 else reversed(layers):
            wanted = [_mean([centers[one] for one in near.get(point, ())], centers[point]) for point in layer]
            centers.update(zip(layer, _spread(layer, wanted, heights), strict=True))
    return centers


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _offsets(layer: Sequence[Point], heights: Mapping[Point, float]) -> list[float]:
    """Return the distance of each point below the first one if all are packed as closely as allowed."""
    offsets = [0.0]
    for upper, lower in pairwise(layer):
        offsets.append(offsets[-1] + (heights[upper] + heights[lower]) / 2 + GAP)
    return offsets


def _stacked(layer: Sequence[Point], heights: Mapping[Point, float]) -> list[float]:
    offsets = _offsets(layer, heights)
    return [offset - offsets[-1] / 2 for offset in offsets]


def _spread(layer: Sequence[Point], wanted: Sequence[float], heights: Mapping[Point, float]) -> list[float]:
    """Return the positions nearest to `wanted` (least squares) that keep order and gaps: pool adjacent violators."""
    offsets = _offsets(layer, heights)
    blocks: list[tuple[float, int]] = []
    for value, offset in zip(wanted, offsets, strict=True):
        mean, count = value - offset, 1
        while blocks and blocks[-1][0] > mean:
            earlier, size = blocks.pop()
            mean, count = (earlier * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    pooled = [mean for mean, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(pooled, offsets, strict=True)]
