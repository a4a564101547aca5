"""`NOT_READY`: a singleton even after pickling; for a source without marks it means that all data were read."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest
from spout_samples import PlainSpout, stored, storing

from txstorm import NOT_READY, run


class ThreeBatches(PlainSpout):
    def initialize_transaction(self, txid, prev_metadata):
        return NOT_READY if txid > 3 else txid

    def emit_batch(self, attempt, metadata, collector):
        collector.emit(metadata)


@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_not_ready_is_the_same_object_after_pickling(module):
    assert pickle.loads(module.dumps(NOT_READY)) is NOT_READY


@pytest.mark.parametrize("wait", ["available_now", "processAllAvailable"])
def test_a_source_without_marks_is_exhausted_when_it_is_not_ready(in_tmp, wait):
    handle = run(storing(ThreeBatches()), engine="local", available_now=wait == "available_now")
    if wait == "available_now":
        assert handle.awaitTermination(60)
    else:
        handle.processAllAvailable()
    assert stored(handle) == [1, 2, 3]
    handle.stop()
