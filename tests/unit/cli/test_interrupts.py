import os
import signal
import threading

import pytest

from txstorm.cli.interrupts import SKIPPING, STOPPING, Interrupts


class Handle:
    """A fake run handle whose `stop` blocks until the test releases it."""

    def __init__(self):
        self.calls, self.stopping, self.let_go = [], threading.Event(), threading.Event()

    def stop(self):
        self.calls.append("stop")
        self.stopping.set()
        self.let_go.wait(30)

    def skip_compaction(self):
        self.calls.append("skip")


@pytest.fixture
def handle():
    made = Handle()
    yield made
    made.let_go.set()


def test_a_second_signal_is_handled_while_stop_blocks(handle):
    said = []
    with Interrupts(said.append) as interrupts:
        interrupts.attach(handle)
        interrupts.act()
        assert (interrupts.interrupted, said) == (False, [])
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.act()
        assert handle.stopping.wait(30)
        os.kill(os.getpid(), signal.SIGTERM)
        interrupts.act()
        interrupts.act()
    assert interrupts.interrupted
    assert handle.calls == ["stop", "skip"]
    assert said == [STOPPING, SKIPPING]


def test_a_signal_before_the_run_ends_the_program():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), Interrupts(print):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_do_not_change_signal_handlers(handle):
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with Interrupts(print) as interrupts:
            interrupts.attach(handle)
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert seen == [before]
