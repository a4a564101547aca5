"""Targets: MODULE[:ATTRIBUTE | :FACTORY(ARGS)] or a pipeline's FILE.toml, as the command line names a topology."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from txstorm.api.names import near
from txstorm.cli.tracebacks import place, trace
from txstorm.errors import InputError, TxstormError
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology
from txstorm.user_code import described

if TYPE_CHECKING:
    from txstorm.pipelines import Pipeline

DEFAULT = "topology"
FORM = "MODULE, MODULE:ATTRIBUTE or MODULE:FACTORY(ARGUMENTS)"
PIPELINE = ".toml"


@dataclass(frozen=True)
class Target:
    """A parsed target.

    Attributes:
        called: whether the target is a call, with `arguments` and `keywords`.
    """

    module: str
    attribute: str = DEFAULT
    called: bool = False
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"

    @property
    def text(self) -> str:
        """The target as a user would type it; arguments as Python literals, in printable characters only."""
        given = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.keywords.items())]
        return f"{self}({', '.join(given)})" if self.called else str(self)


def parse(text: str) -> Target:
    """Parse a target; arguments are Python literals, which are parsed, never evaluated.

    Raises:
        InputError: the form is wrong, or an argument is not a literal.
    """
    module, colon, rest = text.partition(":")
    if text.endswith(PIPELINE):
        raise InputError(f"{text!r}: expected {FORM}, got the file of a pipeline")
    if not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"{text!r}: expected {FORM}, got {module!r} for the module{_dotted(module)}")
    if not colon:
        return Target(module)
    try:
        expression = ast.parse(rest.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise InputError(f"{text!r}: expected {FORM}, got {rest!r} after the colon ({error})") from None
    if isinstance(expression, ast.Name):
        return Target(module, expression.id)
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
        arguments = tuple(_literal(text, one) for one in expression.args)
        keywords = {_keyword(text, one): _literal(text, one.value) for one in expression.keywords}
        if len(keywords) < len(expression.keywords):
            raise InputError(f"{text!r}: an argument is given twice; give it once")
        return Target(module, expression.func.id, True, arguments, keywords)
    raise InputError(f"{text!r}: expected {FORM}, got {rest!r} after the colon")


def load(text: str) -> Topology:
    """Load the topology that the target `text` names: of a module, or described by the file of a pipeline.

    Raises:
        InputError: the module or attribute does not exist or is not a topology, the user's module raised, or the file
            has faults.
    """
    if text.endswith(PIPELINE):
        return pipeline(text).topology()
    target = parse(text)
    return _topology(target, resolve(target))


def pipeline(text: str) -> Pipeline:
    """Return the pipeline whose file `text` names; raise `InputError` if it names a module, or the file has faults."""
    from txstorm.pipelines import Pipeline

    if not text.endswith(PIPELINE):
        raise InputError(f"{text!r}: expected the file of a pipeline, such as sales{PIPELINE}")
    return Pipeline.read(text)


def held(target: Target) -> Topology | None:
    """Return the topology that `target` names as an attribute, without calling anything; None if it is a function.

    Raises:
        InputError: see `load`.
    """
    found = _attribute(target)
    return None if inspect.isfunction(found) else _topology(target, found)


def _topology(target: Target, found: Any) -> Topology:
    if isinstance(found, Topology):
        return found
    if isinstance(found, TransactionalTopologyBuilder):
        hint = "call build_topology() on it"
    elif isinstance(found, type):
        hint = "name a topology, or a function that returns one"
    else:
        hint = "build one with TransactionalTopologyBuilder(…).build_topology()"
    raise InputError(f"{target}: expected a Topology, got an object of type {described(found)}; {hint}")


def resolve(target: Target) -> Any:
    """Evaluate `target`: the attribute, or the result of the call; a function without required arguments is called."""
    value = _attribute(target)
    if target.called:
        return _called(target, value)
    if inspect.isfunction(value):
        if required := _required(value):
            signature = ", ".join(required)
            msg = f"{target} is a function that needs {signature}; name it with arguments: '{target}({signature})'"
            raise InputError(msg)
        return _called(target, value)
    return value


def _attribute(target: Target) -> Any:
    module = _imported(target.module)
    try:
        return getattr(module, target.attribute)
    except AttributeError:
        raise _missing(module, target) from None


def _imported(name: str) -> ModuleType:
    here = os.getcwd()
    if not sys.path or sys.path[0] != here:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise InputError(_not_found(name, error.name)) from None
        raise _failed(f"module {name!r} cannot be imported", error) from error
    except TxstormError as error:
        error.add_note(f"raised at {place(error)}")
        raise
    except (Exception, SystemExit) as error:
        raise _failed(f"module {name!r} cannot be imported", error) from error


def _called(target: Target, factory: Any) -> Any:
    if not callable(factory):
        msg = f"{target} is an object of type {type(factory).__name__} and cannot be called; leave out the parentheses"
        raise InputError(msg)
    try:
        inspect.signature(factory).bind(*target.arguments, **target.keywords)
    except TypeError as error:
        raise InputError(f"{target}{inspect.signature(factory)} does not take these arguments: {error}") from None
    except ValueError:
        pass  # a builtin has no signature
    try:
        return factory(*target.arguments, **target.keywords)
    except TxstormError as error:
        error.add_note(f"raised at {place(error)}")
        raise
    except (Exception, SystemExit) as error:
        raise _failed(f"{target} failed", error) from error


def _failed(what: str, error: BaseException) -> InputError:
    where = place(error)
    failure = InputError(f"{f'{where}: ' if where else ''}{type(error).__name__}: {error}; {what}")
    failure.add_note(trace(error))
    return failure


def _missing(module: ModuleType, target: Target) -> InputError:
    public = [name for name in vars(module) if not name.startswith("_")]
    topologies = [name for name in public if isinstance(vars(module)[name], Topology)]
    hint = near(target.attribute, public)
    there = f"; it has {', '.join(topologies)}: txstorm … {module.__name__}:{topologies[0]}" if topologies else ""
    return InputError(f"module {module.__name__!r} has no attribute {target.attribute!r}{hint}{there}")


def _required(function: Any) -> list[str]:
    """Return the names of the required parameters of `function`."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind not in kinds]


def _not_found(name: str, missing: str) -> str:
    parent = missing.rpartition(".")[0]
    package = sys.modules.get(parent)
    if package is not None and not hasattr(package, "__path__"):
        return f"no module {name!r}: {parent!r} is a module, not a package (did you mean {parent!r}?)"
    paths = [os.getcwd()] if package is None else list(package.__path__)
    known = [f"{parent}.{one.name}" if parent else one.name for one in pkgutil.iter_modules(paths)]
    where = f"in package {parent!r}" if parent else f"in {os.getcwd()} and on Python's path"
    return f"no module {missing!r} {where}{near(missing, known)}; a module is named with dots, as in an import"


def _dotted(module: str) -> str:
    dotted = module.removeprefix("./").removesuffix(".py").replace(os.sep, ".").strip(".")
    usable = dotted != module and all(part.isidentifier() for part in dotted.split("."))
    return f" (did you mean {dotted!r}?)" if usable else ""


def _literal(text: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        got = ast.unparse(node)
        raise InputError(f"{text!r}: expected a Python literal as argument, such as 'text' or 4, got {got}") from None


def _keyword(text: str, one: ast.keyword) -> str:
    if one.arg is None:
        raise InputError(f"{text!r}: expected NAME=LITERAL, got **{ast.unparse(one.value)}")
    return one.arg
