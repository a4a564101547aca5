"""Files of a Delta table's log: their names, checkpoints, and the checksum in every entry that txstorm writes.

The log is JSON without checksums: a flipped bit in a number leaves it valid, but with different content. So txstorm
adds a checksum to each entry that it writes. Entries of foreign writers have none and are accepted unchecked.
"""

from __future__ import annotations

import json
import os
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
HINT = "_last_checkpoint"
CHECK = "check"
FOREIGN = "foreign"
WRITTEN = "written"
PRUNED = "prune"
"""Kind of a commit of txstorm that removes rows older than it keeps, and may write younger ones to other files."""
CHECKPOINT_EVERY = 20
"""Minimum number of versions between two checkpoints of a log."""
CHECKPOINT_MOST = 100
"""Maximum number of versions between two checkpoints of a log."""
_ENTRY = re.compile(r"(\d{20})\.json")
# Checksum files: those that Spark writes for a table version, and those that Hadoop writes for every file.
_SUM = re.compile(r"\.?(\d{20})\.(crc|crc\.crc|json\.crc|checkpoint\..*\.crc)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.*\.)?(?:parquet|json)")
_PART = re.compile(r"\d{20}\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
KINDS = {"commitInfo", "add", "remove", "txn", "metaData", "protocol"}
"""Kinds of actions that txstorm writes."""
# The ranges read from the source: no decision depends on them, and floats in them need not round-trip exactly.
_UNCHECKED = {"extents"}
_PLAIN = (str, int, float)

File = tuple[str, int, int, str]
Actions = Mapping[str, list[Any]]
"""The actions of a log entry, by kind; an empty list for any other kind."""


def checksum(
    info: Mapping[str, Any],
    adds: Iterable[File],
    removes: Iterable[str],
    transactions: Iterable[tuple[str, int]],
    table: Sequence[Any] | None,
) -> str:
    """Return the checksum of an entry: commit info, files (path, size, modified, stats), app transactions, table.

    `table`: schema (as JSON values) and properties if the entry sets them, otherwise None.
    """
    document = [_checked(info), sorted(adds), sorted(removes), sorted(transactions), table]
    return blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()


def _checked(value: Any) -> Any:
    if isinstance(value, Mapping):
        checked = ((name, item) for name, item in value.items() if name not in _UNCHECKED)
        return {name: item if isinstance(item, _PLAIN) else _checked(item) for name, item in checked}
    if isinstance(value, list | tuple):
        return [item if isinstance(item, _PLAIN) else _checked(item) for item in value]
    return value


def last_checkpoint(table: Path) -> int:
    """Return the version of the last checkpoint according to the hint in the log; 0 if there is no valid hint."""
    try:
        return int(json.loads(read_whole(f"{table}/{LOG}/{HINT}"))["version"])
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return 0  # missing or damaged: it is only a hint for readers


def check_log(table: Path) -> None:
    """Raise `OSError` if anything that libraries would read as the log of `table` is not a regular file."""
    check_files(table / LOG, (".json", ".parquet", HINT))


def is_table(path: Path) -> bool:
    """Return whether there is a Delta table at `path`, even if it cannot be read."""
    try:
        with os.scandir(f"{path}/{LOG}") as entries:
            return any(entry.name[0].isdigit() for entry in entries)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: not a valid file name
        return False
    except OSError:
        return True


def torn_creation(log: Path, last: str = "txn") -> Path | None:
    """Return the only entry of a log if it is the first one and not complete; None for any other log.

    `last`: the kind of action with which the first entry of such a log ends.
    """
    names = sorted(os.listdir(log)) if log.is_dir() else []
    if [name for name in names if not name.startswith("_")] != [entry_name(0)]:
        return None
    entry = log / entry_name(0)
    try:
        kinds = {kind for line in read_whole(entry).splitlines() for kind in json.loads(line)}
    except ValueError:
        return entry
    return None if {"protocol", "metaData", last} <= kinds else entry


def note_checkpoint(table: Path, version: int, files: Collection[str]) -> Path:
    """Record digests of a checkpoint's `files`, which have no checksums, in a note; return the path of the note."""
    note, made = table / NOTE, table / f"{NOTE}.tmp"
    note.parent.mkdir(exist_ok=True)
    made.write_text(json.dumps({"version": version, "files": {name: _digest(table / LOG / name) for name in files}}))
    made.replace(note)
    return note


def newest_complete(table: Path, paths: Iterable[str], most: int | None = None) -> tuple[int, list[str]]:
    """Return the newest complete checkpoint: its version and its files; (-1, []) if there is none.

    Args:
        table: the table's directory.
        paths: files of a log or archive, relative to the table; all but checkpoint files are ignored.
        most: the highest version to consider; None: no limit.
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
    """Return the files of one complete checkpoint among `paths`, all of one version; empty if none is complete."""
    for path in paths:
        parts = _PART.fullmatch(path.rpartition("/")[2])
        if parts is None:
            if all((table / LOG / SIDECARS / name).exists() for name in sidecars_of(table / path)):
                return [path]
        elif int(parts[1]) == 1:
            stem, count = path[: -len("0000000001.0000000001.parquet")], int(parts[2])
            wanted = [f"{stem}{number:010d}.{count:010d}.parquet" for number in range(1, count + 1)]
            if set(wanted) <= set(paths):
                return wanted
    return []


def sidecars_of(checkpoint: Path) -> list[str]:
    """Return the names of the sidecar files of a v2 checkpoint; none of any other, or of a damaged one."""
    try:
        if checkpoint.suffix == ".json":
            actions = [json.loads(line) for line in read_whole(checkpoint).splitlines()]
            return [Path(unquote(action["sidecar"]["path"])).name for action in actions if "sidecar" in action]
        check_file(checkpoint)
        if "sidecar" not in pq.read_schema(checkpoint).names:
            return []
        found = pq.read_table(checkpoint, columns=["sidecar"])["sidecar"].to_pylist()
        return [Path(unquote(sidecar["path"])).name for sidecar in found if sidecar]
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return []  # damaged: reading the checkpoint reports it


def checkpoint_version(name: str) -> int | None:
    """Return the version in the name of a checkpoint file, or of a part of one; None for any other file."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def entry_name(version: int) -> str:
    """Return the file name of the log entry of `version`."""
    return f"{version:020d}.json"


def version_of(name: str) -> int | None:
    """Return the version of a log file (entry, checkpoint or checksum) by its name; None for other files."""
    found = _ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name) or _SUM.fullmatch(name)
    return int(found[1]) if found else None


def entry_adds(entry: Path) -> list[tuple[str, str | None]]:
    """Return path and statistics of each file that a log entry adds; empty if the entry is damaged or missing."""
    try:
        return [(added["path"], added.get("stats")) for added in entry_actions(entry)["add"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def check_checkpoint(table: Path, version: int) -> None:
    """Raise `ValueError` if the checkpoint of `version` does not match the digests in its note, if it has one."""
    try:
        note = json.loads(read_whole(f"{table}/{NOTE}"))
        noted = note["files"] if note["version"] == version else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # the table can be read without the note
        return
    for name, digest in noted.items():
        if _digest(table / LOG / name) != digest:
            raise ValueError(f"the checkpoint {name} is not what was written")


def _digest(path: Path) -> str:
    return blake2b(read_whole(path), digest_size=16).hexdigest()


def own_info(entry: Path) -> Mapping[str, Any]:
    """Return the commit info that txstorm has written to a log entry; empty for an empty or foreign entry.

    For an entry by a foreign writer that changes rows, it contains the operation under the key `FOREIGN`.

    Raises:
        ValueError: the entry was altered or is damaged.
    """
    return own_entry(entry)[0]


def apps_in(actions: Actions) -> Iterator[tuple[str, int]]:
    """Yield app id and version of each app transaction in a log entry."""
    return ((txn["appId"], txn["version"]) for txn in actions["txn"])


def checked_paths(entry: Path) -> Iterator[str]:
    """Yield the relative paths of the files that a log entry adds or removes; raise the errors of `own_info`."""
    _, actions = own_entry(entry)
    for action in (*actions["add"], *actions["remove"]):
        yield unquote(action["path"])


def own_entry(entry: Path, read: Actions | None = None) -> tuple[Mapping[str, Any], Actions]:
    """Return the result of `own_info`, and the actions of the entry by kind; raise the errors of `own_info`.

    `read`: the actions, if the entry has just been read.
    """
    try:
        actions = entry_actions(entry) if read is None else read
        if not any(actions.values()):  # a look-up leaves an empty list
            return {}, actions
        own = info_of(actions["commitInfo"][0])
        ours = bool(own) or any(txn["appId"].startswith(f"{INFO}/") for txn in actions["txn"])
        intact = not ours or (actions.keys() <= KINDS and own[CHECK] == _checksum_of(own, actions))
    except (LookupError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise ValueError(f"it is not a log entry ({type(error).__name__}: {error})") from error
    if not intact:
        raise ValueError("its checksum does not match its content")
    return (own if ours else _foreign(actions)), actions


def _foreign(actions: Actions) -> Mapping[str, Any]:
    changes = any(action.get("dataChange", True) for action in (*actions["add"], *actions["remove"]))
    return {FOREIGN: str(dict(actions["commitInfo"][0]).get("operation"))} if changes else {}


def paths_of(entry: Path) -> Iterator[str]:
    """Yield the relative paths of the files that an undamaged log entry adds or removes."""
    actions = entry_actions(entry)
    for action in (*actions["add"], *actions["remove"]):
        yield unquote(action["path"])


def entry_actions(entry: Path | str) -> dict[str, list[Any]]:
    """Return the actions of a log entry, or of a checkpoint as JSON, by kind; raise `OSError` or `ValueError`."""
    actions: dict[str, list[Any]] = defaultdict(list)
    for line in read_whole(entry).splitlines():
        for kind, content in json.loads(line).items():
            actions[kind].append(content)
    return actions


def info_of(commit_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that txstorm has written to a commit info; commits by Spark have them in the user metadata."""
    own = commit_info.get(INFO)
    if own is None:
        try:
            own = json.loads(commit_info.get("userMetadata") or "null")[INFO]
        except (ValueError, LookupError, TypeError):  # a label, or another writer's metadata
            return {}
    return dict(own) if isinstance(own, Mapping) else {}


def spark_metadata(info: Mapping[str, Any], rows: int, txids: tuple[int, int], app: str, txid: int, label: str) -> str:
    """Return the user metadata for a commit by Spark: `info`, with the expected row count and txids of its files.

    These stand in for the files themselves, which are unknown before Spark writes them.
    """
    content = {**info, WRITTEN: [rows, *txids]}
    return json.dumps({"label": label, INFO: {**content, CHECK: checksum(content, (), (), [(app, txid)], None)}})


def _written(adds: Sequence[Mapping[str, Any]], noted: Sequence[int]) -> list[int]:
    """Return row count, lowest and highest txid of files from their statistics; missing txids are taken from `noted`.

    In a table that was created for the default writer, Spark writes statistics for the first columns only.
    """
    stats = [json.loads(added["stats"]) for added in adds]
    least, most = (
        [file[ends]["_txid"] for file in stats if "_txid" in file[ends]] for ends in ("minValues", "maxValues")
    )
    rows = sum(file["numRecords"] for file in stats)
    return [rows, min(least, default=noted[1]), max(most, default=noted[2])]


def _checksum_of(own: Mapping[str, Any], actions: Actions) -> str:
    info = {name: value for name, value in own.items() if name != CHECK}
    transactions = list(apps_in(actions))
    if WRITTEN in info:
        return checksum({**info, WRITTEN: _written(actions["add"], info[WRITTEN])}, (), (), transactions, None)
    adds = [(unquote(file["path"]), file["size"], file["modificationTime"], file["stats"]) for file in actions["add"]]
    removes = [unquote(file["path"]) for file in actions["remove"]]
    tables = [[json.loads(table["schemaString"]), table["configuration"]] for table in actions["metaData"]]
    return checksum(info, adds, removes, transactions, tables[0] if tables else None)


def checkpoint_after(last: int) -> int:
    """Return the number of versions between the checkpoint at version `last` and the next checkpoint.

    `last` is 0 for a log that is listed on every read, which gives the minimum distance. It is the version of the last
    checkpoint for a log that only txstorm writes, and reads only when opening the table.
    """
    return max(CHECKPOINT_EVERY, min(last // 2, CHECKPOINT_MOST))
