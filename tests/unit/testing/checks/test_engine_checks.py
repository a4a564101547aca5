"""`check_engine` rejects faulty engines; tests/conformance tests that it accepts the shipped ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txstorm.engine.cargo import Kind
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Pack
from txstorm.errors import InputError
from txstorm.testing import CheckFailed, check_engine


class Changed(LocalEngine):
    """Base class of faulty engines that alter the cargo of a pack's outcomes."""

    def run(self, pack, cancelled=None):
        outcomes = super().run(pack, cancelled)
        for outcome in outcomes:
            outcome.cargo = list(self.changed(outcome.cargo))
        return outcomes

    def changed(self, cargo):
        raise NotImplementedError


class LosesATuple(Changed):
    def changed(self, cargo):
        for one in cargo:
            yield replace(one, batch=one.batch.slice(1)) if one.kind is Kind.DATA else one


class SendsTwice(Changed):
    def changed(self, cargo):
        return [*cargo, *cargo[-1:]]


class Backwards(Changed):
    """Fault: reverses the order of the tuples from each source task."""

    def changed(self, cargo):
        for one in cargo:
            yield replace(one, batch=one.batch.take(list(range(one.batch.num_rows))[::-1]))


class MixesSources(Changed):
    def changed(self, cargo):
        return [replace(one, source=0) for one in cargo]


class GoesOn(LocalEngine):
    """Fault: continues with the txids after a failed one."""

    def run(self, pack: Pack, cancelled=None):
        return [
            outcome for one in pack.inputs for outcome in super(GoesOn, self).run(replace(pack, inputs=(one,)), None)
        ]


class SwallowsFailures(LocalEngine):
    def run(self, pack: Pack, cancelled=None):
        outcomes = super().run(pack, cancelled)
        for outcome in outcomes:
            outcome.error = None
        return outcomes


class NeverAnswers(LocalEngine):
    def run(self, pack: Pack, cancelled=None):
        outcomes = super().run(pack, cancelled)
        return [replace(one, attempt=one.attempt._replace(attempt_id=0)) for one in outcomes]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (LosesATuple, "network 'diamond': txid 1"),
        (SendsTwice, "network 'diamond': txid 1"),
        (Backwards, "network 'diamond': "),
        (MixesSources, "network 'diamond': "),
        (GoesOn, "a batch that fails: txids, up to the one that failed: expected .1, 2., got .1, 2, 3."),
        (SwallowsFailures, "a batch that fails: who failed"),
        (NeverAnswers, "network 'diamond': expected the run to end, got .* in flight after 2 s"),
    ],
)
def test_faulty_engines_are_rejected(kind: type[LocalEngine], says: str) -> None:
    timeout = 2 if kind is NeverAnswers else 60
    with pytest.raises(CheckFailed, match=f"^engine: {says}"):
        check_engine(kind, networks=["diamond"], timeout=timeout)


def test_an_unknown_network_is_rejected() -> None:
    with pytest.raises(InputError, match="did you mean 'diamond'"):
        check_engine(LocalEngine, networks=["diamont"])
