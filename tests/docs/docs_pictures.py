"""Draws the pictures in docs/images with txstorm. Run it to update them."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

from docs_blocks import ROOT, blocks
from join_picture import Moment, drawn

IMAGES = ROOT / "docs" / "images"


@cache
def pictures() -> dict[Path, str]:
    """Return the up-to-date content of each picture file."""
    return {
        IMAGES / "word-count.svg": program_of_readme().describe("svg") + "\n",
        IMAGES / "interval-join.svg": drawn(Moment.of_a_run()) + "\n",
    }


def program_of_readme() -> Any:
    """Return the topology of the README's program: its first block, up to `build_topology`."""
    block = next(block for block in blocks(ROOT / "README.md") if block.language == "python")
    tree = ast.parse(block.text)
    ends = [number for number, one in enumerate(tree.body) if "build_topology" in ast.unparse(one)]
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(ast.Module(tree.body[: ends[0] + 1], []), block.place, "exec"), names)
    return names["topology"]


if __name__ == "__main__":
    for path, content in pictures().items():
        path.write_text(content, encoding="utf-8")
