"""Debugger (pdb) for replays; it stops where user code raises an exception, and at breakpoints in bolts."""

from __future__ import annotations

import linecache
import pdb
import sys
from bdb import BdbQuit, Breakpoint
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

from txstorm.api.assembly import PartialCommitter
from txstorm.api.bolt import BasicBolt, BatchBolt
from txstorm.api.names import near
from txstorm.cli.output import escaped
from txstorm.cli.tracebacks import is_internal
from txstorm.errors import InputError, StoppedError
from txstorm.topology.graph import Topology

METHODS = ("execute", "execute_batch", "finish_batch", "prepare", "cleanup")
Result = TypeVar("Result")


@dataclass(frozen=True)
class WindowStop:
    """Breakpoint before a window is evaluated.

    Attributes:
        component: the windowed bolt.
        end: the end of the window.
        key: its key, as text; None: of any task or key.
        txid: the transaction that fired it.
    """

    component: str
    end: datetime
    key: Sequence[str] | None
    txid: int

    def condition(self, window: str) -> str:
        """Return the condition of the breakpoint as an expression, given the name of the variable with the window."""
        found = f"{window}.final and {window}.end.isoformat() == {self.end.isoformat()!r}"
        if self.key is None:
            return found
        values = f"{window}.key if isinstance({window}.key, tuple) else [{window}.key]"
        named = "__import__('txstorm.keys').keys.are_named"
        return f"{found} and {named}({values}, {list(self.key)!r})"


class Debugger:
    """Interactive debugger of a replay, on standard input and output.

    Breakpoints are bolts, methods of bolts (``BOLT.METHOD``), at whose start to stop, or windows.

    Raises:
        InputError: a bolt or method does not exist, or has no source.
    """

    def __init__(self, topology: Topology, breaks: Sequence[str | WindowStop]) -> None:
        self._pdb = _Pdb()
        self._stops = bool(breaks)
        for one in breaks:
            if isinstance(one, WindowStop) and not hasattr(topology.component(one.component).object, "bolt"):
                raise InputError(
                    f"{one.component}: --pdb stops before execute(window) of a bolt; an aggregate has none: stop at a "
                    "bolt that reads its results, with --break"
                )
            name = f"{one.component}.execute" if isinstance(one, WindowStop) else one
            for code in _codes(topology, name):
                condition = one.condition(code.co_varnames[1]) if isinstance(one, WindowStop) else None
                first = code.co_firstlineno
                line = next((line for _, _, line in code.co_lines() if line and line > first), first)
                linecache.checkcache(code.co_filename)
                if fault := self._pdb.stop_at(code, line, condition):
                    raise InputError(f"--break {name}: {code.co_filename}:{line}: {fault}")

    def run(self, replay: Callable[[], Result]) -> Result:
        """Call `replay`, stopping at the breakpoints; raise `StoppedError` if the user quits the debugger."""
        try:
            return self._pdb.traced(replay) if self._stops else replay()
        except BdbQuit:
            raise StoppedError("left the debugger before the replay had ended; its result is unknown") from None

    def caught(self, error: BaseException) -> None:
        """Start the debugger for `error`, which user code raised, in the innermost frame of user code."""
        if isinstance(error, BdbQuit):
            raise error
        tracing = sys.gettrace()
        sys.settrace(None)
        try:
            print(escaped(f"{type(error).__name__}: {error}"))
            debugger = _Pdb()
            debugger.reset()
            debugger.interaction(None, error.__traceback__)  # type: ignore[arg-type,unused-ignore]
        finally:
            sys.settrace(tracing)


class _Pdb(pdb.Pdb):
    """A pdb that runs to the first breakpoint without stopping, and starts in the innermost frame of user code.

    A breakpoint of `stop_at` stops once per call, even if its line begins a loop or contains a comprehension.
    """

    def __init__(self) -> None:
        super().__init__(nosigint=True, readrc=False)
        self._started = True
        self._own: dict[int, CodeType] = {}
        # Frames that have been entered, and not stopped yet.
        self._entered: set[FrameType] = set()

    def stop_at(self, code: CodeType, line: int, condition: str | None) -> str | None:
        """Set a breakpoint at the first `line` of `code`; return why that is not possible, or None."""
        fault = self.set_break(code.co_filename, line, cond=condition)
        if not fault:
            self._own[len(Breakpoint.bpbynumber) - 1] = code
        return fault

    def dispatch_call(self, frame: FrameType, arg: Any) -> Any:
        """Note that a method with a breakpoint is entered."""
        if frame.f_code in self._own.values():
            self._entered.add(frame)
        return super().dispatch_call(frame, arg)

    def break_here(self, frame: FrameType) -> bool:
        """Return whether to stop: at an own breakpoint only the first time in this call."""
        there = Breakpoint.bplist.get((self.canonic(frame.f_code.co_filename), frame.f_lineno), ())
        own = all(one.number in self._own for one in there)
        if there and own and frame not in self._entered:
            return False
        self._entered.discard(frame)
        return super().break_here(frame)

    def traced(self, function: Callable[[], Result]) -> Result:
        """Call `function` with the breakpoints enabled."""
        self._started = False
        results: list[Result] = []
        self.runcall(lambda: results.append(function()))
        if not results:
            raise BdbQuit  # `runcall` swallows this exception
        return results[0]

    def user_line(self, frame: FrameType) -> None:
        """Stop at a line, except for the very first stop, which is inside `traced` itself."""
        self._entered.discard(frame)
        if self._started:
            super().user_line(frame)
        else:
            self._started = True
            self.set_continue()

    def get_stack(
        self, frame: FrameType | None, trace: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the stack, and the index of the frame in which the debugger starts."""
        stack, index = super().get_stack(frame, trace)
        if trace is not None:
            users = [at for at, (one, _) in enumerate(stack) if not is_internal(one.f_code.co_filename)]
            index = users[-1] if users else index
        return stack, index


def _codes(topology: Topology, text: str) -> list[CodeType]:
    name, dot, method = text.partition(".")
    component = topology.component(name)
    # An assembled bolt, such as a windowed one, is called by a committer of txstorm.
    kind = type(component.object.bolt if isinstance(component.object, PartialCommitter) else component.object)
    if not isinstance(component.object, BasicBolt | BatchBolt):
        raise InputError(f"--break {text}: {name!r} is the spout; name a bolt")
    own = {one: code for one in METHODS if (code := _own_code(kind, one)) is not None}
    if not dot:
        return [code for one, code in own.items() if one != "prepare"]
    if method not in own:
        hint = near(method, list(own))
        raise InputError(
            f"--break {text}: {kind.__name__} does not define {method!r}{hint}; it defines {', '.join(own)}"
        )
    return [own[method]]


def _own_code(kind: type[Any], method: str) -> CodeType | None:
    """Return the code of `method` if `kind` overrides it; None if it is inherited from txstorm's base classes."""
    function = getattr(kind, method, None)
    if function in (getattr(BasicBolt, method, None), getattr(BatchBolt, method, None)):
        return None
    return getattr(function, "__code__", None)
