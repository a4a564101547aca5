"""A mutant's change of the code: located in the syntax tree, planted in the running process or written to a copy.

The changed place calls `_mutant_reached` first, so that a mutant counts as killed only if its code was executed.
"""

import ast
import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
REACHED = "_mutant_reached"
TOUCH = "def _mutant_reached():\n    open({path!r}, 'a').close()"
DEFINED = re.compile(r"^ *(?:def|class) (\w+)|^(\w+)(?: = |: )", re.MULTILINE)
Place = Callable[[list[ast.stmt]], None]


class Mutant(NamedTuple):
    """A defect: an expression of a function, or consecutive statements, replaced by others.

    The code is located by comparing syntax trees, so that a mutant still applies after a move or reformatting.

    Attributes:
        function: name of the function, with its class, if any, or of a module's constant; in any module of the package.
        old: code that occurs once in that function, or in the constant's value.
        new: the replacement.
        test: the test, or file of tests, in which a killer is looked for; if empty, in simulated worlds.
    """

    name: str
    function: str
    old: str
    new: str
    test: str = ""


class Change(NamedTuple):
    """A module with a defect: its path, the changed tree, and the definition that contains the changed place."""

    module: Path
    tree: ast.Module
    definition: ast.AST

    def text(self, trace: Path) -> str:
        """Return the text of the changed module; a process that executes the changed place creates the file `trace`."""
        at = next(number for number, node in enumerate(self.tree.body) if not _is_head(node))
        self.tree.body[at:at] = ast.parse(TOUCH.format(path=str(trace))).body
        return ast.unparse(self.tree)


def mutated(mutant: Mutant, package: Path) -> Change:
    """Return the module of `package` that `mutant` changes, or raise `LookupError`."""
    old, new = ast.parse(mutant.old.strip()).body, ast.parse(mutant.new.strip()).body
    found = []
    outer, _, name = mutant.function.rpartition(".")
    parts = [f"class {one}" for one in outer.split(".") if one[:1].isupper()]
    for module, text in sources(package).get(name, {}).items():
        if all(part in text for part in parts):
            tree = ast.parse(text)
            for full, definition in _definitions(tree):
                if full == mutant.function:
                    found += [(Change(module, tree, definition), place) for place in _places(definition, old)]
    if len(found) != 1:
        msg = f"mutant {mutant.name}: expected its place once in {mutant.function}, found it {len(found)}x"
        raise LookupError(msg)
    ((change, put),) = found
    put(new)
    ast.fix_missing_locations(change.definition)
    return change


@cache
def sources(package: Path) -> dict[str, dict[Path, str]]:
    """Return the texts of the modules that define a name, by name and path; kept, and so in forks of this process."""
    found: dict[str, dict[Path, str]] = {}
    for module in sorted(package.rglob("*.py")):
        text = module.read_text(encoding="utf-8")
        for defined in DEFINED.finditer(text):
            found.setdefault(defined[defined.lastindex or 0], {})[module] = text
    return found


def _is_head(node: ast.stmt) -> bool:
    """Return whether a module's statement has to stay at its beginning: docstring or future import."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _definitions(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # most of a tree, without definitions
            continue
        inner = within
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{within}{child.name}."
            yield inner[:-1], child
        elif isinstance(node, ast.Module) and (name := _assigned(child)):
            yield name, child
        yield from _definitions(child, inner)


def _assigned(node: ast.AST) -> str:
    """Return the name of the constant that `node` defines, or an empty text."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) else ""


def _places(definition: ast.AST, old: list[ast.stmt]) -> list[Place]:
    """Return one function per occurrence of `old` (statements, or an expression) that replaces it by other code."""
    wanted = [_matcher(statement) for statement in old]
    places: list[Place] = []
    for node in ast.walk(definition):
        for _, body in ast.iter_fields(node):
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                for at in range(len(body) - len(old) + 1):
                    if all(matches(one) for matches, one in zip(wanted, body[at:], strict=False)):
                        places.append(partial(_put_statements, body, slice(at, at + len(old))))
    if places or len(old) != 1 or not isinstance(old[0], ast.Expr):
        return places
    matches = _matcher(old[0].value)
    for node in ast.walk(definition):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                at = [number for number, one in enumerate(value) if matches(one)]
                places += [partial(_put_expression, value.__setitem__, number) for number in at]
            elif matches(value):
                places.append(partial(_put_expression, partial(setattr, node), field))
    return places


def _matcher(wanted: ast.AST) -> Callable[[object], bool]:
    """Return whether a node is the same code; only nodes of one type are worth to be written out."""
    text = ast.dump(wanted)
    return lambda node: type(node) is type(wanted) and ast.dump(node) == text


def _put_statements(body: list[ast.stmt], at: slice, new: list[ast.stmt]) -> None:
    body[at] = [ast.Expr(_call()), *new]


def _put_expression(put: Callable[[Any, ast.expr], None], where: Any, new: list[ast.stmt]) -> None:
    (statement,) = new
    assert isinstance(statement, ast.Expr)
    both = ast.Tuple([_call(), statement.value], ast.Load())
    put(where, ast.Subscript(both, ast.Constant(1), ast.Load()))


def _call() -> ast.Call:
    return ast.Call(ast.Name(REACHED, ast.Load()), [], [])


# --- in the running process -------------------------------------------------------------------------------------------


class Functions:
    """Every function of the package that exists in this process, also behind decorators and in closures."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, int], list[FunctionType]] = {}
        gc.unfreeze()  # else they are not among the objects
        for function in gc.get_objects():
            if isinstance(function, FunctionType):
                code = function.__code__
                key = id(function.__globals__), code.co_qualname, code.co_firstlineno
                self._known.setdefault(key, []).append(function)
        gc.freeze()  # what a collection visits, every fork would copy

    def of(self, module: ModuleType, code: CodeType) -> list[FunctionType]:
        """Return the functions of `module` that were compiled from the same definition as `code`."""
        return self._known.get((id(vars(module)), code.co_qualname, code.co_firstlineno), [])


def plant(change: Change, functions: Functions) -> list[bool] | None:
    """Change the code of the running process; return a list that is filled once the changed code is executed.

    Functions keep their identity and get new code, so bound methods, decorators and imports by name see it, too. A
    constant is bound to its new value in every module that has it under its name. Its readers cannot be changed
    likewise: it counts as executed when a function of these modules that reads the name is called.

    Returns:
        None if only a new interpreter shows the change: the place is a default value, a decorator or a class's body,
        or needs other variables of the functions around it.
    """
    parts = change.module.relative_to(ROOT).with_suffix("").parts
    module = import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    reached: list[bool] = []
    if name := _assigned(change.definition):
        vars(module)[REACHED] = lambda: None
        _rebind(module, name, change.definition, reached)
        return reached
    vars(module)[REACHED] = lambda: reached or reached.append(True)
    changed = [code for code in _outermost(_compiled(change)) if REACHED in _names(code)]
    if not changed:
        return None
    old = functions.of(module, changed[0]) or Functions().of(module, changed[0])  # not loaded before
    if not old or any(one.__code__.co_freevars != changed[0].co_freevars for one in old):
        return None
    for function in old:
        function.__code__ = changed[0]
    return reached


def _compiled(change: Change) -> CodeType:
    code = compile(change.tree, str(change.module), "exec", dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def _outermost(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods; not that of functions within them."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            is_class = not one.co_flags & 0x2  # CO_NEWLOCALS: functions have it, the bodies of classes do not
            yield from _outermost(one) if is_class else (one,)


def _names(code: CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*inner)


def _rebind(module: ModuleType, name: str, definition: ast.AST, reached: list[bool]) -> None:
    assert isinstance(definition, ast.stmt)
    old, space = vars(module)[name], dict(vars(module))
    exec(compile(ast.Module([definition], []), str(definition), "exec", dont_inherit=True), space)  # noqa: S102
    spaces = [vars(one) for one in list(sys.modules.values()) if vars(one).get(name) is old]
    for one in spaces:
        one[name] = space[name]
    ids = {id(one) for one in spaces}

    def called(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and name in frame.f_code.co_names and id(frame.f_globals) in ids and not reached:
            reached.append(True)

    sys.setprofile(called)
    threading.setprofile(called)
