"""The language of configurations: every fault with its place, what is taken with a warning, and what a file says."""

import json
import random
import re
from pathlib import Path

import pytest

from txstorm.cli.main import execute
from txstorm.dadstorm.configuration import Command, check_files, load, parse, parse_command
from txstorm.dadstorm.rep_info import RepInfo, plan
from txstorm.errors import ConfigurationError, InputError

JOBS = Path(__file__).parents[3] / "jobs" / "dadstorm"
FIGURE = """% This configuration file describes four operators that are used to compute the reach of a URL on Twitter.
%
% Semantics at-most-once | at-least-once | exactly-once
Semantics at-most-once
% LoggingLevel Full | Light
LoggingLevel Full
%
OP1 input ops tweeters.data rep fact 2 routing hashing() address tcp://1.2.3.4:11000/rep, tcp://1.2.3.5:11000/rep \
operator spec FILTER 3,"www.technica.oli180a.pt"
OP2 input ops OP1 rep fact 2 routing random address tcp://1.2.3.4:11000/rep, tcp://1.2.3.6:11000/rep \
operator spec CUSTOM mylib.dll.QueryFollowersFile.getFollowers
OP3 input ops OP2 rep fact 2 routing hashing() address tcp://1.2.3.4:11000/rep, tcp://1.2.3.5:11000/rep \
operator spec UNIQ 1
OP4 input ops OP3 rep fact 1 routing primary address tcp://1.2.3.10:11000/rep operator spec COUNT
%
Interval OP1 500
Start OP1
Start OP2
Start OP3
Start OP4
Status
% Crash OP1 8 crashes replica 8 of OP1
Crash OP1 8
Freeze OP2 1
Wait 10000
Unfreeze OP2 1
Status
"""
OK = "A input_ops x.data rep_fact 2 routing primary address a,b operator_spec DUP"


def operator(id="A", inputs="x.data", replicas="1", routing="primary", address="a", spec="DUP"):
    return f"{id} input_ops {inputs} rep_fact {replicas} routing {routing} address {address} operator_spec {spec}"


FAULTS = [
    # a line that is none
    ("Strat A", ["1:1 expected an operator, a setting or a command, got 'Strat' (did you mean 'Start'"]),
    ("\n  % x\n\n   7", ["4:4 expected an operator, a setting or a command, got '7'"]),
    ("rep_fact 2", ["1:1 expected an operator"]),
    (f"{OK}\nStart", ["2:6 Start: expected the id of an operator, got the end of the line"]),
    (f"{OK}\nstart  B", ["2:8 Start: expected the id of an operator, got 'B'"]),
    (f"{OK}\nStatus A", ["2:8 Status: expected the end of the line, got 'A'"]),
    (f"{OK}\nWait ten", ["2:6 Wait: expected a number, got 'ten'"]),
    (f"{OK}\nWait 10 s", ["2:9 Wait: expected the end of the line or ms, got 's'"]),
    (f"{OK}\nInterval A -1", ["2:12 Interval: expected a number, got '-1'"]),
    (f"{OK}\nFreeze A 2", ["2:10 Freeze: expected a replica of A, 0 to 1, got '2'"]),
    (f"{OK}\nCrash A", ["2:8 Crash: expected a number, got the end of the line"]),
    # settings
    ("Semantics exactly_once", ["1:11 Semantics: expected at-most-once, at-least-once or exactly-once, got"]),
    ("Semantics exactly-once\nSEMANTICS at-most-once", ["2:1 SEMANTICS: expected once, got again; it is in line 1"]),
    ("LoggingLevel full\n\n\nLoggingLevel full", ["4:1 LoggingLevel: expected once"]),
    ("LoggingLevel verbose", ["1:14 LoggingLevel: expected full or light, got 'verbose'"]),
    # clauses
    (operator(id="1A"), ["1:1 1A: expected the id of an operator, got '1A'"]),
    (operator(id="A" * 65), ["1:1 expected the id of an operator"]),
    (operator(id="Start"), ["1:1 Start: expected the id of an operator, got a keyword"]),
    (operator(inputs=""), ["1:14 A: expected a source, got 'rep_fact'"]),
    (operator(inputs="x.data,"), ["1:21 A: expected a source, got 'rep_fact'"]),
    (operator(inputs="x.data y.data"), ["1:20 A: expected ',' or rep_fact, got 'y.data'"]),
    (operator(inputs="kafka://host/topic"), ["1:13 A: expected kafka://HOST:PORT/TOPIC, got 'kafka://host/topic'"]),
    (operator(inputs="OP1"), ["1:13 A: expected an operator, a file (with '.' or '/') or kafka://"]),
    (operator(replicas="0"), ["1:29 A, rep_fact: expected at least 1, got 0"]),
    (operator(replicas="2"), ["1:29 A, rep_fact: expected 1, the number of addresses, got 2"]),
    (operator(replicas="two"), ["1:29 A, rep_fact: expected a number, got 'two'"]),
    (operator(routing="primry"), ["1:39 expected hashing, primary or random, got 'primry' (did you mean 'primary'?)"]),
    (operator(routing="hashing(0)"), ["1:47 A, hashing: expected a field, counted from 1, got '0'"]),
    (operator(routing="hashing(x)"), ["1:47 A, routing: expected ')' or a number, got 'x'"]),
    (operator(routing="primary(1)"), ["1:39 A, routing: expected"]),
    (operator(address=""), ["1:56 A, address: expected an address, got 'operator_spec'"]),
    (operator(spec="DUPE"), ["1:71 expected UNIQ, COUNT, DUP, FILTER or CUSTOM, got 'DUPE' (did you mean 'DUP'?)"]),
    (operator().replace("routing primary ", ""), ["1:31 A: expected routing, got 'address'"]),
    (operator().replace(" operator_spec DUP", ""), ["1:56 A: expected operator_spec, got the end of the line"]),
    (operator().replace("input_ops", "inputops"), ["1:3 A: expected input_ops, got 'inputops'"]),
    (operator() + " rep_fact 2", ["1:75 A: expected the end of the line, got 'rep_fact'"]),
    # parameters
    (operator(spec="DUP 1"), ["1:75 A: expected DUP, got 1 parameter"]),
    (operator(spec="UNIQ"), ["1:75 A: expected UNIQ field, got 0 parameters"]),
    (operator(spec="UNIQ 0"), ["1:76 A, UNIQ: expected a field, counted from 1, got '0'"]),
    (operator(spec="COUNT 1"), ["1:77 A: expected COUNT, got 1 parameter"]),
    (operator(spec="FILTER 3,x"), ["1:81 A: expected FILTER field,condition,value, got 2 parameters"]),
    (operator(spec="FILTER x,=,y"), ["1:78 A, FILTER: expected a field, counted from 1, got 'x'"]),
    (operator(spec='FILTER 1,"!",y'), ["1:80 A, FILTER: expected =, < or >, got '!'"]),
    (operator(spec="FILTER 1 = y"), ["1:80 A, operator_spec: expected the end of the line or ',', got '='"]),
    (operator(spec='FILTER 1,=,"y'), ["1:82 A, operator_spec: expected a parameter, got '\"y'"]),
    (operator(spec="CUSTOM lib.method"), ["1:88 A: expected CUSTOM library,class,method, got 1 parameter"]),
    # several lines
    (f"{OK}\n{OK}", ["2:1 A: expected an id of its own, got that of the operator in line 1"]),
    (operator(inputs="A"), ["1:13 A: expected no cycle, got A <- A"]),
    (
        f"{operator('A', 'x.d, C')}\n{operator('B', 'A')}\n{operator('C', 'B')}",
        ["1:18 expected no cycle, got A <- C <- B"],
    ),
    (
        "A input_ops x.data\n  rep_fact 1 routing\n\n% comment\nprimary",
        ["2:21 got the end of the line", "5:1 expected an op"],
    ),
    # several in one line
    (operator(replicas="0", routing="hashing(0)", spec="UNIQ 0"), ["1:29 at least 1", "1:47 a field", "1:79 a field"]),
    (
        operator(inputs="NO", replicas="x", routing="foo", address=",", spec="BAR"),
        ["1:13 ", "1:25 ", "1:35 ", "1:47 ", "1:63 "],
    ),
    (operator(spec="FILTER 0,~,1"), ["1:78 a field", "1:80 expected =, < or >"]),
    (
        "A rep_fact 0 address b routing foo",
        ["1:3 input_ops", "1:12 at least", "1:14 routing", "1:24 operator_spec", "1:32 ", "1:35 "],
    ),
]


@pytest.mark.parametrize(("text", "expected"), FAULTS)
def test_every_fault_has_its_line_and_column(text, expected):
    with pytest.raises(ConfigurationError) as raised:
        parse(text, name="net.cfg")
    faults = raised.value.faults
    assert [f"{one['line']}:{one['column']}" for one in faults] == [one.split(" ", 1)[0] for one in expected]
    for fault, one in zip(faults, expected, strict=True):
        assert one.split(" ", 1)[1] in fault["message"]
        assert f"net.cfg:{fault['line']}:{fault['column']}: {fault['message']}" in str(raised.value)


def test_the_figure_of_the_report_is_taken_as_printed_but_for_one_line():
    with pytest.raises(ConfigurationError) as raised:
        parse(FIGURE)
    (fault,) = raised.value.faults
    assert FIGURE.splitlines()[fault["line"] - 1][fault["column"] - 1 :] == "8"
    found = parse(FIGURE.replace("\nCrash OP1 8\n", "\nCrash OP1 0\n"))
    kinds = [re.sub(r"^OP\d: ([a-z]+|FILTER|CUSTOM).*", r"\1", one["message"]) for one in found.warnings]
    assert kinds == ["hashing", "FILTER", "address", "CUSTOM", "hashing", "address", "address"]
    assert [one.params for one in found.operators[:2]] == [
        ("3", "=", "www.technica.oli180a.pt"),
        ("mylib.dll", "QueryFollowersFile", "getFollowers"),
    ]
    assert (found.semantics, found.logging, found.operators[0].routing_field) == ("at-most-once", "full", 1)
    assert len(found.commands) == 11
    assert found.commands[0] == Command("Interval", "OP1", 500)


def test_any_case_both_spellings_and_continued_lines_say_the_same():
    plain = load(JOBS / "reach.cfg")
    text = (JOBS / "reach.cfg").read_text()
    for one in ("input_ops", "rep_fact", "operator_spec", "routing", "address", "Start", "Status", "FILTER", "hashing"):
        words = one.replace("_", " ")
        text = re.sub(rf"\b{one}\b", "".join(random.Random(one).choice([c, c.swapcase()]) for c in words), text)
    text = text.replace(", tcp", ",\n% between\n\n   tcp").replace("hashing(1)", "hashing ( 1 )").replace("\n", "\r\n")
    assert parse(text.replace("LoggingLevel full", "LOGGINGLEVEL  FULL")) == plain


def test_the_json_form_order_and_consumers():
    found = parse("\n".join([operator("C", "B,A"), operator("B", "A"), operator("A", "y.data"), "Wait 5 ms", "Status"]))
    assert found.order() == ("A", "B", "C")
    assert (found.consumers("A"), [one.id for one in found.first()]) == (("C", "B"), ["A"])
    document = json.loads(json.dumps(found.to_json()))
    assert document["commands"] == [["Wait", 5], ["Status"]]
    assert document["edges"][0] == {"from": "B", "to": "C", "routing": "primary"}
    assert (document["semantics"], document["logging"]) == ("exactly-once", "light")
    assert [one["column"] for one in document["warnings"]] == [50, 55]
    assert document["operators"][2] == {
        "id": "A",
        "inputs": ["y.data"],
        "rep_fact": 1,
        "routing": "primary",
        "addresses": ["a"],
        "type": "DUP",
        "params": [],
    }


@pytest.mark.parametrize("seed", range(40))
def test_random_text_is_parsed_or_refused_with_places_that_exist(seed):
    chance = random.Random(seed)
    words = [*FIGURE.split(" "), *FIGURE.split(), "\n", ",", '"', "(", ")", "\x0b", "\u2028", "é", "hashing(1)", "ms"]
    text = " ".join(chance.choices(words, k=chance.randrange(400)))
    lines = text.split("\n")
    try:
        parse(text)
    except ConfigurationError as error:
        for one in error.faults:
            assert 1 <= one["column"] <= len(lines[one["line"] - 1]) + 1


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"Status\nWait \xff", (2, 6), "got byte 0xff"),
        (b"Status\n\n ab\0c", (3, 4), "got a NUL"),
        (b"%" * (1 << 20) + b"%", (1, 1), "at most 1,048,576 bytes"),
        (None, (1, 1), "No such file"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, data, place, message):
    path = tmp_path / "net.cfg"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigurationError, match=message) as raised:
        load(path)
    (fault,) = raised.value.faults
    assert (fault["line"], fault["column"]) == place


def test_of_very_many_faults_the_first_hundred_are_listed():
    with pytest.raises(ConfigurationError, match=r"<text>: 1,900 more\Z") as raised:
        parse("Strat\n" * 2000)
    assert len(raised.value.faults) == 100


def test_one_command_from_a_terminal():
    found = load(JOBS / "reach.cfg")
    assert parse_command(" freeze OP2 1\n", found) == Command("Freeze", "OP2", 1)
    assert str(parse_command("Status", found)) == "Status"
    for line, message in [
        ("Freeze OP2 2", "<command>:1:12: .*0 to 1"),
        ("Start OP5", "did you mean"),
        ("", "got the end"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            parse_command(line, found)


def test_what_each_replica_is_told():
    told = plan(load(JOBS / "reach.cfg"))["replicas"]
    assert [(one.operator_id, one.replica) for one in told][:3] == [("OP1", 0), ("OP1", 1), ("OP2", 0)]
    second = told[2]
    assert (second.my_url, second.port) == ("tcp://localhost:11002/op", 11002)
    assert second.siblings_urls == ("tcp://localhost:11003/op",)
    assert second.receive_info_urls == ("tcp://localhost:11000/op", "tcp://localhost:11001/op")
    assert second.send_info_urls == ("tcp://localhost:11004/op", "tcp://localhost:11005/op")
    assert (second.routing, second.next_routing, second.next_routing_param) == ("random", ("hashing",), (1,))
    assert all(RepInfo.from_json(json.loads(json.dumps(one.to_json()))) == one for one in told)


def test_the_picture_of_the_network():
    found = load(JOBS / "reach.cfg")
    text = found.describe()
    assert re.search(r"OP3 +UNIQ 1 +2 +OP2 +hashing\(1\) +OP4", text)
    assert all(one in found.describe("svg") for one in ("OP2", "tweets.data", "hashing(1)", "×2", "OP4_count"))
    assert json.loads(found.describe("json")) == found.to_json()
    assert "image/svg+xml" in found._repr_mimebundle_()
    with pytest.raises(InputError, match="use one of text"):
        found.describe("png")


def test_data_files_followers_and_code_are_checked_together(tmp_path):
    (tmp_path / "bad.data").write_bytes(b"1, a\n2, \xe9\n")
    (tmp_path / "mine.py").write_text("class Twice:\n    def execute(self, fields):\n        return [fields] * 2\n")
    text = "\n".join(
        [
            operator("A", "none.data,bad.data", address="a"),
            operator("B", "A", address="b", spec="CUSTOM mylib,QueryFollowersFile,getFollowers"),
            operator("C", "A", address="c", spec="CUSTOM mine,Twice,excute"),
            operator("D", "A", address="d", spec="CUSTOM mine,Twice,execute"),
        ]
    )
    with pytest.raises(ConfigurationError) as raised:
        check_files(parse(text, directory=tmp_path))
    expected = [
        (1, "No such file"),
        (1, "bad.data:2: .*UTF-8, got byte 0xe9"),
        (2, "followers"),
        (3, "did you mean 'execute'"),
    ]
    assert len(raised.value.faults) == len(expected)
    for fault, (line, message) in zip(raised.value.faults, expected, strict=True):
        assert fault["line"] == line and re.search(message, fault["message"])
    with pytest.raises(ConfigurationError, match="expected an operator, got none"):
        check_files(parse("% nothing"))
    check_files(load(JOBS / "reach.cfg"))


@pytest.mark.parametrize("name", ["reach", "kafka_to_delta"])
def test_the_commands_on_the_command_line(name, capsys, tmp_path):
    path = str(JOBS / f"{name}.cfg")
    found = load(path)

    def printed(*arguments: str, code: int = 0) -> str:
        assert execute(["dadstorm", *arguments]) == code
        return capsys.readouterr().out

    assert json.loads(printed("parse", path, "--json")) == found.to_json()
    assert printed("describe", path) == found.describe() + "\n"
    assert json.loads(printed("check", path, "--json"))["faults"] == []
    told = json.loads(printed("plan", path, "--json"))["replicas"]
    assert [one["my_url"] for one in told] == [url for one in found.operators for url in one.addresses]
    assert printed("plan", path).count("\n") == 1 + len(told)
    (tmp_path / "bad.cfg").write_text("Strat A\nStatus 1\n")
    error = json.loads(printed("check", str(tmp_path / "bad.cfg"), "--json", code=2))["error"]
    assert (error["type"], error["exit_code"]) == ("ConfigurationError", 2)
    assert [(one["line"], one["column"]) for one in error["faults"]] == [(1, 1), (2, 8)]
