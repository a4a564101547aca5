import io
from datetime import UTC, datetime, timedelta

from rich.console import Console

from txstorm.api.context import HeldBack, WindowProgress, WorkProgress
from txstorm.monitor.live import (
    ACTIVE_ROWS,
    COLUMNS,
    COMMITTED_ROWS,
    FAILURE_LENGTH,
    Moment,
    as_html,
    line,
    rows,
    table,
)
from txstorm.monitor.progress import Snapshot, TransactionProgress

STEPS = {"finish": 1.0, "stage": 2.0, "decide": 3.0, "publish": 4.0, "complete": 5.25}


def progress(txid: int, steps=STEPS) -> TransactionProgress:
    return TransactionProgress(txid, 1, 0, "s", {"s": 1000, "b": 234}, 3, 2, 12.34, steps)


def moment(**changes) -> Moment:
    in_flight = tuple((txid, 1, "processing" if txid > 22 else "committing") for txid in range(21, 30))
    snapshot = Snapshot(in_flight, 20, 20, 24680, 2, rows=20000, seconds=10.0, rate=2468.0, **changes)
    return Moment("words", "spark", "running", snapshot, [progress(txid) for txid in range(1, 21)])


def drawn(one: Moment) -> str:
    file = io.StringIO()
    Console(file=file, width=160).print(table(one))
    return file.getvalue()


def test_rows_line_and_table_show_the_last_committed_and_first_active_transactions_and_totals():
    found = rows(moment())
    assert [row[0] for row in found[:COMMITTED_ROWS]] == [str(txid) for txid in range(13, 21)]
    assert found[0] == ("13", "committed", "1,234", "12.3", "1.0", "2.0", "3.0", "4.0", "5.2", "3", "2")
    active = found[COMMITTED_ROWS:]
    assert [row[0] for row in active[:ACTIVE_ROWS]] == ["21", "22", "23", "24"]
    assert [row[1] for row in active[:ACTIVE_ROWS]] == ["committing", "committing", "processing", "processing"]
    assert active[-1][1] == "and 5 more"
    assert {len(row) for row in found} == {len(COLUMNS)}
    skipped = Moment("w", "local", "running", Snapshot(), [progress(1, {"finish": 1.0, "complete": 2.0})])
    assert rows(skipped) == [("1", "committed", "1,234", "12.3", "1.0", "", "", "", "2.0", "3", "2")]
    assert line(moment()) == (
        "words: committed txid 20, 9 in flight (2 committing, 7 processing), 20 txids with 20,000 input rows in 10.0 s, "
        "2,468 rows/s in the last 10 s, 2,000 on average, 24,680 tuples in all, 2 replays"
    )
    text = drawn(moment())
    assert text.startswith("words on spark, running: committed txid 20")
    assert all(column in text for column in COLUMNS)
    one = Moment("w", "local", "starting", Snapshot())  # without transactions
    assert rows(one) == []
    assert "committed txid 0, 0 in flight, 0 txids" in drawn(one)


def test_blocked_the_last_failure_long_work_and_what_holds_a_join_back_are_shown_everywhere():
    one = moment(blocked="changes/counts: [gone]", last_failure="21: b[0] raised <X>\nTraceback of it")
    for text in (line(one), drawn(one)):
        assert "BLOCKED(changes/counts: [gone])" in text
        assert "last failure: 21: b[0] raised <X>" in text
        assert "Traceback" not in text
    assert "BLOCKED(changes/counts: [gone])" in as_html(one)
    assert "raised &lt;X&gt;" in as_html(one)
    assert "<X>" not in as_html(one)
    long = moment(last_failure="21:7, 3 times: " + "why " * 100)  # one line, however narrow
    assert [text.rstrip()[-1] for text in drawn(long).splitlines() if "why" in text] == ["…"]
    assert len(line(long)) - len(line(moment())) < FAILURE_LENGTH + 20
    job = WorkProgress(23, 25, "processing", 1234.5, 3, 8, 1_000_000, "split[1]", 65_000)
    one = moment(working=(WorkProgress(21, 21, "committing", 2.0), job))
    expected = (
        "at work: txid 21 committing for 2.0 s",
        "at work: txids 23-25 processing for 1,234.5 s, 1,000,000 rows read, 3 of 8 tasks done, split[1] at row 65,000",
    )
    for text in (line(one), drawn(one), as_html(one)):
        assert all(note in text for note in expected)
    assert repr(one.snapshot).count("txid 21 committing") == 1
    held = HeldBack("feed", "r", "r1", timedelta(seconds=90))
    position = datetime(2026, 1, 31, 12, tzinfo=UTC)
    shown = WindowProgress(position, timedelta(seconds=95), 7, 1, held, "join")
    one = moment(windows={"match": shown})
    expected = (
        "join match: right position 2026-01-31T12:00:00+00:00, 95.0 s behind, 7 results, 1 late left row, "
        "held back by partition 'r1' of feed/r, 90.0 s without data"
    )
    assert expected in line(one)
    assert expected in " ".join(drawn(one).split())
    assert expected in as_html(one).replace("&#x27;", "'")
    assert shown.to_json()["held_back_by"] == {"component": "feed", "stream": "r", "partition": "r1", "since": 90.0}
