"""`scripts/soak`: its verifier detects faulty tables, its arguments are validated, and a short soak test passes."""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import soak_job
from deltalake import DeltaTable, write_deltalake
from servers.kafka_reading import committed_values
from servers.running import Kafka
from soak import percentile
from soak_command import main
from soak_tables import verify
from verifier import Verifier

from txstorm import run

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 600


@dataclass(frozen=True)
class Done:
    """A completed run of the soak topology: its data directory, its topic, and the committed records."""

    data_dir: Path
    topic: str
    committed: list[tuple[int, int, str]]

    def verify(self, data_dir: Path | None = None) -> Verifier:
        return verify(data_dir or self.data_dir, self.topic, self.committed)[0]


@pytest.fixture(scope="module")
def done(kafka_broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    topic = kafka_broker.make_topic(partitions=3)
    for partition in range(3):
        values = [f"word-{partition}-{number % 5} {number}" for number in range(RECORDS // 3)]
        kafka_broker.produce(topic, values, partition)
    data_dir = tmp_path_factory.mktemp("soak") / "data"
    topology = soak_job.topology(kafka_broker.bootstrap, topic, rows=100).with_settings({"min_interval": 0})
    run(topology, engine="local", data_dir=data_dir, available_now=True).awaitTermination()
    yield Done(data_dir, topic, list(committed_values(kafka_broker.bootstrap, topic)))


@pytest.mark.integration
def test_the_verifier_accepts_correct_tables(done: Done):
    verifier = done.verify()
    assert (verifier.lost, verifier.twice, verifier.problems) == (0, 0, [])
    assert verifier.clean
    assert verify(done.data_dir, done.topic, done.committed)[1] == RECORDS
    assert verifier.txids >= RECORDS // 100


def delete_a_row(data_dir: Path) -> None:
    DeltaTable(data_dir / "sinks" / "rows").delete("partition = 1 AND offset = 17")


def append_again(data_dir: Path, name: str, of: dict[str, str | int], **other: int) -> None:
    """Append a copy of the only row that matches `of` to the table `name`, with the values in `other` replaced."""
    table = DeltaTable(data_dir / name)
    [row] = [row for row in table.to_pyarrow_table().to_pylist() if of.items() <= row.items()]
    rows = pa.Table.from_pylist([{**row, **other}], schema=pa.schema(table.schema().to_arrow()))
    write_deltalake(table, rows, mode="append")


def set_to(data_dir: Path, name: str, change: dict[str, str], where: str) -> None:
    DeltaTable(data_dir / name).update(change, predicate=where)


ALTERED: dict[str, tuple[Callable[[Path], None], int, int, str]] = {
    "a lost record": (delete_a_row, 1, 0, ""),
    "a doubled record": (lambda d: append_again(d, "sinks/rows", {"partition": 1, "offset": 17}), 0, 1, ""),
    "a record of nowhere": (
        lambda d: append_again(d, "sinks/rows", {"partition": 1, "offset": 17}, offset=5000), 0, 1, ""
    ),
    "a record of another transaction": (
        lambda d: set_to(d, "sinks/rows", {"_txid": "_txid + 1"}, "partition = 1 AND offset = 17"), 0, 0,
        "1 rows have another _txid",
    ),
    "a record with other content": (
        lambda d: set_to(d, "sinks/rows", {"number": "number + 1"}, "partition = 1 AND offset = 17"), 0, 0,
        "1 rows have another number",
    ),
    "a count that is too low": (
        lambda d: set_to(d, "state/counts", {"n": "n - 2"}, "word = 'word-1-3'"), 2, 0, ""
    ),
    "a count that is too high": (
        lambda d: set_to(d, "state/places", {"n": "n + 1"}, "partition = 2"), 0, 1, ""
    ),
    "a key that is gone": (
        lambda d: DeltaTable(d / "state" / "trails").delete("word = 'word-0-0'"), RECORDS // 15, 0, "rows of other txids"
    ),
    "a table that is ahead": (
        lambda d: append_again(d, "changes/trails", {"word": "word-0-0", "_txid": 1}, _txid=900), 0, 0,
        "changes/trails is ahead of the history",
    ),
    "a table that is behind": (
        lambda d: DeltaTable(d / "changes" / "places").delete("_txid = 3"), 0, 0, "other keys than were read, in txids [3]"
    ),
    "records in another order": (
        lambda d: set_to(d, "state/trails", {"trail": "trail + 1"}, "word = 'word-2-1'"), 0, 0,
        "trail is another one than the records make it, of ['word-2-1']",
    ),
    "a change that does not follow": (
        lambda d: set_to(d, "changes/counts", {"n": "n + 1"}, "word = 'word-0-0' AND _txid = 1"), 0, 0,
        "other counts than were read, in txids [1]",
    ),
    "a transaction that is missing": (lambda d: DeltaTable(d / "history").delete("txid = 2"), 0, 0, "txids have gaps"),
}  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("what", ALTERED)
def test_damage_is_reported(done: Done, tmp_path: Path, what: str):
    alter, lost, twice, problem = ALTERED[what]
    shutil.copytree(done.data_dir, tmp_path / "data")
    alter(tmp_path / "data")
    verifier = done.verify(tmp_path / "data")
    assert not verifier.clean
    assert (verifier.lost, verifier.twice) == (lost, twice)
    assert any(problem in one for one in verifier.problems) or (not problem and not verifier.problems)


@pytest.mark.integration
def test_an_unread_record_counts_as_lost_in_every_table(done: Done):
    later = Done(done.data_dir, done.topic, [*done.committed, (0, 5000, "word-0-0 7")])
    verifier = later.verify()
    assert verifier.lost == 4
    assert "1 records are in no transaction's range" in verifier.problems


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--minutes"),
        (["--minutes", "soon"], "'soon'"),
        (["--minutes", "0"], "expected more than 0"),
        (["--minutes", "nan"], "expected more than 0"),
        (["--minutes", "1", "--seed", "1.5"], "'1.5'"),
        (["--minutes", "1", "--rate", "0"], "expected 1 to"),
        (["--minutes", "1", "--directory", str(ROOT)], "is not empty"),
        (["--minutes", "1", "--second"], "--second"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_percentiles_are_measured_values():
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.99) == 3
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2
    assert percentile([float(number) for number in range(1, 101)], 0.99) == 99


@pytest.mark.integration
def test_help_explains_the_command():
    done = subprocess.run(
        [ROOT / "scripts" / "soak", "--help"],
        env={**os.environ, "TXSTORM_VENV": "keep"},
        capture_output=True,
        text=True,
        check=True,
    )
    for word in ("--minutes", "--seed", "--json", "Exit code", "recovery_p50_s", "scripts/soak --minutes 5"):
        assert word in done.stdout


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(0)
def test_a_short_soak(tmp_path: Path, progress: Callable[[str], None]):
    seed = random.randrange(1 << 30)
    progress(f"seed {seed}")
    with subprocess.Popen(
        [ROOT / "scripts" / "soak", "--minutes", "1", "--seed", str(seed), "--directory", tmp_path / "soak"],
        env={**os.environ, "TXSTORM_VENV": "keep"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            progress(line.rstrip())
    report = json.loads(lines[-1])
    assert process.returncode == 0, report
    assert (report["lost"], report["twice"], report["problems"], report["seed"]) == (0, 0, [], seed)
    assert sum(report["faults"].values()) > 0
    assert report["records"] > 0
