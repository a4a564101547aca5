"""Classes named in a configuration: state providers, serializers and types, as MODULE:CLASS or by Storm's names."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from txstorm.errors import InputError

JAVA_TYPES: dict[str, type] = {
    "java.lang.String": str,
    "java.lang.Long": int,
    "java.lang.Integer": int,
    "java.lang.Double": float,
    "java.lang.Boolean": bool,
}


def known_class(what: str, name: Any) -> type[Any]:
    """Return the class with this name, ``MODULE:CLASS`` or one of Java's basic types.

    Raises:
        InputError: the name has another form, or there is no such class; the message begins with `what`.
    """
    if name in JAVA_TYPES:
        return JAVA_TYPES[name]
    module, _, cls = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not (module and cls):
        raise InputError(f"{what}: got {name!r}, expected MODULE:CLASS, such as mystates.sqlite:SqliteStateProvider")
    try:
        found: Any = import_module(module)
        for part in cls.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"{what}: {name!r} cannot be loaded: {error}; expected a class in a module that can be imported"
        raise InputError(msg) from None
    if not isinstance(found, type):
        raise InputError(f"{what}: {name!r} is a {type(found).__name__}, expected a class")
    return found
