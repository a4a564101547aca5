"""Checks for a user-defined provider of states of stateful bolts: calls, epochs, crashes of a run, random schedules."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from txstorm.api.external import KeyValueState, StateContext, StateProvider
from txstorm.errors import FencedError
from txstorm.stateful.providers import open_state
from txstorm.testing.checks.provider_runs import check_runs
from txstorm.testing.checks.rules import checking, expect, refused

Make = Callable[[], StateProvider]
Open = Callable[..., KeyValueState]
"""Function that opens a state again, as a new process would: ``another()``, or ``another(epoch=2, timeline=1)``."""

VALUES: tuple[Any, ...] = (
    0,
    -1,
    2**53 - 1,
    1.5,
    "",
    "it's 日本 😀",
    True,
    False,
    [],
    [1, ["x"]],
    {"b": 1, "a": {"": [0.25]}},
)
KEYS = ("", "a", "A", "a ", " a", "ä", "a%", "a_", "a'b", '"a"', "日本", "😀", "x" * 2000)
MANY = 12_000
STEPS = 60


def content(state: KeyValueState) -> dict[Any, Any]:
    """Return the content of `state` from its iteration; fail if it yields a key twice."""
    pairs = list(state)
    found = dict(pairs)
    expect("number of pairs of an iteration, each key once", len(found), len(pairs))
    return found


def saved(state: KeyValueState, txid: int, values: Mapping[Any, Any]) -> None:
    """Put `values`, and save them as the content of `txid`."""
    for key, value in values.items():
        state.put(key, value)
    state.prepare_commit(txid)
    state.commit(txid)


def unknown_keys_have_the_default(another: Open) -> None:
    """Check that an unknown key has the default, which is not stored."""
    state = another()
    expect("value of an unknown key", None, state.get("a"))
    expect("the default", 7, state.get("a", 7))
    expect("the value after a get with a default", None, state.get("a"))
    expect("what delete returns for an unknown key", None, state.delete("a"))
    expect("the content", {}, content(state))
    expect("the last committed txid", None, state.last_committed())


def writes_are_read_before_they_are_saved(another: Open) -> None:
    """Check that a state reads its own writes and deletions, above those that are prepared and committed."""
    state = another()
    saved(state, 1, {"a": 1, "b": 2, "c": 3})
    state.put("a", 10)
    expect("what delete returns", 2, state.delete("b"))
    state.prepare_commit(2)
    state.put("d", 4)
    expect("what delete returns", 3, state.delete("c"))
    expect("values", [10, None, None, 4], [state.get(key) for key in "abcd"])
    expect("the content", {"a": 10, "d": 4}, content(state))


def values_keep_their_types(another: Open) -> None:
    """Check that keys and values come back unchanged, also for another object, and that values are copies."""
    state = another()
    pairs = {f"v{number}": value for number, value in enumerate(VALUES)} | {key: f"of {key}" for key in KEYS}
    saved(state, 1, pairs)
    for found in (state, another()):
        expect("values with their types", _typed(pairs), _typed({key: found.get(key) for key in pairs}))
        expect("the content", _typed(pairs), _typed(content(found)))
    mine = [1]
    state.put("mine", mine)
    mine.append(2)
    state.prepare_commit(2)
    state.commit(2)
    state.get("mine").append(3)
    rule = "a value, after the list that was put and the list that was returned were changed"
    expect(rule, [[1], [1]], [state.get("mine"), another().get("mine")])


def prepared_content_is_invisible_until_it_is_committed(another: Open) -> None:
    """Check that other objects see what is committed only."""
    state = another()
    saved(state, 1, {"a": 1})
    state.put("a", 2)
    state.prepare_commit(2)
    expect("a committed value, for another object, while the next one is prepared", 1, another().get("a"))
    for found in (state, another()):
        expect("the last committed txid while the next one is prepared", 1, found.last_committed())
    state.commit(2)
    expect("the value after the commit", 2, another().get("a"))
    expect("the last committed txid", 2, another().last_committed())


def another_process_commits_what_is_prepared(another: Open) -> None:
    """Check that prepared content survives its object, and can be committed by another one."""
    state = another()
    saved(state, 1, {"a": 1, "b": 1})
    state.put("a", 2)
    state.delete("b")
    state.prepare_commit(2)
    state.put("c", 3)
    later = another()
    later.commit(2)
    expect("the content", {"a": 2}, content(later))
    expect("the last committed txid", 2, later.last_committed())


def another_process_rolls_back_what_is_prepared(another: Open) -> None:
    """Check that prepared content survives its object, and can be rolled back by another one, any number of times."""
    state = another()
    saved(state, 1, {"a": 1})
    state.put("a", 2)
    state.prepare_commit(2)
    for _ in range(3):
        later = another()
        later.rollback()
        later.rollback()
        expect("the content", {"a": 1}, content(later))
        expect("the last committed txid", 1, later.last_committed())
    saved(another(), 2, {"a": 3})
    expect("the content after txid 2 was done again", {"a": 3}, content(another()))


def a_rollback_restores_the_last_commit(another: Open) -> None:
    """Check that a rollback forgets what is prepared, and what is written before and after it."""
    state = another()
    state.put("a", 1)
    state.prepare_commit(1)
    state.put("b", 2)
    state.rollback()
    expect("the content", {}, content(state))
    saved(state, 1, {"a": 1, "b": 2})
    state.put("c", 3)
    state.delete("a")
    state.rollback()
    expect("the content", {"a": 1, "b": 2}, content(state))


def later_writes_belong_to_the_next_transaction(another: Open) -> None:
    """Check that writes after `prepare_commit` are neither committed with it nor lost."""
    state = another()
    state.put("a", 1)
    state.prepare_commit(1)
    state.put("a", 2)
    state.put("b", 2)
    state.commit(1)
    expect("what is committed", {"a": 1}, content(another()))
    state.prepare_commit(2)
    state.commit(2)
    expect("what is committed next", {"a": 2, "b": 2}, content(another()))


def the_later_preparation_counts(another: Open) -> None:
    """Check that a txid may be prepared again, with further writes."""
    state = another()
    state.put("a", 1)
    state.put("b", 1)
    state.prepare_commit(1)
    state.put("a", 2)
    state.prepare_commit(1)
    state.commit(1)
    expect("the content", {"a": 2, "b": 1}, content(another()))


def txids_out_of_order_are_errors(another: Open) -> None:
    """Check that only the prepared txid can be committed, once, and no other one prepared meanwhile or again."""
    state = another()
    refused("commit of a txid that is not prepared", Exception, lambda: state.commit(1))
    state.put("a", 1)
    state.prepare_commit(1)
    refused("prepare_commit while another txid is prepared", Exception, lambda: state.prepare_commit(2))
    refused("commit of another txid than the prepared one", Exception, lambda: state.commit(2))
    state.commit(1)
    refused("a second commit of a txid", Exception, lambda: state.commit(1))
    refused("prepare_commit of a committed txid", Exception, lambda: state.prepare_commit(1))
    expect("the content", {"a": 1}, content(another()))


def many_keys_at_once(another: Open) -> None:
    """Check that thousands of keys can be saved and deleted in one transaction."""
    state = another()
    saved(state, 1, {f"k{number}": number for number in range(MANY)})
    expect("the number of keys", MANY, len(content(another())))
    for number in range(0, MANY, 2):
        state.delete(f"k{number}")
    saved(state, 2, {"k1": "x"})
    found = content(another())
    expect("the number of keys after every second one was deleted", MANY // 2, len(found))
    expect("a changed and an unchanged value", ["x", 3], [found["k1"], found["k3"]])


def a_stale_epoch_is_rejected(another: Open) -> None:
    """Check that no write of a coordinator is accepted once another one, with a higher epoch, has opened the state."""
    old = another(epoch=1)
    saved(old, 1, {"a": 1})
    old.put("a", 2)
    old.prepare_commit(2)
    new = another(epoch=2)
    refused("commit with an older epoch", FencedError, lambda: old.commit(2))
    new.rollback()
    new.put("a", 3)
    new.prepare_commit(2)
    refused("rollback with an older epoch", FencedError, old.rollback)
    old.put("a", 4)
    refused("prepare_commit with an older epoch", FencedError, lambda: old.prepare_commit(2))
    new.commit(2)
    expect("the content", {"a": 3}, content(another(epoch=2)))
    refused(
        "to open the state with an older epoch, and prepare", FencedError, lambda: saved(another(epoch=1), 3, {"a": 5})
    )


def txids_begin_again_after_a_rewind(another: Open) -> None:
    """Check that transactions are ordered by (timeline, txid): after a rewind, a lower txid may be committed."""
    saved(another(), 7, {"a": 7})
    state = another(epoch=2, timeline=1)
    expect("the last committed txid of a new timeline", None, state.last_committed())
    saved(state, 3, {"a": 3})
    expect("the last committed txid", 3, another(epoch=2, timeline=1).last_committed())
    expect("the content", {"a": 3}, content(another(epoch=2, timeline=1)))


RULES: dict[str, Callable[[Open], None]] = {
    rule.__name__.replace("_", " "): rule
    for rule in (
        unknown_keys_have_the_default,
        writes_are_read_before_they_are_saved,
        prepared_content_is_invisible_until_it_is_committed,
        another_process_commits_what_is_prepared,
        another_process_rolls_back_what_is_prepared,
        a_rollback_restores_the_last_commit,
        later_writes_belong_to_the_next_transaction,
        the_later_preparation_counts,
        txids_out_of_order_are_errors,
        values_keep_their_types,
        a_stale_epoch_is_rejected,
        txids_begin_again_after_a_rewind,
        many_keys_at_once,  # the one that takes long
    )
}


def check_state_provider(
    make: Make, *, conf: Mapping[str, Any] | None = None, seeds: Iterable[int] = range(20)
) -> None:
    """Raise `CheckFailed` unless the provider and its key-value states satisfy the ports in `txstorm.api.external`.

    Calls every method, then runs a topology with a stateful bolt that crashes at each step around the commit.

    Args:
        make: makes a provider. Its namespaces, which are new in every check, may remain.
        conf: the configuration passed to `StateProvider.new_state`.
        seeds: seeds of random schedules; an error names the seed.

    Raises:
        CheckFailed: a rule is broken; its name is in the message.
    """
    prefix, numbers = f"check-{uuid.uuid4().hex[:12]}", itertools.count(1)

    def opener() -> Open:
        provider, namespace = make(), f"{prefix}-{next(numbers)}"

        def another(epoch: int = 1, timeline: int = 0) -> KeyValueState:
            context = StateContext("check", prefix, namespace, 0, timeline, epoch)
            return cast("KeyValueState", open_state(provider, namespace, conf or {}, context))

        return another

    for rule, function in RULES.items():
        with checking(f"state provider: {rule}"):
            function(opener())
    with checking("state provider: namespaces are separate"):
        _separate(make(), prefix, conf or {})
    check_runs(make(), f"{prefix}-run", conf or {})
    for seed in seeds:
        with checking(f"state provider: a random schedule (seed {seed})"):
            _play(opener(), random.Random(seed))  # noqa: S311 - a schedule


def _separate(provider: StateProvider, prefix: str, conf: Mapping[str, Any]) -> None:
    first, second = (
        cast("KeyValueState", open_state(provider, f"{prefix}-{name}", conf, None)) for name in ("one", "two")
    )
    saved(first, 1, {"a": 1})
    expect("the content of another namespace", {}, content(second))
    expect("its last committed txid", None, second.last_committed())


def _play(another: Open, rng: random.Random) -> None:
    """Apply random calls to a state and to dicts, with other processes in between; compare all that can be read."""
    state, txid = another(), 0
    committed: dict[str, Any] = {}
    prepared: dict[str, Any] | None = None
    current: dict[str, Any] = {}
    for _ in range(STEPS):
        action, key = rng.random(), rng.choice("abcdef")
        if action < 0.4:
            current[key] = rng.randrange(100)
            state.put(key, current[key])
        elif action < 0.55:
            expect(f"what delete of {key!r} returns", current.pop(key, None), state.delete(key))
        elif action < 0.7:
            txid += prepared is None
            state.prepare_commit(txid)
            prepared = dict(current)
        elif action < 0.8 and prepared is not None:
            state.commit(txid)
            committed, prepared = prepared, None
        elif action < 0.9:
            if rng.random() < 0.5:
                state = another()
            state.rollback()
            txid -= prepared is not None
            prepared, current = None, dict(committed)
        elif prepared is not None:
            state = another()
            state.commit(txid)
            committed, prepared = prepared, None
            current = dict(committed)
        expect("the content", current, content(state))
        expect("values", {name: current.get(name) for name in "abcdef"}, {name: state.get(name) for name in "abcdef"})
        expect("the last committed txid", txid - (prepared is not None) or None, state.last_committed())


def _typed(values: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    return {key: (type(value).__name__, value) for key, value in values.items()}
