"""Worlds with an interval join: each transaction emits the pairs and unmatched rows of the model, once."""

from join_model import JoinModel
from join_schedules import FIELDS, KEYS, NAMES, join_of, join_rules
from window_schedules import micros, time
from world_bolts import Record, recorded

from txstorm.simulation.topologies.kind import WorldKind


class JoinWorld(WorldKind):
    name, tick = "join", 4
    streams = dict.fromkeys(NAMES, FIELDS)
    settings = {"heartbeat_interval": 1}

    def declare(self, rng):
        self.rules, self.tasks = join_rules(rng), rng.choice([1, 1, 2])

    def __init__(self, rng):
        super().__init__(rng)
        self.ids, self.now = 0, [rng.randrange(-20, 40), rng.randrange(-20, 40)]

    def build(self, builder, world):
        declarer = builder.set_bolt("join", join_of(self.rules), self.tasks)
        for name in NAMES:
            declarer.fields_grouping("feed", name, ["key"])
        record = builder.set_committer_bolt("record", Record()).global_grouping("join")
        for stream in ("unmatched_left", "unmatched_right"):
            record.global_grouping("join", stream)

    def rows(self, partition):
        rows = []
        for side, one in enumerate((self.rules.left, self.rules.right)):
            self.now[side] += self.rng.choice([0, 1, 4, 12])
            for part in one.partitions:
                for _ in range(self.rng.choice([0, 1, 1, 2])):
                    self.ids += 1
                    at = self.now[side] - self.rng.randrange(one.lag + 1)
                    rows.append((NAMES[side], (self.rng.choice(KEYS), time(at), part, self.ids, "note")))
        return rows

    def check(self, batches, data_dir):
        model, found = JoinModel(self.rules), recorded(data_dir)
        for batch in batches:
            sides = [
                [(key, micros(at), part, id) for name, (key, at, part, id, _) in batch.rows if name == side]
                for side in NAMES
            ]
            outcome = model.transaction(batch.txid, batch.stamp, *sides)
            got = found.pop(batch.txid, {})
            wrong = self.difference(got, outcome)
            if wrong:
                return f"txid {batch.txid} of {self.rules}: {wrong}"
        return f"there are rows of {sorted(found)}" if found else None

    def difference(self, got, outcome):
        expected = {
            "default": [list(pair) for pair in outcome.pairs],
            "unmatched_left": outcome.unmatched_left,
            "unmatched_right": outcome.unmatched_right,
        }
        for stream, wanted in expected.items():
            there = got.get(stream, [])
            there = there if stream == "default" else [row[3] for row in there]
            if self.tasks > 1:
                there, wanted = sorted(there, key=str), sorted(wanted, key=str)
            if there != wanted:
                return f"{stream} has {there}, not {wanted}"
        return None
