"""The documentation is accurate: links, generated parts, names of tests, files, errors and commands."""

import importlib
import inspect
import re
from pathlib import Path

import docs_pictures
import docs_settings
import pytest
from commands import printed_by
from docs_blocks import ROOT, name

from txstorm import errors
from txstorm.bolts import __all__ as bolts
from txstorm.spouts import FileSpout
from txstorm.spouts.files.spout import FORMATS
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.declarers import BoltDeclarer

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    titles = re.findall(r"^#+ (.*)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(TEXTS[page])):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("note", [page for page in PAGES if re.match(r"\d{3}-", page.name)], ids=name)
def test_a_design_note_has_its_three_headings(note: Path):
    """A note says what had to be decided, what was decided, and what follows."""
    for heading in (r"Question\.", r"Decision[.:]", r"Consequences\."):
        assert re.search(rf"^\*\*{heading}", TEXTS[note], re.MULTILINE), heading


def test_every_page_can_be_reached_from_the_readme():
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        links = {(one.parent / link).resolve() for one in new for link in re.findall(r"\]\(([^)\s#]+)", TEXTS[one])}
        new = {link for link in links if link in TEXTS} - reached
    assert [name(page) for page in PAGES if page not in reached] == []


def test_named_tests_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "\n".join(TEXTS.values()))
    assert len(named) > 70
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path, _ in named if (ROOT / path).exists()}
    assert [(path, test) for path, test in named if f"def {test}(" not in texts.get(path, "")] == []


FAULTS = 48


def test_every_fault_has_a_test_that_makes_it():
    rows = re.findall(r"^\| (\d+) \| (.*)", TEXTS[ROOT / "docs" / "fault-matrix.md"], re.MULTILINE)
    assert sorted(int(number) for number, _ in rows) == list(range(1, FAULTS + 1))
    assert [number for number, row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+`", row)] == []


def test_named_source_files_exist():
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", TEXTS[ROOT / "ARCHITECTURE.md"]))
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "txstorm" / path).exists()] == []


def test_the_table_of_settings_is_up_to_date():
    page = docs_settings.PAGE.read_text(encoding="utf-8")
    assert page == docs_settings.updated(page), "run .venv/bin/python tests/docs/docs_settings.py"


@pytest.mark.parametrize("picture", docs_pictures.pictures(), ids=lambda path: path.name)
def test_pictures_are_up_to_date(picture: Path):
    content = docs_pictures.pictures()[picture]
    assert picture.read_text(encoding="utf-8") == content, "run .venv/bin/python tests/docs/docs_pictures.py"


def test_every_error_is_in_the_operators_table():
    kinds = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.TxstormError)}
    table = TEXTS[ROOT / "docs" / "failures.md"]
    missing = {kind.__name__ for kind in kinds - {errors.TxstormError, errors.InputError}}
    assert {kind for kind in missing if f"`{kind}`" not in table} == set()
    for kinds_named, code in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\d) \|", table, re.MULTILINE):
        for kind in re.findall(r"\w+", kinds_named):
            assert getattr(errors, kind).exit_code == int(code), kind


def test_every_grouping_and_ready_made_bolt_is_described():
    page = TEXTS[ROOT / "docs" / "bolts.md"]
    groupings = [one for one in vars(BoltDeclarer) if one.endswith("_grouping")]
    assert [one for one in [*groupings, *bolts] if f"`{one}" not in page] == []


def test_every_keyword_of_a_file_spout_is_in_its_table():
    _, page = TEXTS[ROOT / "docs" / "spouts.md"].split("| keyword | default | |\n| --- | --- | --- |\n")
    table = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", page.partition("\n\n")[0], re.MULTILINE))
    defaults = {one.name: one.default for one in inspect.signature(FileSpout).parameters.values()}
    assert list(defaults) == list(table)
    said = {name: re.sub(r"\W", "", table[name]) for name, one in defaults.items() if one not in (None, inspect._empty)}
    assert said == {name: re.sub(r"\W", "", str(defaults[name])) for name in said}
    assert [one for one in FORMATS if f'`"{one}"`' not in page] == []


def test_every_storm_name_of_the_builder_is_described():
    page = TEXTS[ROOT / "docs" / "from-storm.md"]
    storms = ["setBolt", "setCommitterBolt", "getSpoutDeclarer", "buildTopology"]
    assert [one for one in storms if f"`{one}`" not in page or not hasattr(TransactionalTopologyBuilder, one)] == []


COMMANDS = ["run", "describe", "explain", "validate", "state", "history", "replay", "settings", "doctor"]
COMMANDS += ["list", "status", "inspect", "deactivate", "activate", "rebalance", "kill", "repair", "recover", "ledger"]
COMMANDS += ["snapshot", "changes", "views", "savepoint", "rewind"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_described(command: str):
    shown = printed_by("-m", "txstorm", command, "--help", env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    page = TEXTS[ROOT / "docs" / "running.md"]
    assert re.search(rf"txstorm [\w| ]*\b{command}\b", page)
    options = set(re.findall(r"^│ +(?:\* +)?(--[\w-]+)", shown, re.MULTILINE)) - {"--help"}
    assert {option for option in options if option not in page} == set()


ROOMS = "spouts bolts sinks windows monoids stateful joins pipelines hailstorm dadstorm testing simulation errors notebook".split()
PUBLIC = {"txstorm", *(f"txstorm.{room}" for room in ROOMS)}
"""Homes of public names; all other modules may move."""


def test_examples_import_public_names_only():
    """Examples, jobs and notebooks import public names only, except two jobs that are command-line front ends."""
    places = [*PAGES, *(ROOT / "jobs").glob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")]
    found = {
        (name(place), module)
        for place in places
        if not name(place).startswith(("docs/design/", "CHANGELOG"))
        for module in re.findall(r"(?:from|import) (txstorm[\w.]*)", place.read_text(encoding="utf-8"))
        if module.rstrip(".") not in PUBLIC and not module.startswith("txstorm.cli.")
    }
    assert found == set()


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_a_public_home_has_what_it_lists(module: str):
    home = importlib.import_module(module)
    assert [one for one in getattr(home, "__all__", ()) if not hasattr(home, one)] == []
