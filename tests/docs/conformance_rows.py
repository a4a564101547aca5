"""Test coverage of the rows and items of docs/conformance.md, from the tests' names and docstrings.

``python tests/docs/conformance_rows.py`` writes what it finds into the page.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "conformance.md"
ROW = re.compile(r"^\| ([ATUW]?\d+) \|")
_ITEMS = re.compile(r"\b[Ii]tems? ((?:\d+(?:[,–-] ?| and | to )?)+)")
_ROWS = re.compile(r"\b([ATUW])(\d+)(?:[–-][ATUW]?(\d+))?\b")
OTHERS = ("tests/benchmarks",)
"""Tests whose workloads have names like rows."""


def rows(page: str) -> list[str]:
    """Return the rows and items of the page, in order."""
    return [found[1] for line in page.splitlines() if (found := ROW.match(line))]


@cache
def covered() -> dict[str, list[str]]:
    """Return, for each row or item, the tests that name it, as ``path::test``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").glob("**/test_*.py")):
        if str(path.relative_to(ROOT)).startswith(OTHERS):
            continue
        for name, said in _tests(path.read_text(encoding="utf-8")):
            for row in named(said):
                found[row].append(f"{path.relative_to(ROOT)}::{name}")
    return found


def named(said: str) -> set[str]:
    """Return the rows and items that a test's name and docstring mention."""
    items = {str(one) for found in _ITEMS.finditer(said) for one in _numbers(found[1])}
    return items | {
        f"{letter}{one}"
        for letter, first, last in _ROWS.findall(said)
        for one in range(int(first), int(last or first) + 1)
    }


def _numbers(text: str) -> Iterator[int]:
    for first, last in re.findall(r"(\d+)(?:(?: to |[–-] ?)(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def _tests(text: str) -> Iterator[tuple[str, str]]:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            words = re.sub(r"(?<=\d)_(?=\d)", ", ", node.name)
            words = re.sub(r"_t(\d+)(?=_|$)", r" T\1", words).replace("_", " ")
            comment = lines[node.body[0].lineno - 2].partition("#")[2]
            yield node.name, f"{words}\n{comment}\n{ast.get_docstring(node) or ''}"


def filled(page: str) -> str:
    """Return `page` with the tests of every row in its last column."""
    found = covered()
    return "\n".join(_filled(line, found) for line in page.splitlines()) + "\n"


def _filled(line: str, found: dict[str, list[str]]) -> str:
    row = ROW.match(line)
    if row is None:
        return line
    kept = line.split(" | ")[: 3 if row[1].startswith(("A", "T", "U", "W")) else 2]
    return " | ".join([*(one.rstrip(" |") for one in kept), _links(found.get(row[1], []))]) + " |"


def _links(tests: list[str]) -> str:
    files: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        path, _, name = test.partition("::")
        files[path].append(name)
    return ", ".join(f"[{Path(path).name}](../{path})" for path in files)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
