"""Location of a ledger: its name on the command line (``sqlite:PATH``, ``delta:URI``, …), and its record on disk.

A data directory records which ledger it uses, so that a command needs only the directory.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from txstorm.api.names import near
from txstorm.clients.files import read_whole, write_durably
from txstorm.errors import DataDirectoryError, InputError
from txstorm.masks import masked_url

if TYPE_CHECKING:
    from txstorm.topology.settings import Settings


SQLITE, ZOOKEEPER, DELTA, MEMORY = "sqlite", "zookeeper", "delta", "memory"
FORMS = {
    SQLITE: "sqlite:PATH",
    ZOOKEEPER: "zookeeper:HOSTS/CHROOT",
    DELTA: "delta:URI",
    MEMORY: "memory",
}
EXPECTED = " | ".join(FORMS.values())
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class LedgerSpec:
    """The kind and location of a ledger.

    Attributes:
        kind: ``sqlite``, ``zookeeper``, ``delta`` or ``memory``.
        place: an absolute path (sqlite, delta), a URI (delta), HOSTS/CHROOT (zookeeper), or empty (memory).
    """

    kind: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}" if self.place else self.kind

    @property
    def hosts(self) -> str:
        """The servers of a ``zookeeper`` ledger, separated by commas."""
        return self.place.partition("/")[0]

    @property
    def chroot(self) -> str:
        """The path of a ``zookeeper`` ledger, with its leading slash; empty for the root."""
        return "".join(self.place.partition("/")[1:])

    def within(self, base: Path) -> str:
        """Return the ledger's name; a path below `base` is made relative to it, to remain valid if `base` is moved."""
        path = Path(self.place)
        if self.kind in (SQLITE, DELTA) and path.is_absolute() and path.is_relative_to(base):
            return f"{self.kind}:./{path.relative_to(base)}"
        return str(self)


def parse_ledger(text: str, base: Path | None = None) -> LedgerSpec:
    """Parse the name of a ledger; relative paths are relative to `base`, by default the current directory.

    Raises:
        InputError: the name has an unknown form, or contains a password.
    """
    kind, colon, place = text.strip().partition(":")
    if kind not in FORMS:
        raise _wrong(text, f"got {kind!r}{near(kind.lower(), list(FORMS))}")
    if "\0" in text:
        raise _wrong(text, "got a NUL")
    if kind == MEMORY:
        if colon:
            raise _wrong(text, "an in-memory ledger has no location: it ends with the process")
        return LedgerSpec(MEMORY)
    if not place:
        raise _wrong(text, f"got nothing after {kind!r}")
    return _READERS[kind](text, place, (base or Path.cwd()).absolute())


def _sqlite(text: str, place: str, base: Path) -> LedgerSpec:
    if _SCHEME.match(place) and not place.lower().startswith("file://"):
        raise _wrong(text, "SQLite's locks and syncs hold on local disks only; take a zookeeper or delta ledger")
    path = _local(place, base)
    if path.is_dir():
        raise _wrong(text, f"{path} is a directory; name a file, such as {path / 'ledger.db'}")
    return LedgerSpec(SQLITE, str(path))


def _delta(text: str, place: str, base: Path) -> LedgerSpec:
    if not _SCHEME.match(place) or place.lower().startswith("file://"):
        return LedgerSpec(DELTA, str(_local(place, base)))
    parts = urlsplit(place)
    if parts.password is not None or (parts.username is not None and parts.scheme not in ("abfs", "abfss")):
        raise _wrong(text, "credentials do not belong here, where they would be stored: give them in the environment")
    return LedgerSpec(DELTA, place.rstrip("/"))


def _zookeeper(text: str, place: str, base: Path) -> LedgerSpec:
    hosts, _, chroot = place.partition("/")
    if "@" in place:
        raise _wrong(text, "a password does not belong here, where it would be stored: give it in the environment")
    wrong = [host for host in hosts.split(",") if not _HOST.fullmatch(host)]
    if wrong:
        raise _wrong(text, f"got {wrong[0]!r} for a server; expected host or host:port, with commas between them")
    names = [name for name in chroot.split("/") if name]
    if any(name in (".", "..") for name in names):
        raise _wrong(text, f"got the path {'/' + chroot!r}")
    return LedgerSpec(ZOOKEEPER, "/".join([hosts, *names]))


_READERS = {SQLITE: _sqlite, DELTA: _delta, ZOOKEEPER: _zookeeper}


def _local(place: str, base: Path) -> Path:
    if place.lower().startswith("file://"):
        place = unquote(urlsplit(place).path)
    # Symbolic links are not resolved: if a link is redirected, the ledger is at its new target.
    return Path(os.path.normpath(base / place))


def _wrong(text: str, found: str) -> InputError:
    return InputError(f"ledger {masked_url(text)!r}: expected {EXPECTED}; {found}")


LEDGER_FILE = "ledger.db"
PLACE_FILE = "ledger.json"
FORMAT, VERSION = "txstorm-ledger", 1


def default_ledger(data_dir: Path) -> LedgerSpec:
    """Return the default ledger of `data_dir`: the SQLite file in it."""
    return LedgerSpec(SQLITE, str(data_dir.absolute() / LEDGER_FILE))


def recorded_ledger(data_dir: Path) -> LedgerSpec | None:
    """Return the ledger that `data_dir` records; None if it records none.

    Raises:
        DataDirectoryError: the record is damaged, or newer than this txstorm.
    """
    path = data_dir / PLACE_FILE
    try:
        text = read_whole(path).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return default_ledger(data_dir) if (data_dir / LEDGER_FILE).exists() else None
    except OSError as error:
        msg = f"{path}: expected a file that this user can read, got {error.strerror}; check its permissions"
        raise DataDirectoryError(msg) from error
    return _read(path, text, data_dir)


def _read(path: Path, text: str, data_dir: Path) -> LedgerSpec:
    try:
        document = json.loads(text)
        name, version, ledger = document["format"], document["version"], document["ledger"]
        newer = name == FORMAT and type(version) is int and version > VERSION
        if not newer and (name, version) == (FORMAT, VERSION):
            return parse_ledger(ledger, data_dir)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, InputError) as error:
        newer, name, version = False, type(error).__name__, error
    what = f"got format {name!r} version {version}; update txstorm" if newer else f"got {text[:80]!r} ({version})"
    msg = f"{path}: expected the name of a ledger in format {FORMAT!r} version {VERSION}, {what}"
    raise DataDirectoryError(msg if newer else f"{msg}; restore it from a copy")


def recorded_settings(data_dir: Path) -> Settings:
    """Return the recorded settings for connecting to the ledger of `data_dir`; all others have default values."""
    from txstorm.topology.settings import Settings

    if recorded_ledger(data_dir) is None or not (data_dir / PLACE_FILE).exists():
        return Settings()
    return Settings.parse(json.loads(read_whole(data_dir / PLACE_FILE)).get("settings", {}))


def record_ledger(data_dir: Path, ledger: LedgerSpec, settings: Settings | None = None) -> None:
    """Record that `data_dir` uses `ledger`; call when the ledger is open and leased, before anything refers to it.

    The `settings` for connecting to it are also recorded, so that commands can use it. None of them is a secret.
    """
    before = _reaching(ledger.kind, recorded_settings(data_dir))
    reach = before if settings is None else _reaching(ledger.kind, settings)
    # An existing file is always rewritten: its sync may have failed at an earlier start.
    exists = (data_dir / PLACE_FILE).exists()
    if not exists and recorded_ledger(data_dir) == ledger and reach == before:
        return
    document = {"format": FORMAT, "version": VERSION, "ledger": ledger.within(data_dir.absolute()), "settings": reach}
    write_durably(data_dir / PLACE_FILE, json.dumps(document).encode() + b"\n")


def _reaching(kind: str, settings: Settings) -> dict[str, Any]:
    """Return the settings whose names begin with the ledger's `kind` and whose values differ from the defaults."""
    from txstorm.topology.settings import Settings

    default = Settings().model_dump()
    found = settings.model_dump().items()
    return {name: value for name, value in found if name.startswith(f"{kind}_") and value != default[name]}
