"""`check_engine` rejects faulty engines; tests/conformance tests that it accepts the shipped ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from txstorm.engine.cargo import Kind
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Pack, Processed
from txstorm.errors import InputError
from txstorm.testing import CheckFailed, check_engine


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
