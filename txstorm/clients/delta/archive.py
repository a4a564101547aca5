"""The archive of a log: entries older than its retention, moved to a place where only txstorm looks for them.

The age of an entry is that of its file, as for Spark's time travel. Only the entries before a complete checkpoint are
moved, so the rest is a valid log. Entries are moved one by one, oldest first, each by an atomic rename: after a crash
every entry is in exactly one place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Generator, Mapping
from pathlib import Path

from txstorm import faults
from txstorm.clients.delta.entry import LOG_RETENTION
from txstorm.clients.delta.log import ARCHIVE, LOG, checkpoint_version, entry_name, newest_complete, version_of

KEPT_VERSIONS = 100
"""Number of versions that stay in a log, however old they are."""
CHECKPOINT_SECONDS = 3600.0
"""Age up to which a checkpoint stays, for readers that are still reading it."""
AT_ONCE = 256
"""Number of files moved in one step."""
_DEFAULT = 30 * 86_400.0  # Delta's default, for a table without the property
_UNITS = {"day": 86_400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0, "week": 604_800.0}
_UNITS |= {"millisecond": 1e-3, "microsecond": 1e-6, "nanosecond": 1e-9}
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s+([a-z]+?)s?(?=\s|$)")


def log_retention(properties: Mapping[str, str]) -> float:
    """Return the seconds for which a table with these `properties` keeps log entries; infinite if unparsable."""
    text = properties.get(LOG_RETENTION)
    if text is None:
        return _DEFAULT
    rest, seconds = text.strip().lower().removeprefix("interval"), 0.0
    while rest.strip():
        part = _PART.match(rest)
        if part is None or part[2] not in _UNITS:
            return float("inf")
        seconds += float(part[1]) * _UNITS[part[2]]
        rest = rest[part.end() :]
    return seconds if text.strip() else float("inf")


def archive_entries(table: Path, seconds: float, now: float, keep: int | None = None) -> Generator[None, None, int]:
    """Move entries older than `seconds` from the log to the archive, in steps; return the number that remain.

    The remaining log begins with a complete checkpoint and has every checkpoint of the last hour and at least `keep`
    versions. Lists the log, so do not call it during a commit. Other writers may commit meanwhile.

    Args:
        table: the table's directory.
        seconds: age above which an entry need not remain in the log.
        now: the current time, in seconds since 1970.
        keep: minimum number of versions to keep; by default `KEPT_VERSIONS`.
    """
    keep = KEPT_VERSIONS if keep is None else keep
    versioned = ((version_of(name), name) for name in os.listdir(table / LOG))
    found = sorted((version, name) for version, name in versioned if version is not None)
    first = _first_kept(table / LOG, found, now - seconds, now - CHECKPOINT_SECONDS)
    checkpoints = [f"{LOG}/{name}" for _, name in found if checkpoint_version(name) is not None]
    newest, _ = newest_complete(table, checkpoints)
    begin, _ = newest_complete(table, checkpoints, min(first, newest - keep))
    old = [name for version, name in found if version < begin]
    staying = sum(name == entry_name(version) for version, name in found if version >= begin)
    if len(old) < keep:
        return staying
    (table / ARCHIVE).mkdir(parents=True, exist_ok=True)
    for start in range(0, len(old), AT_ONCE):
        for name in old[start : start + AT_ONCE]:
            _move(table, name)
            faults.point("archive.moved")
        yield
    return staying


def _first_kept(log: Path, found: list[tuple[int, str]], before: float, checkpoints_before: float) -> int:
    """Return the version of the first entry or checkpoint that is too young to move."""
    entries = (version for version, name in found if name == entry_name(version) and _modified(log / name) >= before)
    checkpoints = (
        version for version, name in found if checkpoint_version(name) and _modified(log / name) >= checkpoints_before
    )
    last = found[-1][0] if found else -1
    return min(next(entries, last), next(checkpoints, last))


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # removed by another writer
        return 0.0


def _move(table: Path, name: str) -> None:
    source, target = table / LOG / name, table / ARCHIVE / name
    try:
        if target.exists():  # the version is archived: this file was left in the log by a stale writer
            source.unlink()
        else:
            source.rename(target)
    except FileNotFoundError:  # removed by another writer
        return


def archived_entries(table: Path) -> list[Path]:
    """Return the archived entries, newest first."""
    return sorted((table / ARCHIVE).glob("*.json"), reverse=True)


def expired_files(table: Path, first: int, also: Collection[int]) -> list[str]:
    """Return the archived files, oldest first, needed neither for versions from `first` on nor for those in `also`.

    Lists the archive, so do not call it during a commit.
    """
    try:
        names = sorted(os.listdir(table / ARCHIVE))
    except FileNotFoundError:
        return []
    checkpoints = [f"{ARCHIVE}/{name}" for name in names if checkpoint_version(name) is not None]

    def beginning(version: int) -> int:
        return max(newest_complete(table, checkpoints, version)[0], 0)

    spans, begin = [(beginning(version), version) for version in also], beginning(first)
    found = ((version_of(name), name) for name in names)
    return [
        name
        for version, name in found
        if version is not None and version < begin and not any(start <= version <= last for start, last in spans)
    ]


def remove_archived(table: Path, names: Collection[str]) -> None:
    """Delete files from the archive, by name."""
    for name in names:
        (table / ARCHIVE / name).unlink(missing_ok=True)
