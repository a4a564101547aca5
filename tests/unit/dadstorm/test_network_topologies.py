"""Operator networks as topologies: golden results and random networks against a naive model, on threads and on Spark."""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import ended

from txstorm.cli.main import execute
from txstorm.dadstorm.configuration import parse
from txstorm.dadstorm.routing import tasks
from txstorm.dadstorm.topology import build_topology, key_of, topology_id
from txstorm.dadstorm.values import holds, value
from txstorm.engine.local import LocalEngine
from txstorm.errors import InputError, SpoutError
from txstorm.operations.rewind import rewind
from txstorm.operations.savepoints import create_savepoint
from txstorm.replay.audit import audit
from txstorm.replay.recording import Recording, span_of

JOB = Path(__file__).parents[3] / "jobs" / "dadstorm"
REACH = ["u10", "u11", "u2", "u3", "u5", "u7", "u8"]
ROUTINGS = ("primary", "random", "hashing(1)")
SEMANTICS = ("exactly-once", "at-least-once", "at-most-once")


def address(number):
    return ",".join(f"tcp://localhost:{11000 + n}/op" for n in range(number))


def reach(name, replicas, routing):
    """The network of the URL reach; ids of its operators begin with a name."""
    steps = ['FILTER 3,=,"www.example.org"', "CUSTOM mylib.dll,QueryFollowersFile,getFollowers", "UNIQ 1", "COUNT"]
    sources = ["tweets.data", *(f"{name}{n}" for n in (1, 2, 3))]
    return "".join(
        f"{name}{n} input_ops {source} rep_fact {number} routing {routing} address {address(number)} operator_spec {step}\n"
        for n, (source, step) in enumerate(zip(sources, steps, strict=True), 1)
        for number in (1 if n == 4 else replicas,)
    )


def tuples(handle, operator):
    return [tuple(row["fields"]) for row in handle.sink(f"{operator}_emitted").to_pylist()]


def test_url_reach_with_every_routing_and_number_of_replicas(make_engine, tmp_path):
    engine = make_engine()
    local = isinstance(engine, LocalEngine)
    cases = [*product((1, 2, 3) if local else (2,), ROUTINGS)]  # each operator costs a job of Spark a stage
    names = [f"R{replicas}{routing[0]}" for replicas, routing in cases]
    networks = map(reach, names, *zip(*cases, strict=True))
    text = f"Semantics at-{'most' if local else 'least'}-once\nLoggingLevel full\n{''.join(networks)}"
    handle = ended(build_topology(parse(text, directory=JOB), max_batch_rows=200), tmp_path, engine)
    for name in names:
        assert [len(tuples(handle, f"{name}{n}")) for n in (1, 2, 3, 4)] == [5, 13, 7, 7], name
        assert sorted(one for (one,) in tuples(handle, f"{name}3")) == REACH
        assert tuples(handle, f"{name}4") == [(str(n),) for n in range(1, 8)]
        assert sorted(row["value"] for row in handle.state(f"{name}3_seen").to_pylist()) == REACH
        assert handle.state(f"{name}4_count").to_pylist() == [{"operator": f"{name}4", "n": 7}]
    rows = handle.sink("R2p1_emitted").to_pylist()
    assert {row["url"] for row in rows} == {"tcp://localhost:11000/op", "tcp://localhost:11001/op"}
    numbered = Counter((row["replica"], row["_txid"]) for row in rows)
    expected = {f"R2p1-{replica}-{txid}.{n}" for (replica, txid), last in numbered.items() for n in range(1, last + 1)}
    assert {row["id"] for row in rows} == expected


# -- random networks ---------------------------------------------------------------------------------------------------

FIELDS = st.sampled_from(["1", "1.0", "2", "-3", "a", '"a"', "b", '"x, y"'])
TUPLES = st.lists(st.lists(FIELDS, min_size=1, max_size=3), max_size=20)
SPECS = [
    "DUP",
    "COUNT",
    "UNIQ 1",
    "UNIQ 2",
    "FILTER 1,=,1",
    'FILTER 2,>,"a"',
    "FILTER 1,<,2",
    "CUSTOM own,Own,each",
    "CUSTOM mylib,IdentityOperator,any",
]
OWN = """
class Own:
    def each(self, fields):
        return [[one] for one in fields]
"""


@st.composite
def networks(draw, operators=4):
    """Draw operators: their inputs, specification, routing and number of replicas."""
    found = []
    for n in range(1, draw(st.integers(1, operators)) + 1):
        known = [f"OP{one}" for one in range(1, n)] + ["one.data", "two.data"]
        inputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
        routing = draw(st.sampled_from([*ROUTINGS[:2], "hashing(1)", "hashing(2)"]))
        found.append((inputs, draw(st.sampled_from(SPECS)), routing, draw(st.integers(1, 3))))
    return found


def text_of(network, semantics="exactly-once"):
    return f"LoggingLevel full\nSemantics {semantics}\n" + "".join(
        f"OP{n} input_ops {','.join(inputs)} rep_fact {replicas} routing {routing} address {address(replicas)} "
        f"operator_spec {spec}\n"
        for n, (inputs, spec, routing, replicas) in enumerate(network, 1)
    )


def model(network, files):
    """Return operator → its emitted tuples, and whether these depend on the order, by the rules one by one."""
    found = {name: (list(map(tuple, lines)), False) for name, lines in files.items()}
    for n, (inputs, spec, _, _) in enumerate(network, 1):
        given = [one for name in inputs for one in found[name][0]]
        ordered = any(found[name][1] for name in inputs)
        kind, *params = spec.replace(",", " ").split()
        if kind == "COUNT":
            made = [(str(number),) for number in range(1, len(given) + 1)]
        elif kind == "UNIQ":
            number = int(params[0]) - 1
            made, ordered = list({value(one[number]): one for one in given if len(one) > number}.values()), True
        elif kind == "FILTER":
            number = int(params[0]) - 1
            made = [
                one for one in given if len(one) > number and holds(value(one[number]), params[1], value(params[2]))
            ]
        else:
            made = (
                given
                if kind == "DUP" or params[0].startswith("mylib")
                else [(field,) for one in given for field in one]
            )
        found[f"OP{n}"] = made, ordered
    return found


def prepared(place, files):
    (place / "own.py").write_text(OWN, encoding="utf-8")
    for name, lines in files.items():
        (place / name).write_text("".join(", ".join(line) + "\n" for line in lines), encoding="utf-8")


def check_model(handle, network, files):
    expected = model(network, files)
    for n, (inputs, spec, _, _) in enumerate(network, 1):
        made, ordered = expected[f"OP{n}"]
        found = tuples(handle, f"OP{n}")
        if not ordered:
            assert Counter(found) == Counter(made)
        elif spec.startswith("UNIQ") and not any(expected[name][1] for name in inputs):
            number = int(spec[-1]) - 1
            assert Counter(value(one[number]) for one in found) == Counter(value(one[number]) for one in made)
            seen = [row["value"] for row in handle.state(f"OP{n}_seen").to_pylist()]
            assert sorted(seen) == sorted(value(one[number]) for one in made)


@settings(max_examples=12)
@given(networks(), TUPLES, TUPLES, st.integers(1, 9), st.sampled_from(["exactly-once", "at-most-once"]))
def test_random_networks_follow_a_naive_model(tmp_path_factory, network, one, two, rows, semantics):
    place, files = tmp_path_factory.mktemp("network"), {"one.data": one, "two.data": two}
    prepared(place, files)
    topology = build_topology(parse(text_of(network, semantics), directory=place), max_batch_rows=rows)
    check_model(ended(topology, place / "data"), network, files)


def test_a_network_of_every_operator_on_both_engines(make_engine, tmp_path):
    files = {"one.data": [["1", "a"], ['"a"', "b"], ["2"], ["1.0", '"x, y"']] * 3, "two.data": [["-3", "a", "b"]]}
    network = [
        (["one.data", "OP10"][:1] if n else ["two.data", "one.data"], spec, routing, 1 + n % 3)
        for n, (spec, routing) in enumerate(zip(SPECS, [*ROUTINGS, "hashing(2)"] * 3, strict=False))
    ]
    network += [
        (["OP1", "OP8", "two.data"], spec, routing, 3 - n % 3) for n, (_, spec, routing, _) in enumerate(network)
    ]
    prepared(tmp_path, files)
    topology = build_topology(parse(text_of(network), directory=tmp_path), max_batch_rows=50)
    check_model(ended(topology, tmp_path / "data", make_engine()), network, files)


def test_keys_of_tasks():
    assert all(tasks([key_of(task, n)], n) == [task] for n in range(1, 9) for task in range(n))
    assert all(tasks([key_of(0, 1 << 10)], n) == [0] for n in range(1, 1 << 10))


# -- life cycle and refusals -------------------------------------------------------------------------------------------


def test_files_are_followed_and_replay_rewind_and_savepoints_work(tmp_path):
    network = [
        (["one.data"], "CUSTOM own,Own,each", "random", 2),
        (["OP1"], "UNIQ 1", "hashing(1)", 3),
        (["OP2"], "COUNT", "primary", 1),
    ]
    files = {"one.data": [[f"{n}", f"{n % 3}"] for n in range(8)]}
    prepared(tmp_path, files)
    topology = build_topology(parse(text_of(network), "a b.cfg", tmp_path), max_batch_rows=3)
    assert (topology.id, topology_id(parse(text_of(network), "1.cfg", tmp_path))) == ("a-b", "dadstorm")
    ended(topology, data := tmp_path / "data")
    first = create_savepoint(data, "first").txid
    with open(tmp_path / "one.data", "a", encoding="utf-8") as file:
        file.write("% more\n9, 10\n11, 3\n")
    handle = ended(topology, data)
    files["one.data"] += [["9", "10"], ["11", "3"]]
    check_model(handle, network, files)
    assert tuples(handle, "OP3") == [(str(n),) for n in range(1, 12)]
    verdicts = []
    audit(topology, recording := Recording(data), span_of(recording, None, None), LocalEngine(), verdicts.append)
    assert len(verdicts) == 4 and all(one.equal for one in verdicts)
    assert [row["n"] for row in handle.snapshot(first).state("OP3_count").to_pylist()] == [8]
    rewind(data, 1)
    assert tuples(handle, "OP3") == [("1",), ("2",), ("3",), ("4",)][: len(tuples(handle, "OP3"))]
    check_model(ended(topology, data), network, files)


def test_an_output_operator_writes_lines_beside_the_configuration(tmp_path):
    network = [(["one.data"], "CUSTOM mylib.dll,OutputOperator,any", "random", 2), (["OP1"], "COUNT", "random", 1)]
    prepared(tmp_path, files := {"one.data": [["1", '"x, y"'], ["2"], ["3"]]})
    handle = ended(build_topology(parse(text_of(network), directory=tmp_path)), tmp_path / "data")
    lines = (tmp_path / "OP1.out").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == sorted(", ".join(line) for line in files["one.data"])
    check_model(handle, network, files)


def test_tuples_without_a_field_are_dropped_with_a_warning(tmp_path):
    network = [(["one.data"], "FILTER 2,=,a", "random", 1), (["one.data"], "UNIQ 2", "random", 1)]
    prepared(tmp_path, {"one.data": [["1", "a"], ["2"], ["3"]]})
    handle = ended(build_topology(parse(text_of(network), directory=tmp_path)), tmp_path / "data")
    assert [tuples(handle, f"OP{n}") for n in (1, 2)] == [[("1", "a")]] * 2
    [done] = handle.recentProgress
    assert {f"operator OP{n}: 2 tuples have no field 2; dropped" for n in (1, 2)} <= set(
        re.findall(r"operator [^']*", f"{done}")
    )


RAISING = """
class Own:
    def raises(self, fields):
        return [[fields[1]]]
    def wrong(self, fields):
        return [fields, 5]
"""


@pytest.mark.parametrize(
    ("method", "line", "expected"),
    [
        ("raises", b"2\n", r"OP1\[0\] raised .*operator OP1, tuple '2': IndexError: .*own.py:4 in raises"),
        ("wrong", b"2\n", r"OP1\[0\] raised .*own, Own.wrong \(.*own.py:5\) returned .*type int; expected a list of"),
        ("raises", b"\xff\n", "one.data:2: the line is not UTF-8"),
    ],
)
def test_an_error_names_operator_tuple_and_line_and_may_be_left_out(tmp_path, method, line, expected):
    (tmp_path / "own.py").write_text(RAISING, encoding="utf-8")
    (tmp_path / "one.data").write_bytes(b"1, a\n" + line)
    network = [(["one.data"], f"CUSTOM own,Own,{method}", "random", 1)]
    topology = build_topology(parse(text_of(network), directory=tmp_path))
    with pytest.raises(InputError, match=expected):
        ended(topology, tmp_path / "data")
    if method == "raises":
        with pytest.warns(match="1 record was left out"):
            handle = ended(topology, tmp_path / "data", settings={"on_error": "dead_letter"})
        assert tuples(handle, "OP1") == [("a",)]
    if b"\xff" in line:
        (tmp_path / "net.cfg").write_text(text_of(network), encoding="utf-8")
        command = ["dadstorm", "run", f"{tmp_path}/net.cfg", "--engine", "local", "--data-dir", f"{tmp_path}/more"]
        assert (execute(command), execute([*command, "--set", "on_error=dead_letter"])) == (2, 0)


def test_what_a_topology_refuses(tmp_path):
    network = [(["one.data"], "UNIQ 1", "random", 2)]
    prepared(tmp_path, {"one.data": [["1", "a"]]})

    def built(text, **options):
        return build_topology(parse(text, "net.cfg", tmp_path), **options)

    with pytest.raises(
        InputError, match=r"net.cfg: Crash OP1 0, Interval OP1 5: a topology has Start, Status, Wait only"
    ):
        built(text_of(network) + "Start OP1\nCrash OP1 0\nInterval OP1 5\nWait 5\nStatus\n")
    with pytest.raises(InputError, match=r"net.cfg:3: operator OP1: library 'nope' is missing"):
        built(text_of([(["one.data"], "CUSTOM nope,A,b", "random", 1)]))
    with pytest.raises(SpoutError, match=r"none.data cannot be read: No such file"):
        ended(built(text_of([(["none.data"], "DUP", "random", 1)])), tmp_path / "none")
    assert any(
        "is exactly-once, and not at-most-once" in one for one in built(text_of(network, "at-most-once")).warnings
    )
    idle = built(text_of([*network, (["OP1"], "DUP", "random", 1)]) + "Start OP1\n").warnings
    assert any("a topology runs all operators, also OP2" in one for one in idle)
    ended(built(text_of(network)), tmp_path / "data")
    ended(built(text_of(network) + "Start OP1\n"), tmp_path / "data")
    with pytest.raises(
        InputError, match=r"not that of .*data: OP1: params was \['1'\], and is \['2'\]; only commands may"
    ):
        ended(built(text_of([(["one.data"], "UNIQ 2", "random", 2)])), tmp_path / "data")
