"""Encoding of the ledger's values: versioned JSON, stored in the ledger if short, in a blob file if long.

A blob file is immutable and named after its digest and the epoch of the coordinator that wrote it; the ledger holds
both and the size. A coordinator writes only blobs of its own epoch and removes none of a later epoch. Thus a stale
coordinator, however long it was paused, removes no file of the current leader.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from txstorm.clients.files import read_whole, write_durably
from txstorm.errors import DataDirectoryError, LedgerCorrupt, MetadataError
from txstorm.ledger.port import MAX_VALUE

VALUE_FORMAT = 1
EPOCH_FORMAT = 2
"""Format version of a ledger value that refers to a blob whose file is named after an epoch."""
_OURS = re.compile(r"(?:([1-9][0-9]*)-)?[0-9a-f]{64}\.json(\..*\.tmp)?")


def encode_value(blob_dir: Path | None, value: Any, what: str = "value", *, epoch: int = 0) -> bytes:
    """Encode `value` as bytes for the ledger; a long value is first written durably to `blob_dir`.

    Equal values yield equal bytes. Tuples are decoded as lists.

    Args:
        blob_dir: an existing directory on a local disk; None if no long values are expected.
        value: None, bool, int, float, str, and lists, tuples and dicts (with string keys) of them.
        what: name of the value in errors.
        epoch: epoch of the coordinator that writes it; 0 if no coordinator leads.

    Raises:
        MetadataError: `value` is not JSON, would be decoded as a different value, or is too long without `blob_dir`.
    """
    try:
        fault = _fault(value, "$")
    except RecursionError:
        fault = "$: nested too deep, or contains itself"
    if fault:
        raise MetadataError(
            f"{what}: expected JSON (None, bool, int, finite float, str, list, dict with string keys), got {fault}; "
            "convert it first: it must come back unchanged after a restart"
        )
    return _encoded(blob_dir, value, what, epoch)


def _encoded(blob_dir: Path | None, value: Any, what: str, epoch: int) -> bytes:
    document = _dumps({"format": VALUE_FORMAT, "value": value}, what)
    if len(document) <= MAX_VALUE:
        return document
    if blob_dir is None:
        raise MetadataError(
            f"{what}: a value has at most {MAX_VALUE} bytes as JSON, got {len(document)}; give a blob directory"
        )
    digest = _digest(document)
    # Even if the file exists: whether it was synced is unknown.
    write_durably(_blob_path(blob_dir, digest, epoch), document)
    named = {"format": EPOCH_FORMAT, "epoch": epoch} if epoch else {"format": VALUE_FORMAT}
    return _dumps({**named, "blob": digest, "size": len(document)}, what)


def decode_value(blob_dir: Path | None, data: bytes, what: str = "value") -> Any:
    """Decode `data`, the result of `encode_value`.

    Raises:
        LedgerCorrupt: `data` or the file it names is missing or damaged.
        DataDirectoryError: it is in a newer format.
    """
    document = _loads(data, what)
    if "blob" in document:
        document = _loads(_read_blob(blob_dir, document, what), what)
    if "value" not in document:
        raise _corrupt(what, "a document without value")
    return document["value"]


def sweep_blobs(blob_dir: Path, kept: Iterable[bytes], *, epoch: int = 0) -> list[str]:
    """Remove blob files of epochs up to `epoch` that none of the encoded values `kept` refers to; return their names.

    Precondition: no process encodes into `blob_dir` in these epochs, since a blob that is written but not yet in the
    ledger would be removed as an orphan; and `kept` holds *every* value of the ledger that was encoded with
    `blob_dir`. Writers in later epochs are safe.
    """
    documents = (_loads(data, "kept value") for data in kept)
    named = {_blob_name(document["blob"], document.get("epoch", 0)) for document in documents if "blob" in document}
    ours = ((path.name, _OURS.fullmatch(path.name)) for path in blob_dir.iterdir())
    orphans = sorted(name for name, found in ours if found and int(found[1] or 0) <= epoch and name not in named)
    for name in orphans:
        (blob_dir / name).unlink()
    return orphans


class Values(Protocol):
    """Port to the encoding of values as bytes in a ledger."""

    def encode(self, value: Any, what: str, epoch: int) -> bytes:
        """Encode `value`; see `encode_value`."""

    def decode(self, data: bytes, what: str) -> Any:
        """Decode `data`; see `decode_value`."""

    def sweep(self, kept: Iterable[bytes], epoch: int) -> None:
        """Remove files that none of the values `kept` refers to; see `sweep_blobs`."""


class BlobValues:
    """The encoding of a real ledger: versioned JSON, with long values in files of `blob_dir`.

    What it encodes is made by txstorm, or was checked when a user's code returned it; all of it is checked when read.
    """

    def __init__(self, blob_dir: Path) -> None:
        self._dir = blob_dir

    def encode(self, value: Any, what: str, epoch: int) -> bytes:
        """Encode `value`."""
        return _encoded(self._dir, value, what, epoch)

    def decode(self, data: bytes, what: str) -> Any:
        """Decode `data`."""
        return decode_value(self._dir, data, what)

    def sweep(self, kept: Iterable[bytes], epoch: int) -> None:
        """Remove the files that none of the values `kept` refers to."""
        sweep_blobs(self._dir, kept, epoch=epoch)


def _fault(value: Any, where: str) -> str | None:
    """Describe the first part of `value` that JSON cannot represent or would silently change; None if there is none."""
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            return f"{where}: the key {odd[0]!r}"
        return next(filter(None, (_fault(item, f"{where}.{key}") for key, item in value.items())), None)
    if isinstance(value, (list, tuple)):
        return next(filter(None, (_fault(item, f"{where}[{i}]") for i, item in enumerate(value))), None)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where}: {value}"
    return None if value is None or isinstance(value, (str, int, float)) else f"{where}: {type(value).__name__}"


def _dumps(document: dict[str, Any], what: str) -> bytes:
    try:
        # ASCII: file names may hold lone surrogates, which UTF-8 cannot encode.
        return json.dumps(document, sort_keys=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise MetadataError(f"{what}: expected JSON, got {error}") from error


def _loads(data: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _corrupt(what, f"{len(data)} bytes that are not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int):
        raise _corrupt(what, "JSON without a format")
    newest = EPOCH_FORMAT if "blob" in document else VALUE_FORMAT
    if document["format"] > newest:
        raise DataDirectoryError(
            f"{what}: expected format {newest}, got {document['format']}; use the txstorm that wrote it"
        )
    return document


def _read_blob(blob_dir: Path | None, document: dict[str, Any], what: str) -> bytes:
    digest, size, epoch = document["blob"], document.get("size"), document.get("epoch", 0)
    if blob_dir is None or type(epoch) is not int or not _OURS.fullmatch(_blob_name(digest, epoch)):
        raise _corrupt(what, f"the name of a file {digest!r}, epoch {epoch!r} and the directory {blob_dir}")
    path = _blob_path(blob_dir, digest, epoch)
    try:
        data = read_whole(path)
    except OSError as error:
        raise _corrupt(what, f"{path}: {error.strerror}") from error
    if len(data) != size or _digest(data) != digest:
        raise _corrupt(what, f"{path}: {len(data)} bytes instead of {size}, or with another digest")
    return data


def _blob_path(blob_dir: Path, digest: str, epoch: int) -> Path:
    return blob_dir / _blob_name(digest, epoch)


def _blob_name(digest: str, epoch: int) -> str:
    return f"{epoch}-{digest}.json" if epoch else f"{digest}.json"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def _corrupt(what: str, found: str) -> LedgerCorrupt:
    return LedgerCorrupt(f"{what}: expected what txstorm stored, got {found}; restore the data directory from a backup")
