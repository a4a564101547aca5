"""Operators: the work of one tuple in a replica, and the steps of UNIQ and COUNT, whose state is the operator's.

Of the package, only light modules are imported here: replica processes start with it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from threading import Lock
from types import ModuleType
from typing import Any

from txstorm.api.names import near
from txstorm.dadstorm import library
from txstorm.dadstorm.configuration import Configuration, Operator
from txstorm.dadstorm.values import Fields, test_of, values_at
from txstorm.errors import EmitError, InputError

BUILT_IN = "mylib"
_MODULE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LOADED: dict[tuple[Any, ...], Any] = {}
_LOCK = Lock()


class Work:
    """Stateless work of an operator on one tuple: called with it, returns the tuples that it makes of it.

    FILTER, DUP and CUSTOM are complete; of UNIQ and COUNT this is what a replica does: it passes the tuple, and
    `settle` decides what is emitted.

    Attributes:
        misfits: number of tuples so far that lacked the field of FILTER or UNIQ, and were dropped.
    """

    misfits = 0

    def __call__(self, fields: Fields) -> Sequence[Fields]:
        """Return the tuples made of one; raises what the user's code raises, and `EmitError` for a wrong result."""
        made: list[Sequence[Fields]] = []
        self.many([fields], made)
        return list(map(tuple, made[0]))

    def many(self, tuples: Sequence[Fields], made: list[Sequence[Fields]]) -> None:
        """Add what was made of each tuple to `made`; what is raised is of the first one of which nothing was added.

        In place of tuples there may be lists.
        """
        made += [(fields,) for fields in tuples]


class _Having(Work):
    def __init__(self, number: int) -> None:
        self._number = number

    def many(self, tuples: Sequence[Fields], made: list[Sequence[Fields]]) -> None:
        fitting = [len(fields) >= self._number for fields in tuples]
        self.misfits += fitting.count(False)
        made += [(fields,) if fits else () for fields, fits in zip(tuples, fitting, strict=True)]


class _Filter(Work):
    def __init__(self, number: int, condition: str, wanted: str) -> None:
        self._number, self._holds = number, test_of(condition, wanted)

    def many(self, tuples: Sequence[Fields], made: list[Sequence[Fields]]) -> None:
        found = values_at(tuples, self._number)
        passes = {one: one is not None and self._holds(one) for one in set(found)}
        self.misfits += found.count(None)
        made += [(fields,) if passes[one] else () for fields, one in zip(tuples, found, strict=True)]


class _Custom(Work):
    def __init__(self, name: str, method: Callable[[list[str]], Any]) -> None:
        self._name, self._method = name, method

    def many(self, tuples: Sequence[Fields], made: list[Sequence[Fields]]) -> None:
        found: list[Any] = []
        try:
            for fields in tuples:
                found.append(self._method(list(fields)))
        finally:
            made.extend(found if _are_tuples(found) else map(self._checked, found))

    def _checked(self, made: Any) -> list[Fields]:
        try:
            return [_checked(one) for one in _listed(made)]
        except (TypeError, UnicodeEncodeError) as error:
            wrong = "text with lone surrogates" if isinstance(error, UnicodeEncodeError) else f"{error}"
            raise EmitError(f"{self._name} returned {made!r:.200}: {wrong}; expected a list of lists of str") from None


def _are_tuples(made: list[Any]) -> bool:
    """Return whether all results of a method are right, which is seen at a glance; if not, `_checked` tells."""
    for _ in range(2):
        if not {list, tuple}.issuperset(map(type, made)):
            return False
        made = list(chain.from_iterable(made))
    return {str}.issuperset(map(type, made)) and "".join(made).isascii()


def _listed(made: Any) -> Sequence[Any]:
    if type(made) not in (list, tuple):
        raise TypeError(f"a value of type {type(made).__name__}")
    listed: Sequence[Any] = made
    return listed


def _checked(made: Any) -> Fields:
    for one in _listed(made):
        if not isinstance(one, str):
            raise TypeError(f"a field of type {type(one).__name__}")
        if not one.isascii():
            one.encode()
    return tuple(made)


# -- loading ---------------------------------------------------------------------------------------------------------


def load_code(operator: Operator, configuration: Configuration, allow: Sequence[str] = ()) -> Work:
    """Return the work of an operator; of CUSTOM, its method on the one object of the class in this process.

    Args:
        operator: the operator.
        configuration: the configuration, beside which libraries and followers are looked for.
        allow: names of further modules that may be libraries.

    Raises:
        InputError: library, class or method are missing, or cannot be loaded; it names the operator and its line.
    """
    if operator.type == "FILTER":
        number, condition, wanted = operator.params
        return _Filter(int(number), condition, wanted)
    if operator.type == "UNIQ":
        return _Having(int(operator.params[0]))
    if operator.type != "CUSTOM":
        return Work()
    where = f"{configuration.name}:{operator.line}: operator {operator.id}"
    name, class_name, method_name = operator.params
    try:
        with _LOCK:
            module, key = _module(name, configuration, tuple(allow))
            made = _object(module, class_name, key, configuration)
        method = getattr(made, method_name, None)
        if not callable(method):
            known = [one for one in dir(made) if not one.startswith("_") and callable(getattr(made, one))]
            msg = f"class {class_name!r} of library {name!r} has no method {method_name!r}{near(method_name, known)}"
            raise InputError(msg)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error.__cause__
    code = getattr(method, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return _Custom(f"{name}, {class_name}.{method_name}{place}", method)


def writes_lines(operator: Operator, configuration: Configuration) -> bool:
    """Return whether an operator is the built-in OutputOperator, whose emitted tuples are lines of `output_path`."""
    if operator.type != "CUSTOM" or operator.params[1] != "OutputOperator":
        return False
    return _stem(operator.params[0]) == BUILT_IN and not (configuration.directory / f"{BUILT_IN}.py").is_file()


def output_path(operator: Operator, configuration: Configuration) -> str:
    """Return the file of an OutputOperator, beside the configuration."""
    return os.path.abspath(configuration.directory / f"{operator.id}.out")


def failure(operator: Operator, fields: Fields, error: BaseException, replica: int | None = None) -> str:
    """Return the description of an error of an operator's code: operator, replica, tuple, error and line of code."""
    from txstorm.user_code import line_of

    line = line_of(error.__traceback__)
    at = f", at {line}" if line else ""
    name = operator.id if replica is None else f"{operator.id}, replica {replica}"
    return f"operator {name}, tuple {', '.join(fields)!r:.200}: {type(error).__name__}: {error}{at}"


def _stem(name: str) -> str:
    return re.sub(r"\.(dll|py)$", "", name, flags=re.IGNORECASE)


def _module(name: str, configuration: Configuration, allow: tuple[str, ...]) -> tuple[ModuleType, tuple[Any, ...]]:
    """Return the module of a library, and what tells it from earlier versions of it."""
    stem = _stem(name)
    path = configuration.directory / f"{stem}.py"
    if _MODULE.fullmatch(stem) and path.is_file():
        status = path.stat()
        key = (os.path.abspath(path), status.st_mtime_ns, status.st_size)
        if key not in _LOADED:
            _LOADED[key] = _imported(name, lambda: _from_file(key[0]))
        return _LOADED[key], key
    if stem in allow or name in allow:
        module = stem if stem in allow else name
        return _imported(name, lambda: importlib.import_module(module)), (module,)
    if stem == BUILT_IN:
        return library, (BUILT_IN,)
    raise InputError(
        f"library {name!r} is missing: there is no {path.name} beside the configuration, and --allow does not name it"
        f"{near(stem, [BUILT_IN])}"
    )


def _from_file(path: str) -> ModuleType:
    directory, file = os.path.split(path)
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.path.append(directory)  # for modules beside it, which it may import
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(directory)
    return module


def _imported(name: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except (Exception, SystemExit) as error:
        from txstorm.user_code import line_of

        line = line_of(error.__traceback__)
        at = f", at {line}" if line else ""
        raise InputError(f"library {name!r} cannot be imported: {type(error).__name__}: {error}{at}") from error


def _object(module: ModuleType, class_name: str, key: tuple[Any, ...], configuration: Configuration) -> Any:
    """Return the one object of a class in this process, made without arguments."""
    kind = getattr(module, class_name, None)
    if not isinstance(kind, type):
        known = [one for one, made in vars(module).items() if isinstance(made, type)]
        raise InputError(f"library {module.__name__!r} has no class {class_name!r}{near(class_name, known)}")
    arguments: tuple[Any, ...] = ()
    if kind is library.QueryFollowersFile:
        path = configuration.directory / library.FOLLOWERS
        status = path.stat() if path.is_file() else None
        arguments = (configuration.directory,)
        key = (*key, os.path.abspath(path), status and (status.st_mtime_ns, status.st_size))
    if (*key, kind) not in _LOADED:
        try:
            _LOADED[(*key, kind)] = kind(*arguments)
        except InputError:
            raise
        except Exception as error:
            msg = f"class {class_name!r} cannot be made without arguments: {type(error).__name__}: {error}"
            raise InputError(msg) from error
    return _LOADED[(*key, kind)]


# -- state -----------------------------------------------------------------------------------------------------------


class Seen:
    """State of UNIQ within one transaction.

    Args:
        known: returns those of many values that earlier transactions have seen.

    Attributes:
        added: the values seen first in this transaction, in order; they belong into the table ``OPERATOR_seen``.
    """

    def __init__(self, known: Callable[[Sequence[str]], Collection[str]]) -> None:
        self._known = known
        self._seen: set[str] = set()
        self.added: list[str] = []

    def is_new(self, values: Sequence[str]) -> list[bool]:
        """Take note of values in order; return for each whether it is the first one of its kind."""
        asked = [one for one in dict.fromkeys(values) if one not in self._seen]
        before = self._known(asked) if asked else ()
        fresh = set(asked).difference(before)
        self._seen.update(asked)
        if not fresh:
            return [False] * len(values)
        found = []
        for one in values:
            found.append(one in fresh)
            if found[-1]:
                fresh.remove(one)
                self.added.append(one)
        return found


class Counted:
    """State of COUNT within one transaction.

    Args:
        n: the number of tuples so far.

    Attributes:
        n: the number after those that were counted; it belongs into the table ``OPERATOR_count``.
    """

    def __init__(self, n: int = 0) -> None:
        self.n = n

    def counted(self, tuples: int) -> range:
        """Count tuples; return the number after each of them."""
        self.n += tuples
        return range(self.n - tuples + 1, self.n + 1)


def settle(operator: Operator, state: Seen | Counted | None, results: Sequence[Fields]) -> Sequence[Fields | None]:
    """Return what an operator emits for each result of its replicas, in order; None: nothing.

    Args:
        operator: the operator.
        state: its state: `Seen` of UNIQ, `Counted` of COUNT, None of others.
        results: tuples that its replicas have returned, in the order of the inputs.
    """
    if isinstance(state, Counted):
        return [(str(n),) for n in state.counted(len(results))]
    if isinstance(state, Seen):
        number = int(operator.params[0])
        new = state.is_new([one or "" for one in values_at(results, number)])
        return [fields if is_new else None for fields, is_new in zip(results, new, strict=True)]
    return results
