"""Order of the batches of a streaming query: which of them is the next transaction, and which came before."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from txstorm.errors import SpoutError
from txstorm.spouts.frames import StreamBatch


class Verdict(Enum):
    """Verdict on a batch.

    - `NEXT`: it is the next transaction.
    - `AGAIN`: the transaction that was planned for it, and is not decided, is processed once more.
    - `DECIDED`: its transaction is the last decided one; nothing is done.
    - `OLDER`: it is before the last decided one; nothing is done if its offsets are those recorded.
    - `ADOPTED`: as `NEXT`, in place of a transaction that was planned for a batch of another query.
    """

    NEXT = "next"
    AGAIN = "again"
    DECIDED = "decided"
    OLDER = "older"
    ADOPTED = "adopted"


def judge(batch: StreamBatch, committed: Any, undecided: Any, *, adopt: bool) -> Verdict:
    """Decide what is done with a batch.

    Args:
        batch: the batch.
        committed: the metadata of the last committed transaction; None: there is none.
        undecided: the metadata of the transaction that is planned after it; None: there is none.
        adopt: whether a batch of another query is the next one, unless it was planned early.

    Raises:
        SpoutError: the batch does not follow those before it.
    """
    last = undecided or committed
    if last is None:
        if batch.number == 0 or adopt:
            return Verdict.NEXT
        raise _refused(batch, f"{_batches(0, batch.number - 1)} of the query never came to this data directory")
    if last["query"] != batch.query:
        if adopt:
            if batch.early:
                raise _refused(batch, _planned_early(committed))
            return Verdict.NEXT if undecided is None else Verdict.ADOPTED
        raise _refused(batch, _another(committed, last["query"]))
    if undecided is not None and batch.number == undecided["batch"]:
        if undecided["offsets"] != batch.offsets:
            raise _refused(batch, _changed(undecided["offsets"], batch))
        return Verdict.AGAIN
    return _judge_committed(batch, committed, undecided)


def _judge_committed(batch: StreamBatch, committed: Any, undecided: Any) -> Verdict:
    known = committed is not None and committed["query"] == batch.query
    last = committed["batch"] if known else undecided["batch"] - 1 if undecided else -1
    if batch.number == last + 1 and undecided is None:
        return Verdict.NEXT
    if batch.number > last:
        raise _refused(batch, f"{_batches(last + 1, batch.number - 1)} of the query never came")
    if not known or batch.number < last:
        return Verdict.OLDER
    if committed["offsets"] != batch.offsets:
        raise _refused(batch, _changed(committed["offsets"], batch))
    return Verdict.DECIDED


def check_older(batch: StreamBatch, recorded: Any) -> None:
    """Raise `SpoutError` unless an older batch has the offsets that are `recorded` for it (None: nothing is)."""
    if recorded is None:
        raise _refused(batch, "it is older than the last committed one, and the history has it no more")
    if recorded["offsets"] != batch.offsets:
        raise _refused(batch, _changed(recorded["offsets"], batch))


def begin_at(offsets: list[Any]) -> str:
    """Return where another query has to begin to read on after `offsets`, in the form of the sources' own options."""
    return "; ".join(_option(offset) for offset in offsets)


def _option(offset: Any) -> str:
    text = json.dumps(offset)
    if isinstance(offset, dict) and offset and all(isinstance(one, dict) for one in offset.values()):
        return f"startingOffsets={text}"
    if isinstance(offset, dict) and "reservoirVersion" in offset:
        version, index = offset["reservoirVersion"], offset.get("index", -1)
        inside = f" (of which the first {index + 1} files were read)" if index >= 0 else ""
        return f"startingVersion={version}{inside}"
    if isinstance(offset, dict) and "logOffset" in offset:
        return f"the files that are no part of the first {offset['logOffset'] + 1} listings of the file source"
    return f"offset {text}"


def _another(committed: Any, query: str) -> str:
    if committed is None:
        return f"the topology has a batch of query {query}; was the checkpoint deleted?"
    after = begin_at(committed["offsets"])
    return (
        f"the last committed one is batch {committed['batch']} of query {committed['query']}; was the checkpoint "
        "deleted? Continue with its checkpoint; or delete the new one, begin a query after that batch "
        f"({after}) and pass adopt=True, which takes the query's first batch as the next one"
    )


def _planned_early(committed: Any) -> str:
    after = "" if committed is None else f" ({begin_at(committed['offsets'])})"
    return (
        "it was planned before it could be adopted, and where it begins cannot be changed any more: delete the query's "
        f"checkpoint, begin a query after the last committed batch{after}, and pass adopt=True from its start on"
    )


def _changed(recorded: list[Any], batch: StreamBatch) -> str:
    return (
        f"its offsets are {json.dumps(batch.offsets)}, expected {json.dumps(recorded)} as recorded: it is another "
        "batch; was the checkpoint exchanged?"
    )


def _batches(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def _refused(batch: StreamBatch, why: str) -> SpoutError:
    return SpoutError(f"batch {batch.number} of query {batch.query} is refused: {why}")
