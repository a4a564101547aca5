"""`check_engine` and `check_ledger` reject what is faulty; that they accept the shipped ones is tested elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from txstorm.engine.cargo import Kind
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Pack, Processed
from txstorm.errors import ConflictError, FencedError, HeldError, InputError
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import Check, Delete, Entry, Op, Put
from txstorm.testing import CheckFailed, check_engine, check_ledger


def faulty(**changes: Callable[[Processed], Any]) -> type[LocalEngine]:
    """Return a class of engines that set fields of each outcome to what `changes` make of the outcome."""

    class Faulty(LocalEngine):
        def run(self, pack: Pack, cancelled=None):
            outcomes = super().run(pack, cancelled)
            return [replace(one, **{field: change(one) for field, change in changes.items()}) for one in outcomes]

    return Faulty


def with_cargo(change: Callable[[list[Any]], list[Any]]) -> type[LocalEngine]:
    return faulty(cargo=lambda outcome: change(outcome.cargo))


def with_data(change: Callable[[Any], Any]) -> type[LocalEngine]:
    return with_cargo(lambda cargo: [replace(one, batch=change(one)) for one in cargo])


class GoesOn(LocalEngine):
    """Fault: continues with the txids after a failed one."""

    def run(self, pack: Pack, cancelled=None):
        return [
            outcome for one in pack.inputs for outcome in super(GoesOn, self).run(replace(pack, inputs=(one,)), None)
        ]


FAULTY = {
    "loses a tuple": (
        with_data(lambda one: one.batch.slice(1) if one.kind is Kind.DATA else one.batch),
        "network 'diamond': txid 1",
    ),
    "sends twice": (with_cargo(lambda cargo: [*cargo, *cargo[-1:]]), "network 'diamond': txid 1"),
    "reverses the tuples of each source task": (
        with_data(lambda one: one.batch.take(list(range(one.batch.num_rows))[::-1])),
        "network 'diamond': ",
    ),
    "mixes sources": (with_cargo(lambda cargo: [replace(one, source=0) for one in cargo]), "network 'diamond': "),
    "goes on": (GoesOn, "a batch that fails: txids, up to the one that failed: expected .1, 2., got .1, 2, 3."),
    "swallows failures": (faulty(error=lambda outcome: None), "a batch that fails: who failed"),
    "never answers": (
        faulty(attempt=lambda outcome: outcome.attempt._replace(attempt_id=0)),
        "network 'diamond': expected the run to end, got .* in flight after 2 s",
    ),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_faulty_engines_are_rejected(fault: str) -> None:
    kind, says = FAULTY[fault]
    timeout = 2 if fault == "never answers" else 60
    with pytest.raises(CheckFailed, match=f"^engine: {says}"):
        check_engine(kind, networks=["diamond"], timeout=timeout)


def test_an_unknown_network_is_rejected() -> None:
    with pytest.raises(InputError, match="did you mean 'diamond'"):
        check_engine(LocalEngine, networks=["diamont"])


class OneByOne(MemoryLedger):
    """Fault: a commit is not atomic: it applies operations one by one until one is rejected."""

    def commit(self, ops: Sequence[Op]) -> None:
        for op in ops:
            super().commit([op])


class Everybody(MemoryLedger):
    """Fault: grants the lease to every caller, even if another handle holds it."""

    def acquire(self, owner: str) -> None:
        try:
            super().acquire(owner)
        except HeldError:
            pass


class MixesUpLeases(MemoryLedger):
    """Fault: once it has lost its lease, mistakes another handle's lease for its own."""

    def check_lease(self) -> None:
        if self.holder() is not None and not self._took_lease:
            raise FencedError("lost")


class OutOfDate(MemoryLedger):
    """Fault: returns stale entries, as first read."""

    def get(self, path: str) -> Entry | None:
        seen = self.__dict__.setdefault("seen", {})
        return seen.setdefault(path, super().get(path))


class LooksThenPuts(MemoryLedger):
    """Fault: compares all versions before it writes, so operations do not see earlier ones of the same commit."""

    def commit(self, ops: Sequence[Op]) -> None:
        for op in ops:
            found = self.get(op.path)
            if op.expect not in (None, -1 if found is None else found.version):
                raise ConflictError(f"ledger path {op.path!r}")
        super().commit([Put(op.path, op.value) if isinstance(op, Put) else op for op in ops])


def memory(**methods: Callable[..., Any]) -> type[MemoryLedger]:
    return type("Faulty", (MemoryLedger,), methods)


def commits(changed: Callable[[Op], Op | None]) -> type[MemoryLedger]:
    """Return a class of ledgers that commit `changed(operation)`, if any, in place of each operation."""
    return memory(commit=lambda self, ops: MemoryLedger.commit(self, [op for op in map(changed, ops) if op]))


FAULTY_LEDGERS = {
    "one operation after the other": (OneByOne, "a wrong expectation fails the whole commit"),
    "the last writer wins": (
        commits(lambda op: Put(op.path, op.value) if isinstance(op, Put) else op),
        "a wrong expectation fails the whole commit: commit of .* expected a ConflictError, got no error",
    ),
    "no checks": (commits(lambda op: None if isinstance(op, Check) else op), "a wrong expectation"),
    "an empty entry in place of a deleted one": (
        commits(lambda op: Put(op.path, b"", op.expect) if isinstance(op, Delete) else op),
        "expected",
    ),
    "children sorted as text": (
        memory(children=lambda self, path: sorted(MemoryLedger.children(self, path))),
        "children of 'm': expected .'9', '10'.*, got .'10', '100'",
    ),
    "a common lease": (Everybody, "one handle has the lease: acquire while 'one' has the lease: expected a HeldError"),
    "keeps the lease when it is closed": (memory(close=lambda self: setattr(self, "_open", False)), "lease"),
    "does not wait": (
        memory(wait_free=lambda self, seconds: True),
        "waiting for the lease ends when it is free: whether a lease is free while 'one' has it",
    ),
    "mixes up leases": (MixesUpLeases, "the holder passes the check of its lease: expected no error, got FencedError"),
    "out of date": (OutOfDate, "versions count puts"),
    "looks, then puts": (LooksThenPuts, "operations see the earlier ones"),
}


@pytest.mark.parametrize(("kind", "says"), FAULTY_LEDGERS.values(), ids=FAULTY_LEDGERS)
def test_faulty_ledgers_are_rejected(kind: Callable[..., MemoryLedger], says: str) -> None:
    first = kind()
    with pytest.raises(CheckFailed, match=f"^ledger: .*{says}"):
        check_ledger(lambda: kind(first))


def test_handles_on_different_ledgers_and_an_unknown_rule_are_rejected() -> None:
    with pytest.raises(CheckFailed, match="a put is seen by every handle"):
        check_ledger(MemoryLedger)
    with pytest.raises(InputError, match="did you mean"):
        check_ledger(MemoryLedger, rules=["a new ledger is emty"])
