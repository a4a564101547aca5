"""Commands ``txstorm hailstorm …`` without servers: runs with a wanted clock and a store, snapshots, the sample."""

import time

import pytest
from programs import loaded
from recovery_cases import environment

from txstorm.operations.status import read_status

CLOCK = '{"a": 2, "b": 0}'
STORE = ("--store", "dir:snapshots")
DATA = "txstorm-data/trending-hashtags"
RUN = ("hailstorm", "run", "jobs.trending_hashtags:make(['a.txt', 'b.txt'], max_batch_rows=2)", "--engine", "local")


@pytest.fixture
def tags(words):
    """Return the current directory, with two files of hashtags."""
    (words / "a.txt").write_text("#x\n#y\n#x\n#z\n#x\n", encoding="utf-8")
    (words / "b.txt").write_text("#y\n#z\n#y\n", encoding="utf-8")
    return words


def test_a_run_with_a_wanted_clock_and_its_snapshots(txstorm, tags):
    result = txstorm.json(*RUN, "--end-of-input", "--want", CLOCK, *STORE)
    assert (result["topology"], result["input_rows"]) == ("trending-hashtags", 8)
    listed = txstorm.json("hailstorm", "snapshots", DATA)
    assert listed["topology"] == "trending-hashtags"
    (taken,) = listed["snapshots"]
    assert (taken["number"], taken["name"], taken["clock"]) == (1, "snapshot-1", {"a": 2, "b": 0})
    state = txstorm.json("state", DATA, "counts", "--clock", CLOCK)
    assert {row["tag"]: row["state"] for row in state["rows"]} == {"#x": 2, "#y": 2}
    assert (state["txid"], state["clock"]) == (taken["txid"], taken["clock"])
    assert txstorm.json("hailstorm", "snapshot", DATA, "--name", "end") | {"stamp": 0} == {
        "number": 2, "clock": {"a": 4, "b": 2}, "txid": result["committed_txid"], "name": "end", "stamp": 0,
    }  # fmt: skip
    # A new directory begins with the newest snapshot of the store, unless it is told not to.
    for more, rows in (((), 4), (("--from-beginning",), 8)):
        again = txstorm.json(*RUN, "--end-of-input", *STORE, "--data-dir", f"again-{rows}", *more)
        assert again["input_rows"] == rows
        counts = txstorm.json("state", f"again-{rows}", "counts")
        assert counts["rows"] == txstorm.json("state", DATA, "counts")["rows"]
    assert [line.split()[:3] for line in txstorm.printed("hailstorm", "snapshots", DATA).splitlines()] == [
        ["number", "txid", "name"],
        ["2", str(result["committed_txid"]), "end"],
        ["1", str(taken["txid"]), "snapshot-1"],
    ]


@pytest.mark.integration
def test_a_clock_is_wanted_of_a_live_run_and_of_the_next_one_and_given_up(txstorm, tags):
    ahead = '{"a": 6, "b": 2}'
    assert txstorm(*RUN, "--available-now").code == 0
    found = txstorm.json("hailstorm", "snapshot", DATA, "--clock", ahead, "--name", "ahead")
    assert (found["clock"], found["txid"], found["stamp"]) == ({"a": 6, "b": 2}, None, None)
    assert txstorm.printed("hailstorm", "snapshot", DATA, "--cancel") == f"given up at {ahead}\n"
    assert txstorm.json("hailstorm", "snapshot", DATA, "--cancel") == {"clock": None}
    program = loaded().start("-m", "txstorm", *RUN, env=environment())
    try:
        until = time.monotonic() + 60
        while read_status(DATA)["mode"] != "active":
            assert program.poll() is None, program.complained
            assert time.monotonic() < until
            time.sleep(0.05)
        with (tags / "a.txt").open("a") as file:
            file.write("#x\n")
        found = txstorm.json("hailstorm", "snapshot", DATA, "--clock", '{"a": 5, "b": 2}', "--wait", "60")
        assert found["clock"] == {"a": 5, "b": 2}
        assert found["txid"] >= 5
    finally:
        program.kill()


def test_the_sample_reads_files_and_goes_on_with_a_store(txstorm, tags):
    sample = ("hailstorm", "run_sample", "--n", "2", "--file", "a.txt", "--file", "b.txt", "--every", "3")
    found = txstorm.json(*sample)
    assert (found["records"], found["top"]) == (8, [["#x", 3], ["#y", 3]])
    assert (found["clock"], found["topology"]) == ({"a": 4, "b": 2}, "trending-hashtags")
    assert isinstance(found["snapshots"], list)
    shown = txstorm.printed(*sample)  # nothing is left
    assert shown.splitlines()[-2:] == ["      3 #x", "      3 #y"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*RUN, "--want", '{"a": 2}'), 'clock {"a": 2}: b: the source has the partitions a, b; give each one'),
        ((*RUN, "--want", '{"a": 2, "b": 99}'), "the source ends before it"),
        ((*RUN, "--want", "2"), "expected a JSON object such as"),
        ((*RUN, "--want", '{"a": "x"}'), "partition 'a' has offset 'x'"),
        ((*RUN, "--available-now", "--store", "nowhere"), "nowhere"),
        ((*RUN, "--snapshot-every", "-1"), "--snapshot-every"),
        ((*RUN, "--until-txid", "1", "--available-now"), "not both"),
        (("hailstorm", "run", "jobs.word_count", "--engine", "local"), "FileSpout reads its files one after another"),
        (("hailstorm", "snapshot", "nowhere"), "nowhere"),
        (("hailstorm", "snapshot", "nowhere", "--cancel", "--name", "x"), "give no --clock, --name or --wait with it"),
        (("hailstorm", "snapshots", "nowhere"), "nowhere"),
        (("hailstorm", "zk_show", "--connect", "a:b:c", "--topology", "t"), "a:b:c"),
        (("hailstorm", "zk_init", "--topology", "t", "--connect", "127.0.0.1:1/x/../y"), "ZooKeeper chroot 'x/../y'"),
        (("hailstorm", "run_sample", "--use-kafka", "--file", "a.txt"), "give --use-kafka or --file, not both"),
        (("hailstorm", "run_sample", "--file", "none.txt"), "none.txt cannot be read"),
        (("hailstorm", "run_sample", "--n", "0"), "--n"),
        (("hailstorm", "run_sample_emitter", "--batch", "0"), "--batch"),
    ],
)
def test_bad_input_is_named(txstorm, tags, arguments, told):
    assert told in txstorm.refused(*arguments).replace("│", "")


def test_the_sample_needs_a_checkout(txstorm, tags, monkeypatch):
    monkeypatch.setattr("txstorm.__file__", str(tags / "lib" / "txstorm" / "__init__.py"))
    assert "jobs/trending_hashtags.py, which is not installed" in txstorm.refused("hailstorm", "run_sample")
