import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
from topology_samples import Audit, Keep, Lines, Partial, Plain, Silent, Split, builder, rich, word_count

from txstorm import Committer, KeyedState, SinkTable
from txstorm.errors import InputError, SettingError

A = KeyedState("a", {"k": str}, {"v": int})
B = KeyedState("b", {"k": str}, {"v": int})
C = KeyedState("c", {"k": str}, {"v": int})


def committed(bolt, parallelism=1):
    made = builder()
    made.set_committer_bolt("c", bolt, parallelism).global_grouping("lines")
    return made.build_topology()


class Base(Silent, Committer):
    first = A


class Derived(Base):
    def __init__(self):
        self.more = (B, SinkTable("out", {"x": str}))
        self.again = A
        self.last = [C]


class Replaces(Base):
    def __init__(self):
        self.first = B


class Slim(Silent, Committer):
    __slots__ = ("table", "unset")

    def __init__(self):
        self.table = B


@pytest.mark.parametrize(
    ("bolt", "states", "sinks"), [(Derived(), ["a", "b", "c"], ["out"]), (Replaces(), ["b"], []), (Slim(), ["b"], [])]
)
def test_tables_are_found_in_attributes_of_class_and_instance_in_lists_and_in_slots(bolt, states, sinks):
    topology = committed(bolt)
    assert [one.name for one in topology.states["c"]] == states
    assert [one.name for one in topology.sinks.get("c", ())] == sinks


def test_only_components_with_tables_are_listed_and_an_unknown_one_is_an_error():
    assert set(rich().states) == {"counts", "audit"}
    assert set(rich().sinks) == {"audit"}
    assert committed(Plain()).states == {}
    with pytest.raises(InputError, match=r"no component 'count' \(did you mean 'counts'"):
        word_count().component("count")


@pytest.mark.integration
def test_fingerprint_is_the_same_in_another_process():
    code = "import topology_samples as t; print(t.word_count().fingerprint(), t.rich().fingerprint())"
    paths = [str(Path(__file__).parent), *sys.path]
    program = f"import sys; sys.path[:] = {paths!r}; {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [word_count().fingerprint(), rich().fingerprint()]


def variant(**changes):
    given = {"id": "t", "parallelism": 1, "bolt": "b", "fields": ["word"], "keep": Keep(), "tasks": 1, **changes}
    made = builder(given["id"], given["parallelism"])
    made.set_bolt("p", Partial()).shuffle_grouping("lines")
    made.set_committer_bolt(given["bolt"], given["keep"], given["tasks"]).fields_grouping("p", given["fields"])
    return made.build_topology()


class OtherColumns(Keep):
    state = KeyedState("counts", key={"word": str}, value={"n": float})


CHANGES = [("id", "u"), ("parallelism", 2), ("bolt", "c"), ("fields", ["n"]), ("tasks", 2)]
CHANGES += [("keep", Plain()), ("keep", Audit()), ("keep", OtherColumns())]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_fingerprint_changes_with_the_shape_only(name, value):
    assert variant(**{name: value}).fingerprint() != variant().fingerprint()
    assert variant().with_settings({"max_jobs": 9}).fingerprint() == variant(keep=Keep()).fingerprint()


def test_with_settings_changes_only_settings_and_a_topology_can_be_pickled():
    topology = word_count()
    changed = topology.with_settings({"topology.max.spout.pending": "9"})
    assert changed.settings.max_spout_pending == 9
    assert topology.settings.max_spout_pending == "auto"
    assert changed.components is topology.components
    with pytest.raises(SettingError):
        topology.with_settings({"nothing": 1})
    topology = rich()
    assert topology.commit_phase  # cached values travel too
    shipped = cloudpickle.loads(cloudpickle.dumps(topology))
    assert shipped.fingerprint() == topology.fingerprint()
    assert str(word_count()) == "Topology(word-count: lines → split → partial → counts)"
    assert isinstance(word_count().spout.object, Lines)
    assert isinstance(word_count().component("split").object, Split)
