"""Routing: the replica of an operator that receives a tuple, by the routing of the receiving operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txstorm.dadstorm.configuration import Operator
from txstorm.dadstorm.values import Fields, values_at


class Routed(NamedTuple):
    """Replicas that receive tuples.

    Attributes:
        replicas: the replica of each tuple.
        misfits: number of tuples without the field of ``hashing``, which went as with ``primary``.
    """

    replicas: list[int]
    misfits: int


def pick(operator: Operator, id: str, fields: Fields, live: Sequence[int]) -> int | None:
    """Return the replica that receives one tuple; None if none is live.

    Args:
        operator: the receiving operator.
        id: the tuple's id, by which ``random`` goes.
        fields: the tuple.
        live: the replicas that are not dead, ascending.
    """
    return pick_many(operator, [id], [fields], live).replicas[0] if live else None


def pick_many(operator: Operator, ids: Sequence[str], tuples: Sequence[Fields], live: Sequence[int]) -> Routed:
    """Return the replicas that receive many tuples; at least one must be live. Arguments as those of `pick`."""
    if operator.routing == "primary":
        return Routed([live[0]] * len(tuples), 0)
    if operator.routing == "random":
        return Routed([live[number] for number in _lots(ids, len(live))], 0)
    number = operator.routing_field or 1
    values = values_at(tuples, number)
    heirs = [heir(replica, operator.replicas, live) for replica in range(operator.replicas)]
    owners = tasks([one or "" for one in values], operator.replicas)
    found = list(map(heirs.__getitem__, owners))
    misfits = [at for at, one in enumerate(values) if one is None] if None in values else []
    for at in misfits:
        found[at] = live[0]
    return Routed(found, len(misfits))


def heir(replica: int, replicas: int, live: Sequence[int]) -> int:
    """Return the live replica that receives what `replica` of `replicas` would: itself, or cyclically the next one."""
    return next(one % replicas for one in range(replica, replica + replicas) if one % replicas in live)


def tasks(values: Sequence[str], parallelism: int) -> list[int]:
    """Return the core's task, among `parallelism` tasks, of each value: that of its key group."""
    import pyarrow as pa

    from txstorm import keys

    found: list[int] = keys.tasks_of(keys.key_groups([pa.array(values, pa.string())]), parallelism).tolist()
    return found


def _lots(ids: Sequence[str], number: int) -> list[int]:
    """Return the core's hash of each id, modulo `number`."""
    import pyarrow as pa

    from txstorm import keys

    found: list[int] = (keys.hash_column(pa.array(ids, pa.string())) % number).tolist()
    return found
