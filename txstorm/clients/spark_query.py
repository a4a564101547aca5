"""A Structured Streaming query as its function for `foreachBatch` sees it: its id, offsets and checkpoint."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any

from txstorm.clients.spark import is_connect
from txstorm.errors import InputError

_TEMPORARY = re.compile(r"/temporary-[0-9a-f-]{36}/?$")
_STATEFUL = [f"org.apache.spark.sql.execution.streaming.{room}StateStoreWriter" for room in ("operators.stateful.", "")]
"""The class of an operator that writes state, as of Spark 4.1 and of 4.0."""


class StreamingQuery:
    """The query whose batch `frame` is; made on the thread that Spark calls the function on.

    Attributes:
        id: its id, which is that of its checkpoint.
        run: the id of its present run.

    Raises:
        InputError: `frame` is not the batch of a streaming query, or of one that cannot be continued exactly.
    """

    def __init__(self, frame: Any) -> None:
        if is_connect(frame.sparkSession):
            raise InputError(CONNECT)
        self._session = frame.sparkSession
        context = self._session.sparkContext
        self.id: str = context.getLocalProperty("sql.streaming.queryId") or ""
        # The batch is of a session that Spark has cloned for the query, whose own manager does not know the query.
        shared, java = self._session._jsparkSession.sharedState(), self._session._jvm.java  # noqa: SLF001
        found = shared.activeStreamingQueries().get(java.util.UUID.fromString(self.id)) if self.id else None
        if found is None:
            raise InputError(
                "a function of foreach_batch was called outside a streaming query; pass it to writeStream.foreachBatch"
            )
        self._execution = found
        self.run = str(found.runId().toString())

    def check(self) -> None:
        """Raise `InputError` unless a batch can come again, with the same offsets, after a crash."""
        kind = self._execution.getClass().getSimpleName()
        if kind != "MicroBatchExecution":
            raise InputError(
                f"the query runs as {kind}, which writes its offsets after a batch began, so that it could come again "
                "with other rows: leave out asyncProgressTrackingEnabled"
            )
        if self.checkpoint is None:
            raise InputError(
                "the query has no checkpoint that stays, so it would begin anew after a crash: set option "
                "checkpointLocation, or use write_stream, which sets it"
            )
        sources = self._execution.sources()
        for number in range(sources.size()):
            name = sources.apply(number).getClass().getSimpleName()
            if name in ("TextSocketMicroBatchStream", "ContinuousMemoryStream"):
                msg = f"a source of the query ({name}) cannot read a batch again with the same rows; use one that can"
                raise InputError(msg)

    @property
    def checkpoint(self) -> str | None:
        """The directory of its checkpoint, as a URI; None if Spark made a temporary one."""
        root = str(self._execution.resolvedCheckpointRoot())
        return None if _TEMPORARY.search(root) else root

    @property
    def is_active(self) -> bool:
        """Whether the query has neither been stopped nor failed; may be asked on any thread."""
        return bool(self._execution.isActive())

    @property
    def is_stateful(self) -> bool:
        """Whether Spark keeps state for the query, which it writes while it computes a batch."""
        waiting, kind = [self._execution.lastExecution().executedPlan()], self._stateful_class()
        while waiting:
            plan = waiting.pop()
            if kind.isInstance(plan):
                return True
            children = plan.children()
            waiting += [children.apply(number) for number in range(children.size())]
        return False

    def _stateful_class(self) -> Any:
        classes = self._session._jvm.java.lang.Class  # noqa: SLF001
        for name in _STATEFUL[:-1]:
            with suppress(Exception):  # py4j's, if there is no such class
                return classes.forName(name)
        return classes.forName(_STATEFUL[-1])

    def offsets(self, batch: int) -> list[Any]:
        """Return the offset of each source at the end of a batch, as the checkpoint has them; None for an unread one.

        Raises:
            InputError: the checkpoint has them in an unknown form.
        """
        offsets = self._planned(batch).offsets()
        texts = [offsets.apply(number) for number in range(offsets.size())]
        return [json.loads(one.get().json()) if one.isDefined() else None for one in texts]

    def planned_at(self, batch: int) -> float:
        """Return when Spark planned a batch, in seconds since 1970; infinity if it is not known."""
        found = self._planned(batch).productElement(1)  # its name differs between versions
        return found.get().batchTimestampMs() / 1000 if found.isDefined() else math.inf

    def _planned(self, batch: int) -> Any:
        """Return the entry of the checkpoint for a batch."""
        found = self._execution.offsetLog().get(batch)
        kind = found.get().getClass().getSimpleName() if found.isDefined() else "none"
        if kind != "OffsetSeq":
            msg = f"checkpoint {self.checkpoint}: batch {batch} has offsets of the kind {kind}, expected OffsetSeq"
            raise InputError(msg)
        return found.get()


CONNECT = (
    "sessions of Spark Connect run the function of foreachBatch on the server, away from the driver of the topology; "
    "use a classic session (SparkSession.builder.master(…), or spark-submit)"
)


def stop_queries(session: Any, checkpoint: str) -> None:
    """Stop the active queries of a session that have their checkpoint in this directory, and wait until they have."""
    for query in session.streams.active:
        root = str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001 - as above
        if root.removeprefix("file:").replace("//", "/").rstrip("/") == checkpoint:
            query.stop()


def read_to_end(frame: Any) -> None:
    """Compute all rows of a DataFrame, and drop them."""
    frame.write.format("noop").mode("overwrite").save()
