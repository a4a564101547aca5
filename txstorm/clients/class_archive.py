"""Archive of the Java classes that a Spark session loads: sessions start in half the time.

It is Java's own, of class data sharing: loaded classes as they are in memory, mapped from a file. Sessions of
`txstorm.clients.spark` use it if there is one for their Java and Spark; Java ignores one that does not match.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstorm.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".jsa"
_UNFINISHED = ".making-"
"""Prefix of the directory in which an archive is made; one is left by a process that was killed."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Java's warnings about archives go to standard output, which belongs to the program."""


def java_program() -> str | None:
    """Return the path of the Java that Spark starts, found through JAVA_HOME or PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(os.path.join(home, "bin", "java") if home else "java")


def _archives() -> Path | None:
    """Return the directory of this user's archives; None if the user has no home directory."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.expanduser("~/.cache")
    return Path(cache) / "txstorm" / "classes" if os.path.isabs(cache) else None


def archive() -> Path | None:
    """Return where the archive for this Java and this pyspark is, or would be.

    None if one of them is missing, or there is no directory for it.
    """
    java, pyspark, place = java_program(), _pyspark(), _archives()
    if java is None or pyspark is None or place is None:
        return None
    binary = Path(java).resolve()
    release, jars = binary.parent.parent / "release", pyspark / "jars"
    names = sorted((jar.name, jar.stat().st_size) for jar in jars.glob("*.jar"))
    about = [binary, _text(release), jars, names, os.environ.get("SPARK_HOME")]
    return place / f"spark-{hashlib.blake2b(repr(about).encode(), digest_size=8).hexdigest()}{_SUFFIX}"


def java_options() -> str:
    """Return the options with which Java uses the archive; empty if there is none that only this user can write."""
    try:
        found = archive()
        usable = found is not None and _is_own(found)
    except OSError:
        return ""
    return f'"-XX:SharedArchiveFile={found}" {_QUIET}' if usable else ""


def make_archive(
    make_session: Callable[[str], Any], target: Path | None = None, *, table_format: str = "parquet"
) -> Path:
    """Start a session, use it as txstorm does, and have Java archive the classes when it ends; return the archive.

    Takes up to a minute, and 200 MB. Call in a process that has not used Spark. `target`: None for the file that
    `java_options` uses. `table_format`, of the table that the session writes and reads: ``parquet`` or ``delta``.

    Raises:
        InputError: there is no Java or no pyspark, Java cannot write archives, or the directory cannot be written.
    """
    target = target or archive()
    if target is None:
        raise InputError("an archive needs Java, pyspark (see txstorm doctor) and a home directory (or XDG_CACHE_HOME)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=_UNFINISHED) as place:
            made = Path(place) / target.name
            _end(_used(make_session(f'{_QUIET} "-XX:ArchiveClassesAtExit={made}"'), table_format))
            if not made.exists():
                raise InputError("this Java has written no archive of classes; OpenJDK 17 or newer does: use that")
            made.replace(target)
    except OSError as error:
        msg = f"{target}: the archive cannot be written: {error.strerror or error}; check disk and permissions"
        raise InputError(msg) from error
    return target


def delete_archives() -> list[Path]:
    """Delete all archives of this user; return them. Sessions that use one go on, and later ones start as without."""
    place = _archives()
    if place is None:
        return []
    for left in place.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    found = sorted(place.glob(f"*{_SUFFIX}"))
    for one in found:
        one.unlink(missing_ok=True)
    return found


def _used(session: Any, table_format: str) -> Any:
    """Run a job with a Python stage; write, append to, replace in and read a table."""
    rows = session.range(0, 4, 1, 2).mapInArrow(_same, "id long").repartition(2, "id")
    with tempfile.TemporaryDirectory() as table:
        for mode in ("overwrite", "append"):
            rows.write.format(table_format).mode(mode).save(table)
        found = session.read.format(table_format).load(table)
        found.createOrReplaceTempView("found")
        session.sql("SELECT id, count(*) AS n FROM found WHERE id > 1 GROUP BY id ORDER BY id").toArrow()
    return session


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _end(session: Any) -> None:
    java = session.sparkContext._gateway.proc  # noqa: SLF001 - it ends with its input, and Spark does not wait for that
    session.stop()
    java.stdin.close()
    java.wait()


def _pyspark() -> Path | None:
    import importlib.util

    found = importlib.util.find_spec("pyspark")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _is_own(file: Path) -> bool:
    """Return whether a file exists that only this user, or root, can have written: Java trusts what is in it."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
