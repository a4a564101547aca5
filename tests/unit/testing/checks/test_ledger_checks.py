"""`check_ledger` rejects faulty ledgers; tests/unit/ledger tests that it accepts the shipped ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from txstorm.errors import ConflictError, FencedError, HeldError, InputError
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import Check, Delete, Entry, Op, Put
from txstorm.testing import CheckFailed, check_ledger


class OneByOne(MemoryLedger):
    """Fault: a commit is not atomic: it applies operations one by one until one is rejected."""

    def commit(self, ops: Sequence[Op]) -> None:
        for op in ops:
            super().commit([op])


class LastWins(MemoryLedger):
    """Fault: ignores the expected versions of puts, so that the last writer wins."""

    def commit(self, ops: Sequence[Op]) -> None:
        super().commit([Put(op.path, op.value) if isinstance(op, Put) else op for op in ops])


class NoChecks(MemoryLedger):
    def commit(self, ops: Sequence[Op]) -> None:
        super().commit([op for op in ops if not isinstance(op, Check)])


class NeverForgets(MemoryLedger):
    """Fault: replaces a deleted entry by an empty one."""

    def commit(self, ops: Sequence[Op]) -> None:
        super().commit([Put(op.path, b"", op.expect) if isinstance(op, Delete) else op for op in ops])


class NamesAsText(MemoryLedger):
    def children(self, path: str) -> list[str]:
        return sorted(super().children(path))


class Everybody(MemoryLedger):
    """Fault: grants the lease to every caller, even if another handle holds it."""

    def acquire(self, owner: str) -> None:
        try:
            super().acquire(owner)
        except HeldError:
            pass


class KeepsTheLease(MemoryLedger):
    """Fault: does not release the lease when the handle is closed."""

    def close(self) -> None:
        self._open = False


class DoesNotWait(MemoryLedger):
    def wait_free(self, seconds: float) -> bool:
        return True


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


BROKEN = [
    (OneByOne, "a wrong expectation fails the whole commit"),
    (LastWins, "a wrong expectation fails the whole commit: commit of .* expected a ConflictError, got no error"),
    (NoChecks, "a wrong expectation"),
    (NeverForgets, "expected"),
    (NamesAsText, "children of 'm': expected .'9', '10'.*, got .'10', '100'"),
    (Everybody, "one handle has the lease: acquire while 'one' has the lease: expected a HeldError"),
    (KeepsTheLease, "lease"),
    (DoesNotWait, "waiting for the lease ends when it is free: whether a lease is free while 'one' has it"),
    (MixesUpLeases, "the holder passes the check of its lease: expected no error, got FencedError"),
    (OutOfDate, "versions count puts"),
    (LooksThenPuts, "operations see the earlier ones"),
]


@pytest.mark.parametrize(("kind", "says"), BROKEN)
def test_faulty_ledgers_are_rejected(kind: Callable[..., MemoryLedger], says: str) -> None:
    first = kind()
    with pytest.raises(CheckFailed, match=f"^ledger: .*{says}"):
        check_ledger(lambda: kind(first))


def test_handles_on_different_ledgers_are_rejected() -> None:
    with pytest.raises(CheckFailed, match="a put is seen by every handle"):
        check_ledger(MemoryLedger)


def test_an_unknown_rule_is_rejected() -> None:
    with pytest.raises(InputError, match="did you mean"):
        check_ledger(MemoryLedger, rules=["a new ledger is emty"])
