"""Random damage to ledgers and table logs: runs and readers give correct results or report the damage."""

import random
import shutil
from pathlib import Path

import pytest
from bad_input_cases import go, topology, write_words
from crashes import crashing

from txstorm.errors import TxstormError
from txstorm.results.read import read_sink, read_state

SEEDS = range(1000)
QUICK, USUAL = 30, 60
WORDS = [f"w{i % 7}" for i in range(30)]
MORE = [*WORDS, "w1", "new"]
BASES = {"stopped": len(WORDS), "decided": 7, "short": 3}


def counted(words):
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return [{"word": word, "n": n} for word, n in sorted(found.items())]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Return data directories to damage: one stopped cleanly, one with an unpublished group, one with few txids."""
    home = tmp_path_factory.mktemp("bases")
    source = write_words(home / "words.txt", WORDS)
    one_by_one = {"max_spout_pending": 1}
    go(topology(source), home / "stopped", settings=one_by_one)
    go(topology(source), home / "short", settings=one_by_one, until_txid=BASES["short"])
    with crashing("p6.after", BASES["decided"] + 1):
        go(topology(source), home / "decided", settings=one_by_one)
    write_words(source, MORE)
    assert list((home / "stopped").glob("**/*.checkpoint.parquet"))
    return home


class Damage:
    """One random modification of one file."""

    def __init__(self, seed: int, data_dir: Path) -> None:
        rng = random.Random(seed)
        logs = sorted(path for path in data_dir.glob("**/_delta_log/*") if path.is_file())
        self.path = data_dir / "ledger.db" if seed % 2 else rng.choice(logs)
        self.before = self.path.read_bytes()
        self.at = rng.randrange(len(self.before))
        how = rng.choice(["bit", "bit", "byte", "cut"])
        if how == "cut":
            self.after = self.before[: self.at]
        else:
            new = self.before[self.at] ^ (1 << rng.randrange(8)) if how == "bit" else rng.randrange(256)
            self.after = self.before[: self.at] + bytes([new]) + self.before[self.at + 1 :]

    def __str__(self) -> str:
        near = slice(max(0, self.at - 30), self.at + 30)
        return f"{self.path} at {self.at}: {self.before[near]!r} → {self.after[near]!r}"


def check_reader(data_dir, published):
    try:
        rows = read_state(data_dir, "counts").to_pylist()
        lines = read_sink(data_dir, "lines")["line"].to_pylist()
    except TxstormError:
        return
    assert rows == counted(WORDS[:published])
    assert lines == WORDS[:published]


def check_run(source, data_dir):
    try:
        committed = go(topology(source), data_dir)
        rows = read_state(data_dir, "counts").to_pylist()
        lines = read_sink(data_dir, "lines")["line"].to_pylist()
    except TxstormError as error:
        assert str(error)
        return False
    assert committed == len(MORE)
    assert rows == counted(MORE)
    assert lines == MORE
    return True


@pytest.mark.parametrize("base", BASES)
def test_undamaged(base, bases, tmp_path):
    shutil.copytree(bases / base, tmp_path / base)
    assert check_run(bases / "words.txt", tmp_path / base)


@pytest.mark.parametrize(
    "seed",
    [
        *range(QUICK),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(QUICK, USUAL)),
        *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.long]) for seed in SEEDS[USUAL:]),
    ],
)
def test_damaged(seed, bases, tmp_path):
    base = list(BASES)[seed // 2 % len(BASES)]
    data_dir = tmp_path / base
    shutil.copytree(bases / base, data_dir)
    damage = Damage(seed, data_dir)
    damage.path.write_bytes(damage.after)
    print(f"seed {seed}: {damage}")
    check_reader(data_dir, BASES[base])
    check_run(bases / "words.txt", data_dir)
