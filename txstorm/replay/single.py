"""Replay of one committed txid: an audit of that txid alone, in this process and on this thread. Writes nothing."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from txstorm.engine.local import LocalEngine
from txstorm.engine.port import ErrorRow, Pack, Processed
from txstorm.engine.program import Program
from txstorm.engine.task.stage import StageTask
from txstorm.errors import SpoutError
from txstorm.replay.audit import replayed
from txstorm.replay.compare import ReplayVerdict
from txstorm.replay.ranges import span_of
from txstorm.replay.recording import Recording
from txstorm.runtime.failures import batch_failure
from txstorm.topology.graph import Topology
from txstorm.user_code import Caught, ignore


def replay_txid(topology: Topology, data_dir: str | Path, txid: int, caught: Caught = ignore) -> ReplayVerdict:
    """Replay a committed txid from its recorded extents against the state of ``txid - 1``.

    Works beside a live run. Spout and bolts run as on the local engine, on the calling thread, with the committed
    attempt id and stamp; the rows they write are compared with the committed ones and then dropped.

    Args:
        topology: the code; it must have the recorded id.
        data_dir: the data directory of the topology.
        txid: the transaction to replay.
        caught: called with every exception of user code, while its frames still exist. An exception that it raises
            itself ends the replay.

    Raises:
        InputError: `data_dir` is not a data directory or belongs to another topology; `txid` is not committed, or no
            longer retained; or a state is now declared differently.
        SpoutError: the source can no longer return the recorded batch.
    """
    recording = Recording(data_dir)
    recording.check_topology(topology)
    span = span_of(recording, txid, txid)
    (verdict,) = replayed(topology, recording, span, _WatchedEngine(caught), caught=caught, tries=1)
    failure = verdict.failure
    if failure is not None and failure.component == topology.spout.id and failure.type == SpoutError.__name__:
        raise batch_failure(verdict.attempt, failure, 1)
    return verdict


class _WatchedEngine(LocalEngine):
    """Local engine on the calling thread, whose tasks report exceptions of user code."""

    def __init__(self, caught: Caught) -> None:
        super().__init__(caught=caught)

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        done: Future[list[Processed]] = Future()
        done.set_result(self.run(pack))
        return done

    def task(self, level: int, number: int, pack: Pack) -> StageTask:
        assert self._program is not None
        return _WatchedTask(self._program, level, number, pack, self._caught)


class _WatchedTask(StageTask):
    def __init__(self, program: Program, level: int, number: int, pack: Pack, caught: Caught) -> None:
        super().__init__(program, level, number, pack)
        self._caught = caught

    def failure(self, component: str, error: BaseException, given: str = "") -> ErrorRow:
        self._caught(error)
        return super().failure(component, error, given)
