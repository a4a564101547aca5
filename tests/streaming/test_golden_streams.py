"""Golden results: the examples of Storm, and one count of the Bible through three sources."""

from collections import Counter
from pathlib import Path

import pytest
from commands import printed_by

from jobs.transactional_words import WORDS
from jobs.word_count import BIBLE
from txstorm import TransactionalTopologyBuilder, foreach_batch, run, write_stream
from txstorm.bolts import CountBy, SplitWords, SumByKey
from txstorm.results.read import read_state
from txstorm.spouts import DeltaSpout, FileSpout, StreamSpout

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def test_transactional_words_as_a_streaming_query(spark, tmp_path):
    (tmp_path / "words").mkdir()
    for number, words in enumerate(WORDS):
        (tmp_path / "words" / f"{number}.txt").write_text("\n".join(words.split()))
    builder = TransactionalTopologyBuilder("words", "lines", StreamSpout("value STRING"), 2)
    builder.set_frame_bolt("partial", lambda lines: lines.groupBy("value").count().toDF("word", "n")).reads("lines")
    builder.set_bolt("counts", SumByKey("word", "n", "counts"), 2).fields_grouping("partial", ["word"])
    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "words"))
    writer = write_stream(stream, builder.build_topology(), data_dir=tmp_path / "out")
    writer.trigger(availableNow=True).start().awaitTermination()
    counts = {row["word"]: row["n"] for row in read_state(tmp_path / "out", "counts").to_pylist()}
    assert counts == {"cat": 8, "dog": 7, "apple": 2, "chicken": 1, "banana": 1}
    assert counts == Counter(word for words in WORDS for word in words.split())


def test_the_bible_through_a_query_a_delta_table_and_files(spark, tmp_path):
    lines = spark.read.text(str(BIBLE)).withColumnRenamed("value", "line")
    lines.repartition(4).write.format("delta").save(str(tmp_path / "table"))
    spouts = {
        "files": FileSpout(Path(BIBLE), max_batch_rows=8000),
        "delta": DeltaSpout(tmp_path / "table", max_batch_files=1),
        "query": StreamSpout("line STRING"),
    }
    printed = {}
    for name, spout in spouts.items():
        builder = TransactionalTopologyBuilder("bible", "lines", spout, 2)
        builder.set_bolt("split", SplitWords("line"), 2).local_or_shuffle_grouping("lines")
        builder.set_bolt("partial", CountBy("word"), 2).local_or_shuffle_grouping("split")
        builder.set_bolt("counts", SumByKey("word", "n", "counts"), 2).fields_grouping("partial", ["word"])
        topology, place = builder.build_topology(), tmp_path / name
        if name == "query":
            stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(tmp_path / "table"))
            function = foreach_batch(topology, data_dir=place)
            write_stream(stream, function).trigger(availableNow=True).start().awaitTermination()
        else:
            run(topology, engine="local", data_dir=place, available_now=True).awaitTermination()
        printed[name] = printed_by("-m", "txstorm", "state", place, "counts", "--json")
    assert printed["files"] == printed["delta"] == printed["query"]
    assert len(printed["files"]) > 100_000
