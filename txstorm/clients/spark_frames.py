"""DataFrames of a classic session: the types of their columns, their plans, and what Spark has observed of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from txstorm.ddl import written


def frame_types(frame: Any) -> list[tuple[str, str]]:
    """Return name and type of each column of a DataFrame, in order; the types as Spark writes them."""
    return [(field.name, _type_text(field.dataType)) for field in frame.schema.fields]


def _type_text(kind: Any) -> str:
    """Return a type in DDL; PySpark writes names within structs without their quotes."""
    if kind.typeName() == "struct":
        return f"struct<{','.join(f'{written(one.name)}:{_type_text(one.dataType)}' for one in kind.fields)}>"
    if kind.typeName() == "array":
        return f"array<{_type_text(kind.elementType)}>"
    return str(kind.simpleString())


def plan_text(frame: Any) -> str:
    """Return the plan of a DataFrame as its code has it, an operator in a line."""
    return str(frame._jdf.queryExecution().analyzed().treeString())  # noqa: SLF001 - there is no public way to ask


def observed(frame: Any, name: str) -> Mapping[str, int] | None:
    """Return what Spark has observed under a name while it computed `frame`; None if it did not come to that.

    PySpark's `Observation` would wait for it, without end, and take what it saw in the first job of any DataFrame.
    """
    found = frame._jdf.queryExecution().observedMetrics().get(name)  # noqa: SLF001 - there is no public way to ask
    return json.loads(found.get().json()) if found.isDefined() else None
