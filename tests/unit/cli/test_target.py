import sys
from pathlib import Path

import pytest

from txstorm.cli.target import Target, load, parse
from txstorm.errors import InputError, TopologyError
from txstorm.topology.graph import Topology

GOOD = {
    "jobs.words": Target("jobs.words"),
    "words:other": Target("words", "other"),
    "words: other ": Target("words", "other"),
    "words:made()": Target("words", "made", True),
    "words:made('a:b', -1, take=[1, {'x': None}])": Target(
        "words", "made", True, ("a:b", -1), {"take": [1, {"x": None}]}
    ),
    "words:made(b'\\x00', (1.5, True))": Target("words", "made", True, (b"\x00", (1.5, True))),
}
BAD = {
    "": "for the module",
    ":topology": "for the module",
    "my-job": "for the module",
    "jobs/words.py": "did you mean 'jobs.words'",
    "./words.py": "did you mean 'words'",
    "words:": "after the colon",
    "words:a.b": "after the colon",
    "words:a+b": "after the colon",
    "words:a; b": "after the colon",
    "words:made(": "after the colon",
    "words:made()()": "after the colon",
    "words:made(open('x'))": "Python literal",
    "words:made(name)": "Python literal as argument, such as 'text' or 4, got name",
    "words:made(*[1])": "Python literal",
    "words:made(**{})": "NAME=LITERAL",
    "words:made(take=__import__('os').getpid())": "Python literal",
    "words:made(n=1, n=2)": "given twice",
    "words:made(" + "(" * 400 + ")" * 400 + ")": "after the colon",
}


@pytest.mark.parametrize("text", GOOD)
def test_targets(text):
    assert parse(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_malformed_targets_are_rejected(text):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert BAD[text] in str(caught.value)


def test_arguments_are_never_evaluated(words: Path):
    with pytest.raises(InputError, match="Python literal"):
        load("words:made(open('made-by-an-argument', 'w'))")
    assert not Path("made-by-an-argument").exists()


def module(name: str, text: str) -> None:
    path = Path(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_attribute_defaults_to_topology(words: Path):
    assert load("words").id == "words"


def test_a_call_with_arguments(words: Path):
    assert load("words:made(['a'], name='other')").id == "other"


def test_a_function_without_required_arguments_is_called(words: Path):
    module("later", "import words\ndef topology(name='later'):\n    return words.made(['a'], name)\n")
    assert load("later").id == "later"


def test_the_current_directory_comes_first(words: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "words.py").write_text("raise RuntimeError('the wrong one')", encoding="utf-8")
    sys.path.insert(0, str(elsewhere))
    assert isinstance(load("words"), Topology)
    assert sys.path[0] == str(words)


def failure(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load(text)
    return caught.value


def test_no_such_module(words: Path):
    assert "no module 'wrods' in" in str(failure("wrods"))
    assert "did you mean 'words'" in str(failure("wrods"))


def test_no_such_module_in_a_package(words: Path):
    module("parcel.__init__", "")  # not a module name of the project, which may already be imported
    module("parcel.count", "")
    assert "no module 'parcel.coumt' in package 'parcel' (did you mean 'parcel.count'?)" in str(failure("parcel.coumt"))


def test_a_module_name_with_its_file_suffix(words: Path):
    assert "did you mean 'words'" in str(failure("words.py"))


def test_no_such_attribute(words: Path):
    assert "module 'words' has no attribute 'topologie' (did you mean 'topology'" in str(failure("words:topologie"))


def test_a_module_without_topology_lists_its_topologies(words: Path):
    module("named", "import words\nmine = words.made(['a'])\n")
    assert "it has mine" in str(failure("named"))


def test_a_builder_is_not_built_yet(words: Path):
    assert "call build_topology() on it" in str(failure("words:builder(['a'])"))


def test_something_else(words: Path):
    assert "words:Keep: expected a Topology, got an object of type type" in str(failure("words:Keep"))
    assert "expected a Topology, got an object of type str; build one" in str(failure("words:__name__"))


def test_a_topology_is_not_called(words: Path):
    assert "leave out the parentheses" in str(failure("words:topology()"))


def test_wrong_arguments_name_the_signature(words: Path):
    assert "words:made(words, name='words', take=2) does not take these" in str(failure("words:made(1, 2, 3, 4)"))
    assert "words:made is a function that needs words" in str(failure("words:made"))


def test_an_exception_in_the_module_shows_its_frames_only(words: Path):
    module("broken", "def inner():\n    return {}['nothing']\n\ninner()\n")
    error = failure("broken")
    assert str(error).startswith(f"{words / 'broken.py'}:2 in inner: KeyError: 'nothing'")
    (note,) = error.__notes__
    assert note.count('File "') == 2
    assert "importlib" not in note
    assert "cli/target.py" not in note


def test_an_exception_in_the_factory(words: Path):
    error = failure("words:made(1)")
    assert f"{words / 'words.py'}:25 in builder: TypeError: 'int' object is not iterable" in str(error)
    assert "in made" in error.__notes__[0]


def test_a_syntax_error(words: Path):
    module("typo", "x = (\n")
    assert str(failure("typo")).startswith(f"{words / 'typo.py'}:1: SyntaxError")


def test_a_failed_import_within_the_module_is_reported_as_such(words: Path):
    module("needy", "import not_installed_anywhere\n")
    error = str(failure("needy"))
    assert f"{words / 'needy.py'}:1" in error
    assert "ModuleNotFoundError: No module named 'not_installed_anywhere'" in error


def test_a_module_that_exits(words: Path):
    module("script", "import sys\nsys.exit('usage: script')\n")
    assert "SystemExit: usage: script" in str(failure("script"))


def test_faults_of_the_topology_stay_a_topology_error(words: Path):
    module(
        "faulty", "import words\nmade = words.builder(['a'])\nmade.set_bolt('x', words.Keep()).shuffle_grouping('y')\n"
    )
    Path("faulty.py").open("a").write("topology = made.build_topology()\n")
    with pytest.raises(TopologyError) as caught:
        load("faulty")
    assert "raised at" in caught.value.__notes__[0]
    assert "faulty.py:4" in caught.value.__notes__[0]
