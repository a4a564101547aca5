"""Look-ups of join stores beside bare clients: RedisStore and a Redis pipeline, RestStore and httpx.

    python -m benchmarks.join_stores [--quick] [--only redis rest]

Both sides read the same rows of the same server, in batches of the same keys, in turns; the rows that ours returns are
compared with those that were put. The bare Redis client sends the same commands in a pipeline and leaves the members as
they are. The bare HTTP client sends the same bodies, encoded beforehand, and parses the answers with `response.json()`.
The servers run on this machine: Redis, and ``txstorm store-server`` before memory (the least that a server can cost).
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import redis
from pydantic_core import to_json

from benchmarks.window_tuples import Row, Wrong, say
from txstorm.joins import JoinStore, RedisStore, RestStore, StoreRow

PARTS = ("redis", "rest")
FIRST = 1_700_000_000_000_000
BATCH = 1_000
LIMIT, GOAL = 0.6, 0.9


def rows(count: int, keys: int) -> list[StoreRow]:
    """Return the rows of the window: `count` over `keys` keys, a millisecond apart."""
    rng = random.Random(17)
    return [
        StoreRow(
            f"user-{rng.randrange(keys)}",
            f"view-{n}",
            FIRST + n * 1000,
            {"id": f"view-{n}", "page": n % 97, "ms": n / 4},
        )
        for n in range(count)
    ]


def batches(count: int, keys: int) -> list[list[str]]:
    """Return the keys of `count` look-ups, in batches; a fifth of them have no rows."""
    rng = random.Random(18)
    return [[f"user-{rng.randrange(keys * 5 // 4)}" for _ in range(BATCH)] for _ in range(count // BATCH)]


def filled(store: JoinStore, count: int, keys: int) -> tuple[list[list[str]], int, int]:
    """Put the rows; return batches of keys, and bounds between which a key has one row on average."""
    made = rows(count, keys)
    for first in range(0, count, BATCH):
        store.put_many(made[first : first + BATCH])
    start, end = FIRST + (count - keys) * 1000, FIRST + count * 1000
    wanted: dict[str, list[str]] = {}
    for row in made:
        if start <= row.time <= end:
            wanted.setdefault(row.key, []).append(row.id)
    asked = batches(min(count, 200_000), keys)
    found = store.get_many(asked[0], start, end)
    if {key: [row.id for row in one] for key, one in found.items()} != {key: wanted.get(key, []) for key in asked[0]}:
        msg = f"{store!r} returns other rows than were put: not measured"
        raise Wrong(msg)
    return asked, start, end


def turns(ours: Callable[[], None], bare: Callable[[], None], lookups: int, rounds: int) -> tuple[float, float, float]:
    """Measure both in turns; return look-ups a second of ours and of the bare client, and the median ratio."""
    ours(), bare()
    taken: list[tuple[float, float]] = []
    for _ in range(rounds):
        seconds = []
        for side in (ours, bare):
            began = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began)
        taken.append((seconds[0], seconds[1]))
    mine, other = (lookups / statistics.median(side) for side in zip(*taken, strict=True))
    return mine, other, statistics.median(bare / ours for ours, bare in taken)


def in_redis(place: Path, count: int, keys: int, rounds: int) -> Iterator[Row]:
    """Measure RedisStore."""
    port = _free_port()
    with _process([_program("redis-server"), "--port", str(port), "--dir", str(place), "--save", ""], port):
        store = RedisStore(f"redis://127.0.0.1:{port}/0", prefix="b")
        asked, start, end = filled(store, count, keys)
        client = redis.Redis("127.0.0.1", port)

        def ours() -> None:
            for one in asked:
                store.get_many(one, start, end)

        def bare() -> None:
            for one in asked:
                pipeline = client.pipeline(transaction=False)
                for key in one:
                    pipeline.zrangebyscore("{b}:rows:s" + key, start, end)
                pipeline.execute()

        mine, other, ratio = turns(ours, bare, len(asked) * BATCH, rounds)
        yield Row("Redis: look-ups a second against a bare pipeline", mine, other, ratio, LIMIT, GOAL)


def in_rest(place: Path, count: int, keys: int, rounds: int) -> Iterator[Row]:
    """Measure RestStore."""
    port = _free_port()
    server = [sys.executable, "-m", "txstorm", "store-server", "--store", "memory", "--port", str(port)]
    with _process(server, port):
        store = RestStore(f"http://127.0.0.1:{port}")
        asked, start, end = filled(store, count, keys)
        client = httpx.Client()
        bodies = [to_json({"keys": one, "start": start, "end": end}) for one in asked]

        def ours() -> None:
            for one in asked:
                store.get_many(one, start, end)

        def bare() -> None:
            for body in bodies:
                client.post(f"http://127.0.0.1:{port}/lookups", content=body).json()

        mine, other, ratio = turns(ours, bare, len(asked) * BATCH, rounds)
        yield Row("REST: look-ups a second against bare httpx", mine, other, ratio, LIMIT, GOAL)


def measured(place: Path, parts: Sequence[str] = PARTS, *, quick: bool) -> Iterator[Row]:
    """Measure the parts; yield one row for each."""
    count, keys, rounds = (50_000, 5_000, 3) if quick else (1_000_000, 100_000, 5)
    for part in parts:
        say(f"{part}: {count:,} rows of {keys:,} keys")
        yield from {"redis": in_redis, "rest": in_rest}[part](place, count, keys, rounds)


@contextlib.contextmanager
def _process(command: list[str], port: int) -> Iterator[None]:
    """Run a server until the end of the block."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if server.poll() is not None or time.monotonic() > until:
                msg = f"{command[0]} did not start"
                raise Wrong(msg)
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        msg = f"{name} is not installed: scripts/redis --install"
        raise Wrong(msg)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    given: Any = parser.parse_args(arguments)
    print(f"{'figure':<58}{'ours':>12}{'peer':>12}{'ratio':>9}  least   goal")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        for row in measured(Path(place), given.only, quick=given.quick):
            print(row, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the servers, as Ctrl-C does
    main()
