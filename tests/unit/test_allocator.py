"""Arenas of the allocator in a process of the command line, as glibc reports them."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = """
import ctypes, threading

from txstorm import TransactionalTopologyBuilder
from txstorm.spouts import MemoryTransactionalSpout

library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
together = threading.Barrier(12)


def allocate():
    together.wait()  # all threads are there at once
    block = ctypes.create_string_buffer(1000)
    together.wait()


threads = [threading.Thread(target=allocate) for _ in range(12)]
for one in threads:
    one.start()
for one in threads:
    one.join()
file = ctypes.c_void_p(library.fopen(b"arenas.xml", b"w"))
library.malloc_info(0, file)
library.fclose(file)
builder = TransactionalTopologyBuilder("t", "source", MemoryTransactionalSpout([["a"]], "word", 1))
topology = builder.build_topology()
"""
RUN = ["-m", "txstorm", "run", "arenas", "--engine", "local", "--available-now", "--data-dir", "data"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
@pytest.mark.parametrize(("chosen", "most"), [(None, 2), ("5", 5)])
def test_a_run_of_the_command_line_has_few_arenas(chosen, most, tmp_path):
    (tmp_path / "arenas.py").write_text(TOPOLOGY, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "PYTHONHASHSEED": "0"}
    environment.pop("MALLOC_ARENA_MAX", None)
    if chosen is not None:
        environment["MALLOC_ARENA_MAX"] = chosen
    done = subprocess.run(
        [sys.executable, *RUN], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "arenas.xml").read_text().count("<heap nr=") == most
