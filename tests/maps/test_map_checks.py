"""Maps: validation when a topology is built, and their display in descriptions of topologies."""

import json

import cloudpickle
import pytest
from map_nets import Plain, Source, Sums, topology
from topology_samples import Silent

from txstorm import KeyedState, MapState, MemoryBackend, TransactionalTopologyBuilder, explain
from txstorm.api.external import MarkedMapBackend
from txstorm.clients.sql import SqlAlchemyBackend
from txstorm.errors import TopologyError
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout


def declared(spout, *maps):
    builder = TransactionalTopologyBuilder("own", "source", spout)
    builder.set_bolt("sums", Sums(*maps)).global_grouping("source")
    return builder


OPAQUE_SPOUTS = [Source([], opaque=True), OpaqueMemoryTransactionalSpout([[("a", 1)]], ["key", "n"])]


@pytest.mark.parametrize("spout", OPAQUE_SPOUTS)
def test_a_transactional_map_of_an_opaque_spout_is_rejected_with_a_reason_unless_it_is_allowed(spout):
    with pytest.raises(TopologyError) as refused:
        declared(spout, MapState("m", MemoryBackend(), "transactional")).build_topology()
    assert refused.value.faults == (
        "component 'sums', map 'm': a transactional map keeps no value before a txid, and the opaque spout 'source' may "
        "replay a txid with other content: a key that carries the txid already would keep what the first attempt wrote, "
        "which is not exactly once; use kind='opaque', or accept it with allow_opaque_spout=True",
    )
    built = declared(spout, MapState("m", MemoryBackend(), "transactional", allow_opaque_spout=True)).build_topology()
    assert built.warnings == ()


def test_other_combinations_pass_with_a_warning_if_at_least_once():
    transactional = MemoryTransactionalSpout([[("a", 1)]], ["key", "n"])
    for spout in (transactional, *OPAQUE_SPOUTS):
        assert declared(spout, MapState("m", MemoryBackend())).build_topology().warnings == ()
        (said,) = declared(spout, MapState("m", MemoryBackend(), "non_transactional")).build_topology().warnings
        assert said.endswith("keeps no txid, so it counts at least once, not exactly once")
        (said,) = declared(spout, MapState("m", Plain())).build_topology().warnings
        assert "Plain keeps no mark (put_marked)" in said
    assert declared(transactional, MapState("m", MemoryBackend(), "transactional")).build_topology().warnings == ()


class Both(Sums):
    state = KeyedState("m", {"k": str}, {"n": int})


class InTheMiddle(Silent):
    m = MapState("m", MemoryBackend())


def test_faults_name_component_and_map():
    shared = MemoryBackend()
    cases = {
        "a map is a letter followed by": [MapState("1m", MemoryBackend())],
        "kind 'exact' is unknown; use opaque or transactional or non_transactional": [
            MapState("m", MemoryBackend(), kind="exact")
        ],
        "expected a backend with multi_get and multi_put, got an object of type str; pass an object": [
            MapState("m", "postgresql://u:secret@host/db")
        ],
        "got the class MemoryBackend; pass an object": [MapState("m", MemoryBackend)],
        "maps 'm' and 'n' share one backend": [MapState("m", shared), MapState("n", shared)],
        "declares state 'm' twice": [MapState("m", MemoryBackend()), MapState("m", MemoryBackend())],
        "states 'm' and 'M' differ only in case": [MapState("m", MemoryBackend()), MapState("M", MemoryBackend())],
    }
    for sentence, maps in cases.items():
        report = declared(Source([]), *maps).validate()
        words = sentence.removeprefix("a map is ")
        assert any(words in fault for fault in report.faults), (sentence, report.faults)
        assert "secret" not in "".join(report.faults)


def test_states_and_maps_share_names_and_only_committers_have_maps():
    builder = TransactionalTopologyBuilder("own", "source", Source([]))
    builder.set_bolt("both", Both(MapState("m", MemoryBackend()))).global_grouping("source")
    builder.set_bolt("middle", InTheMiddle()).global_grouping("source")
    faults = builder.validate().faults
    assert any("declares state 'm' twice" in fault for fault in faults)
    assert any("component 'middle' declares map 'm' but is not a committer; mark the bolt" in fault for fault in faults)


def test_pickled_bolts_contain_no_map_backend(tmp_path):
    secret = SqlAlchemyBackend(f"sqlite:///{tmp_path / 'secret.db'}", "m")
    shipped = cloudpickle.dumps(Sums(MapState("m", secret)))
    assert b"secret" not in shipped
    (copied,) = cloudpickle.loads(shipped).maps
    assert (copied.name, copied.kind, copied.backend) == ("m", "opaque", None)


def test_backends_with_marks_are_recognized(tmp_path):
    assert isinstance(MemoryBackend(), MarkedMapBackend)
    assert isinstance(SqlAlchemyBackend(f"sqlite:///{tmp_path / 'own.db'}", "m"), MarkedMapBackend)
    assert not isinstance(Plain(), MarkedMapBackend)


class Mail(Silent):
    external = True


def external(**options):
    builder = TransactionalTopologyBuilder("own", "source", Source([]))
    builder.set_committer_bolt("mail", Mail(), **options).global_grouping("source")
    return builder.build_topology()


def test_external_effects_are_declared_by_the_class_or_the_builder():
    assert external().external
    assert external(external=True).external
    assert not external(external=False).external
    assert not topology(Source([]), MapState("m", MemoryBackend())).external
    assert external().component("mail").external


def test_descriptions_show_maps_and_external_effects():
    built = topology(Source([]), MapState("m", MemoryBackend()), MapState("n", Plain(), "transactional"))
    assert "map m (opaque, MemoryBackend)" in built.describe()
    assert "map m: opaque, in MemoryBackend, exactly once" in explain(built)
    assert "map n: transactional, in Plain, at least once" in explain(built)
    for form in ("svg", "mermaid", "dot"):
        assert "opaque, MemoryBackend" in built.describe(form)
    (sums,) = [one for one in json.loads(built.describe("json"))["components"] if one["id"] == "sums"]
    assert sums["maps"] == [
        {"name": "m", "kind": "opaque", "backend": "MemoryBackend", "exactly_once": True},
        {"name": "n", "kind": "transactional", "backend": "Plain", "exactly_once": False},
    ]
    assert not sums["external"]
    shown = external()
    assert "committer, external" in shown.describe()
    assert "in this order, each decided before the next" in explain(shown)
    assert json.loads(shown.describe("json"))["components"][1]["external"] is True


def test_the_fingerprint_covers_maps_but_not_their_stores():
    def of(*maps):
        return topology(Source([]), *maps).fingerprint()

    assert of(MapState("m", MemoryBackend())) == of(MapState("m", Plain()))
    assert of(MapState("m", MemoryBackend())) != of(MapState("m", MemoryBackend(), "transactional"))
    assert of(MapState("m", MemoryBackend())) != of()
