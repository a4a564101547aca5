"""Ledger values: their encoding as JSON, and the files that store long values."""

import json
import random
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from txstorm.errors import DataDirectoryError, LedgerCorrupt, MetadataError
from txstorm.ledger.port import MAX_VALUE
from txstorm.ledger.values import decode_value, encode_value, sweep_blobs

LONG = {"rows": ["x" * 100] * 3000}


class Point(NamedTuple):
    x: int
    y: int


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(10**30), 1.5, 1e308, 5e-324, "", "ä 😀 \0 \n", "\udcff", [], {}, [1, [2, {"a": None}]],
        {"blob": "x", "size": 1}, {"format": 9, "value": 1}, {"": {"": ""}}, [True, 1, 1.0],
    ],
)  # fmt: skip
def test_values_survive_a_round_trip_with_their_types(value: Any) -> None:
    back = decode_value(None, encode_value(None, value))
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    ("value", "back"), [((1, (2,)), [1, [2]]), (Point(1, 2), [1, 2]), ({"a": ((),)}, {"a": [[]]}), (Level.HIGH, 3)]
)
def test_tuples_are_decoded_as_lists(value: Any, back: Any) -> None:
    assert decode_value(None, encode_value(None, value)) == back


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (float("nan"), r"\$: nan"),
        ([1, float("inf")], r"\$\[1\]: inf"),
        ({"a": {1: 2}}, r"\$\.a: the key 1"),
        ({None: 2}, "the key None"),
        ({"1": 1, 1: 2}, "the key 1"),
        ({"a": [0, {3}]}, r"\$\.a\[1\]: set"),
        (b"bytes", "bytes"),
        (object(), "object"),
        (Path("x"), "PosixPath"),
        ({"big": 10**5000}, "digits"),
        (CIRCULAR, "contains itself"),
        (LONG, f"at most {MAX_VALUE} bytes"),  # without a directory
    ],
)
def test_values_json_cannot_represent_are_rejected_with_their_position(value: Any, where: str) -> None:
    with pytest.raises(MetadataError, match=f"coordinator/meta/7: .*{where}"):
        encode_value(None, value, "coordinator/meta/7")


def test_equal_values_give_equal_bytes() -> None:
    assert encode_value(None, {"b": 1, "a": (2,)}) == encode_value(None, {"a": [2], "b": 1})
    assert encode_value(None, {"b": 1, "a": 2}) == b'{"format":1,"value":{"a":2,"b":1}}'


def test_long_values_go_to_a_file_named_with_their_digest(tmp_path: Path) -> None:
    data = encode_value(tmp_path, LONG)
    reference = json.loads(data)
    (file,) = tmp_path.iterdir()
    assert file.name == f"{reference['blob']}.json"
    assert reference == {"format": 1, "blob": file.stem, "size": file.stat().st_size}
    assert decode_value(tmp_path, data) == LONG
    assert encode_value(tmp_path, LONG) == data
    assert list(tmp_path.iterdir()) == [file]


def test_the_length_limit_is_that_of_the_ledger(tmp_path: Path) -> None:
    room = MAX_VALUE - len(encode_value(None, ""))
    assert len(encode_value(tmp_path, "x" * room)) == MAX_VALUE
    assert not list(tmp_path.iterdir())
    assert len(encode_value(tmp_path, "x" * (room + 1))) < 200
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["missing", "short", "long", "flipped"])
def test_a_missing_or_damaged_file_is_named_and_repaired_by_encoding_again(tmp_path: Path, damage: str) -> None:
    data = encode_value(tmp_path, LONG)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"short": whole[:-1], "long": whole + b" ", "flipped": whole.replace(b"x", b"y", 1)}[damage])
    with pytest.raises(LedgerCorrupt, match=f"intents/3: .*{file.name}"):
        decode_value(tmp_path, data, "intents/3")
    assert encode_value(tmp_path, LONG) == data
    assert decode_value(tmp_path, data) == LONG


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"{", b"[]", b"{}", b'{"value":1}', b'{"format":1}', b'{"format":"1","value":1}', b"7",
        b'{"format":1,"blob":"../x","size":1}', b'{"format":1,"blob":7,"size":1}',
        b'{"format":2,"blob":"%s","epoch":"../1","size":1}' % (b"0" * 64), b"[" * 100_000,
    ],
)  # fmt: skip
def test_other_bytes_are_corrupt(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(LedgerCorrupt, match="coordinator/meta/7"):
        decode_value(tmp_path, data, "coordinator/meta/7")


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    for document in (b'{"format":2,"value":1}', b'{"format":3,"blob":"","size":1}'):
        with pytest.raises(DataDirectoryError, match=r"expected format [12], got [23]") as caught:
            decode_value(tmp_path, document)
        assert not isinstance(caught.value, LedgerCorrupt)


def test_a_randomly_damaged_file_is_never_decoded(tmp_path: Path) -> None:
    data = encode_value(tmp_path, LONG)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for seed in range(50):
        rng = random.Random(seed)
        at = rng.randrange(len(whole))
        file.write_bytes(whole[:at] + bytes([whole[at] ^ rng.randint(1, 255)]) + whole[at + 1 :])
        with pytest.raises(LedgerCorrupt):
            decode_value(tmp_path, data)
            pytest.fail(f"seed {seed}: byte {at}")


def test_the_sweeper_removes_unreferenced_value_files_only(tmp_path: Path) -> None:
    kept = [encode_value(tmp_path, LONG), encode_value(tmp_path, "short")]
    mine = {path.name for path in tmp_path.iterdir()}
    encode_value(tmp_path, [LONG])
    (tmp_path / ("0" * 64 + ".json.deadbeef.tmp")).write_bytes(b"half")
    foreign = {"readme.txt", "1-1.parquet", "0.json"}
    for name in foreign:
        (tmp_path / name).write_text("")
    assert len(sweep_blobs(tmp_path, kept)) == 2
    assert {path.name for path in tmp_path.iterdir()} == mine | foreign
    assert decode_value(tmp_path, kept[0]) == LONG


def test_a_file_belongs_to_the_epoch_that_wrote_it(tmp_path: Path) -> None:
    before, now = encode_value(tmp_path, LONG, epoch=3), encode_value(tmp_path, LONG, epoch=4)
    assert json.loads(now) == {**json.loads(before), "epoch": 4}
    assert sorted(path.name[:2] for path in tmp_path.iterdir()) == ["3-", "4-"]
    # The coordinator of epoch 3 does not know of files written in epoch 4.
    assert len(sweep_blobs(tmp_path, [], epoch=3)) == 1
    assert decode_value(tmp_path, now) == LONG
    with pytest.raises(LedgerCorrupt, match="3-"):
        decode_value(tmp_path, before)


def test_files_without_an_epoch_are_readable_and_swept_by_any_coordinator(tmp_path: Path) -> None:
    kept, _ = encode_value(tmp_path, LONG), encode_value(tmp_path, [LONG])
    assert len(sweep_blobs(tmp_path, [kept], epoch=7)) == 1
    assert decode_value(tmp_path, kept) == LONG
