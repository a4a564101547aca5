import sys
from types import SimpleNamespace

import pytest
from commands import printed_by

from txstorm import notebook
from txstorm.errors import MissingDependency
from txstorm.monitor.progress import Snapshot


class Handle:
    """A fake run handle that is active for `looks` polls and then ends."""

    name, engine, phase, ends = "words", "local", "running", False

    def __init__(self, looks):
        self.looks = looks

    @property
    def recentProgress(self):
        return []

    @property
    def isActive(self):
        self.looks -= 1
        return self.looks >= 0

    @property
    def progress(self):
        return Snapshot(committed=10 - self.looks)


class Display:
    def __init__(self):
        self.shown = []

    def __call__(self, text, display_id):
        assert display_id
        self.shown.append(text)
        return self

    def update(self, text):
        self.shown.append(text)


@pytest.fixture
def display(monkeypatch):
    made = Display()
    monkeypatch.setattr(notebook, "_ipython", lambda: (str, made))
    monkeypatch.setattr(notebook, "_shell", lambda: SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=True)))
    return made


def test_the_display_is_updated_until_the_run_or_the_given_seconds_end_or_an_interrupt(display):
    slept = []
    notebook.watch(Handle(3), every=0.25, sleep=slept.append)
    assert slept == [0.25] * 3
    assert len(display.shown) == 5
    assert "words on local, running: committed txid 7" in display.shown[0]
    assert "committed txid 10" in display.shown[-2]
    assert "Interrupt the cell to stop watching; the run continues. handle.stop() ends the run." in display.shown[1]
    assert "Interrupt" not in display.shown[-1]
    display.shown.clear()
    times = iter(range(100))
    notebook.watch(Handle(1000), seconds=5, monotonic=lambda: next(times), sleep=lambda seconds: None)
    assert 1 < len(display.shown) <= 7
    display.shown.clear()

    def interrupted(seconds):
        raise KeyboardInterrupt

    notebook.watch(Handle(1000), sleep=interrupted)
    assert len(display.shown) == 1


def test_missing_ipython_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(MissingDependency, match=r"pip install 'txstorm\[notebook\]'"):
        notebook.watch(Handle(1))


SCRIPT = """
from txstorm import TransactionalTopologyBuilder, run
from txstorm.notebook import watch
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout

builder = TransactionalTopologyBuilder("watched", "n", MemoryTransactionalSpout([[1, 2, 3]], "n"))
builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("n")
"""
ENDLESS = "handle = run(builder.build_topology(), engine='local')\nwatch(handle)\nprint('went on')\nhandle.stop()"
ENDS = (
    "handle = run(builder.build_topology(), engine='local', available_now=True)\nwatch(handle)\nprint(handle.isActive)"
)


def test_watching_an_endless_run_does_not_block_a_script(tmp_path):
    for end in (ENDLESS, ENDS):
        shown, last = printed_by("-c", SCRIPT + end, cwd=tmp_path, env={"PATH": ""}).splitlines()
        assert shown.startswith("watched: committed txid ")
        assert shown.endswith("; a notebook keeps this up to date")
        assert last == {ENDLESS: "went on", ENDS: "False"}[end]
