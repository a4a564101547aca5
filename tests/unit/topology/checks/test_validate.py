import threading
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from topology_samples import Keep, Lines, Partial, Plain, Split, builder

from txstorm.api.bolt import BasicBolt, BatchBolt, Committer
from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.errors import TopologyError
from txstorm.topology.builder import TransactionalTopologyBuilder


def faults(made):
    return made.validate().faults


def only_fault(made):
    found = faults(made)
    assert len(found) == 1, found
    return found[0]


def with_bolt(bolt, committer=False):
    made = builder()
    add = made.set_committer_bolt if committer else made.set_bolt
    add("b", bolt).global_grouping("lines")
    return made


def with_state(state):
    return with_bolt(bolt(table=state), committer=True)


@pytest.mark.parametrize("base", [BasicBolt, BatchBolt])
def test_valid_topologies_have_no_faults(base):
    made = builder()
    made.set_committer_bolt("k", Keep(), 2).fields_grouping("lines", ["line"])
    assert faults(made) == ()
    assert faults(with_bolt(bolt(base, execute_batch=lambda self, *given: None))) == ()
    assert faults(with_bolt(bolt(fields=()))) == ()  # without subscribers
    assert faults(with_bolt(Plain())) == ()


def test_everything_is_reported_at_once():
    made = TransactionalTopologyBuilder("../t", "lines", Lines(), 0)
    made.set_bolt("a", Split()).shuffle_grouping("lins")
    made.set_bolt("A", Split())
    made.set_bolt("x", Plain()).shuffle_grouping("y")
    made.set_bolt("y", Plain()).shuffle_grouping("x")
    made.set_bolt("c", Split).shuffle_grouping("lines", "errors")
    with pytest.raises(TopologyError) as refused:
        made.build_topology()
    text = "\n".join(refused.value.faults)
    for part in (
        "topology '../t'",
        "parallelism is 0",
        "no component 'lins' (did you mean 'lines'?)",
        "'a' and 'A' differ only in case",
        "'A' subscribes to nothing",
        "cycle ",
        "got the class Split",
        "no stream 'errors'",
    ):
        assert part in text
    assert len(refused.value.faults) == 8
    assert "has 8 faults" in str(refused.value)


BAD_NAMES = ["", "..", "a/b", "a\0b", "a b", "1a", "__x", "-a", "é", "а", "ｓplit", "a" * 65, "a\n", None, 3, ["a"]]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_bad_names_of_topologies_components_states_and_sinks_are_rejected(name):
    assert only_fault(TransactionalTopologyBuilder(name, "s", Lines())).startswith(f"topology {name!r}: a name is ")
    assert only_fault(TransactionalTopologyBuilder("t", name, Lines())).startswith(f"component {name!r}: a name is ")
    state = only_fault(with_state(KeyedState(name, {"k": str}, {"v": int})))
    assert f"state {name!r}: a name is " in state
    assert f"sink {name!r}: a name is " in only_fault(with_state(SinkTable(name, {"v": int})))


def bolt(*bases, **attributes):
    """Return a bolt of a class with `bases` (Plain by default) and `attributes`."""
    return type("Bolt", bases or (Plain,), attributes)()


def declares_twice(self, declarer):
    declarer.declare("a")
    declarer.declare("b")


LOCK = threading.Lock()
BOLTS = [
    (bolt(streams={"a/b": ("x",)}), "stream 'a/b': a name is"),
    (Plain, "'b': got the class Plain instead of an object; write Plain(...)"),
    (Lines(), "Lines is neither a BasicBolt nor a BatchBolt"),
    (bolt(Committer), "is neither a BasicBolt nor a BatchBolt"),
    (bolt(BasicBolt, BatchBolt, execute=lambda self, *given: None), "is both a BasicBolt and a BatchBolt"),
    (bolt(Split, Committer), "a BasicBolt, which can never be a committer"),
    (bolt(BasicBolt), "overrides neither execute nor execute_batch"),
    (bolt(BatchBolt), "overrides neither execute nor execute_batch"),
    (
        bolt(execute=lambda self, one: LOCK.acquire()),
        "it or something its code refers to cannot be serialised (TypeError: cannot pickle '_thread.lock' object); do not keep",
    ),
    (bolt(fields=("a", "a")), "field 'a' is declared twice"),
    (bolt(fields=("_a",)), "starts with '_'"),
    (bolt(fields=("",)), "field '' is not a non-empty string"),
    (bolt(fields=("a\0",)), "is not a non-empty string"),
    (bolt(fields=(1,)), "field 1 is not a non-empty string"),
    (bolt(fields=((["a"],),)), "is not a non-empty string"),
    (bolt(declare_output_fields=declares_twice), "component 'b': stream 'default' is declared twice"),
]


@pytest.mark.parametrize(("bolt", "sentence"), BOLTS)
def test_faults_of_one_bolt(bolt, sentence):
    assert sentence in only_fault(with_bolt(bolt))


def test_the_spout_is_a_spout_a_basic_bolt_no_committer_and_component_ids_unique_whatever_their_case():  # item 42
    made = builder()
    for _ in range(3):
        made.set_bolt("a", Split()).shuffle_grouping("lines")
    assert only_fault(made) == "component 'a': two components have this id; give each its own"
    made = builder()
    made.set_bolt("Lines", Split()).shuffle_grouping("lines")
    assert "'lines' and 'Lines' differ only in case; give one of them another id" in only_fault(made)
    assert "a BasicBolt, which can never be a committer" in only_fault(with_bolt(Split(), committer=True))
    for spout, sentence in ((Lines, "spout 's': got the class Lines"), (Split(), "Split is no spout")):
        assert sentence in only_fault(TransactionalTopologyBuilder("t", "s", spout))


@pytest.mark.parametrize("parallelism", [0, -1, True, 1.5, "2", 40000])
def test_parallelism_must_be_a_number_of_tasks(parallelism):
    assert (
        f"parallelism is {parallelism!r}, expected a whole number from 1 to 32768; it is the number of the"
        in only_fault(builder(parallelism=parallelism))
    )


def test_a_declaration_that_raises_is_reported_as_one_fault():
    class Broken(Plain):
        def declare_output_fields(self, declarer):
            raise KeyError("oops")

    made = with_bolt(Broken())
    made.set_bolt("c", Split()).fields_grouping("b", ["x"])
    assert "declare_output_fields of Broken raised KeyError: 'oops'" in only_fault(made)


class Locked:
    """Something that cannot be shipped to a worker; also a custom grouping."""

    def __init__(self):
        self.fine = 1
        self.lock = threading.Lock()

    def prepare(self, component, stream, targets):
        pass

    def choose_tasks(self, source_task, values):
        return [0]


def test_unpicklable_objects_are_reported_with_their_attribute():
    class LockedBolt(Plain):
        __init__ = Locked.__init__

    fault = only_fault(with_bolt(LockedBolt()))
    assert fault.startswith("component 'b': LockedBolt cannot be shipped to a worker: its attribute 'lock' ")
    assert "create such things in prepare" in fault
    made = builder()
    made.set_bolt("b", Plain()).custom_grouping("lines", Locked())
    assert "custom grouping on 'lines': Locked cannot be shipped" in only_fault(made)


def subscribed(declare, source):
    made = builder()
    made.set_bolt("p", source).shuffle_grouping("lines")
    declare(made.set_bolt("b", Plain()))
    return only_fault(made)


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda d: None, "bolt 'b' subscribes to nothing; add a grouping to its declarer, such as .s"),
        (lambda d: d.shuffle_grouping("q"), "there is no component 'q'; known are lines, p, b"),
        (lambda d: d.shuffle_grouping(["p"]), "there is no component ['p']"),
        (lambda d: d.shuffle_grouping("p", "eror"), "no stream 'eror' (did you mean 'errors'?)"),
        (lambda d: d.fields_grouping("p", ["wrd"]), "stream 'default' has no field 'wrd' (did you mean 'word'?)"),
        (lambda d: d.fields_grouping("p", ["word"], stream="errors"), "stream 'errors' has no field 'word'"),
        (lambda d: d.fields_grouping("p", []), "names no fields"),
        (lambda d: d.partial_key_grouping("p", []), "names no fields"),
        (lambda d: d.direct_grouping("p"), "stream 'default' is not direct; declare it with direct=True"),
        (lambda d: d.grouping("p", "shufle"), "no such grouping (did you mean 'shuffle'"),
        (lambda d: d.custom_grouping("p", object()), "object has no prepare and choose_tasks"),
        (lambda d: d.custom_grouping("p", Partial), "got the class Partial instead of an object"),
        (lambda d: d.shuffle_grouping("p").global_grouping("p"), "stream 'default' is subscribed to twice"),
        (
            lambda d: d.shuffle_grouping("p").shuffle_grouping("b"),
            "cycle b → b: tuples would never end; remove one of these subscriptions",
        ),
    ],
)
def test_faults_of_one_subscription(declare, sentence):
    assert sentence in subscribed(declare, Partial())


def test_faults_of_what_is_subscribed_to():
    for sentence, attributes in {
        "stream 'default' is direct": {"declare_output_fields": lambda self, made: made.declare("x", direct=True)},
        "'p' declares no output fields": {"fields": ()},
        "is declared without fields": {"declare_output_fields": lambda self, made: made.declare()},
    }.items():
        assert sentence in subscribed(lambda d: d.shuffle_grouping("p"), bolt(**attributes))


def test_every_cycle_is_reported_once_in_the_direction_of_tuples():
    made = builder()
    made.set_bolt("a", Plain()).shuffle_grouping("lines").shuffle_grouping("c")
    made.set_bolt("b", Plain()).shuffle_grouping("a")
    made.set_bolt("c", Plain()).shuffle_grouping("b")
    made.set_bolt("x", Plain()).shuffle_grouping("y")
    made.set_bolt("y", Plain()).shuffle_grouping("x")
    found = [fault.partition(":")[0].removeprefix("cycle ").split(" → ") for fault in faults(made)]
    assert [sorted(set(path)) for path in found] == [["a", "b", "c"], ["x", "y"]]
    follows = {"a": "b", "b": "c", "c": "a", "x": "y", "y": "x"}
    for path in found:
        assert path[0] == path[-1]
        assert all(follows[one] == other for one, other in pairwise(path))


def events(**changes):
    return CollectionState("s", **{"key": {"user": str}, "order": {"at": int}, "value": {"n": int}, **changes})


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (
            KeyedState("s", {"k": float}, {"v": int}),
            "double cannot be a key, since equal numbers may have different bits; use int",
        ),
        (KeyedState("s", {"k": pa.float32()}, {"v": int}), "float cannot be a key"),
        (KeyedState("s", {"k": pa.list_(pa.int64())}, {"v": int}), "cannot be a key; use one key column per part"),
        (KeyedState("s", {"k": object}, {"v": int}), "column 'k': object is no column type; use str, int, "),
        (KeyedState("s", {"k": str}, {"v": "int"}), "column 'v': 'int' is no column type"),
        (KeyedState("s", {"k": str}, {"v": [int]}), "is no column type"),
        (KeyedState("s", {"k": str}, {"v": pa.uint32()}), "cannot hold uint32 as it is; use int"),
        (KeyedState("s", {"k": str}, {"v": pa.large_string()}), "use str (pa.string())"),
        (KeyedState("s", {"k": str}, {"v": pa.binary(4)}), "use bytes (pa.binary())"),
        (KeyedState("s", {"k": str}, {"v": pa.timestamp("us")}), "is not in UTC microseconds"),
        (KeyedState("s", {"k": str}, {"v": pa.timestamp("ns", tz="UTC")}), "is not in UTC microseconds"),
        (KeyedState("s", {"k": str}, {"v": pa.list_(pa.time64("us"))}), "cannot hold time64[us]"),
        (KeyedState("s", {"k": str}, {}), "has no value columns"),
        (KeyedState("s", {"k": str}, {"k": int}), "column 'k' is declared twice"),
        (KeyedState("s", {"k": str}, {"K": int}), "column 'K' and column 'k' differ only in case"),
        (KeyedState("s", {"_kg": str}, {"v": int}), "starts with '_'"),
        (KeyedState("s", {"k": str}, {"_txid": int}), "starts with '_'"),
        (KeyedState("s", ["k"], {"v": int}), "key and value are mappings"),
        (SinkTable("s", {}), "at least one column"),
        (SinkTable("s", ["a"]), "at least one column"),
        (SinkTable("s", {"_txid": int}), "starts with '_'"),
        (SinkTable("s", {"a": int, "A": int}), "differ only in case"),
        (SinkTable("s", {"a": set}), "set is no column type"),
        (KeyedState("s", {"k": str}, {"n": int}, ttl=timedelta(0)), "ttl is a timedelta above 0 or None, got"),
        (KeyedState("s", {"k": str}, {"n": int}, ttl=5), "ttl is a timedelta above 0 or None, got 5"),
        (KeyedState("s", {"k": str}, {"n": int}, writer="spark", layout="merge"), "writer 'spark' and the layout"),
        (KeyedState("s", {"k": str}, {"n": int}, layout="rows"), "expected the layout changes or merge, got 'rows'"),
        (KeyedState("s", {"k": str}, {"n": int}, writer="rust"), "expected writer 'deltalake' or 'spark', got 'rust'"),
        (SinkTable("s", {"n": int}, writer="rust"), "table 's': expected writer 'deltalake' or 'spark', got 'rust'"),
        (events(layout="merge"), "a collection cannot have the layout 'merge': each append would rewrite"),
        (events(order={}), "order is a mapping of one column to its type; write order={'at': datetime}"),
        (events(order="at"), "order is a mapping of one column to its type"),
        (events(order={"at": int, "to": int}), "order is a mapping of one column to its type"),
        (events(order={"at": str}), "order: column 'at': expected datetime or int, got <class 'str'>"),
        (events(order={"_at": int}), "field '_at' starts with '_'"),
        (events(order={"user": int}), "column 'user' is declared twice"),
        (events(order={"N": int}), "differ only in case"),
    ],
)
def test_faults_of_one_table(state, sentence):
    fault = only_fault(with_state(state))
    assert sentence in fault
    assert "'b'" in fault
    assert "'s'" in fault


def test_every_documented_type_is_accepted():
    from txstorm.api.state import ARROW_TYPES

    columns = {kind.__name__: kind for kind in ARROW_TYPES}
    keys = {name: kind for name, kind in columns.items() if kind is not float}
    values = {f"v_{name}": kind for name, kind in columns.items()}
    nested = {"l": pa.list_(pa.string()), "m": pa.map_(pa.string(), pa.int32()), "s": pa.struct([("x", pa.int8())])}
    assert faults(with_state(KeyedState("s", keys, {**values, **nested}))) == ()
    assert faults(with_state(SinkTable("s", {**values, **nested}))) == ()


@pytest.mark.parametrize("table", [KeyedState("s", {"k": str}, {"v": int}), SinkTable("s", {"v": int})])
def test_only_committers_have_tables(table):
    fault = only_fault(with_bolt(bolt(held=table)))
    assert "'b' declares s" in fault
    assert "mark the bolt with Committer or add it with set_committer_bolt" in fault
    assert "move it to a committer" in only_fault(with_bolt(bolt(Split, held=table)))
    assert "move it to a committer" in only_fault(TransactionalTopologyBuilder("t", "s", bolt(Lines, held=table)))


def two_tables(first, second):
    made = builder()
    for name, table in (("one", first), ("two", second)):
        made.set_committer_bolt(name, bolt(held=table)).global_grouping("lines")
    return made


def test_a_table_belongs_to_one_component_whatever_the_case_of_its_name():
    state, sink, upper = KeyedState("s", {}, {"v": int}), SinkTable("s", {"v": int}), KeyedState("S", {}, {"v": int})
    assert (
        "state 's' is declared by both 'one' and 'two'" + "; a state belongs to one component: rename one, or let one"
        in only_fault(two_tables(state, state))
    )
    assert "sink 's' is declared by both 'one' and 'two'" in only_fault(two_tables(sink, sink))
    assert faults(two_tables(state, sink)) == ()
    assert "states 'S' and 's' differ only in case and would share a directory; rename one" in only_fault(
        two_tables(upper, state)
    )
    other = KeyedState("s", {}, {"v": str})
    assert "declares state 's' twice with different columns" in only_fault(with_state((state, other)))


def warnings(declare, parallelism=2, state=None):
    made = builder()
    made.set_bolt("p", Partial()).shuffle_grouping("lines")
    held = KeyedState("s", {"word": str, "n": int}, {"v": int}) if state is None else state
    declare(made.set_committer_bolt("k", bolt(held=held), parallelism))
    report = made.validate()
    assert report.faults == ()
    return report.warnings


@pytest.mark.parametrize("kind", ["shuffle", "all", "none", "local_or_shuffle", "partial_key"])
def test_a_grouping_that_splits_a_key_among_tasks_logs_a_warning(kind):
    def declare(d):
        getattr(d, f"{kind}_grouping")("p", *[["word"]] * (kind == "partial_key"))

    (warning,) = warnings(declare)
    assert "use parallelism 1 or fields_grouping('p', ['word', 'n'])" in warning
    assert warnings(declare, parallelism=1) == ()


def test_groupings_within_the_key_warn_only_if_they_differ():
    assert warnings(lambda d: d.global_grouping("p")) == ()
    for fields in (["word"], ["n", "word"]):
        assert warnings(lambda d, fields=fields: d.fields_grouping("p", fields)) == ()
    made = builder()
    made.set_bolt("p", Partial()).shuffle_grouping("lines")
    made.set_bolt("q", Partial()).shuffle_grouping("lines")
    keep = bolt(held=KeyedState("s", {"word": str, "n": int}, {"v": int}))
    made.set_committer_bolt("k", keep, 2).fields_grouping("p", ["word"]).fields_grouping("q", ["word", "n"])
    (warning,) = made.validate().warnings
    assert "its inputs are grouped by different fields (word and word, n)" in warning


@pytest.mark.parametrize(
    ("key", "fields", "advice"),
    [
        (["word"], ["n", "word"], "parallelism 1 or fields_grouping('p', ['word'])"),
        (["token"], ["word"], "fields_grouping('p', ...) on the fields that make up its key (t"),
        ([], ["word"], "or global_grouping('p')"),
    ],
)
def test_advice_mentions_only_existing_fields(key, fields, advice):
    state = KeyedState("s", dict.fromkeys(key, str), {"v": int})
    (warning,) = warnings(lambda d: d.fields_grouping("p", fields), state=state)
    assert advice in warning
    assert key or warning.endswith(advice)
