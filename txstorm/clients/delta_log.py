"""The log of a Delta table as files: every entry of ours carries a checksum of what it means.

The log is JSON without any protection: a flipped bit in a number leaves it valid, with another meaning. Entries that
somebody else wrote have no checksum and are taken as they are.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from txstorm.clients.local_file import check_file, check_files, read_whole

LOG = "_delta_log"
INFO = "txstorm"
NOTE = "_txstorm/checkpoint.json"
ARCHIVE = "_txstorm/log"
CHECK = "check"
FOREIGN = "foreign"
WRITTEN = "written"
_ENTRY = re.compile(r"(\d{20})\.json")
# Spark's own checksums: of the table at a version, and Hadoop's of every file it writes.
_SUM = re.compile(r"\.?(\d{20})\.(crc|crc\.crc|json\.crc|checkpoint\..*parquet\.crc)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*parquet")
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


def check_log(table: Path) -> None:
    """Raise `OSError` unless all that libraries read as the log of `table` are files; nothing where there is no log."""
    check_files(table / LOG, (".json", ".parquet", "_last_checkpoint"))


def entries_since_checkpoint(table: Path) -> list[Path]:
    """The entries that the newest version of the table at `table` is read from, and the one of the last checkpoint."""
    names = [path.name for path in (table / LOG).iterdir()]
    checkpoint = _newest_checkpoint(names)
    kept = sorted(name for name in names if (found := _ENTRY.fullmatch(name)) and int(found[1]) >= checkpoint)
    return [table / LOG / name for name in kept]


def note_checkpoint(table: Path) -> list[Path]:
    """Write down what the files of the newest checkpoint are, which have no checksum; returns them and the note."""
    names = [path.name for path in (table / LOG).iterdir()]
    version = _newest_checkpoint(names)
    files = sorted(name for name in names if (found := _CHECKPOINT.fullmatch(name)) and int(found[1]) == version)
    note, made = table / NOTE, table / f"{NOTE}.tmp"
    note.parent.mkdir(exist_ok=True)
    made.write_text(json.dumps({"version": version, "files": {name: _digest(table / LOG / name) for name in files}}))
    made.replace(note)
    return [*(table / LOG / name for name in files), table / LOG / "_last_checkpoint", note]


def archive_entries(table: Path, keep: int) -> None:
    """Move entries and checkpoints out of the log that only older versions are read from, once there are many.

    The log then begins with a checkpoint at least `keep` versions back. A writer lists all of the log with every
    commit; what is in the archive costs nothing until somebody asks for an old version.
    """
    names = [path.name for path in (table / LOG).iterdir()]
    newest = _newest_checkpoint(names)
    first = max((version for version in _checkpoints(names) if version <= newest - keep), default=0)
    old = sorted((version, name) for name in names if (version := version_of(name)) is not None and version < first)
    if len(old) < keep:
        return
    (table / ARCHIVE).mkdir(parents=True, exist_ok=True)
    for _, name in old:
        if (table / ARCHIVE / name).exists():  # what a writer that slept for long has left here is no entry
            (table / LOG / name).unlink()
        else:
            (table / LOG / name).rename(table / ARCHIVE / name)


def archived_entries(table: Path) -> list[Path]:
    """The archived entries, newest first."""
    return sorted((table / ARCHIVE).glob("*.json"), reverse=True)


def remove_archived(table: Path, first: int, also: Collection[int], most: int) -> bool:
    """Remove files from the archive that no version from `first` on, and none of `also`, is read from.

    At most `most` of them; returns whether there were any.
    """
    names = [path.name for path in (table / ARCHIVE).glob("*")]
    begins = {version: max((one for one in _checkpoints(names) if one <= version), default=0) for version in also}
    begin = max((one for one in _checkpoints(names) if one <= first), default=0)
    doomed = []
    for name in sorted(names):
        version = version_of(name)
        if version is None or version >= begin or any(start <= version <= one for one, start in begins.items()):
            continue
        doomed.append(name)
    for name in doomed[:most]:
        (table / ARCHIVE / name).unlink(missing_ok=True)
    return bool(doomed)


def copy_archived(table: Path, version: int, place: Path) -> bool:
    """Make a log in `place` that ends with the archived `version`; False when that is not in the archive."""
    archive = table / ARCHIVE
    if not (archive / f"{version:020d}.json").exists():
        return False
    names = [path.name for path in archive.iterdir()]
    first = max((found for found in _checkpoints(names) if found <= version), default=0)
    (place / LOG).mkdir()
    for name in names:
        if (found := version_of(name)) is not None and first <= found <= version:
            check_file(archive / name)
            shutil.copyfile(archive / name, place / LOG / name)
    return True


def version_of(name: str) -> int | None:
    """The version that a file of the log is of; None for files that are of none."""
    found = _ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name) or _SUM.fullmatch(name)
    return int(found[1]) if found else None


def _checkpoints(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]


def check_checkpoint(table: Path) -> None:
    """Raise `ValueError` where the newest checkpoint is not what was noted; one of somebody else has no note."""
    version = _newest_checkpoint(path.name for path in (table / LOG).iterdir())
    try:
        note = json.loads(read_whole(table / NOTE))
        noted = note["files"] if note["version"] == version else {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # the note is not needed to read the table
        return
    for name, digest in noted.items():
        if _digest(table / LOG / name) != digest:
            msg = f"the checkpoint {name} is not what was written"
            raise ValueError(msg)


def _newest_checkpoint(names: Iterable[str]) -> int:
    return max(_checkpoints(names), default=-1)


def _digest(path: Path) -> str:
    return blake2b(read_whole(path), digest_size=16).hexdigest()


def own_info(entry: Path) -> Mapping[str, Any]:
    """What we wrote into the commit info of a log entry; nothing when it is empty, or somebody else's.

    Of somebody else's that changes rows: its operation, as `FOREIGN`.

    Raises:
        ValueError: it is not what was written.
    """
    try:
        actions = _actions(entry)
        if not actions:
            return {}
        own = info_of(actions["commitInfo"][0])
        ours = bool(own) or any(one["appId"].startswith(f"{INFO}/") for one in actions["txn"])
        intact = not ours or (actions.keys() <= _KINDS and own[CHECK] == _checksum_of(own, actions))
    except (LookupError, TypeError, AttributeError, RecursionError, ValueError) as error:
        msg = f"it is no log entry ({type(error).__name__}: {error})"
        raise ValueError(msg) from error
    if not intact:
        msg = "its checksum is not that of its content"
        raise ValueError(msg)
    return own if ours else _foreign(actions)


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
