"""Topology of an operator network: its operators as bolts and committers, on any engine, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstorm.api.state import KeyedState, SinkTable
from txstorm.dadstorm.configuration import Configuration, Operator
from txstorm.dadstorm.operators import output_path
from txstorm.sinks.text_files import LinesSink
from txstorm.topology.graph import Topology


def seen_state(operator: Operator) -> KeyedState:
    """Return the state of UNIQ: the values seen."""
    return KeyedState(f"{operator.id}_seen", {"value": str}, {"seen": bool})


def count_state(operator: Operator) -> KeyedState:
    """Return the state of COUNT: one row, the operator and its number of tuples."""
    return KeyedState(f"{operator.id}_count", {"operator": str}, {"n": int})


def emitted_sink(operator: Operator) -> SinkTable:
    """Return the table of the tuples that an operator has emitted."""
    columns = {"replica": int, "url": str, "id": str, "fields": pa.list_(pa.string())}
    return SinkTable(f"{operator.id}_emitted", columns)


def lines_sink(operator: Operator, configuration: Configuration) -> LinesSink:
    """Return the committer of an OutputOperator's file; its tuples have one field, the list of fields."""
    return LinesSink(output_path(operator, configuration), lambda values: ", ".join(values[0]), f"{operator.id}_out")


def kept(operator: Operator, configuration: Configuration) -> bool:
    """Return whether the tuples that an operator emits are kept in its table: no operator reads it, or all are."""
    read = any(operator.id == source.text for one in configuration.operators for source in one.sources)
    return configuration.logging == "full" or not read


def build_topology(
    configuration: Configuration,
    id: str | None = None,
    *,
    allow: Sequence[str] = (),
    max_batch_rows: int = 1000,
    settings: Mapping[str, Any] | None = None,
) -> Topology:
    """Return the topology of a configuration: exactly once, whatever its semantics, on any engine.

    Args:
        configuration: the configuration.
        id: the topology's id; None: the name of the file.
        allow: names of further modules that may be libraries of CUSTOM operators.
        max_batch_rows: the maximum number of lines of files in a transaction, and of records of each topic.
        settings: settings of the core.

    Raises:
        InputError: a command of the script needs replicas, or code is missing.
        TopologyError: the topology has faults.
    """
    raise NotImplementedError
