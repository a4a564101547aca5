"""Text files as sinks, exactly once: one whose lines are appended, and one that is replaced.

Beside ``PATH`` stands ``PATH.mark``, ``{"format": 1, "length", "mark"}``: the last transaction in the file, and the
length that the file had after it. Publishing cuts the file to that length, appends, syncs, and then replaces the mark;
whatever was interrupted is cut off and appended again, so that each line is there once.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.external import Mark, Outlet
from txstorm.api.names import name_fault
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple
from txstorm.clients.files import sync, sync_names, write_durably
from txstorm.errors import DataDirectoryError, InputError, StateError

FORMAT = 1
TEXT = "text"
"""Column of the outlets."""
Text = Callable[[tuple[Any, ...]], str]


class LinesSink(BatchBolt, Committer):
    """Committer that appends a line per tuple to a text file, exactly once and in txid order.

    Example::

        builder.set_bolt("out", LinesSink("counts.txt")).global_grouping("counts")

    A file that exists is continued. Its directory must exist; the file has one owner, whose mark is in ``PATH.mark``.

    Args:
        path: the file.
        text: a function of a tuple's values that returns its line; by default the values, joined by a comma and a
            blank.
        name: name of the outlet, unique in the topology; by default made of that of the file.

    Raises:
        InputError: `text` is no function, or `name` is no name.
    """

    whole = False

    def __init__(self, path: str | os.PathLike[str], text: Text | None = None, name: str | None = None) -> None:
        self.path = Path(os.path.abspath(path))
        chosen = re.sub(r"[^A-Za-z0-9_-]", "-", self.path.name) if name is None else name
        chosen = chosen if name is not None or chosen[:1].isalpha() else f"file-{chosen}"
        fault = name_fault(f"{type(self).__name__}: name", chosen)
        if fault is None and text is not None and not callable(text):
            fault = f"{type(self).__name__}: text: expected a function of a tuple's values, got {text!r}"
        if fault is not None:
            raise InputError(fault)
        self._text = text or joined
        self.outlet = Outlet(chosen, {TEXT: str}, TextFileWriter(self.path, whole=self.whole))

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._sink = context.sink(self.outlet.name)
        self._where = f"sink {self.outlet.name!r} ({context.component}[{context.task}], txid {attempt.txid})"
        self._texts: list[str] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Make the text of a tuple; raise `StateError` if it is none."""
        text = self._text(tuple.values)
        if not isinstance(text, str) or (not self.whole and ("\n" in text or "\r" in text)):
            what = "a line has no line end" if isinstance(text, str) else f"got {type(text).__name__}"
            msg = f"{self._where}: expected {'a text' if self.whole else 'a line'} of {tuple!r:.200}: {what}"
            raise StateError(msg)
        self._texts.append(text)

    def finish_batch(self) -> None:
        """Hand the texts to the outlet, which writes them once the transaction is decided."""
        for text in self._texts[-1:] if self.whole else self._texts:
            self._sink.append(text)


class FileSink(LinesSink):
    """Committer that replaces a text file by the text of the newest tuple; readers see one or the other.

    Args:
        path: the file.
        text: a function of a tuple's values that returns the text; by default as for `LinesSink`.
        name: as for `LinesSink`.
    """

    whole = True


class TextFileWriter:
    """`OutletWriter` for a local text file.

    Args:
        path: the file.
        whole: whether it is replaced by the last row of each group; otherwise rows are appended as lines.
    """

    def __init__(self, path: Path, *, whole: bool) -> None:
        self._path = path
        self._mark = path.with_name(f"{path.name}.mark")
        self._whole = whole

    def open(self, outlet: str, topology: str, incarnation: str) -> None:
        """Check that the file can be written; see `OutletWriter`."""
        if not self._path.parent.is_dir() or (self._path.exists() and not self._path.is_file()):
            what = "its directory does not exist" if not self._path.parent.is_dir() else "it is no file"
            msg = f"outlet {outlet!r}: {self._path} cannot be written: {what}; create it, or name another path"
            raise InputError(msg)

    def published(self) -> Mark | None:
        """Return the stored mark; see `OutletWriter`."""
        return self._stored()[0]

    def publish(self, rows: pa.Table, expected: Mark | None, mark: Mark) -> bool:
        """Write the rows and the mark, if `expected` is the stored one; see `OutletWriter`."""
        texts = rows.column(TEXT).to_pylist()
        with self._locked():
            found, length = self._stored()
            if found != expected:
                return False
            if self._whole:
                length = self._replaced(texts[-1:]) or length or 0
            else:
                length = self._appended(texts, length)
            faults.point("file.written")
            content = {"format": FORMAT, "length": length, "mark": asdict(mark)}
            write_durably(self._mark, json.dumps(content).encode())
        return True

    def close(self) -> None:
        """Do nothing: files are open only while they are written."""

    def _replaced(self, texts: list[str]) -> int:
        data = "".join(f"{text}\n" for text in texts).encode()
        if texts:
            write_durably(self._path, data)
        return len(data)

    def _appended(self, texts: list[str], length: int | None) -> int:
        """Cut the file to `length` (None: leave what is there), append `texts` as lines, and return its length."""
        is_new = not self._path.exists()
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:
            there = os.fstat(file.fileno()).st_size
            length = there if length is None else length
            if there < length:
                raise StateError(f"{self._path} has {there} bytes, expected {length}: it was cut since; restore it")
            if texts or there > length:
                file.truncate(length)
                file.seek(length)
                file.write("".join(f"{text}\n" for text in texts).encode())
                file.flush()
                sync(file.fileno(), self._path)
            length = file.seek(0, os.SEEK_END)
        if is_new:
            sync_names(self._path.parent, [self._path])
        return length

    def _stored(self) -> tuple[Mark | None, int | None]:
        """Return the mark, and the length of the file after its transaction; None of both if there is no mark yet."""
        try:
            content = json.loads(self._mark.read_bytes())
            if content["format"] > FORMAT:
                msg = f"{self._mark} has format {content['format']}, this txstorm knows {FORMAT}; run the newer one"
                raise DataDirectoryError(msg)
            return Mark(**content["mark"]), int(content["length"])
        except FileNotFoundError:
            return None, None
        except (ValueError, TypeError, KeyError) as error:
            msg = f"{self._mark} is no mark of a sink ({type(error).__name__}: {error}); restore it with {self._path}"
            raise StateError(msg) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep out another coordinator, which may have been suspended while it was writing."""
        handle = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def joined(values: tuple[Any, ...]) -> str:
    """Return the values as one text, joined by a comma and a blank."""
    return ", ".join(str(value) for value in values)
