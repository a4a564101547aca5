"""Files in the order of their arrival: every new file is read once, whatever its name.

Seen is what the topology's own state of files holds as committed, and the plans of undecided transactions: the metadata
of a txid name the files that it finishes, and the txid writes their rows. The position is in the file that is being
read; where it is done, the next file of the last listing follows, and after the last one the next listing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from txstorm.api.names import counted
from txstorm.errors import SpoutError
from txstorm.lanes import THREADS
from txstorm.spouts.files.listing import FileStatus, listed, status_of
from txstorm.spouts.files.ranges import BY_ARRIVAL, Piece, Position, Segment
from txstorm.spouts.files.seen_files import ArrivalPosition, SeenFile, kept_rows, key_of
from txstorm.spouts.user_calls import Notices

LONGEST_PAUSE = 1.0
"""Seconds after which the files are listed again at the latest, once all known ones are read."""
FORGOTTEN_AT_ONCE = 1000
"""Maximum number of rows that one transaction deletes because of ``seen_files_age``."""
_SHOWN = 3


class Digesting(Protocol):
    """The part of a file format that this order needs."""

    def trail(self, path: str, chain: str, since: int, upto: int) -> tuple[str, str]:
        """Extend the running digest `chain` of a file from `since` to `upto`; return it, and the digest at `upto`.

        The digest is empty if the file ends before `upto`.
        """

    def extent(self, path: str, size: int) -> int:
        """Return the offset at the end of the file, which has `size` bytes."""

    def is_complete(self, path: str) -> bool:
        """Return whether the file can be read yet."""


Row = tuple[Any, ...]
"""The fields of a `SeenFile`, as a plain tuple, as there may be many."""


class _Queued(NamedTuple):
    """A file to read, perhaps `again`; `newest`: see `ArrivalPosition`, None unless it is the last of a listing."""

    file: str
    again: bool
    newest: int | None


class Arrivals:
    """The files to read, in the order of listings and of names within each; call from the driver thread only.

    Args:
        paths: the paths and globs.
        chosen: the format.
        age: what is older than the newest file by more than this is passed over; None: nothing is.
        notices: receives what users should know of the files.
        monotonic: clock, in seconds.
    """

    def __init__(
        self,
        paths: Sequence[str],
        chosen: Digesting,
        age: timedelta | None,
        notices: Notices,
        monotonic: Callable[[], float] = THREADS.monotonic,
    ) -> None:
        self._paths, self._format, self._monotonic = paths, chosen, monotonic
        self._age = None if age is None else age // timedelta(microseconds=1) * 1000
        self._notices = notices
        self._seen: dict[str, Row] = {}
        self._undo: deque[tuple[int, Any, dict[str, Row | None]]] = deque()
        self._queue: list[_Queued] = []
        self._base = 0
        self._looked: dict[str, FileStatus] = {}
        self._late: set[str] = set()
        self._waiting: tuple[str, ...] = ()
        self._forgotten: list[str] = []
        self._dry: tuple[ArrivalPosition, int] | None = None
        self._next = 0.0
        self._listings = 0
        self._gone: set[_Queued] = set()
        self._grown: ArrivalPosition | None = None
        self.planned = ArrivalPosition()

    # -- what is seen -------------------------------------------------------------------------------------------

    def load(self, rows: Any, planned: Mapping[int, Any]) -> None:
        """Take over the committed rows and the plans of before."""
        names, *columns = ([] for _ in range(6)) if rows is None else (rows[name].to_pylist() for name in _COLUMNS)
        self._seen.update(zip(names, zip(*columns, strict=True), strict=True))
        for txid, metadata in sorted(planned.items()):
            if metadata["v"] == BY_ARRIVAL:
                self.note(txid, metadata)

    def note(self, txid: int, metadata: Any) -> None:
        """Note that `txid` has been planned with `metadata`."""
        rows = kept_rows(metadata)
        changed = {name: None if row is None else tuple(row.values()) for name, row in rows.items()}
        self._undo.append((txid, metadata["position"], {name: self._seen.get(name) for name in changed}))
        self._set(changed)
        self.planned = ArrivalPosition.after(metadata)

    def back_to(self, txid: int, previous: Any) -> None:
        """Forget the plans of `txid` and later ones, which an opaque spout makes anew, after metadata `previous`."""
        while self._undo and self._undo[-1][0] >= txid:
            self._set(self._undo.pop()[2])
            self.planned = ArrivalPosition.after(previous if previous and previous["v"] == BY_ARRIVAL else None)

    def committed(self, metadata: Any) -> None:
        """Note that the plans up to `metadata` are final."""
        if any(position == metadata["position"] for _, position, _ in self._undo):
            while self._undo.popleft()[1] != metadata["position"]:
                pass

    def _set(self, rows: Mapping[str, Row | None]) -> None:
        for name, row in rows.items():
            self._looked.pop(name, None)
            if row is None:
                self._seen.pop(name, None)
            else:
                self._seen[name] = row

    # -- positions ----------------------------------------------------------------------------------------------

    def after(self, metadata: Any) -> ArrivalPosition:
        """Return the position after the batch of `metadata`."""
        return ArrivalPosition.after(metadata)

    def opens(self, position: ArrivalPosition) -> bool:
        """Return whether there may be something to read; list the files if the known ones are read, and it is due."""
        dry = self._dry == (position, self._listings)
        if dry and self._monotonic() < self._next:
            return False
        if dry or not self._listings:
            self.refresh(position)
        return True

    def dry(self, position: ArrivalPosition) -> bool:
        """Note that the listed files hold nothing after `position`; return whether asking again may help."""
        self._dry = position, self._listings
        return True

    def moved(self, position: ArrivalPosition, piece: Piece, status: FileStatus) -> ArrivalPosition:
        """Return the position after reading `piece` of its file, which had `status` before."""
        position = replace(self._at_status(position, status), offset=piece.stop, open=piece.open)
        return self._ended(position) if piece.whole else position

    def following(self, position: ArrivalPosition, size: int, status: FileStatus) -> ArrivalPosition | None:
        """Return the position after the end of a file, or at the beginning of the next one; None if there is none."""
        if not position.done:
            return self._ended(self._at_status(position, status))
        following = self._at(position)
        while following is not None and not os.path.exists(following.file):
            if following not in self._gone:
                self._gone.add(following)
                self._notices.say(f"{following.file} disappeared before it was read")
            position = replace(position, number=position.number + 1)
            following = self._at(position)
        if following is None:
            return None
        newest = max(position.newest, following.newest or 0)
        begun = ArrivalPosition(
            following.file, done=False, number=position.number + 1, newest=newest, finished=position.finished
        )
        seen = self._seen_at(position, following)
        if seen is None or not seen.read:
            return begun
        chain, digest = self._format.trail(following.file, "", 0, seen.read)
        if seen.digest and digest != seen.digest:
            raise _changed(following.file, status_of(following.file), seen.status, seen.read)
        return replace(begun, offset=seen.read, open=seen.open, chain=chain, digest=digest, digested=seen.read)

    def _seen_at(self, position: ArrivalPosition, queued: _Queued) -> SeenFile | None:
        """Return up to where a queued file was read before `position`; since then, plans may have been made anew."""
        finished = reversed(position.finished) if queued.again else ()
        within = next((seen for name, seen in finished if name == queued.file), None)
        row = self._seen.get(key_of(queued.file))
        return within or (None if row is None else SeenFile(*row))

    def metadata(self, cut: Sequence[Segment], position: ArrivalPosition) -> dict[str, Any]:
        """Return the metadata of a batch with these segments, after which reading goes on at `position`."""
        position = self._digested(position)
        finished = dict(position.finished)
        made = {"v": BY_ARRIVAL, "segments": [one.to_json() for one in cut], "position": position.to_json()}
        if finished:
            made["files"] = [[name, *seen] for name, seen in finished.items()]
        if forgotten := self._forgotten[:FORGOTTEN_AT_ONCE]:
            made["forgotten"] = forgotten
            del self._forgotten[:FORGOTTEN_AT_ONCE]
        return made

    def switched(self, metadata: Any) -> dict[str, Any]:
        """Return the metadata of an empty batch with which files before a position by name count as read."""
        before = Position(**metadata["position"])
        now = listed(self._paths)
        read = {name: SeenFile(*status, status[0], False, "") for name, status in now.items()}
        done = tuple((name, seen) for name, seen in read.items() if name < (before.file or ""))
        position = ArrivalPosition(finished=done)
        if before.file in now:
            status, offset = now[before.file], before.offset
            position = ArrivalPosition(
                before.file, offset, before.open, done=False, number=1, status=status, finished=done
            )
        return self.metadata((), position)

    def _ended(self, position: ArrivalPosition) -> ArrivalPosition:
        position = self._digested(position)
        assert position.file is not None
        if self._grown is not None and self._grown.file == position.file:
            self._check_beginning(self._grown, position.status)
            self._grown = None
        seen = SeenFile(*position.status, position.offset, position.open, position.digest)
        return replace(position, done=True, finished=(*position.finished, (position.file, seen)))

    def _digested(self, position: ArrivalPosition) -> ArrivalPosition:
        if position.file is None or position.digested == position.offset:
            return position
        chain, digest = self._format.trail(position.file, position.chain, position.digested, position.offset)
        return replace(position, chain=chain, digest=digest, digested=position.offset)

    def _at(self, position: ArrivalPosition) -> _Queued | None:
        """Return the queued file that follows `position`; the number of each is its place in the queue."""
        place = position.number - self._base
        return self._queue[place] if 0 <= place < len(self._queue) else None

    # -- marks --------------------------------------------------------------------------------------------------

    def latest(self) -> Any:
        """List the files; return a mark of what is there: a number of files, and the offset in the last of them."""
        now = self.refresh(self.planned)
        number = self._base + len(self._queue) if self._queue else self.planned.number
        if number == self.planned.number and self.planned.done:
            return [number, self.planned.offset]  # planned, but perhaps not yet committed
        last = self._queue[-1].file if number > self.planned.number else self.planned.file
        there = None if last is None else now.get(last)
        return [number, 0 if last is None or there is None else self._format.extent(last, there[0])]

    def reached(self, position: ArrivalPosition, mark: Any) -> bool:
        """Return whether what was there at `mark` has been read at `position`."""
        number, offset = mark
        return position.number > number or (position.number == number and (position.done or position.offset >= offset))

    # -- listings -----------------------------------------------------------------------------------------------

    def refresh(self, position: ArrivalPosition) -> Mapping[str, FileStatus]:
        """List the files, and queue those that are new or longer; a file that has changed otherwise is refused."""
        began = THREADS.processor()
        now = listed(self._paths)
        self._check_current(position, now)
        pending = {one.file for one in self._queue[max(0, position.number - self._base) :]}
        oldest = 0 if self._age is None else position.newest - self._age
        if not pending and not self._undo:
            self._queue.clear()
        fresh, late, waiting = [], set[str](), []
        for name, status in now.items():
            row = self._seen.get(name if name.isascii() else key_of(name))
            if row is not None and row[:2] == status:
                continue
            if name in pending or self._looked.get(name) == status or (name == position.file and not position.done):
                continue
            seen = None if row is None else SeenFile(*row)
            if seen is None and status[1] < oldest:
                late.add(name)
            elif not self._format.is_complete(name):
                waiting.append(name)
            elif seen is None or self._is_longer(name, status, seen):
                fresh.append((name, seen is not None))
                self._looked[name] = status
        self._queue_up(position.number, sorted(fresh), now)
        self._tell(late, sorted(waiting))
        if self._age is not None:
            keys = set(map(key_of, now))
            self._forgotten = [key for key, row in self._seen.items() if row[1] < oldest and key not in keys]
        took = THREADS.processor() - began
        self._next = self._monotonic() + (0.0 if took < LONGEST_PAUSE / 500 else min(LONGEST_PAUSE, 20 * took))
        self._listings += 1
        return now

    def _queue_up(self, number: int, fresh: Sequence[tuple[str, bool]], now: Mapping[str, FileStatus]) -> None:
        """Queue the files `fresh` of the listing `now`, after the file with this number."""
        if not self._queue:
            self._base = number
        last, newest = len(fresh) - 1, max(modified for _, modified in now.values()) if fresh else None
        self._queue += [_Queued(name, again, newest if i == last else None) for i, (name, again) in enumerate(fresh)]

    def _is_longer(self, name: str, status: FileStatus, seen: SeenFile) -> bool:
        """Return whether a file that was read has more to read; raise `SpoutError` if it has changed otherwise."""
        unknown = seen.read > 0 and not seen.digest
        if status[0] != seen.size if unknown else self._format.trail(name, "", 0, seen.read)[1] != seen.digest:
            raise _changed(name, status, seen.status, seen.read)
        self._looked[name] = status
        return not unknown and self._format.extent(name, status[0]) > seen.read

    def _check_current(self, position: ArrivalPosition, now: Mapping[str, FileStatus]) -> None:
        """Raise `SpoutError` if the file that is being read has disappeared, or has changed between two runs."""
        name = position.file
        if name is None or position.done:
            return
        if name not in now:
            raise SpoutError(f"file spout: {name} disappeared after it was read up to {position.offset}; restore it")
        if not self._listings and now[name] != position.status:
            self._check_beginning(position, now[name])

    def _at_status(self, position: ArrivalPosition, now: FileStatus) -> ArrivalPosition:
        """Return `position` with what its file is like now; raise `SpoutError` if it has become another file.

        What has become longer is compared at its end, once, as that takes all that was read of it.
        """
        known = position.digested and position.status != ArrivalPosition.status
        if known and now != position.status and (self._grown is None or self._grown.file != position.file):
            if now[0] > position.status[0]:
                self._grown = position
            else:
                self._check_beginning(position, now)
        return replace(position, status=now)

    def _check_beginning(self, position: ArrivalPosition, now: FileStatus) -> None:
        """Raise `SpoutError` if what `position` had read of its file is no longer the beginning of it."""
        assert position.file is not None
        trail = self._format.trail(position.file, "", 0, position.digested)
        if trail != (position.chain, position.digest):
            raise _changed(position.file, now, position.status, position.digested)

    def _tell(self, late: set[str], waiting: Sequence[str]) -> None:
        if new := sorted(late - self._late):
            self._notices.say(f"{_some(new)} passed over: older than the newest file by more than seen_files_age")
        if new := [name for name in waiting if name not in self._waiting]:
            self._notices.say(f"{_some(new)} without a footer yet: read when complete")
        self._late, self._waiting = late, tuple(waiting)

    def remarks(self) -> list[str]:
        """Return what holds now and users should know of: files that wait, and files passed over."""
        found = [f"{_some(self._waiting)} without a footer yet"] if self._waiting else []
        return found + ([f"{_some(sorted(self._late))} older than seen_files_age"] if self._late else [])


_COLUMNS = ("file", *SeenFile._fields)


def _changed(name: str, now: FileStatus, before: FileStatus, read: int) -> SpoutError:
    return SpoutError(
        f"file spout: {name} has changed since it was read up to {read}: it had {counted(before[0], 'byte')}, has "
        f"{now[0]:,} now, and its beginning differs; restore it, or give new content a new name"
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{counted(len(names), 'file')} ({shown}{', …' if len(names) > _SHOWN else ''})"
