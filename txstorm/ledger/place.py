"""Which ledger a data directory uses: it remembers that itself, so that a command needs the directory only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstorm.clients.files import write_durably
from txstorm.clients.local_file import read_whole
from txstorm.errors import DataDirectoryError, InputError
from txstorm.ledger.location import SQLITE, LedgerSpec, parse_ledger

if TYPE_CHECKING:
    from txstorm.topology.settings import Settings

LEDGER_FILE = "ledger.db"
PLACE_FILE = "ledger.json"
FORMAT, VERSION = "txstorm-ledger", 1


def default_ledger(data_dir: Path) -> LedgerSpec:
    """The SQLite file in the data directory."""
    return LedgerSpec(SQLITE, str(data_dir.absolute() / LEDGER_FILE))


def recorded_ledger(data_dir: Path) -> LedgerSpec | None:
    """The ledger that `data_dir` was run with; None when it does not say.

    Raises:
        DataDirectoryError: its record is damaged, or newer than this txstorm.
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
    except (ValueError, LookupError, TypeError, AttributeError, InputError) as error:
        newer, name, version = False, type(error).__name__, error
    what = f"got format {name!r} version {version}; update txstorm" if newer else f"got {text[:80]!r} ({version})"
    msg = f"{path}: expected the name of a ledger in format {FORMAT!r} version {VERSION}, {what}"
    raise DataDirectoryError(msg if newer else f"{msg}; restore it from a copy")


def recorded_settings(data_dir: Path) -> Settings:
    """The settings with which `data_dir` reaches its ledger; the defaults of all others."""
    from txstorm.topology.settings import Settings

    if recorded_ledger(data_dir) is None or not (data_dir / PLACE_FILE).exists():
        return Settings()
    return Settings.parse(json.loads(read_whole(data_dir / PLACE_FILE)).get("settings", {}))


def record_ledger(data_dir: Path, ledger: LedgerSpec, settings: Settings | None = None) -> None:
    """Remember that `data_dir` uses `ledger`; called when that is open and leased, before anything refers to it.

    Of `settings` those are kept that say how to reach it, so that commands do as well. None of them is a secret.
    """
    before = _reaching(ledger.kind, recorded_settings(data_dir))
    reach = before if settings is None else _reaching(ledger.kind, settings)
    there = (data_dir / PLACE_FILE).exists()  # then it is written again: its sync may have failed at an earlier start
    if not there and recorded_ledger(data_dir) == ledger and reach == before:
        return
    document = {"format": FORMAT, "version": VERSION, "ledger": ledger.within(data_dir.absolute()), "settings": reach}
    write_durably(data_dir / PLACE_FILE, json.dumps(document).encode() + b"\n")


def _reaching(kind: str, settings: Settings) -> dict[str, Any]:
    """The settings that are named after a kind of ledger and are not as they are by default."""
    from txstorm.topology.settings import Settings

    default = Settings().model_dump()
    found = settings.model_dump().items()
    return {name: value for name, value in found if name.startswith(f"{kind}_") and value != default[name]}
