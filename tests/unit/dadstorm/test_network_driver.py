"""The three semantics under single faults, held tuples, commands and ids: NetworkTestDriver and the network machine."""

from collections import Counter
from pathlib import Path

import pytest

from txstorm.dadstorm.conditions import Conditions
from txstorm.dadstorm.configuration import Command, parse
from txstorm.dadstorm.delivery import Deliver, Item, Withdraw
from txstorm.dadstorm.network import Held, Lines, Network
from txstorm.errors import InputError, TopologyFailed
from txstorm.testing import NetworkTestDriver

SEMANTICS = ("at-most-once", "at-least-once", "exactly-once")
JOBS = Path(__file__).parents[3] / "jobs" / "dadstorm"


def text(semantics, *operators, script="start"):
    """A configuration: operators as (inputs, replicas, routing, type); all are started, unless `script` says else."""
    lines = [f"Semantics {semantics}"]
    for number, (inputs, replicas, routing, kind) in enumerate(operators, 1):
        urls = ", ".join(f"tcp://host:{number}{replica}/op" for replica in range(replicas))
        lines.append(
            f"OP{number} input_ops {inputs} rep_fact {replicas} routing {routing} address {urls} operator_spec {kind}"
        )
    starts = [f"Start OP{number}" for number in range(1, len(operators) + 1)]
    return "\n".join(lines + (starts if script == "start" else script.split("; ")))


def dups(semantics, replicas=2, routing="random"):
    return text(semantics, *((source, replicas, routing, "DUP") for source in ("in.data", "OP1", "OP2")))


def one(semantics, replicas, routing="primary", kind="DUP", **options):
    return NetworkTestDriver(text(semantics, ("in.data", replicas, routing, kind)), **options)


def states(driver):
    return [line["state"] for line in driver.status()]


# -- the three semantics -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 2, 3, 10_000], ids=["taken", "processed", "third answered", "all answered"])
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_thousand_lines_and_a_death_in_the_second_operator(semantics, after):
    driver = NetworkTestDriver(dups(semantics))
    lines = [(str(number),) for number in range(1000)]
    driver.feed("OP1", lines)
    driver.fail("OP2", 0, after=after)
    driver.settle()
    found = Counter(driver.output("OP3"))
    missing, repeated = Counter(lines) - found, found - Counter(lines)
    assert not repeated.keys() - set(lines)
    assert (driver.lost, driver.repeated) == (missing.total(), repeated.total())
    assert bool(missing) == (semantics == "at-most-once" and after < 1000)
    assert repeated.total() == (after if semantics == "at-least-once" and after < 1000 else 0)
    assert states(driver).count("crashed") == 1
    by_id = dict(zip(driver.ids("OP1"), driver.output("OP1"), strict=True))
    assert Counter(by_id[line["id"]] for line in driver.log if line["event"] == "lost") == missing


@pytest.mark.parametrize(("semantics", "expected"), [*zip(SEMANTICS, [(1, 0), (3, 2), (1, 0)], strict=True)])
def test_a_tuple_that_is_delivered_several_times(semantics, expected):
    driver = one(semantics, 1)
    driver.feed("OP1", [("a",)] * 3, ids=["x"] * 3)
    driver.settle()
    assert (len(driver.output("OP1")), driver.repeated) == expected
    assert driver.received("OP1", 0) == 3
    driver.feed("OP1", [("a",)], ids=["x"])  # of another transaction
    driver.settle()
    assert (len(driver.output("OP1")), driver.repeated) == (expected[0] + 1, expected[1])


# semantics, what happens after eight tuples were fed and replica 0 of two fell silent -> output, lost, state
SILENT = [
    ("at-most-once", "advance 9, wake", 8, 0, "working"),
    ("at-most-once", "advance 10, wake", 4, 4, "working"),
    ("at-least-once", "advance 9, wake", 8, 0, "working"),
    ("at-least-once", "advance 10, wake", 8, 0, "working"),  # the sibling has answered: the turn is over
    ("at-least-once", "silence 1, advance 10, wake", 8, 0, "working"),
    ("exactly-once", "advance 12", 8, 0, "crashed"),
    ("exactly-once", "advance 12, wake", 8, 0, "crashed"),
    ("at-most-once", "advance 12", 4, 4, "crashed"),
    ("exactly-once", "Crash, advance 20", 8, 0, "crashed"),  # silent and dead
    ("at-least-once", "Crash, wake", 8, 0, "crashed"),
    ("exactly-once", "Freeze, wake, Unfreeze", 8, 0, "working"),
    ("exactly-once", "silence 1, advance 12", 0, 0, "crashed"),  # none is left: held
    ("exactly-once", "silence 1, advance 12, Start", 8, 0, "working"),
    ("at-most-once", "silence 1, advance 12, Start", 0, 8, "working"),
    ("at-least-once", "restart", 8, 0, "working"),
]


@pytest.mark.parametrize(("semantics", "events", "output", "lost", "state"), SILENT)
def test_silence(semantics, events, output, lost, state):
    driver = one(semantics, 2, "random")
    driver.silence("OP1", 0)
    driver.feed(
        "OP1", [(str(number),) for number in range(8)], ids=[f"t{number}" for number in (1, 2, 3, 4, 5, 6, 7, 9)]
    )
    if "silence 1" not in events:
        driver.settle()
        assert driver.status()[0]["pending"] == 4
        assert states(driver)[0] == "silent"
    for event in events.split(", "):
        name, _, number = event.partition(" ")
        if name == "advance":
            driver.advance(float(number))
        elif name == "restart":
            driver.restart()
        elif name in ("silence", "wake"):
            getattr(driver, name)("OP1", int(number or 0))
        else:
            driver.command(f"{name} OP1" + (" 0" if name != "Start" else ""))
        driver.settle()
    found = len(driver.output("OP1")), driver.lost, driver.repeated, states(driver)[0]
    assert found == (output, lost, 0, state)
    assert len(driver.held) == 8 - output - lost


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_late_answers_count_while_the_turn_lasts(semantics):
    driver = one(semantics, 3, "random")
    driver.silence("OP1", 0)
    driver.silence("OP1", 2)
    driver.feed("OP1", [(str(number),) for number in range(30)])
    driver.settle()
    shares = [line["pending"] for line in driver.status()]
    driver.advance(10)  # replica 1 answers those of 0; those of 2 went to 0
    driver.wake("OP1", 0)
    driver.settle()
    assert shares[0] > 0 < shares[2]
    assert driver.lost == (shares[0] + shares[2] if semantics == "at-most-once" else 0)
    assert driver.repeated == (shares[0] if semantics == "at-least-once" else 0)
    assert len(driver.output("OP1")) == 30 - driver.lost + driver.repeated
    driver.wake("OP1", 2)
    driver.settle()
    assert len(driver.output("OP1")) == 30 - driver.lost + driver.repeated


def machine(semantics, replicas, **options):
    """A network of one operator, whose replicas are played by the test, and the deliveries of a first transaction."""
    configuration = parse(text(semantics, ("in.data", replicas, "random", "DUP")))
    conditions = Conditions(frozenset({"OP1"}), intervals=options.pop("intervals", {}))
    network = Network(configuration, conditions, **options)
    lines = [Lines("OP1", replica, [Item(f"f:{replica}.{n}", ("x",)) for n in (1, 2)]) for replica in range(replicas)]
    return network, network.begin(1, conditions, lines, [], lambda _, rows: rows, 0.0)


@pytest.mark.parametrize(("semantics", "again"), [("at-least-once", 2), ("exactly-once", 1)])
def test_the_time_without_an_answer_is_doubled_at_each_resend(semantics, again):
    network, (first,) = machine(semantics, 1, intervals={"OP1": 100})
    assert network.due == 10.1
    network.answered("OP1", first.number, [("f:0.1", [("x",)])], 4.0)
    assert network.due == 14.1
    assert network.tick(14.0) == []
    (second,) = network.tick(14.1)
    assert (len(second.items), second.again, network.due) == (again, True, 14.1 + 20.2)
    (third,) = network.tick(34.3)
    assert network.due == 34.3 + 40.4
    effects = network.answered("OP1", first.number, [("f:0.2", [("x",)])], 36.0)  # late, and the last one
    assert effects == [Withdraw("OP1", 0, second.number), Withdraw("OP1", 0, third.number)]
    assert network.outcome.resent == 2
    assert network.answered("OP1", third.number, [("f:0.2", [("x",)])], 36.0) == []


def test_a_delivery_has_one_that_stands_for_it():
    network, (first, _, last) = machine("at-least-once", 3)
    network.frozen("OP1", 1, 1.0)
    assert [(one.replica, one.items) for one in network.tick(10.0)] == [(2, first.items), (0, last.items)]  # not 1
    assert [(one.replica, one.items) for one in network.dead("OP1", 0, 11.0)] == [(2, last.items)]
    assert network.dead("OP1", 2, 12.0) == []  # replica 1 is frozen: held
    held = [(one.replica, one.item.id) for one in network.outcome.held]
    assert held == [(1, f"f:{replica}.{n}") for replica in range(3) for n in (1, 2)]
    assert network.outcome.resent == 3


def test_a_late_answer_for_tuples_that_were_handed_back_counts_nothing():
    network, (first, second) = machine("at-least-once", 2)
    again = network.tick(10.0)  # each is sent to the other replica, too
    assert [one.replica for one in again] == [1, 0]
    network.frozen("OP1", 1, 11.0)
    for number, items in ((first.number, first.items), (again[1].number, second.items)):
        network.answered("OP1", number, [(one.id, [one.fields]) for one in items], 12.0)
    assert [one.item for one in network.outcome.held] == list(first.items)
    assert len(network.outcome.emitted["OP1"].fields) == len(second.items)


def test_released_tuples_are_the_oldest_of_each_replica():
    network, _ = machine("exactly-once", 2)
    conditions = Conditions(frozenset({"OP1"}))
    held = [Held("OP1", -1, at, Item(f"t{at}", ("x",)), "no live replica") for at in (1, 2, 3)]  # for 0, 1, 0
    deliveries = [one for one in network.begin(2, conditions, [], held, None, 0.0) if isinstance(one, Deliver)]
    network.answered("OP1", deliveries[1].number, [("t2", [("x",)])], 0.0)
    network.dead("OP1", 1, 0.0)
    network.dead("OP1", 0, 0.0)
    assert network.outcome.released == held[:2]
    assert network.outcome.held == held[:1]  # it stays, and keeps its age


def test_a_replica_has_at_most_so_many_deliveries_as_its_buffer():
    network, deliveries = machine("exactly-once", 5, buffer=2)
    sent = list(deliveries)
    for replica in range(4):
        sent += network.dead("OP1", replica, 1.0)
    assert [one.replica for one in sent[5:]] == [1, 2, 3, 4]  # the next one; of replica 4, its own was there before
    while network.outcome is None:
        waiting = [one for one in sent if one.replica == 4]
        assert network.pending("OP1", 4) <= 4
        sent += network.answered("OP1", waiting[0].number, [(item.id, [item.fields]) for item in waiting[0].items], 2.0)
        sent.remove(waiting[0])
    assert len(network.outcome.emitted["OP1"].ids) == 10
    network, deliveries = machine("exactly-once", 2, buffer=1)
    network.dead("OP1", 0, 1.0)  # waits: replica 1 has its own
    effects = network.tick(10.0)  # that one is overdue: it makes way for the first that waits
    assert effects == [Withdraw("OP1", 1, 2), Deliver("OP1", 1, 3, deliveries[0].items, True)]


# -- held tuples -----------------------------------------------------------------------------------------------------


HELD = [
    ("", "not started", "Start OP2"),
    ("Start OP2; Freeze OP2 0", "frozen", "Unfreeze OP2 0"),
    ("Start OP2; Crash OP2 0", "no live replica", "Start OP2"),
    ("Start OP2; Freeze OP2 0; Interval OP2 1000", "frozen", "Unfreeze OP2 0"),
]


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize(("script", "reason", "release"), HELD)
def test_held_tuples_go_on_when_nothing_holds_them(semantics, script, reason, release):
    operators = (("in.data", 1, "primary", "DUP"), ("OP1", 1, "primary", "COUNT"))
    driver = NetworkTestDriver(text(semantics, *operators, script=f"Start OP1; {script}"))
    for number in range(3):
        driver.feed("OP1", [(f"{number}",), ("x",)])
        driver.settle()
    assert [(one.reason, one.item.id) for one in driver.held] == [
        (reason, f"OP1-0-{txid}.{n}") for txid in (1, 2, 3) for n in (1, 2)
    ]
    driver.restart()
    driver.command(release)
    driver.feed("OP1", [("new",)])
    driver.settle()
    assert driver.output("OP2") == [(str(number),) for number in range(1, 8)]
    assert not driver.held
    assert len(set(driver.ids("OP2"))) == 7


def test_an_interval_slows_each_replica_and_no_timeout_passes():
    driver = NetworkTestDriver(
        text("at-most-once", ("in.data", 2, "random", "DUP"), script="Interval OP1 200; Start OP1")
    )
    before = driver.clock.monotonic()
    driver.feed("OP1", [(str(number),) for number in range(200)])
    driver.settle()
    shares = [driver.received("OP1", replica) for replica in range(2)]
    assert driver.clock.monotonic() - before == pytest.approx(max(shares) * 0.2)
    assert (len(driver.output("OP1")), driver.lost) == (200, 0)
    assert [line["received"] for line in driver.status()] == shares  # each once: two in a transaction
    assert max(Counter(one.rsplit(".", 1)[0] for one in driver.ids("OP1")).values()) == 2
    driver.command("Wait 1500")
    assert driver.clock.monotonic() - before == pytest.approx(max(shares) * 0.2 + 1.5)


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_freezing_hands_back_what_is_not_answered(semantics):
    driver = NetworkTestDriver(dups(semantics))
    driver.silence("OP2", 0)
    lines = [(str(number),) for number in range(20)]
    driver.feed("OP1", lines)
    driver.settle()
    pending = next(line["pending"] for line in driver.status() if line["operator"] == "OP2")
    driver.command("Freeze OP2 0")
    driver.settle()
    assert len(driver.held) == pending > 0
    assert {one[:2] for one in driver.held} == {("OP2", 0)}
    assert len(driver.output("OP3")) == 20 - pending
    driver.wake("OP2", 0)
    driver.command("Crash OP2 0")  # routed anew
    driver.settle()
    assert sorted(driver.output("OP3")) == sorted(lines)
    assert (driver.lost, driver.repeated) == (0, 0)


def test_a_frozen_count_counts_each_tuple_once_though_the_master_dies():
    driver = NetworkTestDriver(text("exactly-once", ("in.data", 2, "random", "DUP"), ("OP1", 1, "primary", "COUNT")))
    driver.command("Freeze OP2 0")
    for number in range(50):
        driver.feed("OP1", [(str(number),)])
        driver.settle()
    assert driver.output("OP2") == []
    driver.restart()
    driver.settle()
    assert driver.output("OP2") == []
    driver.command("Unfreeze OP2 0")
    driver.silence("OP2", 0)
    driver.settle()
    driver.restart()  # in the middle of a transaction
    driver.settle()
    assert driver.output("OP2") == [(str(number),) for number in range(1, 51)]


# -- order, ids, faults --------------------------------------------------------------------------------------------


def test_order_is_by_age_then_by_input_as_listed_then_as_emitted():
    operators = (("a.data", 1, "primary", "DUP"), ("b.data, OP1", 1, "primary", "DUP"))
    driver = NetworkTestDriver(text("exactly-once", *operators, script="Start OP1"))
    driver.feed("OP1", ["old 1", "old 2"])
    driver.settle()
    driver.command("Start OP2")
    driver.feed("OP2", ["b 1", "% no tuple", "b 2"])
    driver.settle()
    assert driver.output("OP2") == [("old 1",), ("old 2",), ("b 1",), ("b 2",)]
    assert driver.ids("OP2") == [f"OP2-0-2.{number}" for number in (1, 2, 3, 4)]
    configuration = driver.configuration
    conditions = Conditions(frozenset({"OP1", "OP2"}))
    network = Network(configuration, conditions)
    lines = [Lines("OP1", 0, [Item("a", ("a",))]), Lines("OP2", 0, [Item("b", ("b",))])]
    (first,) = network.begin(1, conditions, lines, [], lambda _, rows: rows, 0.0)
    (second,) = network.answered("OP1", first.number, [("a", [("a1",), ("a2",)])], 0.0)
    assert [item.fields for item in second.items] == [("b",), ("a1",), ("a2",)]


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("routing", ["primary", "random", "hashing(1)"])
def test_f_replicas_of_each_operator_may_die_and_ids_do_not_depend_on_it(semantics, routing):
    runs = []
    for dying in (False, True):
        driver = NetworkTestDriver(dups(semantics, 3, routing))
        driver.feed("OP1", [(str(number), "x") for number in range(60)])
        for operator in ("OP1", "OP2", "OP3") if dying else ():
            driver.fail(operator, 0)
            driver.fail(operator, 1, after=10_000)
        driver.settle()
        runs.append((driver.ids("OP3"), driver.output("OP3")))
    if semantics != "at-most-once":
        assert runs[0] == runs[1]
    assert len(runs[1][1]) + driver.lost == 60
    assert len(set(runs[1][0])) == len(runs[1][0])


def test_the_reach_of_a_url_with_its_script_and_any_one_death():
    tweets = (JOBS / "tweets.data").read_text().splitlines()
    for place in [("OP1", 1), ("OP2", 0), ("OP2", 1), ("OP3", 0), ("OP3", 1), None]:
        driver = NetworkTestDriver(JOBS / "reach.cfg")
        driver.feed("OP1", tweets)
        if place:
            driver.fail(*place, after=1)
        driver.settle()
        if place == ("OP1", 1):  # both are dead
            assert driver.held
            driver.command("Start OP1")
            driver.settle()
        assert [len(driver.output(f"OP{number}")) for number in (1, 2, 3, 4)] == [5, 13, 7, 7]
        assert driver.output("OP4")[-1] == ("7",)
    assert {line["event"] for line in driver.log} >= {"command", "status", "crash"}


def test_commands_and_their_refusals():
    conditions = Conditions()
    steps = [
        ("Freeze", 0, None), ("Freeze", 0, "frozen already"), ("Start", None, None), ("Crash", 0, None),
        ("Crash", 0, "dead"), ("Unfreeze", 0, "dead"), ("Freeze", 0, "dead"), ("Unfreeze", 1, "not frozen"),
        ("Interval", 700, None), ("Status", None, None), ("Wait", 5, None), ("Start", None, None), ("Unfreeze", 0, "not"),
        ("Interval", 0, None),
    ]  # fmt: skip
    rooms = []
    for name, number, refused in steps:
        after, why = conditions.apply(Command(name, "OP1", number))
        assert (refused or "") in (why or "")
        assert (refused is None) == (why is None)
        assert why is None or after == conditions
        conditions = after.step()
        rooms.append(conditions.room("OP1"))
        assert Conditions.from_json(conditions.to_json()) == conditions
    assert rooms[7:10] == [None, 1, 1]
    assert conditions == Conditions(frozenset({"OP1"}), position=len(steps))
    driver = one("exactly-once", 1)
    driver.command("Unfreeze OP1 0")
    assert driver.log[-1]["event"] == "refused"
    assert driver.log[-1]["reason"] == "it is not frozen"


def test_states_of_replicas():
    operators = (("in.data", 4, "primary", "DUP"), ("OP1", 1, "primary", "DUP"))
    driver = NetworkTestDriver(text("exactly-once", *operators, script="Start OP1; Crash OP1 0; Freeze OP1 1"))
    driver.silence("OP1", 2)
    assert states(driver) == ["crashed", "frozen", "silent", "working", "not started"]


def test_what_cannot_be_asked_of_a_driver(tmp_path):
    (tmp_path / "own.py").write_text("class Own:\n    def go(self, fields):\n        return fields[7]\n")
    driver = NetworkTestDriver(text("exactly-once", ("in.data", 1, "primary", "CUSTOM own,Own,go")), tmp_path)
    driver.feed("op1", [("a", "b")])
    for _ in range(2):
        with pytest.raises(TopologyFailed, match=r"operator OP1, tuple 'a, b': IndexError.*own\.py:3"):
            driver.settle()
    with pytest.raises(InputError, match="operator 'OP2' is not in the configuration"):
        driver.output("OP2")
    with pytest.raises(InputError, match="1 tuples and 2 ids"):
        driver.feed("OP1", [("a",)], ids=["x", "y"])
    with pytest.raises(InputError, match="has replicas 0 to 0, got 1"):
        driver.fail("OP1", 1)
    driver.command("Crash OP1 0")
    with pytest.raises(InputError, match="is dead"):
        driver.drop("OP1", 0)
