import pytest
from plan_samples import branches, builder, word_count
from topology_samples import source_diagram

from txstorm.bolts import CountByKey
from txstorm.plan.explain import explain
from txstorm.plan.stages import compile_plan
from txstorm.sinks import DeltaSink

WORD_COUNT = """\
plan of topology word-count
processing phase: finishes many txids at once; one job a pack, 2 Spark stages
├─ stage 0: 2 tasks
│  └─ s: spout, 2 tasks
└─ stage 1: 2 tasks
   ├─ split: basic bolt, 2 tasks
   │  └─ from s by shuffle: exchange, 2 → 2 tasks
   └─ partial: batch bolt, 2 tasks
      └─ from split by local-or-shuffle: no exchange
reaches the driver, in files beyond spill_bytes
└─ partial → counts by fields word: 2 tasks
commit phase: finishes one txid after the other, in the driver, in this order
└─ 1. counts: committer, 2 tasks
   ├─ from partial by fields word
   ├─ state counts: state/counts, changes/counts, by word, kept until removed
   ├─ sink log: sinks/log
   └─ large commits: as a job, by key"""

DIAGRAM = """\
plan of topology diagram
processing phase: finishes many txids at once; one job a pack, 1 Spark stage
└─ stage 0: 1 task
   └─ A: spout, 1 task
reaches the driver, in files beyond spill_bytes
├─ A → B by shuffle: 1 task
└─ A → C by shuffle: 1 task
commit phase: finishes one txid after the other, in the driver, in this order
├─ 1. B: committer, 1 task
│  ├─ from A by shuffle
│  └─ large commits: in the driver, not as a job
│     └─ it has no keyed state
├─ 2. C: batch bolt, 1 task
│  ├─ from A by shuffle
│  └─ from B by shuffle
└─ 3. D: committer, 1 task
   ├─ from C by shuffle
   └─ large commits: in the driver, not as a job
      ├─ it has no keyed state
      └─ its input from C is produced in the commit phase"""

BRANCHES = """\
plan of topology branches
processing phase: finishes many txids at once; one job a pack, 3 Spark stages
├─ stage 0: 4 tasks
│  ├─ s: spout, 4 tasks
│  └─ near: basic bolt, 4 tasks
│     └─ from s by local-or-shuffle: no exchange
├─ stage 1: 3 tasks
│  └─ far: batch bolt, 3 tasks
│     └─ from near by fields word: exchange, 4 → 3 tasks
└─ stage 2: 4 tasks
   └─ meet: batch bolt, 4 tasks
      ├─ from near by local-or-shuffle: exchange, task i to task i
      └─ from far by all: exchange, 3 → 4 tasks
reaches the driver, in files beyond spill_bytes
├─ far/errors → faults by global: 1 task
└─ meet/errors → faults by global: 1 task
commit phase: finishes one txid after the other, in the driver, in this order
└─ 1. faults: committer, 1 task
   ├─ from far/errors by global
   ├─ from meet/errors by global
   └─ large commits: in the driver, not as a job
      └─ it has no keyed state"""

ALONE = """\
plan of topology t
processing phase: finishes many txids at once; one job a pack, 1 Spark stage
└─ stage 0: 1 task
   └─ s: spout, 1 task
commit phase: nothing finishes here; a txid commits when it is processed"""


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (word_count(), WORD_COUNT),
        (source_diagram(), DIAGRAM),
        (branches(), BRANCHES),
        (builder().build_topology(), ALONE),
    ],
    ids=["word count", "committers in the middle", "branches and streams", "without committers"],
)
def test_the_text_of_a_plan(topology, text):
    assert explain(topology, why=True) == explain(compile_plan(topology), why=True) == text


def test_reasons_published_tables_shared_tables_and_disabled_large_commits_are_explained():
    """By default one line names the committers whose large transactions no job can commit, and says how to ask why."""
    *lines, last = explain(source_diagram()).splitlines()
    how = "txstorm explain --why, or explain(…, why=True), says why"
    assert last == f"large commits in the driver, not as a job: B, D; {how}"
    asked = [line.lstrip("│├└─ ") for line in DIAGRAM.splitlines()]
    reasons = ("large commits", "it has no keyed state", "its input from C")
    assert [line.lstrip("│├└─ ") for line in lines] == [one for one in asked if not one.startswith(reasons)]
    assert explain(word_count()) == WORD_COUNT
    made = builder()
    made.set_bolt("sink", DeltaSink("out", {"word": str}, writer="spark")).shuffle_grouping("s")
    made.set_bolt("counts", CountByKey("word", "counts", writer="spark")).global_grouping("s")
    made.set_bolt("merged", CountByKey("word", "merged", layout="merge")).global_grouping("s")
    lines = explain(made.build_topology())
    assert "state counts: state/counts, changes/counts, by word, kept until removed, published with Spark" in lines
    assert "sink out: sinks/out, published with Spark" in lines
    assert "state merged: state/merged, by word" in lines
    topology = word_count().with_settings({"large_commit_rows": None})
    assert explain(topology) == WORD_COUNT
    *_, verdict, reason = explain(topology.with_settings({"large_commit_bytes": "none"}), why=True).splitlines()
    assert verdict.endswith("large commits: in the driver, not as a job")
    assert reason.endswith("large_commit_rows and large_commit_bytes are none")
