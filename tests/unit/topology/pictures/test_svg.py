import random
import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest
from topology_samples import Keep, Plain, builder, rich, source_diagram, word_count

from txstorm import TransactionalSpout, TransactionalTopologyBuilder
from txstorm.sinks import DeltaSink
from txstorm.topology.pictures.layout import GAP, lay_out
from txstorm.topology.pictures.model import printable, view
from txstorm.topology.pictures.svg import PALETTE

SVG = "{http://www.w3.org/2000/svg}"


def drawn(topology):
    return ET.fromstring(topology.describe("svg"))


def node_boxes(root):
    """Return (x, y, width, height) of each node's outer box, by component id (from its tooltip)."""
    boxes = {}
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None:
            rect = group.find(f"{SVG}rect")
            boxes[title.text.partition(":")[0]] = tuple(float(rect.get(k)) for k in ("x", "y", "width", "height"))
    return boxes


def texts(root):
    return ["".join(one.itertext()) for one in root.iter(f"{SVG}text")]


def generated(seed):
    """Generate a random topology of 3 to 25 components from `seed`."""
    chosen = random.Random(seed)
    made = builder(f"g{seed}")
    names = ["lines"]
    for i in range(chosen.randint(2, 24)):
        name = "n" * chosen.randint(1, 40) + str(i)
        add = made.set_committer_bolt if chosen.random() < 0.2 else made.set_bolt
        declarer = add(name, Plain(), chosen.randint(1, 20))
        for source in chosen.sample(names, min(len(names), chosen.randint(1, 3))):
            declarer.fields_grouping(source, ["line" if source == "lines" else "x"])
        names.append(name)
    return made.build_topology()


def test_a_self_contained_svg_of_a_numeric_size_names_everything_and_escapes_control_characters():
    """Width and height are plain numbers: CairoSVG reads ``height:auto`` as the height, and draws nothing."""
    picture = word_count().describe("svg")
    root = ET.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    assert " id=" not in picture  # two pictures on a page must not share ids
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
    assert "script" not in picture
    root = ET.fromstring(rich().describe("svg"))
    assert float(root.attrib["width"]) > 100
    assert float(root.attrib["height"]) > 50
    assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"
    assert "auto" not in rich().describe("svg")
    shown = texts(drawn(word_count()))
    for text in ("lines", "Partial · batch bolt", "Keep · committer", "×2", "fields word"):
        assert any(text in one for one in shown), text
    assert any("PROCESSING PHASE" in one for one in shown)
    assert any("COMMIT PHASE" in one and "in txid order" in one for one in shown)
    assert any("counts" in one and "word → n" in one for one in shown)
    without_committers = texts(drawn(builder().build_topology()))
    assert not any("COMMIT PHASE" in one for one in without_committers)
    assert printable("a\x00b\nc\ud800") == "a\\x00b\\nc\\ud800"
    assert printable("naïve → ñ") == "naïve → ñ"


def test_committers_have_a_double_border_and_their_tables_and_a_long_name_is_in_the_tooltip():
    root = drawn(source_diagram())
    rects = {}
    for group in root.iter(f"{SVG}g"):
        if group.find(f"{SVG}title") is not None:
            name = group.find(f"{SVG}title").text.partition(":")[0]
            rects[name] = sum("txs-s-committer" in (rect.get("class") or "") for rect in group.findall(f"{SVG}rect"))
    assert rects == {"A": 0, "B": 2, "C": 0, "D": 2}
    made = builder()
    made.set_bolt("x" * 64, Plain()).shuffle_grouping("lines")
    root = drawn(made.build_topology())
    assert not any("x" * 30 in one for one in texts(root))
    assert "x" * 64 in node_boxes(root)
    made = builder()
    made.set_committer_bolt("counts", Keep()).global_grouping("lines")
    made.set_committer_bolt("plain", Plain()).global_grouping("lines")
    boxes = node_boxes(drawn(made.build_topology()))
    assert boxes["counts"][3] > boxes["plain"][3]


@pytest.mark.parametrize("count", [3, 6, 200])
def test_long_lists_of_fields_are_wrapped_at_commas(count):
    """The picture shows whole names only; names that do not fit are counted, and the tooltip has them."""
    names = ["x" * 40, *(f"field{'_name' * (1 + i % 3)}_{i}" for i in range(count))]
    spout = type("Wide", (TransactionalSpout,), {"fields": tuple(names)})()
    made = TransactionalTopologyBuilder("wide", "lines", spout)
    for sink in ("one", "other"):
        made.set_bolt(sink, DeltaSink(sink, dict.fromkeys(names, str))).fields_grouping("lines", names)
    root = drawn(made.build_topology())
    shown = [text for one in texts(root) for text in re.split(", ?", one.removeprefix("fields ")) if "field_" in text]
    assert {text.removeprefix("one").removeprefix("other") for text in shown} <= set(names)
    assert not any("…" in one for one in texts(root))
    assert sum(" more" in one for one in texts(root)) == (4 if count == 200 else 0)  # two tables, and two links
    one, other = (node_boxes(root)[sink] for sink in ("one", "other"))
    assert one[1] + one[3] < other[1] or other[1] + other[3] < one[1]
    lines = sorted(float(text.get("y")) for text in root.iter(f"{SVG}text") if "name" in "".join(text.itertext()))
    assert 0 < lines[0] and lines[-1] < float(root.get("height"))


@pytest.mark.parametrize("seed", range(25))
def test_nodes_do_not_overlap_and_stay_inside_and_links_run_left_to_right(seed):
    topology = generated(seed)
    root = drawn(topology)
    _, _, width, height = (float(part) for part in root.get("viewBox").split())
    boxes = node_boxes(root)
    for name, (x, y, w, h) in boxes.items():
        assert 0 <= x and x + w <= width, (seed, name)
        assert 0 <= y and y + h <= height, (seed, name)
    for (a, one), (b, other) in combinations(boxes.items(), 2):
        apart = (
            one[0] + one[2] < other[0]
            or other[0] + other[2] < one[0]
            or one[1] + one[3] < other[1]
            or other[1] + other[3] < one[1]
        )
        assert apart, (seed, a, b)
    for component in topology.components:
        for given in component.inputs:
            source, target = boxes[given.component], boxes[component.id]
            assert source[0] + source[2] < target[0], (seed, given.component, component.id)
    processing = [boxes[one.id] for one in topology.components if one.id not in topology.commit_phase]
    commit = [boxes[one.id] for one in topology.components if one.id in topology.commit_phase]
    for right in (x + width for x, _, width, _ in processing):
        assert all(right < x for x, *_ in commit), seed


@pytest.mark.parametrize("seed", range(25))
def test_nodes_of_a_layer_keep_their_order_and_distance(seed):
    topology = view(generated(seed))
    layout = lay_out(topology, lambda node: 40.0)
    for layer in layout.layers:
        for upper, lower in pairwise(layer):
            room = sum(40.0 if len(point) == 1 else 0.0 for point in (upper, lower)) / 2 + GAP
            assert layout.centers[lower] - layout.centers[upper] >= room - 1e-6, (seed, upper, lower)
    for route in layout.routes:
        assert all(point in layout.centers for point in route), seed


def test_a_chain_is_straight_and_crossings_are_avoided_where_possible():
    layout = lay_out(view(word_count()), lambda node: 40.0)
    assert len({round(center, 6) for center in layout.centers.values()}) == 1
    made = builder()
    for name in ("a", "b", "c"):
        made.set_bolt(name, Plain()).shuffle_grouping("lines")
    for name, source in (("z", "c"), ("y", "b"), ("x", "a")):
        made.set_bolt(name, Plain()).shuffle_grouping(source)
    layout = lay_out(view(made.build_topology()), lambda node: 40.0)
    order = {point[0]: at for layer in layout.layers for at, point in enumerate(layer)}
    assert [order[name] for name in "abc"] == [order[name] for name in "xyz"]


def test_every_light_colour_has_a_dark_counterpart():
    picture = rich().describe("svg")
    for role in re.findall(r"txs-[fs]-([a-z-]+)[\" ]", picture):
        assert role in PALETTE
    rules = picture[picture.index("<style>") : picture.index("</style>")]
    assert rules.count("@media (prefers-color-scheme:dark)") == 1
    for light, dark in PALETTE.values():
        assert light != dark
        assert dark in rules


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("ink", ["ink", "muted", "spout", "committer"])
@pytest.mark.parametrize("ground", ["card", "node", "processing", "commit"])
def test_text_has_enough_contrast_in_both_themes(theme, ink, ground):
    one, other = sorted(luminance(PALETTE[role][theme]) for role in (ink, ground))
    assert (other + 0.05) / (one + 0.05) >= 4.5
