"""Modules that a test changes as a user would, and directories that must not change."""

import hashlib
import shutil
import sys
from pathlib import Path


def tree(directory: Path) -> dict[str, str]:
    """Return the SHA-256 digest of every file by path, except SQLite's -shm and -wal files, which readers may add."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.name.endswith(("-shm", "-wal"))
    }


def change(path: Path, old: str, new: str) -> None:
    """Replace a part of a file; if it is a module, this process imports it anew."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    sys.modules.pop(path.stem, None)
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
