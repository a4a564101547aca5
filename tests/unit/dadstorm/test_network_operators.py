"""Values, routing, the work of operators and the states of UNIQ and COUNT, for tuples and for columns of them."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm import keys
from txstorm.dadstorm.configuration import parse
from txstorm.dadstorm.operators import Counted, Seen, failure, load_code, settle, writes_lines
from txstorm.dadstorm.routing import heir, pick, pick_many
from txstorm.dadstorm.source.blocks import is_tuple
from txstorm.dadstorm.source.columns import holding, split_lines, values_at
from txstorm.dadstorm.values import holds, split_line, value
from txstorm.errors import EmitError, InputError

TEXTS = st.text(st.sampled_from('ab1.,"% \t-é\xa0\x85\x1c\x0b'), max_size=8)


def configured(spec, place=None, routing="random", replicas=1):
    address = ",".join(["tcp://h:1/op"] * replicas)
    text = f"OP1 input_ops in.data rep_fact {replicas} routing {routing} address {address} operator_spec {spec}"
    return parse(text, "net.cfg", place)


def loaded(spec, place=None, allow=()):
    configuration = configured(spec, place)
    return load_code(configuration.operators[0], configuration, allow)


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ('1, u4, "www.example.org"', ("1", "u4", '"www.example.org"')),
        ('\ta ,"b , c" d,', ("a", '"b , c" d', "")),
        ('a,"b,c', ("a", '"b,c')),
        ("", None),
        (" \t", None),
        ("% a,b", None),
        (" % a", ("% a",)),
    ],
)
def test_lines_are_split_at_commas_outside_of_quotes(line, fields):
    assert split_line(line) == fields


@given(st.lists(TEXTS), st.integers(1, 3), st.sampled_from("=<>"), TEXTS)
def test_columns_follow_the_rules_of_values(lines, number, condition, wanted):
    lines = [line for line in lines if is_tuple(line.encode())]  # what a source counts
    tuples = [split_line(line) for line in lines]
    column = split_lines(pa.array(lines, pa.string()))
    assert [tuple(one) for one in column.to_pylist()] == tuples
    found = values_at(column.slice(1), number)
    assert found.to_pylist() == [value(one[number - 1]) if number <= len(one) else None for one in tuples[1:]]
    held = [None if one is None else holds(one, condition, wanted) for one in found.to_pylist()]
    assert holding(found, condition, wanted).to_pylist() == held


@pytest.mark.parametrize(
    ("field", "less", "equal"),
    [
        ("9", "10", "9.0"),
        ("-1", "+.5", "-01."),
        ("10", "9a", "10"),  # as texts
        ("B", "a", "B"),
        (" 1", "1", " 1"),
        ("1e1", "2", "1e1"),
        ("1" * 5000 + "1", "1" * 5000 + "2", "1" * 5000 + "1.0"),
        ("￿", "😀", "￿"),  # by code points
    ],
)
def test_values_are_compared_as_numbers_if_both_are(field, less, equal):
    assert holds(field, "<", less) and holds(less, ">", field) and not holds(field, "=", less)
    assert holds(field, "=", equal) and not holds(field, "<", equal) and not holds(field, ">", equal)


@given(st.integers(1, 5), st.data(), st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=3)), min_size=1))
def test_tuples_are_routed_among_live_replicas(replicas, data, items):
    live = sorted(data.draw(st.sets(st.integers(0, replicas - 1))))
    ids, tuples = [one for one, _ in items], [tuple(fields) for _, fields in items]
    for routing in ("primary", "random", "hashing(2)"):
        operator = configured("DUP", routing=routing, replicas=replicas).operators[0]
        picked = [pick(operator, *one, live) for one in zip(ids, tuples, strict=True)]
        if not live:
            assert picked == [None] * len(items)
            continue
        assert pick_many(operator, ids, tuples, live).replicas == picked
        for id, fields, found in zip(ids, tuples, picked, strict=True):
            expected = live[0]
            if routing == "random":
                expected = live[keys.hash_value(id) % len(live)]
            elif routing != "primary" and len(fields) > 1:
                expected = keys.task_of(keys.key_group((value(fields[1]),)), replicas)
                while expected not in live:
                    expected = (expected + 1) % replicas
            assert found == expected
    assert all(heir(one, replicas, live) == one for one in live)


def test_a_tuple_without_the_field_of_hashing_goes_as_with_primary_and_is_counted():
    operator = configured("DUP", routing="hashing(2)", replicas=3).operators[0]
    assert pick_many(operator, ["a", "b"], [("x",), ("x", "y")], [1, 2]).misfits == 1


def test_work_of_built_in_operators(tmp_path):
    (tmp_path / "followers.data").write_text('% no\nu1, u2\n\nu2: u4 u9\n"u1",u2, u3\n', encoding="utf-8")
    assert loaded("DUP")(("a",)) == [("a",)]
    assert loaded("COUNT")(("a",)) == [("a",)]
    keep = loaded('FILTER 2,=,"x"')
    assert [keep(one) for one in (("1", '"x"'), ("1", "y"), ("1",))] == [[("1", '"x"')], [], []]
    unique = loaded("UNIQ 2")
    assert [unique(one) for one in (("1", "x"), ("1",))] == [[("1", "x")], []]
    assert (keep.misfits, unique.misfits) == (1, 1)
    query = loaded("CUSTOM mylib.dll,QueryFollowersFile,getFollowers", tmp_path)
    assert query(("7", "u1")) == [("u2",), ("u2",), ("u3",)]
    assert query(("7", '"u2"')) == [("u4",), ("u9",)]
    assert query(("7", "u5")) == query(("7",)) == []
    for name in ("OutputOperator", "IdentityOperator"):
        configuration = configured(f"CUSTOM mylib,{name},any", tmp_path)
        assert load_code(configuration.operators[0], configuration)(("a", "b")) == [("a", "b")]
        assert writes_lines(configuration.operators[0], configuration) == (name == "OutputOperator")


LIBRARY = """
import beside
class Code:
    made = []
    def __init__(self): self.made.append(self)
    def twice(self, fields): return [fields, tuple(fields)]
    def raises(self, fields): return [fields][len(fields)]
    def none(self, fields): return None
    def text(self, fields): return ["ab"]
    def number(self, fields): return [[1]]
    def lone(self, fields): return [["\\ud800"]]
class Needs:
    def __init__(self, what): pass
beside.number
"""


def test_a_library_beside_the_configuration(tmp_path):
    (tmp_path / "own.py").write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "beside.py").write_text("number = 1", encoding="utf-8")
    work = loaded("CUSTOM own.dll,Code,twice", tmp_path)
    assert work(("a",)) == [("a",), ("a",)]
    loaded("CUSTOM own,Code,raises", tmp_path)
    assert len(work._method.__self__.made) == 1  # one object per process
    configuration = configured("CUSTOM own,Code,raises", tmp_path)
    with pytest.raises(IndexError) as raised:
        load_code(configuration.operators[0], configuration)(("a",))
    told = failure(configuration.operators[0], ("a",), raised.value)
    assert told.startswith("operator OP1, tuple 'a': IndexError: ")
    assert told.endswith(f"at {tmp_path / 'own.py'}:7 in raises")
    for method, what in {"none": "NoneType", "text": "str", "number": "int", "lone": "surrogates"}.items():
        with pytest.raises(EmitError, match=rf"own, Code.{method} \(.*own.py:\d+\) returned .*{what}.*list of lists"):
            loaded(f"CUSTOM own,Code,{method}", tmp_path)(("a",))
    (tmp_path / "own.py").write_text(LIBRARY.replace("[fields, ", "[fields, fields, "), encoding="utf-8")
    assert len(loaded("CUSTOM own,Code,twice", tmp_path)(("a",))) == 3  # it was changed
    assert loaded("CUSTOM json,JSONDecoder,decode", tmp_path, ["json"])


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        ("mylip,A,b", r"library 'mylip' is missing: there is no mylip.py .*--allow.*did you mean 'mylib'"),
        ("json,JSONDecoder,decode", "library 'json' is missing"),
        ("../own,Code,twice", "library '../own' is missing"),
        ("own,Cod,twice", r"no class 'Cod' \(did you mean 'Code'"),
        ("own,beside,twice", "no class 'beside'"),
        ("own,Code,twic", r"no method 'twic' \(did you mean 'twice'"),
        ("own,Code,made", "no method 'made'"),
        ("own,Needs,a", "class 'Needs' cannot be made without arguments: TypeError"),
        ("broken,A,b", r"library 'broken' cannot be imported: ZeroDivisionError: .*broken.py:2"),
        ("syntax,A,b", "library 'syntax' cannot be imported: SyntaxError"),
        ("mylib,QueryFollowersFile,getFollowers", r"followers.data cannot be read: No such file"),
    ],
)
def test_what_is_missing_is_named_before_anything_starts(tmp_path, custom, expected):
    (tmp_path / "own.py").write_text(LIBRARY, encoding="utf-8")
    (tmp_path / "beside.py").write_text("number = 1", encoding="utf-8")
    (tmp_path / "broken.py").write_text("\n1 / 0", encoding="utf-8")
    (tmp_path / "syntax.py").write_text("def", encoding="utf-8")
    with pytest.raises(InputError, match=rf"^net.cfg:1: operator OP1: .*{expected}"):
        loaded(f"CUSTOM {custom}", tmp_path)


@given(st.lists(st.lists(st.tuples(st.sampled_from(["a", '"a"', "b", ""]), st.sampled_from("xy")))))
def test_unique_and_counted_tuples_over_many_transactions(transactions):
    unique, count = configured("UNIQ 1").operators[0], configured("COUNT").operators[0]
    known, n, passed, counted, model = set(), 0, [], [], {}
    for tuples in transactions:
        seen, counts = Seen(lambda values: known & set(values)), Counted(n)
        for part in (tuples[:2], tuples[2:]):
            passed += [one for one in settle(unique, seen, part) if one is not None]
            counted += settle(count, counts, part)
        known.update(seen.added)
        n = counts.n
        assert settle(configured("DUP").operators[0], None, tuples) == tuples
    for one in (one for tuples in transactions for one in tuples):
        model.setdefault(value(one[0]), one)
    assert passed == list(model.values()) and known == set(model)
    assert counted == [(str(number),) for number in range(1, sum(map(len, transactions)) + 1)]
