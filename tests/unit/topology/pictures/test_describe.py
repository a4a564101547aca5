import json
import xml.etree.ElementTree as ET

import pytest
from topology_samples import Lines, Plain, builder, rich, source_diagram, word_count

from txstorm.errors import InputError
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.pictures.describe import FORMATS

TEXT = """\
word-count: 4 components, 8 tasks

component  kind        tasks  reads                    emits        tables
── processing phase, many txids at once ───────────────────────────────────────────────────
lines      spout       2                               line
split      basic bolt  2      lines, shuffle           word
partial    batch bolt  2      split, local-or-shuffle  word, n
                                                       errors: why
── commit phase, in txid order ────────────────────────────────────────────────────────────
counts     committer   2      partial, fields word                  state counts (word → n)"""

MERMAID = """\
flowchart LR
  subgraph processing["processing phase"]
    n0(["A ×1<br/>Lines, spout"])
  end
  subgraph commit["commit phase, in txid order"]
    n1[["B ×1<br/>Plain, committer"]]
    n2["C ×1<br/>Plain, batch bolt"]
    n3[["D ×1<br/>Plain, committer"]]
  end
  n0 == "shuffle" ==> n1
  n0 == "shuffle" ==> n2
  n1 == "shuffle" ==> n2
  n2 == "shuffle" ==> n3"""

DOT = """\
digraph "alone" {
  rankdir=LR;
  node [fontname="sans-serif"];
  edge [fontname="sans-serif", fontsize=10];
  subgraph cluster_processing {
    label="processing phase";
    "lines" [label="lines ×1\\nLines, spout", shape=box, style="rounded,filled", fillcolor="#dbeafe"];
  }
}"""

NASTY = 'a"]<b>&\\n;\x01\x1b[31m\ud800'


def nasty():
    """Build a topology with field, class and stream names that would break every output format if not escaped."""
    bolt = type('Bolt"<i>&\x02', (Plain,), {"fields": (NASTY,)})
    made = builder("nasty")
    made.set_bolt("b", bolt()).shuffle_grouping("lines")
    made.set_bolt("c", Plain()).fields_grouping("b", [NASTY])
    return made.build_topology()


def test_text_mermaid_dot_json_and_notebooks():
    assert word_count().describe() == TEXT
    assert source_diagram().describe("mermaid") == MERMAID
    assert TransactionalTopologyBuilder("alone", "lines", Lines()).build_topology().describe("dot") == DOT
    with pytest.raises(InputError, match="'png' is unknown; use one of text, mermaid, dot, json, svg"):
        word_count().describe("png")
    described = json.loads(rich().describe("json"))
    components = {one["id"]: one for one in described["components"]}
    assert described["topology"] == "rich"
    assert described["fingerprint"] == rich().fingerprint()
    assert components["counts"]["phase"] == "commit"
    assert components["counts"]["inputs"] == [
        {"component": "partial", "stream": "default", "grouping": "fields", "fields": ["word"]}
    ]
    assert components["counts"]["states"] == [{"name": "counts", "key": ["word"], "value": ["n"]}]
    assert components["audit"]["sinks"] == [{"name": "audit", "columns": ["who", "at"]}]
    assert components["partial"]["streams"]["errors"] == {"fields": ["why"], "direct": False}
    assert described["settings"]["max_spout_pending"] == "auto"
    bundle = word_count()._repr_mimebundle_()
    assert list(bundle) == ["text/html", "image/svg+xml", "text/vnd.mermaid", "text/plain"]
    assert bundle["image/svg+xml"] in bundle["text/html"]
    assert bundle["text/plain"] == word_count().describe()


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_names_every_component_and_is_stable(format):
    described = rich().describe(format)
    assert all(one.id in described for one in rich().components)
    assert described == rich().describe(format)
    assert "0x" not in described


def test_malicious_names_are_escaped():
    topology = nasty()
    for wanted in FORMATS:
        described = topology.describe(wanted)
        assert all(c.isprintable() or c == "\n" for c in described), wanted
        described.encode()
    root = ET.fromstring(topology.describe("svg"))
    assert not [one for one in root.iter() if one.tag.endswith(("}b", "}i"))]
    assert "<b>" not in topology.describe("mermaid").replace("<br/>", "")
    for line in topology.describe("mermaid").splitlines():
        assert line.count('"') in (0, 2)
    for line in topology.describe("dot").splitlines():
        assert line.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 0
    assert json.loads(topology.describe("json"))["components"][1]["streams"]["default"]["fields"] == [NASTY]


def test_a_long_chain_a_wide_fan_and_a_topology_whose_bolts_all_commit_are_described():
    made = builder("large")
    for i in range(40):
        made.set_bolt(f"c{i}", Plain()).shuffle_grouping(f"c{i - 1}" if i else "lines")
        made.set_bolt(f"w{i}", Plain()).shuffle_grouping("lines")
    topology = made.build_topology()
    for wanted in FORMATS:
        assert "c39" in topology.describe(wanted)
    made = builder("t")
    made.set_committer_bolt("k", Plain()).global_grouping("lines")
    assert "commit phase" in made.build_topology().describe()
