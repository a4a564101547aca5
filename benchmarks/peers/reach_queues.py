"""Hand-written pipeline: the reach of a URL by processes and multiprocessing queues, at most once, in memory."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from txstorm.dadstorm.library import QueryFollowersFile
from txstorm.dadstorm.values import split_line, value

BATCH, ROOM = 100, 100
"""Tuples of an item of a queue, and items that a queue holds at most."""
URL = "www.example.org"
Fields = list[str]
Step = Callable[[Fields], list[Fields]]


def reach(place: Path) -> int:
    """Return the reach of the tweets in `place`, by two processes for each step, and one that counts."""
    context = mp.get_context("spawn")
    stages = [("filter", 2), ("followers", 2), ("unique", 2), ("count", 1)]
    queues = [[context.Queue(ROOM) for _ in range(number)] for _, number in stages]
    result = context.SimpleQueue()
    running = []
    for at, (name, number) in enumerate(stages):
        before = 1 if at == 0 else stages[at - 1][1]
        following = queues[at + 1] if at + 1 < len(queues) else []
        for one in range(number):
            given = (name, str(place), queues[at][one], following, before, result)
            running.append(context.Process(target=_work, args=given))
            running[-1].start()
    with (place / "tweets.data").open(encoding="utf-8") as file:
        _send(filter(None, (split_line(line.rstrip("\n")) for line in file)), queues[0], 0)
    found = int(result.get())
    for one in running:
        one.join()
    return found


def _send(rows: Any, queues: list[Any], field: int) -> None:
    """Send rows in batches, by the hash of a field, and the end."""
    waiting: list[list[Any]] = [[] for _ in queues]
    for row in rows:
        at = crc32(value(row[field]).encode()) % len(queues)
        waiting[at].append(row)
        if len(waiting[at]) == BATCH:
            queues[at].put(waiting[at])
            waiting[at] = []
    for batch, queue in zip(waiting, queues, strict=True):
        if batch:
            queue.put(batch)
        queue.put(None)


def _received(queue: Any, senders: int) -> Iterator[Fields]:
    while senders:
        batch = queue.get()
        if batch is None:
            senders -= 1
        else:
            yield from batch


def _work(name: str, place: str, queue: Any, following: list[Any], senders: int, result: Any) -> None:
    rows = _received(queue, senders)
    if name == "count":
        result.put(sum(1 for _ in rows))
    elif name == "filter":
        _send((row for row in rows if value(row[2]) == URL), following, 0)
    elif name == "followers":
        followers = QueryFollowersFile(Path(place)).getFollowers
        _send((found for row in rows for found in followers(row)), following, 0)
    else:
        seen = set[str]()
        _send((row for row in rows if not (value(row[0]) in seen or seen.add(value(row[0])))), following, 0)
