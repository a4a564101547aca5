"""Faults of pipelines: each is a sentence with its line and place, all of a file at once; and the texts of programs."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from txstorm.errors import InputError
from txstorm.pipelines import Pipeline

SOURCE = """name = "p"
source.s.type = "files"
source.s.path = "s.csv"
source.s.fields = { id = "int", at = "datetime", shop = "str", amount = "decimal", b = "bool" }
"""
"""Four lines, so that what follows begins in line 5."""
SINK = '[sink.out]\ntype = "delta"\nfrom = "x"\n'
SECRET = "hunter2"
MAP = pa.map_(pa.string(), pa.list_(pa.int64()))


def step(kind: str, **options: str) -> str:
    """A step x in lines 5 and following: its header, type and from, and the options from line 8 on."""
    lines = [f"{name} = {text}" for name, text in options.items()]
    return "\n".join([SOURCE + "[step.x]", f'type = "{kind}"', 'from = "s"', *lines, ""])


def window(**options: str) -> str:
    """A step x with the options of a window from line 8 on, the last of them its own."""
    return step(
        "window", **({"by": '"shop"', "time": '"at"', "length": '"1 min"', "values": '{ n = "count" }'} | options)
    )


SIDE = '{ from = "s", key = "id", time = "at" }'
JOIN = f'[step.x]\ntype = "join"\nleft = {SIDE}\nright = {SIDE.replace("at", "shop")}\nbefore = "5 s"\nafter = "-6 s"\n'
FAULTS: dict[str, tuple[str, list[str]]] = {
    "empty": ("", ["1 name missing", "1 source missing"]),
    "sections": ('name = 1\nsource = 2\nsink = "a"\nextra = 1\n', ["1 name", "2 source", "3 sink", "4 extra unknown"]),
    "types": (
        SOURCE + '[step.x]\ntype = "delta"\n[sink.k]\ntype = "delt"\n[sink.n]\n',
        [
            "6 step.x.type belongs to [source.x] or [sink.x]",
            "8 sink.k.type did you mean 'delta'",
            "9 sink.n.type got none",
        ],
    ),
    "names": (
        SOURCE + '[sink."a\\nb"]\ntype = "delta"\nfrom = "s"\n[step.s]\ntype = "filter"\n',
        ["5 sink.'a\\nb' a name is a letter", "8 step.s another part"],
    ),
    "circle": (
        SOURCE + "".join(f'[step.{a}]\ntype="filter"\nfrom="{b}"\nwhere="b"\n' for a, b in ("xy", "yx", "zx")),
        ["7 step.x.from reads, through", "11 step.y.from reads, through"],
    ),
    "sinks emit nothing": (
        SOURCE + SINK.replace("x", "s") + SINK.replace("out", "b").replace("x", "out"),
        ["10 sink.b.from part 'out' emits nothing; there are s"],
    ),
    "states emit nothing": (step("count", by='"shop"') + SINK, ["11 sink.out.from part 'x' emits nothing"]),
    "part with faults": (
        step("filter", where='"b"', wher='"b"').replace('"s"', '"q"')
        + SINK
        + '[sink.n]\ntype = "delta"\nfrom = "x.late"\n',
        ["7 step.x.from no part or stream 'q'", "9 step.x.wher did you mean 'where'"],
    ),
    "required option with a fault": (
        step("filter", where="3").replace('"s"', '"q"'),
        ["7 step.x.from no part or stream 'q'", "8 step.x.where expected a text in quotes, got 3"],
    ),
    "conditions": (step("filter", where='"null"') + SINK, ["8 step.x.where expected a condition"]),
    "no code": (step("filter", where="\"__import__('os')\""), ["8 step.x.where there is no function '__import__'"]),
    "tasks": (step("filter", where='"b"', parallelism="99999999"), ["9 step.x.parallelism expected at most 32768"]),
    "list of others": (step("select", fields='["id", 3]'), ["8 step.x.fields expected a table"]),
    "list of lists": (step("lookup", table='"t"', on="[[1]]"), ["9 step.x.on expected a table"]),
    "list with twins": (step("select", fields='["id", "id"]'), ["8 step.x.fields 'id' is there twice"]),
    "casts": (
        step("cast", types='{ id = "int) + (1", q = "str" }').replace("id =", "id=") + SINK,
        ["8 step.x.types.id expected a type"],
    ),
    "more casts": (
        step("cast", types='{ q = "str", id = "strr", amount = "decimal(99999999999, 2)" }'),
        ["8 step.x.types 'q' is none", "8 step.x.types.id did you mean 'str'", "8 step.x.types.amount"],
    ),
    "no fault follows from a fault": (
        window(length='"1 hour"', closed='"left"'),
        ["10 step.x.length expected a duration"],
    ),
    "nor for ids": (step("deduplicate", id='"id"', keep="3"), ["9 step.x.keep expected a duration"]),
    "one of two": (step("deduplicate", id='"id"'), ["5 step.x expected one of keep and quiet"]),
    "names of results": (
        window(values='{ table = "count", self = "count", "a-b" = "coun" }'),
        [
            "11 step.x.values.table cannot be called",
            "11 step.x.values.self cannot",
            "11 step.x.values.a-b is no aggregate",
        ],
    ),
    "names of bounds": (
        window(values='{ n = "count" }', names='{ ends = "e" }'),
        ["12 step.x.names did you mean 'end'"],
    ),
    "time": (window(time='"b"', lag='"5 s"'), ["9 step.x.time expected an int or a datetime"]),
    "no time": (
        step("window", by='"shop"', length='"1 min"', late="true", values='{ n = "count" }'),
        ["10 step.x.late belongs to windows with a time"],
    ),
    "join": (SOURCE + JOIN, ["8 step.x.right.time expected an int or a datetime", "10 step.x.after negative sum"]),
    "whole": (
        SOURCE
        + '[sink.a]\ntype = "delta"\nfrom = "s"\ntable = "t"\n[sink.b]\ntype = "delta"\nfrom = "s"\ntable = "t"\n',
        ["5 sink.a sink 't' is declared by both"],
    ),
    "types of fields": (
        SOURCE.replace('"int"', '"integer"').replace('"bool"', '"decimal(999999999999, 1)"'),
        ["4 source.s.fields.id did you mean 'int'", "4 source.s.fields.b expected a type"],
    ),
    "paths": (SOURCE.replace("s.csv", "nowhere/*.csv"), ["3 source.s.path no file matches"]),
    "types of parquet": (
        SOURCE.replace("s.csv", "s.parquet").replace("at =", "l =").split(", shop")[0] + "}\n" + SINK.replace("x", "s"),
        ['4 source.s.fields.l list the names, fields = ["l", …]'],
    ),
    "json without types": (
        SOURCE.split("source.s.path")[0] + 'source.s.path = "j.jsonl"\nsource.s.fields = ["id"]\n',
        ["4 source.s.fields missing"],
    ),
    "types of keys": (
        step("lookup", table='"shops"', on='{ id = "name" }', select='["id", "cit"]'),
        [
            "9 step.x.on the key fields 'id' and 'name' have the types int64 and string",
            "10 step.x.select there is no 'cit'",
        ],
    ),
    "parquet": (SOURCE.replace("s.csv", "s.parquet").replace("at =", "l ="), ["2 source.s no column"]),
    "times without a zone": (
        'name = "p"\nsource.s.type = "files"\nsource.s.path = "t.parquet"\n' + SINK.replace("x", "s"),
        ["3 source.s.path column 't' has times without a zone"],
    ),
    "passwords in paths": (
        step("lookup", table=f'"s3://me:{SECRET}@b/x"', on='"id"') + SINK,
        ["8 step.x.table expected the directory of a Delta table, or a file: URI of it, got 's3://…@b/x'"],
    ),
    "passwords": (
        SOURCE + f'[kafka]\n"sasl.password" = ["{SECRET}"]\nssl.key.password = "$NOWHERE"\n',
        ["6 kafka.sasl.password expected a text", "7 kafka.ssl.key.password NOWHERE is not set"],
    ),
    "client settings": (
        SOURCE
        + '[kafka]\nacks = "most"\nlinger.ms = -5\nfetch.min.bytes = 1\n"a.b" = 1\ngroup.id = "g"\n'
        + SINK.replace("x", "s"),
        [
            "6 kafka.acks Invalid value for configuration",
            "7 kafka.linger.ms is outside allowed range",
            '9 kafka.a.b No such configuration property: "a.b"',
            "10 kafka.group.id txstorm's own; use consumer_group=",
        ],
    ),
    "code in settings": (
        SOURCE + f'[kafka]\n"plugin.library.paths" = "/{SECRET}.so"\n[settings]\nnix = 1\non_error = "{SECRET[:3]}"\n',
        ["6 kafka.plugin.library.paths it loads code", "8 settings.nix unknown setting", "9 settings.on_error got"],
    ),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.csv").write_text("id,at,shop,amount,b\n1,2026-05-01T12:00:00Z,a,2.5,true\n")
    pq.write_table(
        pa.table({"id": [1], "l": [[{"a": Decimal("1.5")}]], "c d": ["a"], "m": pa.array([[("a", [1])]], MAP)}),
        "s.parquet",
    )
    write_deltalake("shops", pa.table({"name": ["a"], "city": ["Oslo"]}))
    pq.write_table(pa.table({"t": pa.array([0], pa.timestamp("us"))}), "t.parquet")


@pytest.mark.parametrize("case", FAULTS)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_faults_have_lines_and_places(case: str, ends: str):
    text, expected = FAULTS[case]
    Path("p.toml").write_bytes(f"\ufeff{text}".replace("\n", ends).encode())
    with pytest.raises(InputError) as raised:
        Pipeline.read("p.toml")
    _, *shown = str(raised.value).split("\n  ")
    places = [" ".join(one.split(" ", 2)[:2]) for one in expected]
    found = [re.sub(r"line (\d+): (.*?): .*", r"\1 \2", one) for one in shown if one.startswith("line")]
    assert sorted(found) == sorted(places)
    for wanted in expected:
        line, rest = wanted.split(" ", 1)
        assert any(one.startswith(f"line {line}: ") and rest.split(" ", 1)[-1] in one for one in shown), (wanted, shown)
    assert SECRET not in str(raised.value)
    assert sorted(one.name for one in Path().iterdir()) == ["p.toml", "s.csv", "s.parquet", "shops", "t.parquet"]


PARTS = {
    "names": step("select", fields='["at", "case", "a`b", "c d"]').replace('"s"', '"y"')
    + '[step.y]\ntype = "select"\nfrom = "s"\n[step.y.fields]\nat = "at"\ncase = "id"\n"a`b" = "id"\n"c d" = "amount"\n'
    + SINK,
    "nested": SOURCE.replace("s.csv", "s.parquet").split("source.s.fields")[0] + SINK.replace("x", "s"),
    "listed": SOURCE.replace("s.csv", "s.parquet").split("source.s.fields")[0]
    + 'source.s.fields = ["m", "l"]\n'
    + SINK.replace("x", "s"),
    "results": window(values='{ "a b" = "count", class = "sum(amount)", ﬁ = "max(id)" }') + SINK,
    "decimals": step("cast", types='{ amount = "decimal(12, 2)" }') + SINK,
    "kafka": 'name = "p"\nservers = "h:1"\n[source.s]\ntype = "kafka"\ntopic = "t"\nfields = { n = "decimal(9, 2)" }\n'
    'start = 2026-01-31T12:00:00Z\n[kafka]\n"sasl.password" = "$PASSWORD"\n' + SINK.replace("x", "s"),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_printed_program_builds_the_same_topology(case: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PASSWORD", SECRET)
    name = 'p"""\\N.toml'
    Path(name).write_text(PARTS[case].replace("ﬁ", '"ﬁ"'))
    pipeline, found = Pipeline.read(name), dict[str, Any]()
    text = pipeline.python(name)
    exec(compile(text, "p.py", "exec"), found)
    assert found["topology"].describe("json") == pipeline.topology().describe("json")
    assert SECRET not in text
