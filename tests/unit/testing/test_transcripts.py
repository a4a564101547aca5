"""Transcripts: a step with a different result raises an error that shows the expected and the actual result."""

import json
from pathlib import Path

import pytest
from watched import Gathering

from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.errors import InputError
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import CheckFailed, run_transcript

ROWS = [{"word": "a", "n": 2}, {"word": "b", "n": 1}]


class Size(Gathering):
    """A bolt that emits the number of tuples of its batch on a separate stream."""

    streams = {"size": ("n",)}
    takes = "word"

    def finish_batch(self):
        self.collector.emit(len(self.taken), stream="size")


def topology():
    spout = MemoryTransactionalSpout([["a", "b", "a"]], "word", take=2)
    builder = TransactionalTopologyBuilder("words", "words", spout)
    builder.set_bolt("size", Size()).global_grouping("words")
    builder.set_committer_bolt("counts", CountByKey("word", table="counts")).fields_grouping("words", ["word"])
    return builder.build_topology()


def play(tmp_path: Path, *steps: dict, **head) -> None:
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"format": "txstorm-transcript", "version": 1, **head, "steps": steps}))
    run_transcript(path, topology())


START = {"emits": {"words": {"1": [["b"], ["a"]]}, "size/size": {"1": [[2]]}}}


def test_every_kind_of_step(tmp_path: Path) -> None:
    play(
        tmp_path,
        START,
        {"do": ["ack 1"], "status": {"1": "committing", "2": "not started"}},
        {"do": ["fail 1"], **START, "committed": 0},
        {"do": ["fail 1"], "status": {"1": "not started"}},
        {"do": ["advance 1"], **START},
        {"do": ["fail 1#1", "ack 1#2"], "status": {"1": "processing"}},
        {"do": ["commit 1"], "emits": {"words": {"2": [["a"]]}, "size/size": {"2": [[1]]}}, "committed": 1},
        {"source": [["add", 3, "c", "d"]], "do": ["next", "restart"], "emits": {"words": {"2": [["a"]]}, "size/size": {"2": [[1]]}}},
        {"do": ["ack 2"]},
        {"do": ["ack 2"], "states": {"counts": ROWS}, "emits": {"words": {"3": [["c"], ["d"]]}, "size/size": {"3": [[2]]}}},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            [{"emits": {"words": {"1": [["a"], ["c"]]}}}],
            r'step 1:\n  - words, txid 1: expected \["a"\] \["c"\], got \["a"\] \["b"\]$',
        ),
        ([{"emits": {"words": {}}}], r'words, txid 1: expected nothing, got \["a"\] \["b"\]'),
        ([START, {"do": ["commit 1"]}], r'step 2 \(commit 1\):\n  - words, txid 2: expected nothing, got \["a"\]'),
        (
            [START, {"do": ["ack 1"], "emits": {"words": {"1": [["a"]]}}}],
            r'words, txid 1: expected \["a"\], got nothing',
        ),
        ([{"committed": 1}], "committed: expected 1, got 0"),
        ([{"status": {"1": "committing"}}], "status of txid 1: expected committing, got processing"),
        ([{"do": ["commit 2"], "states": {"counts": ROWS[:1]}}], r'state counts: expected .* got .*"word": "b"'),
        (
            [{"source": [["add", 0, "x"]], "do": ["ack 1", "ack 1"], "committed": 3}],
            r"step 1 \(source add 0 x, ack 1, ack 1\)",
        ),
    ],
)
def test_a_different_result_is_reported(tmp_path: Path, steps: list[dict], says: str) -> None:
    with pytest.raises(CheckFailed, match=says) as failed:
        play(tmp_path, *steps)
    assert str(tmp_path / "steps.json") in str(failed.value)
    assert isinstance(failed.value, AssertionError)


HEAD = {"format": "txstorm-transcript", "version": 1}
MISTAKES = [
    ({"do": ["ack 3"]}, "step 1 .*'ack 3': txid 3: expected a transaction that waits"),
    ({"do": ["ack one"]}, "'ack one': .*invalid literal"),
    ({"do": ["ack 1#2"]}, "'ack 1#2': expected an attempt from 1 to 1, got 2"),
    ({"do": ["jump"]}, "'jump': expected ack T, fail T"),
    ({"source": [["_row", 1]]}, "expected .METHOD, ARGUMENT"),
    ({"source": [[]]}, "expected .METHOD, ARGUMENT"),
    ({"emits": {"wrods": {}}}, "no component 'wrods'.*did you mean"),
    ({"emits": {"size/sise": {}}}, "stream 'sise' is not declared"),
    ({"emit": {}}, "steps.0.emit: Extra inputs are not permitted"),
    ({"emits": {"words": {"one": []}}}, "steps.0.emits.words.one"),
]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((json.dumps({**HEAD, "steps": [step]}), says) for step, says in MISTAKES),
        ("{", "expected JSON of format 'txstorm-transcript'"),
        ("[]", "expected JSON of format"),
        ('{"format": "x", "version": 1, "steps": [{}]}', "format: Input should be 'txstorm-transcript'"),
        ('{"format": "txstorm-transcript", "version": 2}', "version 2, this txstorm reads up to 1"),
        (json.dumps({**HEAD, "steps": []}), "steps: List should have at least 1 item"),
        (None, "No such file"),
    ],
)
def test_mistakes_in_a_transcript_and_other_files_are_reported(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "steps.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=says):
        run_transcript(path, topology())


def test_settings_of_a_transcript_are_applied(tmp_path: Path) -> None:
    emits = {"words": {"1": [["a"], ["b"]], "2": [["a"]]}}
    play(tmp_path, {"emits": emits}, settings={"topology.max.spout.pending": 2}, watch=["words"])
