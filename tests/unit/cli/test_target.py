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
    "for the module": ["", ":topology", "my-job"],
    "did you mean 'jobs.words'": ["jobs/words.py"],
    "did you mean 'words'": ["./words.py"],
    "after the colon": [
        *("words:", "words:a.b", "words:a+b", "words:a; b", "words:made(", "words:made()()"),
        "words:made(" + "(" * 400 + ")" * 400 + ")",
    ],
    "Python literal": ["words:made(open('x'))", "words:made(*[1])", "words:made(take=__import__('os').getpid())"],
    "Python literal as argument, such as 'text' or 4, got name": ["words:made(name)"],
    "NAME=LITERAL": ["words:made(**{})"],
    "given twice": ["words:made(n=1, n=2)"],
}


@pytest.mark.parametrize("text", GOOD)
def test_targets(text):
    assert parse(text) == GOOD[text]


@pytest.mark.parametrize(("text", "says"), [(text, says) for says, texts in BAD.items() for text in texts])
def test_malformed_targets_are_rejected(text, says):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert says in str(caught.value)


def test_arguments_are_never_evaluated_and_the_attribute_is_topology_by_default(words: Path):
    with pytest.raises(InputError, match="Python literal"):
        load("words:made(open('made-by-an-argument', 'w'))")
    assert not Path("made-by-an-argument").exists()
    module("later", "import words\ndef topology(name='later'):\n    return words.made(['a'], name)\n")
    for text, name in (("words", "words"), ("words:made(['a'], name='other')", "other"), ("later", "later")):
        assert load(text).id == name


def module(name: str, text: str) -> None:
    path = Path(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_current_directory_comes_first(words: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "words.py").write_text("raise RuntimeError('the wrong one')", encoding="utf-8")
    sys.path.insert(0, str(elsewhere))
    assert isinstance(load("words"), Topology)
    assert sys.path[0] == str(words)


MODULES = {
    "parcel.__init__": "",  # not a module name of the project, which may already be imported
    "parcel.count": "",
    "named": "import words\nmine = words.made(['a'])\n",
    "needy": "import not_installed_anywhere\n",
    "script": "import sys\nsys.exit('usage: script')\n",
    "typo": "x = (\n",
}
FAILURES = {
    "wrods": ("no module 'wrods' in", "did you mean 'words'"),
    "parcel.coumt": ("no module 'parcel.coumt' in package 'parcel' (did you mean 'parcel.count'?)",),
    "words.py": ("did you mean 'words'",),
    "words:topologie": ("module 'words' has no attribute 'topologie' (did you mean 'topology'",),
    "named": ("it has mine",),
    "words:builder(['a'])": ("call build_topology() on it",),
    "words:Keep": ("words:Keep: expected a Topology, got an object of type type",),
    "words:__name__": ("expected a Topology, got an object of type str; build one",),
    "words:topology()": ("leave out the parentheses",),
    "words:made(1, 2, 3, 4)": ("words:made(words, name='words', take=2) does not take these",),
    "words:made": ("words:made is a function that needs words",),
    "needy": ("{words}/needy.py:1", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
    "script": ("SystemExit: usage: script",),
    "typo": ("{words}/typo.py:1: SyntaxError",),
}


def failure(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load(text)
    return caught.value


@pytest.mark.parametrize("text", FAILURES)
def test_targets_that_cannot_be_loaded(words: Path, text: str):
    for name, content in MODULES.items():
        module(name, content)
    found = str(failure(text))
    for part in FAILURES[text]:
        assert part.format(words=words) in found


def test_an_exception_of_the_users_code_shows_its_frames_only(words: Path):
    module("broken", "def inner():\n    return {}['nothing']\n\ninner()\n")
    error = failure("broken")
    assert str(error).startswith(f"{words / 'broken.py'}:2 in inner: KeyError: 'nothing'")
    (note,) = error.__notes__
    assert note.count('File "') == 2
    assert "importlib" not in note
    assert "cli/target.py" not in note
    error = failure("words:made(1)")
    assert f"{words / 'words.py'}:25 in builder: TypeError: 'int' object is not iterable" in str(error)
    assert "in made" in error.__notes__[0]


def test_faults_of_the_topology_stay_a_topology_error(words: Path):
    module(
        "faulty", "import words\nmade = words.builder(['a'])\nmade.set_bolt('x', words.Keep()).shuffle_grouping('y')\n"
    )
    Path("faulty.py").open("a").write("topology = made.build_topology()\n")
    with pytest.raises(TopologyError) as caught:
        load("faulty")
    assert "raised at" in caught.value.__notes__[0]
    assert "faulty.py:4" in caught.value.__notes__[0]
