"""`BatchBoltExecutor`: batch bolts with batch ids of any type (T15, T16, T25; items 32 to 35 of Storm's behaviours)."""

import pytest
from watched import Gathering

from txstorm import BasicBolt, Committer, FailedException, TransactionAttempt
from txstorm.errors import EmitError, InputError
from txstorm.testing.executors.batch_bolt_executor import BatchBoltExecutor


class Count(Gathering):
    """Port of Storm's CountingBatchBolt."""

    fields = ("id", "count")
    takes = "word"

    def execute(self, tuple):
        assert tuple.attempt == self.attempt
        if tuple["word"] == "bad":
            raise FailedException("bad")
        super().execute(tuple)

    def finish_batch(self):
        self.collector.emit(str(self.attempt), len(self.taken))


@pytest.fixture
def executor() -> BatchBoltExecutor:
    return BatchBoltExecutor(Count(), ["word"])


def counted(executor: BatchBoltExecutor, id) -> int:
    [(stream, (named, count), task)] = executor.finish(id)
    assert (stream, named, task) == ("default", str(id), None)
    return count


def test_items_32_35_attempts_of_one_txid_are_independent_and_a_timeout_drops_the_batch_unfinished(executor) -> None:
    first, second, other = TransactionAttempt(1, 1), TransactionAttempt(1, 2), TransactionAttempt(2, 1)
    for attempt in (first, first, second, other, first):
        executor.execute(attempt, ["word"])
    assert counted(executor, first) == 3
    executor.execute(second, ["word"])
    assert counted(executor, other) == 1
    assert counted(executor, second) == 2
    executor.execute("a", ["word"])
    executor.execute("b", ["word"])
    executor.timeout_id("a")
    executor.timeoutId("never begun")
    assert executor.ids == ["b"]
    assert counted(executor, "a") == 0


def test_item_33_an_id_without_tuples_is_also_finished_and_a_failed_bolt_keeps_its_batch(executor) -> None:
    assert counted(executor, "nobody") == 0
    with pytest.raises(FailedException):
        executor.execute(1, ["bad"])
    assert executor.ids == [1]  # until it is discarded


def test_item_34_a_finished_batch_is_discarded_even_if_finishing_fails() -> None:
    class Fails(Count):
        def finish_batch(self):
            raise FailedException(str(len(self.taken)))

    executor = BatchBoltExecutor(Fails(), ["word"])
    for expected in ("2", "1"):
        for _ in range(int(expected)):
            executor.execute(7, ["word"])
        with pytest.raises(FailedException, match=expected):
            executor.finish(7)
        assert executor.ids == []


@pytest.mark.parametrize("id", [("request", 7), "request 7", 7, frozenset({1})], ids=str)
def test_t25_ids_may_be_of_any_type(executor, id) -> None:
    executor.execute(id, {"word": "cat"})
    assert counted(executor, id) == 1


def test_random_numbers_depend_on_the_id() -> None:
    class Draws(Count):
        def finish_batch(self):
            self.collector.emit("", self.context.random().randrange(10**9))

    executor = BatchBoltExecutor(Draws(), ["word"])
    drawn = [executor.finish(id)[0].values[1] for id in ("a", "b", "a", TransactionAttempt(3, 1))]
    assert drawn[0] == drawn[2] != drawn[1]
    assert executor.finish(TransactionAttempt(3, 2))[0].values[1] == drawn[3]


class Streams(Gathering, Committer):
    fields = ("word",)
    streams = {"length": ("n",)}

    def execute(self, tuple):
        self.collector.emit(tuple["word"])

    def finish_batch(self):
        self.collector.emit(3, stream="length")


class Rows(Streams):
    """A batch bolt that processes record batches."""

    def execute_batch(self, batch):
        self.collector.emit(f"{batch.num_rows} row")


@pytest.mark.parametrize(("bolt", "word"), [(Streams(), "cat"), (Rows(), "1 row")])
def test_emissions_of_execute_come_first_and_name_their_stream(bolt, word) -> None:
    executor = BatchBoltExecutor(bolt, ["word"])
    executor.execute(1, ["cat"])
    executor.execute(1, ["cat"])
    assert executor.finish(1) == [*[("default", (word,), None)] * 2, ("length", (3,), None)]


def test_misuse_is_rejected(executor) -> None:
    with pytest.raises(InputError, match=r"BasicBolt is no BatchBolt; give it an object of one"):
        BatchBoltExecutor(BasicBolt(), ["word"])
    with pytest.raises(InputError, match=r"\('a', 'b'\) has 2 values, expected one for each of \('word',\)"):
        executor.execute(1, ["a", "b"])

    class Wrong(Count):
        def finish_batch(self):
            self.collector.emit("too few")

    with pytest.raises(EmitError, match=r"tally, stream 'default': expected 2 values"):
        BatchBoltExecutor(Wrong(), ["word"], component="tally").finish(1)
