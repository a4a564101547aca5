"""Every python and console block of the documentation runs, and prints the output shown."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import printed_by, run_program
from docs_blocks import ROOT, blocks, difference, name
from programs import loaded
from servers.process import free_ports
from shared_session import run_here

PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("**/*.md"))]
RUNNER = Path(__file__).with_name("docs_blocks.py")
SERVED = ROOT / "docs" / "kafka.md"
"""Talks to servers at the ports where everybody expects them."""
PORTS = ("18473",)
"""Ports of servers that pages start; replaced by free ones."""
SPARK = [page for page in PAGES if page != SERVED and any(block.spark for block in blocks(page))]
LOCAL = [page for page in PAGES if page not in (SERVED, *SPARK) and any(not block.spark for block in blocks(page))]


def run_page(page: Path, *options: str, **environment: str) -> None:
    succeeded(run_program(RUNNER, page, "--programs", loaded().socket, *options, env=environment))


def succeeded(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-8000:]}"


@pytest.mark.parametrize("page", LOCAL, ids=name)
def test_page(page: Path):
    """All code blocks of a page run and print the output shown; row T50: the pages for Storm and Trident users."""
    used = next((port for port in PORTS if port in page.read_text(encoding="utf-8")), None)
    run_page(page, *(["--instead", f"{used}={free_ports(1)[0]}"] if used else []))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", SPARK, ids=name)
@pytest.mark.usefixtures("spark")
def test_page_with_spark(page: Path, tmp_path: Path):
    """The page runs in this process, whose Spark session it meets; it drops its views instead of stopping it."""
    drop = "dropped = [spark.catalog.dropTempView(view.name) for view in spark.catalog.listTables()]"
    options = ["--programs", loaded().socket, "--spark", "--directory", tmp_path, "--instead", f"spark.stop()={drop}"]
    succeeded(run_here(RUNNER, page, *options, cwd=tmp_path))


@pytest.mark.slow
@pytest.mark.integration
def test_page_with_servers(kafka_broker, zookeeper_server):
    """The page runs with its addresses replaced, and on the local engine: other tests submit a job, and read topics on Spark."""
    instead = {
        "127.0.0.1:9092": kafka_broker.bootstrap,
        "127.0.0.1:2181": zookeeper_server.new_chroot(),
        "jobs.kafka_to_delta --available-now": "jobs.kafka_to_delta --available-now --engine local",
        "kafka-to-delta on spark": "kafka-to-delta on local",
        "spark-submit jobs/kafka_to_delta.py": "txstorm run jobs.kafka_to_delta --available-now --engine local > run.log",
    }
    assert all(known in SERVED.read_text(encoding="utf-8") for known in instead)
    options = [option for pair in instead.items() for option in ("--instead", "=".join(pair))]
    run_page(SERVED, "--spark", *options, KAFKA_BOOTSTRAP_SERVERS=kafka_broker.bootstrap)


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows(tmp_path: Path):
    shown = re.search(r"<!-- demo -->\n```text\n(.*?)```", PAGES[0].read_text(encoding="utf-8"), re.DOTALL)
    printed = printed_by("-m", "jobs.demo", "--engine", "local", cwd=tmp_path)
    installed = str(Path(sys.executable).with_name("txstorm"))
    assert difference(shown[1], printed.replace(installed, ".venv/bin/txstorm"), varies=False) is None


def test_blocks_are_found_with_their_output_and_marks(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "text\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n\n"
        "<!-- spark -->\n<!-- numbers vary -->\n```console\n$ echo 1\n2\n```\n\n```sh\nnot run\n```\n\n"
        "```python\n3\n```\n\nbetween\n\n```text\nno output\n```\n"
    )
    first, second, third = blocks(page)
    assert (first.text, first.output, first.line, first.spark) == ("1 + 1", "2", 4, False)
    assert (second.language, second.text, second.spark) == ("console", "$ echo 1\n2", True)
    assert (third.text, third.output) == ("3", None)


@pytest.mark.parametrize(
    ("expected", "got", "varies", "same"),
    [
        ("a  b\n\n── x ──", "a b  \n─ x ─────\n", False, True),
        ("a\n…\nb", "a\nb", False, True),
        ("a\n…\nb", "a\n1\n2\nb", False, True),
        ("…\nb", "1\nb", False, True),
        ("a … c", "a b b c", False, True),
        ("in 0.5 s (1,000), deadbeef0123", "in 12.75 s (3), 0123456789ab", True, True),
        ("(a|b)*", "(a|b)*", False, True),
        ("a", "b", False, False),
        ("1", "2", False, False),
        ("a\n…\nb", "a\nc", False, False),
        ("a 1", "b 1", True, False),
        ("a", "a\nb", False, False),
    ],
)
def test_what_counts_as_the_same(expected: str, got: str, varies: bool, same: bool):
    assert (difference(expected, got, varies=varies) is None) == same


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "```python\n1 + 1\n```\n\n```text\n3\n```\n\n```console\n$ echo no\nyes\n```\n",
            r"page\.md:2: expected\s+3\s+--- got\s+2(?s:.*)page\.md:10: \$ echo no",
        ),
        ("```python\nfine = 1\n1 / 0\n```\n", r'page\.md:2", line 3(?s:.*)ZeroDivisionError'),
    ],
    ids=["other output", "exception"],
)
def test_a_page_that_is_wrong_fails_with_its_line(tmp_path: Path, text: str, fault: str):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=fault):
        run_page(page)
