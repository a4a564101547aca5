"""Local engine: packs run on threads, and are cancelled between txids."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import engine_samples as samples
import pytest
from engine_samples import chain, pack, program

from txstorm.api.context import WorkProgress
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Processed
from txstorm.errors import EngineError


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    samples.called.clear()
    samples.gates.update(entered=threading.Event(), leave=threading.Event())
    made = LocalEngine()
    made.start(program(chain()))
    yield made
    samples.gates["leave"].set()
    made.close()


def waiting(engine: LocalEngine, *more: list[int]) -> Future[list[Processed]]:
    """Submit a pack whose first txid has begun and waits, followed by `more`."""
    future = engine.submit(pack([23], *more))
    assert samples.gates["entered"].wait(60)
    return future


def test_packs_run_concurrently(engine: LocalEngine) -> None:
    slow = waiting(engine)
    quick = engine.submit(pack([1], first=2)).result(timeout=60)
    assert quick[0].error is None
    assert not slow.done()
    samples.gates["leave"].set()
    assert slow.result(timeout=60)[0].counts["collect"] == 1


def test_a_cancelled_pack_ends_after_the_current_txid(engine: LocalEngine) -> None:
    future = waiting(engine, [1], [3])
    engine.cancel(future)
    samples.gates["leave"].set()
    with pytest.raises(EngineError, match="cancelled"):
        future.result(timeout=60)
    assert not [one for one in samples.called if one[0] == "a" and one[1] > 1]


def test_a_pack_says_how_far_it_is(engine: LocalEngine) -> None:
    """Rows that the spout has emitted, tasks that are done, and the row that a bolt is at, while its code runs."""
    future, (entered, leave) = engine.submit(pack([2, 4, 1, 23, 3], [1])), samples.gates.values()
    assert entered.wait(60)
    assert engine.how_far(future) == WorkProgress(done=1, tasks=5, rows=5, place="a[1]", row=2)
    samples.gates.update(entered=threading.Event(), leave=threading.Event())
    leave.set()
    assert samples.gates["entered"].wait(60)  # 23 waits once more, in b
    found = engine.how_far(future)
    assert found is not None and found.rows == 6 and found.place.startswith("b[") and 2 <= found.done < 5
    samples.gates["leave"].set()
    assert future.result(timeout=60)[1].error is None
    assert engine.how_far(future) is None


def test_closing_cancels_running_packs_without_waiting(engine: LocalEngine) -> None:
    future = waiting(engine, [1])
    engine.close()
    assert not future.done()
    samples.gates["leave"].set()
    with pytest.raises(EngineError, match="cancelled"):
        future.result(timeout=60)


def test_an_error_of_the_engine_reaches_the_caller(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.describe()["engine"] == "local"
    monkeypatch.setattr("txstorm.engine.local.gather", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.submit(pack([1])).result(timeout=60)
