"""A directory of files, each of which is a batch of a streaming query, and a topology that the query feeds."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from recovery_cases import eventually

from txstorm import TransactionalTopologyBuilder, foreach_batch, write_stream
from txstorm.bolts import SumByKey
from txstorm.results.read import read_sink, read_state
from txstorm.sinks import DeltaSink, FrameSink
from txstorm.spouts import StreamSpout

COLUMNS = "country STRING, cents BIGINT"


def rows(number: int) -> list[dict]:
    return [{"country": "abc"[(n * number) % 3], "cents": n + number} for n in range(number + 2)]


class Lake:
    """A directory of files, each of which is a batch, and topologies over them."""

    def __init__(self, spark, place: Path) -> None:
        self.spark, self.place, self.data_dir = spark, place / "lake", place / "data"
        self.place.mkdir(exist_ok=True)
        self.checkpoint = self.data_dir / "checkpoint"
        self.options: dict[str, str] = {}

    def add(self, *numbers: int) -> None:
        for number in numbers:
            hidden = self.place / f".{number}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows(number)))
            os.utime(hidden, (number, number))  # the source takes the oldest file first
            hidden.rename(self.place / f"{number}.json")

    def stream(self, columns: str = COLUMNS):
        return self.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(self.place))

    def topology(self, tables: int = 2, **spout):
        builder = TransactionalTopologyBuilder("orders", "orders", StreamSpout(COLUMNS, **spout), 2)
        builder.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("orders", ["country"])
        for name, sink in (("rows", DeltaSink), ("copy", FrameSink))[: tables - 1]:
            builder.set_bolt(name, sink(name, {"country": str, "cents": int}), 2).shuffle_grouping("orders")
        return builder.set_settings({"max_retries": 0, "spill_bytes": 0}).build_topology()  # tasks stage all rows

    def query(self, *, opaque: bool = False, tables: int = 2, **options):
        """Run a query over what there is; return the text of its error, empty if there is none, and the function."""
        function = foreach_batch(self.topology(tables, opaque=opaque), data_dir=self.data_dir, **options)
        query = write_stream(self.stream(), function).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - of Spark, with the text of ours
            return str(error), function
        eventually(lambda: not function.handle.isActive)
        return "", function

    def newest(self) -> dict[str, int]:
        """Return the last row of each country in the sink."""
        found = read_sink(self.data_dir, "rows").sort_by("_txid").to_pylist()
        return {row["country"]: row["cents"] for row in found}

    def begin_anew(self, after: int) -> None:
        """Delete the checkpoint, and the files up to `after`, which another query must not read again."""
        shutil.rmtree(self.checkpoint)
        for number in range(1, after + 1):
            (self.place / f"{number}.json").unlink()

    def check(self, upto: int, tables: int = 2) -> None:
        """Each row of the files counts once."""
        found = [row for number in range(1, upto + 1) for row in rows(number)]
        for name in ("rows", "copy")[: tables - 1]:
            kept = read_sink(self.data_dir, name).to_pylist()
            assert Counter(map(_pair, kept)) == Counter(map(_pair, found))
        sums = Counter()
        for row in found:
            sums[row["country"]] += row["cents"]
        assert {row["country"]: row["cents"] for row in read_state(self.data_dir, "sums").to_pylist()} == sums


class Table(Lake):
    """A Delta table, each commit of which is a batch."""

    def add(self, *numbers: int) -> None:
        for number in numbers:
            write_deltalake(self.place / "table", pa.Table.from_pylist(rows(number)), mode="append")

    def stream(self, columns: str = COLUMNS):
        reader = self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1).options(**self.options)
        return reader.load(str(self.place / "table"))


class Topic(Lake):
    """A topic of a broker, with two partitions."""

    def __init__(self, spark, place: Path, kafka, name: str = "") -> None:
        super().__init__(spark, place)
        self.kafka, self.name = kafka, name or kafka.make_topic(partitions=2)
        self.options["startingOffsets"] = "earliest"

    def add(self, *numbers: int) -> None:
        for number in numbers:
            for partition in (0, 1):
                self.kafka.produce(self.name, map(json.dumps, rows(number)[partition::2]), partition)

    def stream(self, columns: str = COLUMNS):
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.kafka.bootstrap)
        records = reader.option("subscribe", self.name).options(**self.options).load()
        return records.selectExpr(f"from_json(CAST(value AS STRING), '{columns}') AS row").select("row.*")


def _pair(row: dict) -> tuple[str, int]:
    return row["country"], row["cents"]
