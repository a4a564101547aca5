"""Keyed states under random schedules of writes, failures and publishing, compared with dictionaries."""

import random

from handle_cases import Bench

from txstorm.api.state import KeyedState
from txstorm.state.index.index import StateIndex

STATE = KeyedState("s", key={"site": str, "n": int}, value={"v": int})
KEYS = [(site, n) for site in ("a", "b", None) for n in (0, 1, None)]


class Model:
    """Reference model: the state after every txid, as plain dictionaries."""

    def __init__(self):
        self.after = [{}]

    def play(self, draw, handle, task, now):
        """Apply random writes of one task to its own keys, on both `handle` and the dictionary `now`; compare reads."""
        own = [key for i, key in enumerate(KEYS) if i % 2 == task]
        before = dict(self.after[-1])
        for _ in range(draw.randrange(6)):
            key = draw.choice(own)
            action = draw.choice(["put", "update", "remove", "read"])
            if action == "put":
                now[key] = draw.choice([None, draw.randrange(100)])
                handle.put(key, now[key])
            elif action == "update":
                step = draw.randrange(5)
                now[key] = (now.get(key) or 0) + step
                assert handle.update(key, lambda old, step=step: (old or 0) + step) == now[key]
            elif action == "remove":
                now.pop(key, None)
                handle.remove(key)
            assert handle.get_many(own) == {key: now[key] for key in own if key in now}
            assert handle.previous(key) == before.get(key)


def test_any_schedule_gives_the_state_of_the_surviving_txids():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    for run in range(60):
        draw = random.Random(f"{seed}/{run}")
        bench, model, published = Bench(STATE), Model(), 0
        from_changes = StateIndex(STATE)
        for _ in range(25):
            txid = len(model.after)
            now = dict(model.after[-1])
            for task in draw.sample([0, 1], 2):
                model.play(draw, bench.open(txid, task), task, now)
            bench.group.end_txid(txid)
            model.after.append(now)
            chance = draw.random()
            if chance < 0.2:  # a failure: some undecided txids are replayed
                first = draw.randint(published + 1, txid)
                bench.group.drop_from(first)
                del model.after[first:]
            elif chance < 0.5:  # a group is published
                last = draw.randint(published + 1, txid)
                table = bench.group.changes(published + 1, last)
                if table is not None:
                    from_changes.load(table)
                bench.group.apply(last)
                published = last
            assert contents(bench.index) == model.after[published]
            assert from_changes.rows(KEYS) == bench.index.rows(KEYS)
            assert bench.open(len(model.after)).get_many(KEYS) == model.after[-1]


def contents(index):
    return {key: row[0][0] for key, row in zip(KEYS, index.rows(KEYS), strict=True) if row is not None}
