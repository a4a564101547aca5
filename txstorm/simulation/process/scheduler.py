"""Scheduler of a simulated world: the lanes of all its processes, as greenlets on one thread, in an order drawn.

Control may pass to another lane or process at every step at a seam (ledger, log, file, engine, database). Waits end by
a wake-up or by simulated time, which passes only while no lane can run. It is one module: lanes, flags, locks and
queues are ways to wait for the same scheduler.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from queue import Empty
from typing import Any, NoReturn, TypeVar

from typing_extensions import override

from txstorm.errors import MissingDependency
from txstorm.lanes import Call, Calls, Flag, Lane, Lanes, Task, complete

try:
    from greenlet import getcurrent, greenlet
except ImportError as missing:
    raise MissingDependency("greenlet", "simulation") from missing

A = TypeVar("A")
SWITCHES = 6
"""Average number of steps that a lane takes before control passes to another lane that can run."""


class Killed(BaseException):
    """The process of this lane is dead: raised at every step that the lane still tries to take."""


class Fiber(Task):
    """One lane that runs: a greenlet of a process.

    Attributes:
        owner: the process; its `dead` and `frozen` count.
        publishing: whether a decided group is being published on this lane.
        asked: the path of the newest answer of the ledger to this lane.
    """

    __slots__ = ("_greenlet", "asked", "ended", "name", "owner", "publishing", "token", "waiters", "waiting", "woken")

    def __init__(self, scheduler: Scheduler, owner: Owner, name: str, call: Call) -> None:
        self.owner, self.name = owner, name
        self.ended = self.publishing = self.waiting = self.woken = False
        self.token, self.asked = 0, ""
        self.waiters: list[Fiber] = []
        self._greenlet = greenlet(lambda: scheduler.run_fiber(self, call), scheduler.hub)

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"

    def join(self, timeout: float | None = None) -> None:
        """See `Task`."""
        self.owner.scheduler.wait(self.waiters, lambda: self.ended, timeout)

    def is_alive(self) -> bool:
        """See `Task`."""
        return not self.ended

    def switch(self) -> None:
        """Run until the lane waits, passes control on, or ends. Call on the hub only."""
        self._greenlet.switch()

    def throw(self) -> None:
        """Unwind the stack of the lane of a dead process."""
        if self._greenlet:  # otherwise it never ran
            self._greenlet.parent = getcurrent()  # when it ends, the lane that kills it goes on
            self._greenlet.throw(Killed)


class Owner:
    """A process, as far as the scheduler knows it; `name` is for the trace.

    Attributes:
        dead: whether it was killed: from then on its steps are refused.
        frozen: the pick before which none of its lanes runs.
    """

    name: str
    scheduler: Scheduler
    dead = False
    frozen = 0

    def __str__(self) -> str:
        return self.name

    @property
    def is_frozen(self) -> bool:
        """Whether it is paused."""
        return self.frozen > self.scheduler.picks


class Scheduler:
    """Runs the lanes of a world in an order drawn from its seed.

    Args:
        draw: returns a random number from 0 to 1.
        refused: called for every step that a dead process still tries to take.

    Attributes:
        time: simulated seconds, which never run backwards.
        current: the lane that runs; None on the hub.
        picks: number of times that a lane was chosen to run.
        shortest: the seconds that a wait for a time lasts at least.
    """

    def __init__(self, draw: Callable[[], float], refused: Callable[[Owner], None]) -> None:
        self.time = 0.0
        self.current: Fiber | None = None
        self.picks = 0
        self.shortest = 0.0
        self.hub = getcurrent()
        self._draw, self._refused = draw, refused
        self._ready: list[Fiber] = []
        self._timers: list[tuple[float, int, Fiber]] = []
        self._token = 0
        self._until_switch = 1
        self._fibers: list[Fiber] = []
        self._failure: BaseException | None = None
        self._stop = False

    # -- lanes ----------------------------------------------------------------------------------------------------

    def spawn(self, owner: Owner, name: str, call: Call) -> Fiber:
        """Start a lane of a process; it runs when the hub picks it."""
        fiber = Fiber(self, owner, name, call)
        if not owner.dead:
            self._ready.append(fiber)
            self._fibers.append(fiber)
        return fiber

    def run_fiber(self, fiber: Fiber, call: Call) -> None:
        """Body of a lane's greenlet."""
        try:
            call()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `run`, on the hub
            self.fail(error)
        fiber.ended = True
        if not fiber.owner.dead:
            self._fibers.remove(fiber)
            self.wake_all(fiber.waiters)

    def fail(self, error: BaseException) -> None:
        """Have `run` raise `error`, a violation or a defect of the simulation."""
        if self._failure is None:
            self._failure = error

    def abort(self, error: BaseException) -> NoReturn:
        """End the world with `error`, at once."""
        self.fail(error)
        if self.current is None:
            raise error
        self.hub.switch()
        raise Killed

    def kill(self, owner: Owner) -> None:
        """Kill a process: its lanes end here, and whatever their code still tries to do is refused."""
        owner.dead = True
        mine = [one for one in self._fibers if one.owner is owner]
        self._ready = [one for one in self._ready if one.owner is not owner]
        self._fibers = [one for one in self._fibers if one.owner is not owner]
        current = self.current
        for fiber in mine:
            if fiber is not current:
                self.current = fiber
                fiber.throw()
        self.current = current
        if current in mine:
            raise Killed

    # -- what lanes call ------------------------------------------------------------------------------------------

    def step(self, owner: Owner) -> None:
        """Take a step at a seam: control may pass on here. Raises `Killed` if the process is dead."""
        if owner.dead:
            self._refused(owner)
            raise Killed
        self._until_switch -= 1
        if self._until_switch <= 0 and self.current is not None:
            self._until_switch = 1 + int(self._draw() * 2 * SWITCHES)
            self.pass_on()

    def pass_on(self) -> None:
        """Let other lanes run, or the world act, before the current lane goes on."""
        fiber = self.current
        if fiber is not None:
            self._ready.append(fiber)
            self._to_hub(fiber)

    def block(self, timeout: float | None) -> bool:
        """Make the current lane wait for `wake`, at most `timeout` seconds (None: forever); return whether it came."""
        fiber = self.current
        if fiber is None:
            raise RuntimeError("the hub of a simulated world cannot wait")
        if fiber.owner.dead:
            raise Killed
        self._token += 1
        fiber.token, fiber.waiting, fiber.woken = self._token, True, False
        if timeout is not None and timeout < math.inf:
            heapq.heappush(self._timers, (self.time + max(self.shortest, timeout), self._token, fiber))
        self._to_hub(fiber)
        return fiber.woken

    def wait(self, waiters: list[Fiber], until: Callable[[], Any], timeout: float | None = None) -> bool:
        """Make the current lane wait until a condition holds, which is tested whenever one of `waiters` is woken."""
        end = None if timeout is None else self.time + timeout
        while not until():
            fiber = self.current
            if fiber is None:
                raise RuntimeError("the hub of a simulated world cannot wait")
            if fiber.owner.dead:
                raise Killed
            waiters.append(fiber)
            woken = self.block(None if end is None else end - self.time)
            if fiber in waiters:
                waiters.remove(fiber)
            if not woken and not until():
                return False
        return True

    def wake(self, fiber: Fiber) -> None:
        """Let a waiting lane go on."""
        if fiber.waiting and not fiber.owner.dead:
            fiber.waiting, fiber.woken = False, True
            self._ready.append(fiber)

    def wake_all(self, waiters: Sequence[Fiber]) -> None:
        """Let waiting lanes go on."""
        for fiber in list(waiters):
            self.wake(fiber)

    def _to_hub(self, fiber: Fiber) -> None:
        self.hub.switch()
        self.current = fiber
        if fiber.owner.dead:
            raise Killed

    # -- the hub --------------------------------------------------------------------------------------------------

    def run(self, picks: int, until: Callable[[], bool] = lambda: False, jumps: int = 1) -> bool:
        """Run lanes on the calling greenlet, the hub; return whether anything was left to run.

        Ends after `picks` choices of a lane, when `until` holds, or when nothing can run until more than `jumps` times
        some time has passed.
        """
        for _ in range(picks):
            if until():
                return True
            fiber = self._pick()
            while fiber is None:
                if jumps <= 0 or not self._jump():
                    return False
                jumps -= 1
                fiber = self._pick()
            self.picks += 1
            self.current = fiber
            fiber.switch()
            self.current = None
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._stop:
                self._stop = False
                return True
        return True

    def interrupt(self) -> None:
        """End `run` after the current choice, so that the world can act."""
        self._stop = True

    def _pick(self) -> Fiber | None:
        ready = self._ready
        if not ready:
            return None
        at = int(self._draw() * len(ready)) if len(ready) > 1 else 0
        fiber = ready[at]
        if fiber.owner.frozen > self.picks:
            live = [place for place, one in enumerate(ready) if one.owner.frozen <= self.picks]
            if live:
                at = live[at % len(live)]
        fiber = ready[at]
        ready[at] = ready[-1]
        ready.pop()
        return fiber

    def _jump(self) -> bool:
        """Let time pass until the next lane's wait ends; return False if none waits for a time."""
        while self._timers:
            when, token, fiber = heapq.heappop(self._timers)
            if fiber.waiting and fiber.token == token and not fiber.owner.dead:
                self.time = max(self.time, when)
                fiber.waiting = False
                self._ready.append(fiber)
                return True
        return False


class SimLanes(Lanes):
    """The lanes of one process of a world.

    Args:
        scheduler: runs them.
        owner: the process.
        now: the wall clock of the world, in UTC microseconds.
        tick: microseconds of the wall clock in a simulated second.
    """

    def __init__(self, scheduler: Scheduler, owner: Owner, now: Callable[[], int], tick: int = 1_000_000) -> None:
        self._scheduler, self._owner, self._now, self._tick = scheduler, owner, now, tick

    @override
    def now(self) -> int:
        return self._now()

    @override
    def monotonic(self) -> float:
        return self._scheduler.time

    @override
    def boot(self) -> float:
        return self._scheduler.time * self._tick / 1_000_000

    @override
    def processor(self) -> float:
        return 0.0  # what a step takes on this machine must not decide what happens next

    @override
    def sleep(self, seconds: float) -> None:
        self._scheduler.block(seconds)

    @override
    def lane(self, name: str) -> Lane:
        return _SimLane(self._scheduler, self._owner, name.removeprefix("txstorm-"))

    @override
    def start(self, call: Call, name: str, *, daemon: bool = True) -> Task:
        return self._scheduler.spawn(self._owner, name.removeprefix("txstorm-"), call)

    @override
    def current(self) -> object:
        return self._scheduler.current

    @override
    def event(self) -> Flag:
        return _SimFlag(self._scheduler)

    @override
    def calls(self) -> Calls:
        return _SimCalls(self._scheduler)

    @override
    def lock(self) -> AbstractContextManager[Any]:
        return _SimLock(self._scheduler)

    @override
    def result(self, future: Future[A], timeout: float | None = None) -> A:
        self._wait(future, timeout)
        return future.result(0)

    @override
    def _complete_all(self, pairs: Sequence[tuple[Callable[[], A], Future[A]]]) -> None:
        scheduler, fiber = self._scheduler, self._scheduler.current
        for call, answer in pairs[1:]:
            other = scheduler.spawn(self._owner, "table", partial(complete, answer, call))
            other.publishing = fiber is not None and fiber.publishing
        super()._complete_all(pairs[:1])
        for _, answer in pairs:
            self._wait(answer, None)

    def _wait(self, future: Future[Any], timeout: float | None) -> None:
        if not future.done():
            waiters: list[Fiber] = []
            future.add_done_callback(lambda done: self._scheduler.wake_all(waiters))
            self._scheduler.wait(waiters, future.done, timeout)


class _SimFlag(Flag):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._is_set = scheduler, False
        self._waiters: list[Fiber] = []

    def set(self) -> None:
        self._is_set = True
        self._scheduler.wake_all(self._waiters)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait(self._waiters, self.is_set, timeout)


class _SimCalls(Calls):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._calls: deque[Call] = deque()
        self._waiters: list[Fiber] = []

    def put(self, item: Call, /) -> None:
        self._calls.append(item)
        self._scheduler.wake_all(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> Call:
        if not self._calls and not (block and self._scheduler.wait(self._waiters, lambda: self._calls, timeout)):
            raise Empty
        return self._calls.popleft()


class _SimLock:
    """A lock between lanes; the lane that holds it may acquire it again."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: Fiber | None = None
        self._depth = 0
        self._waiters: list[Fiber] = []

    def __enter__(self) -> None:
        mine = self._scheduler.current
        if self._holder is not mine and self._holder is not None:
            self._scheduler.wait(self._waiters, lambda: self._holder is None)
        self._holder = mine
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            self._scheduler.wake_all(self._waiters)


class _SimLane(Lane):
    """A lane of a process: a queue of calls, which a greenlet runs in order."""

    def __init__(self, scheduler: Scheduler, owner: Owner, name: str) -> None:
        self._scheduler, self._owner, self._name = scheduler, owner, name
        self._calls: deque[Call] = deque()
        self._fiber: Fiber | None = None
        self._ending = False

    def queue(self, call: Call) -> None:
        self._calls.append(call)
        if self._fiber is None or self._fiber.ended:
            self._fiber = self._scheduler.spawn(self._owner, self._name, self._body)

    def end(self) -> None:
        self._ending = True

    def leave(self) -> list[Call]:
        calls = list(self._calls)
        self._calls.clear()
        self._ending = True
        return calls

    def join(self, timeout: float | None = None) -> bool:
        if self._fiber is not None:
            self._fiber.join(timeout)
        return self._fiber is None or self._fiber.ended

    def _body(self) -> None:
        while self._calls:
            self._calls.popleft()()
