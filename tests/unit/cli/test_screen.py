import io

from rich.console import Console

from txstorm.cli.execute import LINE_SECONDS, LineScreen, LiveScreen, screen_for
from txstorm.monitor.live import Moment
from txstorm.monitor.progress import Snapshot


def moment(seconds: float, committed: int) -> Moment:
    return Moment("words", "local", "running", Snapshot(committed=committed, txids=committed, seconds=seconds))


def test_lines_are_rate_limited_and_a_terminal_shows_messages_above_a_table():
    file = io.StringIO()
    screen = screen_for(Console(file=file, width=200))
    assert isinstance(screen, LineScreen)
    screen.begin(moment(0, 0))
    for tenth in range(1, 200):
        screen.show(moment(tenth / 10, 7 if tenth < 120 else 9))
    screen.end()
    lines = file.getvalue().splitlines()
    assert lines[0] == "words: running on local"
    assert [line.split(",")[0] for line in lines[1:]] == ["words: committed txid 7", "words: committed txid 9"]
    assert LINE_SECONDS >= 1
    file = io.StringIO()
    screen = screen_for(Console(file=file, force_terminal=True, width=120, _environ={"TERM": "xterm"}))
    assert isinstance(screen, LiveScreen)
    screen.begin(moment(0, 0))
    screen.show(moment(1, 5))
    screen.say("stopping")
    screen.end()
    assert "committed txid 5" in file.getvalue()
    assert "stopping" in file.getvalue()
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(screen_for(dumb), LineScreen)
