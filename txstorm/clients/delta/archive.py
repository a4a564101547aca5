"""Log archive: entries of a table's log older than its retention, moved to a directory that only txstorm reads.

`Shortening` writes a checkpoint and archives the entries before it; `Archiving` decides when.

The age of an entry is that of its file, as in Spark's time travel. Only entries before a complete checkpoint are moved,
so the remaining log is valid. Entries are moved one by one, oldest first, each by an atomic rename: after a crash,
every entry is in exactly one of the two directories.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from txstorm import faults
from txstorm.clients.delta.entry import LOG_BOUND, LOG_RETENTION, LOWERED
from txstorm.clients.delta.log import (
    ARCHIVE,
    CHECKPOINT_MOST,
    LOG,
    checkpoint_version,
    entry_name,
    newest_complete,
    version_of,
)
from txstorm.errors import TableCorrupt

if TYPE_CHECKING:
    from txstorm.clients.delta.handle import DeltaHandle

log = logging.getLogger(__name__)

KEPT_VERSIONS = 100
"""Minimum number of versions to keep in a log, regardless of their age."""
CHECKPOINT_SECONDS = 3600.0
"""Age in seconds up to which a checkpoint is kept in the log, for readers that are still reading it."""
AT_ONCE = 256
"""Number of files to move per step."""
ARCHIVING_SHARE = 100
"""Number of times per retention period that the oldest entries of a log are moved to the archive."""
MOST_ENTRIES = 1_000_000
"""Number of log entries beyond which a run logs a warning, since every reader lists all entries."""
LEAST_SECONDS = 60.0
"""Minimum time in seconds over which a commit rate is measured."""
_DEFAULT = 30 * 86_400.0  # Delta's default, for a table without the property
_UNITS = {"day": 86_400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0, "week": 604_800.0}
_UNITS |= {"millisecond": 1e-3, "microsecond": 1e-6, "nanosecond": 1e-9}
_BOUND = re.compile(r"(\d{1,12}) entries, (\d+(?:\.\d+)?) seconds")
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s+([a-z]+?)s?(?=\s|$)")


def log_retention(properties: Mapping[str, str]) -> float:
    """Return the log retention in seconds of a table with these `properties`; infinite if it cannot be parsed."""
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


def log_bound(properties: Mapping[str, str]) -> tuple[int | None, float]:
    """Return how many entries the log of a table with these `properties` has at most, if that is bounded, and seconds.

    A retention that a user has set on the table is a promise of theirs: only its age then counts.
    """
    found = _BOUND.fullmatch(properties.get(LOG_BOUND, ""))
    if found is None or properties.get(LOG_RETENTION) != LOWERED:
        return None, log_retention(properties)
    return int(found[1]), float(found[2])


def archive_entries(
    table: Path, seconds: float, now: float, keep: int | None = None, most: int | None = None
) -> Generator[None, None, int]:
    """Move entries older than `seconds` from the log to the archive, in steps; return the number that remain.

    The remaining log begins with a complete checkpoint, and contains every checkpoint of the last hour and at least
    `keep` versions. Lists the log, so do not call it during a commit. Other writers may commit in the meantime.

    Args:
        table: the table's directory.
        seconds: age in seconds above which an entry may be archived.
        now: the current time, in seconds since 1970.
        keep: minimum number of versions to keep; by default `KEPT_VERSIONS`.
        most: number of versions before which entries and checkpoints move whatever their age; None: no bound.
    """
    keep = KEPT_VERSIONS if keep is None else keep
    versioned = ((version_of(name), name) for name in os.listdir(table / LOG))
    found = sorted((version, name) for version, name in versioned if version is not None)
    first = _first_kept(table / LOG, found, now - seconds, now - CHECKPOINT_SECONDS)
    checkpoints = [f"{LOG}/{name}" for _, name in found if checkpoint_version(name) is not None]
    newest, _ = newest_complete(table, checkpoints)
    if most is not None and found:
        first = max(first, found[-1][0] - most)
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
        if target.exists():  # the version is already archived; a stale writer has written this file
            source.unlink()
        else:
            source.rename(target)
    except FileNotFoundError:  # removed by another writer
        return


def archived_entries(table: Path) -> list[Path]:
    """Return the paths of the archived log entries, newest first."""
    return sorted((table / ARCHIVE).glob("*.json"), reverse=True)


def expired_files(table: Path, first: int, also: Collection[int]) -> list[str]:
    """Return the names of archived files, oldest first, that are no longer needed.

    Needed are the files for reading the versions in `also`, and all versions from `first` on. Lists the archive, so do
    not call it during a commit.
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


class Archiving:
    """Schedule for moving old entries of one table's log to the archive. Not thread-safe.

    About a hundredth of the log is moved each time, so that the cost of listing the log, which is proportional to its
    length, is spread over many commits.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._next = 0.0
        self._started: tuple[float, int] | None = None
        self._first: int | None = None
        self._samples: list[tuple[float, int]] = []
        self._warned = False

    def span(self, handle: DeltaHandle) -> float | None:
        """Return for how many seconds the log keeps an entry at the present rate; None if its length is not bounded.

        The rate is that of the last minute or two. Call from one thread only.
        """
        most, seconds = log_bound(handle.properties)
        if most is None:
            return None
        now = self._wall()
        if not self._samples or now - self._samples[-1][0] >= LEAST_SECONDS:
            self._samples = [*self._samples[-1:], (now, handle.version)]
        since, first = self._samples[0]
        rate = (handle.version - first) / max(now - since, LEAST_SECONDS)
        return seconds if rate <= 0 else min(seconds, most / rate)

    def steps(self, handle: DeltaHandle, uri: str) -> Iterator[None]:
        """Move the entries that are due, in steps; log a warning once if the log is too long for readers to list."""
        now, (most, seconds) = self._wall(), log_bound(handle.properties)
        since, first = self._started = self._started or (now, handle.version)
        rate = (handle.version - first) / max(now - since, LEAST_SECONDS)
        expected = rate * seconds
        full = most is not None and (self._first is None or handle.version - self._first >= most - 2 * CHECKPOINT_MOST)
        if (now >= self._next and seconds < math.inf) or full:
            self._next = now + max(seconds, CHECKPOINT_SECONDS) / ARCHIVING_SHARE
            kept = None if most is None else min(most * 9 // 10, most - 4 * CHECKPOINT_MOST)
            staying = yield from archive_entries(handle.path, seconds, now, most=kept)
            self._first = handle.version - staying
            expected = max(expected, staying)
        if most is not None:
            expected = min(expected, most)
        if expected > MOST_ENTRIES and not self._warned:
            self._warned = True
            log.warning(
                "table %s: gets %.3g versions a second, so its log has, or will have, %.3g entries in the %g s for "
                "which it keeps them (%s), and readers list them all: expected at most %d; make fewer versions (larger "
                "transactions, a larger max_group_txids), or set a smaller log_retention",
                *(uri, rate, expected, seconds, LOG_RETENTION, MOST_ENTRIES),
            )


class Shortening:
    """Task that writes a checkpoint of a table and archives old log entries, in parallel to commits.

    `steps` may run on any thread, since it opens a separate handle. A checkpoint only saves time, so a failure to write
    it (such as a full disk) is logged and does not stop the run.

    Attributes:
        made: a handle that starts from the new checkpoint; None until it is written.
    """

    def __init__(self, opener: Callable[[], DeltaHandle], uri: str, every: int, archiving: Archiving) -> None:
        self.made: DeltaHandle | None = None
        self._opener = opener
        self._uri, self._every, self._archiving = uri, every, archiving

    def steps(self) -> Iterator[None]:
        """Write the checkpoint, then archive old entries; the caller may abandon the work between two steps."""
        try:
            handle = self._opener()
            files = handle.checkpoint(self._every)
            yield
            if files:
                self.made = handle
                yield from self._archiving.steps(handle, self._uri)
        except (TableCorrupt, OSError) as cause:
            log.warning("table %s: no checkpoint: %s", self._uri, cause)
