"""Signature checks: a user method that does not match its calls is a fault, reported with the correct signature."""

import functools

import pytest
from runs import ended
from spout_samples import PartitionedSpout, PlainSpout

from txstorm import (
    NOT_READY,
    BasicBolt,
    BatchBolt,
    Committer,
    CompositeSpout,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstorm.errors import SpoutError, TopologyError
from txstorm.spouts import MemoryTransactionalSpout


def built(bolt, spout=None):
    builder = TransactionalTopologyBuilder("signed", "numbers", spout or MemoryTransactionalSpout([[1]], "n"))
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    return builder.build_topology()


def faults(bolt, spout=None):
    with pytest.raises(TopologyError) as caught:
        built(bolt, spout)
    return list(caught.value.faults)


def basic(**methods):
    return type("Mine", (BasicBolt,), {"execute": lambda self, one, collector: None, **methods})()


def batch(**methods):
    return type("Mine", (BatchBolt,), {"execute": lambda self, one: None, **methods})()


async def later(self, tuple):
    pass


def yielding(self, tuple, collector):
    yield tuple


WRONG = {
    "basic execute": (basic(execute=lambda self, one: None), "write def execute(self, tuple, collector)"),
    "basic prepare": (basic(prepare=lambda self: None), "write def prepare(self, context)"),
    "basic execute_batch": (basic(execute_batch=lambda self, b: None), "write def execute_batch(self, batch, collector)"),
    "basic yields": (basic(execute=yielding), "contains yield, so that calling it does nothing; emit with"),
    "batch prepare": (batch(prepare=lambda self, c: None), "write def prepare(self, context, collector, attempt)"),
    "batch execute": (batch(execute=lambda self, t, c: None), "write def execute(self, tuple)"),
    "batch execute_batch": (batch(execute_batch=lambda self: None), "write def execute_batch(self, batch)"),
    "batch finish": (batch(finish_batch=lambda self, attempt: None), "write def finish_batch(self)"),
    "Storm's name": (batch(finishBatch=lambda self, attempt: None), "write def finish_batch(self)"),
    "no self": (batch(execute=lambda one: None), "takes (), but it is called with tuple"),
    "async": (batch(execute=later), "is async, so that calling it does nothing; write def execute(self, tuple)"),
    "no method": (batch(finish_batch=5), "finish_batch of Mine is 5, expected a method: def finish_batch(self)"),
    "keyword only": (batch(execute=lambda self, *, one: None), "write def execute(self, tuple)"),
    "partial": (batch(execute=functools.partial(lambda: None)), "write def execute(self, tuple)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_signature_is_a_fault(name):
    bolt, text = WRONG[name]
    [fault] = faults(bolt)
    assert fault.startswith("component 'bolt': ")
    assert text in fault
    if "lambda" in fault:
        assert f"({__file__}:" in fault


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


class Plain(BatchBolt):
    @staticmethod
    def execute(anything):
        pass

    @classmethod
    def finish_batch(cls):
        pass


@pytest.mark.parametrize(
    "bolt",
    [
        basic(execute=lambda self, *everything: None, prepare=lambda self, context=None, more=1: None),
        batch(execute=decorated(lambda self, one, more: None)),
        batch(execute=functools.partial(print, "x"), finish_batch=print),
        batch(execute=lambda me, it, /, **rest: None),
        batch(finish_batch=[].clear),
        Plain(),
    ],
)
def test_every_signature_that_accepts_the_call_passes(bolt):
    assert built(bolt).component("bolt")


def test_signatures_of_bolts_committers_spouts_and_composite_sources_are_checked():
    bolt = batch()
    bolt.finish_batch = lambda attempt: None
    assert "takes (attempt), but it is called without arguments" in faults(bolt)[0]
    committer = {"execute": lambda self, one: None, "finish_batch": lambda self, txid: None}
    assert "finish_batch of Mine" in faults(type("Mine", (BatchBolt, Committer), committer)())[0]
    for spout in (Wrong(), CompositeSpout({"a": Wrong()})):
        found = [fault for fault in faults(basic(), spout) if "Wrong" in fault]
        assert "write def coordinator(self, context)" in found[0]
        assert "write def emitter(self, context)" in found[1]


class Wrong(TransactionalSpout):
    fields = ("n",)

    def coordinator(self):
        pass

    def emitter(self, context, task):
        pass


@pytest.mark.parametrize(
    ("base", "name", "wrong", "right"),
    [
        (PlainSpout, "initialize_transaction", lambda self, txid: NOT_READY, "self, txid, prev_metadata"),
        (PlainSpout, "emit_batch", lambda self, attempt, collector: None, "self, attempt, metadata, collector"),
        (PartitionedSpout, "num_partitions", lambda self, context: 1, "self"),
    ],
)
def test_signatures_of_coordinators_and_emitters_are_checked_on_creation(tmp_path, base, name, wrong, right):
    spout = type("Bad", (base,), {name: wrong})()
    with pytest.raises(SpoutError) as caught:
        ended(built(basic(), spout), tmp_path / "data")
    assert f"write def {name}({right})" in str(caught.value)
    assert "numbers" in str(caught.value)
