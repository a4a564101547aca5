"""The log of a Delta table as files: every entry of ours carries a checksum of what it means.

The log is JSON without any protection: a flipped bit in a number leaves it valid, with another meaning. Entries that
somebody else wrote have no checksum and are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.clients.files import check_file, check_files, read_whole

LOG = "_delta_log"
INFO = "txstorm"
NOTE = "_txstorm/checkpoint.json"
ARCHIVE = "_txstorm/log"
SIDECARS = "_sidecars"
CHECK = "check"
FOREIGN = "foreign"
WRITTEN = "written"
_ENTRY = re.compile(r"(\d{20})\.json")
# Spark's own checksums: of the table at a version, and Hadoop's of every file it writes.
_SUM = re.compile(r"\.?(\d{20})\.(crc|crc\.crc|json\.crc|checkpoint\..*\.crc)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.*\.)?(?:parquet|json)")
_PART = re.compile(r"\d{20}\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_KINDS = {"commitInfo", "add", "remove", "txn", "metaData", "protocol"}
# What was read of the source: nothing is decided by it, and its floats need not come back bit by bit.
_UNCHECKED = {"extents"}

File = tuple[str, int, int, str]


def checksum(
    info: Mapping[str, Any],
    adds: Iterable[File],
    removes: Iterable[str],
    transactions: Iterable[tuple[str, int]],
    table: Sequence[Any] | None,
) -> str:
    """Of what an entry means: the commit info, files (path, size, modified, stats), app transactions, table.

    `table` is the schema (as JSON values) and the properties where the entry makes the table, else None.
    """
    document = [_checked(info), sorted(adds), sorted(removes), sorted(transactions), table]
    return blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()


def _checked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _checked(one) for name, one in value.items() if name not in _UNCHECKED}
    return [_checked(one) for one in value] if isinstance(value, list | tuple) else value


def last_checkpoint(table: Path) -> int:
    """The version of the last checkpoint, as the hint beside the log has it; 0 without one."""
    try:
        return int(json.loads(read_whole(table / LOG / "_last_checkpoint"))["version"])
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return 0  # none; a hint for readers, not part of the log


def check_log(table: Path) -> None:
    """Raise `OSError` unless all that libraries read as the log of `table` are files; nothing where there is no log."""
    check_files(table / LOG, (".json", ".parquet", "_last_checkpoint"))


def note_checkpoint(table: Path, version: int, files: Collection[str]) -> Path:
    """Write down what the `files` of the checkpoint of `version` are, which have no checksum; returns the note."""
    note, made = table / NOTE, table / f"{NOTE}.tmp"
    note.parent.mkdir(exist_ok=True)
    made.write_text(json.dumps({"version": version, "files": {name: _digest(table / LOG / name) for name in files}}))
    made.replace(note)
    return note


def newest_complete(table: Path, paths: Iterable[str], most: int | None = None) -> tuple[int, list[str]]:
    """The newest checkpoint that is all there: its version and its files; (-1, []) where there is none.

    Args:
        table: the table's directory.
        paths: files of a log or archive, relative to the table; others than those of checkpoints do not matter.
        most: the highest version to look at.
    """
    found: dict[int, list[str]] = defaultdict(list)
    for path in paths:
        version = checkpoint_version(path.rpartition("/")[2])
        if version is not None and (most is None or version <= most):
            found[version].append(path)
    for version in sorted(found, reverse=True):
        files = _complete(table, sorted(found[version]))
        if files:
            return version, files
    return -1, []


def _complete(table: Path, paths: Sequence[str]) -> list[str]:
    """The files of one checkpoint of a version, of which several may be there, maybe in parts."""
    for path in paths:
        parts = _PART.fullmatch(path.rpartition("/")[2])
        if parts is None:
            if all((table / LOG / SIDECARS / name).exists() for name in _sidecars(table / path)):
                return [path]
        elif int(parts[1]) == 1:
            stem, count = path[: -len("0000000001.0000000001.parquet")], int(parts[2])
            wanted = [f"{stem}{number:010d}.{count:010d}.parquet" for number in range(1, count + 1)]
            if set(wanted) <= set(paths):
                return wanted
    return []


def _sidecars(checkpoint: Path) -> list[str]:
    """The names of the files that a checkpoint of version 2 says its actions are in."""
    try:
        if checkpoint.suffix == ".json":
            actions = [json.loads(line) for line in read_whole(checkpoint).splitlines()]
            return [Path(unquote(one["sidecar"]["path"])).name for one in actions if "sidecar" in one]
        check_file(checkpoint)
        if "sidecar" not in pq.read_schema(checkpoint).names:
            return []
        found = pq.read_table(checkpoint, columns=["sidecar"])["sidecar"].to_pylist()
        return [Path(unquote(one["path"])).name for one in found if one]
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return []  # damaged: whoever reads it says so


def checkpoint_version(name: str) -> int | None:
    """The version that a file of a checkpoint, or a part of one, is of; None for other files."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def entry_name(version: int) -> str:
    """The name of the entry of `version`."""
    return f"{version:020d}.json"


def version_of(name: str) -> int | None:
    """The version that a file of the log is of; None for other files."""
    found = _ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name) or _SUM.fullmatch(name)
    return int(found[1]) if found else None


def entry_adds(entry: Path) -> list[tuple[str, str | None]]:
    """Path and statistics of the files that a log entry adds; none where it is damaged, or not there any more."""
    try:
        return [(one["path"], one.get("stats")) for one in _actions(entry)["add"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def check_checkpoint(table: Path, version: int) -> None:
    """Raise `ValueError` where the checkpoint of `version` is not what was noted; one of another writer has no note."""
    try:
        note = json.loads(read_whole(table / NOTE))
        noted = note["files"] if note["version"] == version else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # the note is not needed to read the table
        return
    for name, digest in noted.items():
        if _digest(table / LOG / name) != digest:
            msg = f"the checkpoint {name} is not what was written"
            raise ValueError(msg)


def _digest(path: Path) -> str:
    return blake2b(read_whole(path), digest_size=16).hexdigest()


def own_info(entry: Path) -> Mapping[str, Any]:
    """What we wrote into the commit info of a log entry; nothing when it is empty, or somebody else's.

    Of somebody else's that changes rows: its operation, as `FOREIGN`.

    Raises:
        ValueError: it is not what was written.
    """
    return _own(entry)[0]


def checked_paths(entry: Path) -> Iterator[str]:
    """The files that a log entry adds or removes, relative to the table; raises as `own_info`."""
    _, actions = _own(entry)
    for action in (*actions["add"], *actions["remove"]):
        yield unquote(action["path"])


def _own(entry: Path) -> tuple[Mapping[str, Any], dict[str, list[Any]]]:
    try:
        actions = _actions(entry)
        if not actions:
            return {}, actions
        own = info_of(actions["commitInfo"][0])
        ours = bool(own) or any(one["appId"].startswith(f"{INFO}/") for one in actions["txn"])
        intact = not ours or (actions.keys() <= _KINDS and own[CHECK] == _checksum_of(own, actions))
    except (LookupError, TypeError, AttributeError, RecursionError, ValueError) as error:
        msg = f"it is no log entry ({type(error).__name__}: {error})"
        raise ValueError(msg) from error
    if not intact:
        msg = "its checksum is not that of its content"
        raise ValueError(msg)
    return (own if ours else _foreign(actions)), actions


def _foreign(actions: Mapping[str, list[Any]]) -> Mapping[str, Any]:
    changes = any(one.get("dataChange", True) for one in (*actions["add"], *actions["remove"]))
    return {FOREIGN: str(dict(actions["commitInfo"][0]).get("operation"))} if changes else {}


def paths_of(entry: Path) -> Iterator[str]:
    """The files that an undamaged log entry adds or removes, relative to the table."""
    actions = _actions(entry)
    for action in (*actions["add"], *actions["remove"]):
        yield unquote(action["path"])


def _actions(entry: Path) -> dict[str, list[Any]]:
    actions: dict[str, list[Any]] = defaultdict(list)
    for line in read_whole(entry).splitlines():
        for kind, content in json.loads(line).items():
            actions[kind].append(content)
    return actions


def info_of(commit_info: Mapping[str, Any]) -> dict[str, Any]:
    """What txstorm wrote into a commit info; through Spark it went into the user's metadata, as JSON."""
    own = commit_info.get(INFO)
    if own is None:
        try:
            own = json.loads(commit_info.get("userMetadata") or "null")[INFO]
        except (ValueError, LookupError, TypeError):  # a label of ours, or somebody else's
            return {}
    return dict(own) if isinstance(own, Mapping) else {}


def spark_metadata(info: Mapping[str, Any], rows: int, txids: tuple[int, int], app: str, txid: int, label: str) -> str:
    """The user's metadata of a commit through Spark: `info`, and the rows and txids its files are to say they have.

    Which files they are is known to nobody before.
    """
    content = {**info, WRITTEN: [rows, *txids]}
    return json.dumps({"label": label, INFO: {**content, CHECK: checksum(content, (), (), [(app, txid)], None)}})


def _written(adds: Sequence[Mapping[str, Any]], noted: Sequence[int]) -> list[int]:
    """How many rows, and the lowest and highest txid, files say they have; what they do not say is as `noted`.

    Spark has statistics of the first columns only where the table was made to be written by another writer.
    """
    stats = [json.loads(one["stats"]) for one in adds]
    least, most = ([one[ends]["_txid"] for one in stats if "_txid" in one[ends]] for ends in ("minValues", "maxValues"))
    rows = sum(one["numRecords"] for one in stats)
    return [rows, min(least, default=noted[1]), max(most, default=noted[2])]


def _checksum_of(own: Mapping[str, Any], actions: Mapping[str, list[Any]]) -> str:
    info = {name: value for name, value in own.items() if name != CHECK}
    if WRITTEN in info:
        ours = [(one["appId"], one["version"]) for one in actions["txn"]]
        return checksum({**info, WRITTEN: _written(actions["add"], info[WRITTEN])}, (), (), ours, None)
    adds = [(unquote(one["path"]), one["size"], one["modificationTime"], one["stats"]) for one in actions["add"]]
    removes = [unquote(one["path"]) for one in actions["remove"]]
    transactions = [(one["appId"], one["version"]) for one in actions["txn"]]
    made = [[json.loads(one["schemaString"]), one["configuration"]] for one in actions["metaData"]]
    return checksum(info, adds, removes, transactions, made[0] if made else None)
