"""Displays in a real kernel: a run that is watched, interrupted, started again, and clicked while another cell runs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 60
START = """
import sys, threading, time
from pathlib import Path
from txstorm import TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey, Map
from txstorm.notebook import explore, watch
from txstorm.spouts import RateSpout

def topology():
    builder = TransactionalTopologyBuilder("rate", "rows", RateSpout(20))
    builder.set_bolt("last", Map(lambda row: row["value"] % 3, "digit")).local_or_shuffle_grouping("rows")
    builder.set_bolt("count", CountByKey({"digit": int}, "counts")).fields_grouping("last", ["digit"])
    return builder.build_topology()

def until(condition):
    while not condition():
        time.sleep(0.02)

last = None

def lanes():
    return sum(one.name == "txstorm-watch" for one in threading.enumerate())
"""
RUN = "handle = run(topology(), engine='local', data_dir='data', until_txid=last)"


class Kernel:
    """A kernel and its client, as a notebook's front end: it knows what is shown, and the widgets.

    Attributes:
        shown: the HTML of all outputs so far, updates included.
        printed: the text that the last cell has printed.
        widgets: comm id → the state of the widget.
    """

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel()
        self.shown: list[str] = []
        self.printed = ""
        self.widgets: dict[str, dict[str, Any]] = {}

    def start(self, code: str, **options: Any) -> str:
        return str(self.client.execute(code, **options))

    def run(self, code: str, **options: Any) -> str:
        """Run a cell; return what it has printed."""
        self.printed = ""
        reply = self.finish(self.start(code, **options))
        assert reply["status"] == "ok", reply
        return self.printed.strip()

    def finish(self, cell: str) -> dict[str, Any]:
        """Wait for the end of a cell; return its reply."""
        self.follow(lambda message: of(message, cell) and message["content"].get("execution_state") == "idle")
        while True:
            reply = self.client.get_shell_msg(timeout=LONGEST)
            if of(reply, cell):
                return dict(reply["content"])

    def follow(self, done: Any) -> None:
        """Read messages until one is `done`."""
        while True:
            message = self.client.get_iopub_msg(timeout=LONGEST)
            content = message["content"]
            self.printed += content.get("text", "")
            self.shown.append(str(content.get("data", {}).get("text/html", "")))
            if message["msg_type"] in ("comm_open", "comm_msg"):
                state = content["data"].get("state", {})
                self.widgets.setdefault(content["comm_id"], {}).update(state)
                self.shown.append(str(state.get("value", "")) if isinstance(state.get("value"), str) else "")
            if done(message):
                return

    def see(self, text: str) -> None:
        """Read messages until one shows `text`."""
        before = len(self.shown)
        self.follow(lambda _: text in "".join(self.shown[before:]))

    def widget(self, **state: Any) -> str:
        """Return the comm id of the newest widget with this state."""
        return [one for one, has in self.widgets.items() if state.items() <= has.items()][-1]

    def send(self, comm: str, data: dict[str, Any]) -> None:
        message = self.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        self.client.shell_channel.send(message)

    def click(self, name: str) -> None:
        data = {"method": "custom", "content": {"event": "click"}}
        self.send(self.widget(description=name), data)


def of(message: dict[str, Any], cell: str) -> bool:
    return bool(message["parent_header"].get("msg_id") == cell)


@pytest.fixture
def kernel(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", os.path.dirname(os.__file__))  # no Java: notebooks take the local engine
    made = Kernel()
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


@pytest.mark.notebook
@pytest.mark.integration
def test_a_run_is_watched_while_other_cells_run_interrupted_started_again_and_clicked(kernel: Kernel):
    kernel.run(START + RUN)
    kernel.run("watch(handle, block=False)")  # returns at once

    # It is kept up to date while another cell runs, and an interrupt ends the cell only.
    cell = kernel.start("handle.awaitTermination()")
    kernel.see("committed txid 2")
    kernel.see("committed txid 3")
    kernel.manager.interrupt_kernel()
    assert kernel.finish(cell)["ename"] == "KeyboardInterrupt"
    cell = kernel.start("watch(handle)")
    kernel.see("Interrupt the cell to stop watching")
    kernel.manager.interrupt_kernel()
    assert kernel.finish(cell)["status"] == "ok"
    assert kernel.run("print(handle.phase)") == "running"
    kernel.run("until(lambda: lanes() == 0)")  # the second display has taken the place of the first

    # One display for each run, however often it is watched; started again, the run is replaced, and its display quiet.
    kernel.run("watch(handle, block=False)\nwatch(handle, block=False)\nuntil(lambda: lanes() == 1)")
    assert kernel.run(f"before = handle\n{RUN}\nprint(before.phase, handle.phase)").startswith("stopped ")
    kernel.run("until(lambda: lanes() == 0)\nwatch(handle, block=False)")

    # Clicks.
    assert kernel.widgets[kernel.widget(description="activate")]["disabled"] is True
    kernel.click("deactivate")
    kernel.run("until(lambda: handle.phase == 'inactive')")
    kernel.follow(lambda _: not kernel.widgets[kernel.widget(description="activate")]["disabled"])
    kernel.click("activate")
    kernel.run("until(lambda: handle.phase == 'running')")
    kernel.click("drain")
    kernel.run("handle.awaitTermination()\nuntil(lambda: lanes() == 0)")
    assert "rate on local, stopped" in "".join(kernel.shown)
    assert all(kernel.widgets[kernel.widget(description=name)]["disabled"] for name in ("stop", "drain", "activate"))

    # A table as of any transaction.
    kernel.run("explore(handle, 'counts')")
    kernel.send(kernel.widget(description="txid"), {"method": "update", "state": {"value": 2}})
    kernel.see("state counts as of txid 2: ")
    last = kernel.run(f"last = handle.committed + 2\n{RUN}\nhandle.awaitTermination()\nprint(last)")
    kernel.click("newest")
    kernel.see(f"as of txid {last}: ")

    # Without widgets, in a notebook executed by a program, and on Databricks.
    kernel.run("sys.modules['ipywidgets'] = None\nexplore('data', 'counts', 2)")
    assert any(text.startswith("<table><caption>state counts as of txid 2: ") for text in kernel.shown[-3:])
    kernel.run(f"last = None\n{RUN}\nwatch(handle, block=False)")
    kernel.follow(lambda message: message["msg_type"] == "update_display_data")
    before = len(kernel.shown)
    assert kernel.run("watch(handle)\nprint('went on')", allow_stdin=False) == "went on"
    assert "Interrupt the cell" not in "".join(kernel.shown[before:])
    assert kernel.run("displayHTML = print\nwatch(handle, block=False)").startswith("<table><caption>rate on local")
    kernel.run("handle.stop()\nuntil(lambda: lanes() == 0)")
