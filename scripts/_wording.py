"""Report banned phrases in docstrings, comments and messages of the package, and in the docs.

Arguments: ``[PATH...]``, files or directories; by default the package, the docs and the pages beside them. Prints one
line for each finding, ``file:line: phrase``; exit code 1 when there is one. Code blocks, inline code and quotations of
Markdown may say anything.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("txstorm", "docs", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
NOT_OURS = ("docs/results", "docs/licenses")
BANNED = {
    r"\b(no|some)body\b": "say who: the user, the caller, another process, another coordinator",
    r"\b(is|are) gone\b": "say: deleted, expired, evicted, missing, lost",
    r"\blets? go\b": "say: releases, closes",
    r"\b(is|are) told\b": "say: is notified, raises, returns",
    r"\bwho comes next\b": "say who: the successor, the next coordinator",
    r"\bmade again\b": "say: retried, repeated, recreated",
    r"\bbegins anew\b": "say: starts from the beginning",
    r"\bof (one's|users?'s?|the users?'s?) own\b": "say: your own, user-defined",
    r"\bso many\b": "give the number, or name the limit",
    r"\bhas none such\b": "say what does not exist",
    r"\w\(s\)": "count and inflect: 1 fault, 2 faults",
    r"\ba (?!one\b|once\b|us[aeiu]|uni|eu|ut[ei]|uuid)[aeiou][a-z]+": "wrong article: an",
    r"\ban (?!hour|hono|heir)[b-df-hj-np-tv-z][a-z]+": "wrong article: a",
}
RELATIVE = re.compile(r"(What|Who|Whose|Where|Which|How|Those|That)\b")


def phrases(text: str, first_line: int) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each banned phrase in `text`."""
    for pattern, advice in BANNED.items():
        for match in re.finditer(pattern.replace(" ", r"\s+(?:#\s+)?"), text, re.IGNORECASE if " a" in pattern else 0):
            line = first_line + text.count("\n", 0, match.start())
            yield line, f'"{" ".join(match[0].split())}" ({advice})'


def blanked(match: re.Match[str]) -> str:
    """Return the matched code, replaced by characters that are part of no phrase; line breaks are kept."""
    return re.sub(r"[^\n]", "¤", match[0])


def in_python(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the findings in docstrings, comments and other strings of the module at `path`."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from phrases(re.sub(r"`[^`\n]*`", blanked, node.value), node.lineno)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and RELATIVE.match(docstring):
                yield (
                    node.body[0].lineno,
                    f'summary line "{docstring.splitlines()[0]}" (a noun phrase, or an imperative)',
                )
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comments and comments[-1][0] + comments[-1][1].count("\n") + 1 == token.start[0]:
                comments[-1] = (comments[-1][0], f"{comments[-1][1]}\n{token.string}")
            else:
                comments.append((token.start[0], token.string))
    for line, text in comments:
        yield from phrases(re.sub(r"`[^`\n]*`", blanked, text), line)


def in_markdown(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the findings in the prose of the page at `path`."""
    text = path.read_text(encoding="utf-8")
    for other in (r"(?ms)^( *)```.*?^\1```", r"(?m)^>.*$", r"``[^`]*``|`[^`]*`", r"\]\([^)]*\)", r'"[^"\n]*"'):
        text = re.sub(other, blanked, text)
    yield from phrases(text, 1)


def main() -> int:
    roots = [Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT / name for name in DEFAULT]
    files = sorted({file for root in roots for file in ([root] if root.is_file() else root.rglob("*"))})
    findings = 0
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        check = {".py": in_python, ".md": in_markdown}.get(file.suffix)
        if check is None or name.startswith(NOT_OURS):
            continue
        for line, what in sorted(check(file)):
            print(f"{name}:{line}: {what}")
            findings += 1
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
