import sys

import pytest

from txstorm import notebook
from txstorm.errors import MissingDependency
from txstorm.monitor.progress import Snapshot


class Handle:
    """A run that ends after a few looks."""

    name, engine = "words", "local"

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

    @property
    def status(self):
        return {"phase": "running"}


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
    return made


def test_it_is_kept_up_to_date_until_the_end(display):
    slept = []
    notebook.watch(Handle(3), every=0.25, sleep=slept.append)
    assert slept == [0.25] * 3
    assert len(display.shown) == 4
    assert "words on local, running: committed txid 7" in display.shown[0]
    assert "committed txid 10" in display.shown[-1]


def test_it_ends_after_some_seconds(display):
    times = iter(range(100))
    notebook.watch(Handle(1000), seconds=5, monotonic=lambda: next(times), sleep=lambda seconds: None)
    assert 1 < len(display.shown) <= 6


def test_an_interrupt_ends_the_watching_only(display):
    def interrupted(seconds):
        raise KeyboardInterrupt

    notebook.watch(Handle(1000), sleep=interrupted)
    assert len(display.shown) == 1


def test_ipython_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(MissingDependency, match=r"pip install 'txstorm\[notebook\]'"):
        notebook.watch(Handle(1))
