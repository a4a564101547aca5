"""Order of the batches of a streaming query, without Spark: all combinations of what is known and what comes."""

from itertools import product

import pytest

from txstorm.errors import SpoutError
from txstorm.spouts.frames import StreamBatch
from txstorm.streaming.batches import Verdict, begin_at, check_older, judge

OFFSETS = [[{"at": 1}], [{"at": 2}]]


def meta(query, number, offsets=0):
    return {"query": query, "batch": number, "offsets": OFFSETS[offsets]}


def expected(batch, committed, undecided, adopt):
    """The verdict by the rules of the table, or None if the batch is refused."""
    known = [one for one in (committed, undecided) if one]
    if not known:
        return Verdict.NEXT if batch.number == 0 or adopt else None
    if known[-1]["query"] != batch.query:
        return (Verdict.ADOPTED if undecided else Verdict.NEXT) if adopt and not batch.early else None
    same = [one for one in known if one["query"] == batch.query]
    found = next((one for one in same if one["batch"] == batch.number), None)
    if found:
        again = Verdict.AGAIN if found is undecided else Verdict.DECIDED
        return again if found["offsets"] == batch.offsets else None
    if batch.number < same[0]["batch"]:
        return Verdict.OLDER
    return Verdict.NEXT if not undecided and batch.number == same[0]["batch"] + 1 else None


def test_every_batch_is_the_next_one_the_same_or_refused():
    committed = [None, meta("q", 3), meta("old", 7)]
    met = set()
    for last, planned, query, number, offsets, adopt, early in product(
        committed, (False, True), ("q", "new"), range(7), (0, 1), (False, True), (False, True)
    ):
        undecided = meta("q", 4 if last and last["query"] == "q" else 0) if planned else None
        batch = StreamBatch(query, number, OFFSETS[offsets], None, early)
        wanted = expected(batch, last, undecided, adopt)
        met.add(wanted)
        if wanted is None:
            with pytest.raises(SpoutError, match=f"batch {number} of query {query} is refused"):
                judge(batch, last, undecided, adopt=adopt)
        else:
            assert judge(batch, last, undecided, adopt=adopt) is wanted, (batch, last, undecided, adopt)
    assert met == {*Verdict, None}


def test_a_refusal_names_missing_batches_and_where_another_query_begins():
    kafka, delta = {"orders": {"0": 5}}, {"reservoirVersion": 3, "index": 1}
    with pytest.raises(SpoutError, match="batches 4 to 6 of the query never came"):
        judge(StreamBatch("q", 7, [], None), meta("q", 3), None, adopt=False)
    with pytest.raises(SpoutError, match=r'(?s)batch 3 of query q.*startingOffsets={"orders": {"0": 5}}.*adopt=True'):
        judge(StreamBatch("n", 0, [], None), {**meta("q", 3), "offsets": [kafka]}, None, adopt=False)
    assert begin_at([delta, {"logOffset": 2}, 9]) == (
        "startingVersion=3 (of which the first 2 files were read); "
        "the files that are no part of the first 3 listings of the file source; offset 9"
    )


def test_an_older_batch_is_the_recorded_one_or_refused():
    batch = StreamBatch("q", 1, OFFSETS[0], None)
    check_older(batch, meta("q", 1))
    for recorded in (None, meta("q", 1, offsets=1)):
        with pytest.raises(SpoutError, match="is refused"):
            check_older(batch, recorded)
