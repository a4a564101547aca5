"""DataFrames of a pack: batches of a frame spout, and frame bolts behind it, as rows for the tasks of the first stage.

It is one module, as the driver's half writes the columns, and the workers' half reads them.
"""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.clients import spark as client
from txstorm.clients.spark_frames import frame_types, observed, plan_text
from txstorm.ddl import RESERVED, FrameColumn, columns_fault, columns_text, quoted
from txstorm.engine.port import BATCH, SOURCE, ErrorRow, Pack, Processed, TxidInput
from txstorm.engine.program import Program
from txstorm.engine.task.error_rows import RAISED, error_row
from txstorm.errors import EngineError, InputError, TxstormError
from txstorm.user_code import Caught, described, ignore

_TXID, _FROM = f"{RESERVED}txid", f"{RESERVED}from"
_TIME = pa.timestamp("us", "UTC")
_numbers = itertools.count(1)
_PARTLY = re.compile(r"Limit|Offset|Tail|MapIn|MapPartitions|CoGroup")
"""Operators in the plan of a DataFrame that need not read all rows of their input."""
Observed = Callable[[str], Mapping[str, int] | None]
Compute = Callable[[Pack, Callable[[], Any]], tuple[list[Processed], Observed]]


def session_here() -> Any:
    """Return the Spark session of this thread or process; None if there is none."""
    try:
        return client.active_session()
    except TxstormError:
        return None


def columns_of(session: Any, function: Callable[..., Any], inputs: Sequence[Mapping[str, FrameColumn]]) -> str:
    """Return the columns, in DDL, of what a frame bolt's function returns for DataFrames without rows.

    Raises:
        InputError: the session is not a classic one, or the function returns no DataFrame of it.
    """
    check_classic(session)
    types = [{name: one.spark for name, one in columns.items()} for columns in inputs]
    return columns_text(dict(frame_types(_called(function, _empty(session, types), session))))


def plan_of(function: Callable[..., Any], inputs: Sequence[Mapping[str, FrameColumn]]) -> str:
    """Return Spark's plan for what a frame bolt's function returns, with its inputs as scans; empty without a session.

    Raises:
        InputError: the function returns no DataFrame.
    """
    session = session_here()
    if session is None or client.is_connect(session):
        return ""
    rows = session.sparkContext.emptyRDD()  # unlike a list, the optimizer does not know that it is empty
    scans = [
        session.createDataFrame(rows, columns_text({name: one.spark for name, one in columns.items()}))
        for columns in inputs
    ]
    shown = io.StringIO()
    with redirect_stdout(shown):
        _called(function, scans, session).explain()
    return shown.getvalue().strip()


def _empty(session: Any, inputs: Iterable[Mapping[str, str]]) -> list[Any]:
    """Return DataFrames without rows, given the types of their columns."""
    return [session.createDataFrame([], columns_text(columns)) for columns in inputs]


def _called(
    function: Callable[..., Any] | None, inputs: Sequence[Any], session: Any, columns: Mapping[str, str] | None = None
) -> Any:
    """Return what the function of a frame bolt makes of its inputs.

    Raises:
        InputError: that is no DataFrame of the application of `session`, or it has not these columns (None: any, each
            once).
    """
    assert function is not None
    given = function(*inputs)
    if not hasattr(given, "sparkSession") or not hasattr(given, "selectExpr"):
        raise InputError(f"its function returned {described(given)}, expected a DataFrame")
    if client.is_connect(given.sparkSession) or given.sparkSession.sparkContext is not session.sparkContext:
        raise InputError(
            "its function returned a DataFrame of another Spark application, or of Spark Connect; use those it is given"
        )
    found = frame_types(given)
    if given.isStreaming:
        raise InputError("its function returned a streaming DataFrame, expected one of rows that are there")
    if fault := columns_fault(dict(found) if columns is None else columns, found):
        raise InputError(f"the columns of its result are not those declared, or of DataFrames without rows: {fault}")
    return given


def check_classic(session: Any) -> None:
    """Raise `InputError` if `session` is one of Spark Connect."""
    if client.is_connect(session):
        raise InputError("frame spouts and frame bolts need a classic Spark session; this one is of Spark Connect")


def check(session: Any, program: Program) -> None:
    """Raise `InputError` unless the functions of frame bolts return the columns that are declared for them."""
    if program.frames:
        check_classic(session)
    for name, bolt, reads in program.frame_bolts:
        if bolt.given is None:  # the function was asked
            continue
        try:
            inputs = _empty(session, (program.frames[one] for one in reads))
            _called(bolt.function, inputs, session, program.frames[name])
        except InputError as error:
            raise InputError(f"frame bolt {name!r}: {error}") from None
        except Exception as error:
            raise InputError(
                f"frame bolt {name!r}: its function raised {type(error).__name__} for DataFrames without rows: {error}"
            ) from error


def process(
    session: Any, program: Program, pack: Pack, compute: Compute, building: Callable[[], Any], caught: Caught = ignore
) -> list[Processed]:
    """Process a pack whose rows are in DataFrames.

    Args:
        session: the session.
        program: the program of a frame spout.
        pack: the pack; payloads of its inputs are functions that return the DataFrame of the spout.
        compute: called with the pack for the workers, and with a function that builds one DataFrame of all rows;
            returns the outcomes and a function from the name of an observation to its values, or raises `EngineError`.
        building: a context manager within which the user's functions are called.
        caught: called with every exception that they raise.
    """
    for whole in (False, True):
        made = PackFrames(session, program, caught, whole=whole)
        try:
            with building():
                light = made.build(pack)
            outcomes, seen = compute(light, made.together) if light.inputs else ([], lambda _: None)
            if whole or made.was_read(seen):
                break
        except EngineError as error:
            row = failure_of(program, error.__cause__ or error)
            if row is None or len(light.inputs) > 1:  # then each is tried by itself
                raise
            return [Processed(light.inputs[0].attempt, error=row)]
        finally:
            made.release()
    return made.complete(outcomes, seen)


def process_here(
    session: Any, program: Program, pack: Pack, caught: Caught, run: Callable[[Sequence[Pack]], list[Processed]]
) -> list[Processed]:
    """Process a pack whose rows are in DataFrames, which `session` collects; its tasks run in this process.

    Args:
        session: the session.
        program: the program of a frame spout.
        pack: the pack, as for `process`.
        caught: called with every exception of functions of frame bolts.
        run: processes the pack, given what each task of the first stage gets of it.
    """
    tasks = program.stages[0].tasks

    def compute(light: Pack, together: Callable[[], Any]) -> tuple[list[Processed], Observed]:
        try:
            frame = together()
            rows = frame.toArrow().combine_chunks()
        except Exception as error:
            raise EngineError(client.explain_failure(error)) from error
        size = rows.num_rows // tasks + 1
        parts = (rows.slice(number * size, size).to_batches() for number in range(tasks))
        return run([with_rows(program, light, part) for part in parts]), partial(observed, frame)

    return process(session, program, pack, compute, nullcontext, caught)


class PackFrames:
    """The DataFrames of the transactions of one pack; one whose code raises is the last of them.

    Args:
        session: the session.
        program: the program of a frame spout.
        caught: called with every exception of the user's functions.
        whole: whether batches of the spout are read by themselves, as functions did not read them.
    """

    def __init__(self, session: Any, program: Program, caught: Caught, *, whole: bool) -> None:
        self._session, self._program, self._caught, self._whole = session, program, caught, whole
        self._emitted = [name for name in program.frames if program.out_edges(name)]
        self._parts: list[Any] = []
        self._kept: list[Any] = []
        self._seen: dict[int, str] = {}
        self._known: dict[int, tuple[str, int]] = {}
        self._failed: Processed | None = None

    def build(self, pack: Pack) -> Pack:
        """Build the DataFrames of the transactions up to the first whose code raises; return those, for the workers.

        The inputs of `pack` have functions that return the DataFrames of the spout; those returned have none. Raises
        whatever Spark does if the session has ended.
        """
        good = []
        for one in pack.inputs:
            if not self._add(one):
                break
            good.append(replace(one, payload=None))
        return replace(pack, inputs=tuple(good))

    def together(self) -> Any:
        """Return one DataFrame with all rows, in exactly as many partitions as the first stage has tasks, unshuffled.

        One row for each task, without a txid, makes that there are enough partitions, which cannot be asked for:
        adaptive execution decides on them as it goes.
        """
        tasks = self._program.stages[0].tasks
        session = self._parts[0].sparkSession
        markers = session.range(0, tasks, 1, tasks).selectExpr(*self._columns(None, None))
        return reduce(lambda one, other: one.union(other), [*self._parts, markers]).coalesce(tasks)

    def was_read(self, seen: Observed) -> bool:
        """Return whether Spark has read the batches; it need not if a filter or a join leaves no rows of them."""
        return all(seen(name) is not None for name in self._seen.values())

    def complete(self, outcomes: Sequence[Processed], seen: Observed) -> list[Processed]:
        """Add the digests and numbers of input rows; return all outcomes. The job must have ended."""
        for outcome in outcomes:
            txid = outcome.attempt.txid
            digest, rows = self._known.get(txid) or _digest(seen(self._seen[txid]) or {})
            outcome.digests[BATCH] = digest
            outcome.counts[self._program.spout] = rows
        failed = [] if self._failed is None or any(one.error for one in outcomes) else [self._failed]
        return [*outcomes, *failed]

    def release(self) -> None:
        """Forget what was kept for several readers."""
        for frame in self._kept:
            frame.unpersist()

    def _add(self, txid_input: TxidInput) -> bool:
        """Build the DataFrames of one transaction; return whether no code of the user raised."""
        txid, current = txid_input.attempt.txid, self._program.spout
        readers = Counter(name for _, _, reads in self._program.frame_bolts for name in reads) + Counter(self._emitted)
        try:
            batch, known = txid_input.payload(self._session)
            if known is None:
                batch = self._observed(txid, batch)
            else:
                self._known[txid] = known
            if SOURCE in txid_input.divert:  # read to its end, as a stateful stream must be, but nothing is emitted
                self._read(batch)
                return True
            frames = {current: self._shared(batch, readers[current])}
            for current, bolt, reads in self._program.frame_bolts:
                inputs = [frames[one] for one in reads]
                frame = _called(bolt.function, inputs, self._session, self._program.frames[current])
                frames[current] = self._shared(frame, readers[current])
        except RAISED as error:
            if not client.is_alive(self._session):
                raise
            self._caught(error)
            self._seen.pop(txid, None)
            self._failed = Processed(txid_input.attempt, error=error_row(current, 0, 0, error, ""))
            return False
        self._parts += [frames[name].selectExpr(*self._columns(name, txid)) for name in self._emitted]
        if known is None:
            self._read_once(batch, self._seen[txid], [frames[name] for name in self._emitted])
        return True

    def _shared(self, frame: Any, readers: int) -> Any:
        """Return a DataFrame that is computed once, however many read it."""
        if readers > 1:
            self._kept.append(frame.persist())
        return frame

    def _read_once(self, batch: Any, name: str, emitted: Sequence[Any]) -> None:
        """Have Spark read all rows of a batch, and once, whatever functions make of it.

        A stateful stream is to be read to its end, and the digest is that of all rows, although a function may take the
        first ones alone, or none; it may also use its input several times.
        """
        if not self._whole and self._program.spout in self._emitted:
            return
        plans = [plan_text(frame) for frame in emitted]
        uses = [plan.count(f"CollectMetrics {name},") for plan in plans]
        whole = any(used and not _PARTLY.search(plan) for used, plan in zip(uses, plans, strict=True))
        if sum(uses) == 1 and whole and not self._whole:
            return
        self._shared(batch, readers=2)
        if self._whole or not whole:
            self._read(batch)

    def _read(self, batch: Any) -> None:
        """Have Spark read all rows of a batch, and emit none: of no component, there is their number."""
        self._parts.append(batch.selectExpr("count(1) AS n").selectExpr(*self._columns(None, "n")))

    def _observed(self, txid: int, frame: Any) -> Any:
        """Return the batch of the spout, of whose rows Spark takes a digest while it computes them.

        The digest is a number of rows and three sums over their hashes: neither order nor partitions matter.
        """
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        names = [quoted(name) for name in self._program.frames[self._program.spout]]
        mixed = f"xxhash64({', '.join(names)})"
        self._seen[txid] = f"{RESERVED}{next(_numbers)}"
        return frame.selectExpr(*names).observe(
            self._seen[txid],
            F.expr("count(1)").alias("rows"),
            F.expr(f"bit_xor({mixed})").alias("crossed"),
            F.expr(f"sum({mixed} & 4294967295)").alias("low"),
            F.expr(f"sum(shiftrightunsigned({mixed}, 32))").alias("high"),
        )

    def _columns(self, component: str | None, txid: int | str | None) -> list[str]:
        """Return the expressions of all columns, of all components; null for those of other components."""
        found = []
        for place, name in enumerate(self._emitted):
            for number, (column, kind) in enumerate(self._program.frames[name].items()):
                value = quoted(column) if name == component else f"CAST(NULL AS {kind})"
                found.append(f"{value} AS {RESERVED}{place}_{number}")
        source = "NULL" if component is None else str(self._emitted.index(component))
        txids = "NULL" if txid is None else str(txid)
        return [*found, f"CAST({source} AS INT) AS {_FROM}", f"CAST({txids} AS BIGINT) AS {_TXID}"]


def _digest(found: Mapping[str, int]) -> tuple[str, int]:
    """Return the digest and the number of rows that Spark has taken of a batch."""
    rows = found.get("rows") or 0
    return ":".join([str(rows), *(f"{found.get(name) or 0:x}" for name in ("crossed", "low", "high"))]), rows


def failure_of(program: Program, error: BaseException) -> ErrorRow | None:
    """Return the row of an error that the code of frame bolts raised within a job; None if it was something else."""
    found = client.raised_in_query(error)
    if found is None:
        return None
    kind, message, trace = found
    places = [one for one in re.findall(r'File "([^"]+)", line (\d+), in (\S+)', trace) if "/pyspark/" not in one[0]]
    frame = "{}:{} in {}".format(*places[-1]) if places else ""
    bolts = ", ".join(name for name, _, _ in program.frame_bolts) or program.spout
    return ErrorRow(bolts, 0, "other", kind, message, frame, trace)


def with_rows(program: Program, pack: Pack, batches: Iterable[pa.RecordBatch]) -> Pack:
    """Return `pack` with the rows in `batches`, those of one partition, as payloads: component → record batches."""
    emitted = [name for name in program.frames if program.out_edges(name)]
    payloads: dict[int, dict[str, list[pa.RecordBatch]]] = defaultdict(lambda: defaultdict(list))
    for batch in batches:
        txids, places = batch.column(batch.num_columns - 1), batch.column(batch.num_columns - 2)
        for txid in txids.unique().drop_null().to_pylist():
            for place in places.unique().drop_null().to_pylist():
                wanted = pc.and_(pc.equal(txids, txid), pc.equal(places, place))
                rows = batch if wanted.null_count == 0 and pc.all(wanted).as_py() else batch.filter(wanted)
                if rows.num_rows:
                    payloads[txid][emitted[place]].append(_own(rows, program.frames[emitted[place]], place))
    return replace(pack, inputs=tuple(replace(one, payload=payloads[one.attempt.txid]) for one in pack.inputs))


def _own(batch: pa.RecordBatch, columns: Mapping[str, str], place: int) -> pa.RecordBatch:
    """Return the columns of one component, with types as tables of txstorm have them: times in UTC, short offsets."""
    arrays = [batch.column(f"{RESERVED}{place}_{number}") for number in range(len(columns))]
    found = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    schema = pa.schema([pa.field(field.name, _plain(field.type)) for field in found.schema])
    return found if schema == found.schema else found.cast(schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return _TIME
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _plain(part.type)) for part in (kind.field(i) for i in range(kind.num_fields))])
    return kind
