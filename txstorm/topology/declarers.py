"""Declarers: the objects returned by the builder to declare a bolt's inputs, or to configure and pace the spout.

They only record values in a `Declaration`, unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import CustomStreamGrouping, FunctionGrouping, Grouping
from txstorm.topology.graph import Input
from txstorm.topology.settings import STORM_KEYS, Settings

Role = Literal["spout", "frame", "bolt", "committer"]


@dataclass
class Declaration:
    """One component as declared to the builder; every value is unchecked.

    Attributes:
        id: the component's id.
        object: the spout or bolt.
        parallelism: number of tasks; None: 1.
        role: spout, frame bolt, bolt or committer, by the builder call: constructor, `set_frame_bolt`, `set_bolt` or
            `set_committer_bolt`.
        inputs: the subscriptions declared so far.
        configuration: the component's own configuration.
        external: whether the component has effects outside the transaction; None: as its class declares.
    """

    id: Any
    object: Any
    parallelism: Any
    role: Role
    inputs: list[Input] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    external: bool | None = None


class BoltDeclarer:
    """Declares the inputs of one bolt; every method returns the declarer, so that calls can be chained.

    Nothing is checked until `build_topology`, which reports all faults together.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration

    def grouping(self, component: str, grouping: Grouping | str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Subscribe to a stream of `component` with a `Grouping`, or a kind of grouping such as ``"shuffle"``."""
        known = grouping if isinstance(grouping, Grouping) else Grouping(str(grouping))
        self._declaration.inputs.append(Input(component, stream, known))
        return self

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Distribute the tuples evenly among the tasks."""
        return self.grouping(component, Grouping("shuffle"), stream)

    def fields_grouping(
        self,
        component: str,
        fields: str | Iterable[str],
        then: str | Iterable[str] | None = None,
        *,
        stream: str = DEFAULT_STREAM,
    ) -> BoltDeclarer:
        """Send tuples with equal `fields` to the same task.

        Call ``fields_grouping("partial", ["word"])``, optionally with ``stream=``, or with Storm's order of arguments
        ``fields_grouping("partial", "stream", ["word"])``.
        """
        names, source = _fields_and_stream(fields, then, stream)
        return self.grouping(component, Grouping("fields", names), source)

    def partial_key_grouping(
        self,
        component: str,
        fields: str | Iterable[str],
        then: str | Iterable[str] | None = None,
        *,
        stream: str = DEFAULT_STREAM,
    ) -> BoltDeclarer:
        """Send tuples with equal `fields` to one of the same two tasks, which thus share the load of a frequent key."""
        names, source = _fields_and_stream(fields, then, stream)
        return self.grouping(component, Grouping("partial_key", names), source)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every tuple to task 0."""
        return self.grouping(component, Grouping("global"), stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every tuple to every task."""
        return self.grouping(component, Grouping("all"), stream)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Let the framework choose how to distribute the tuples."""
        return self.grouping(component, Grouping("none"), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Let the emitter choose the task of each tuple; the stream must be declared with ``direct=True``."""
        return self.grouping(component, Grouping("direct"), stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Keep tuples in their worker if source and bolt have the same parallelism; otherwise shuffle them."""
        return self.grouping(component, Grouping("local_or_shuffle"), stream)

    def custom_grouping(
        self, component: str, grouping: CustomStreamGrouping | str, stream: str | CustomStreamGrouping = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Let a `CustomStreamGrouping` choose the tasks; Storm's order (component, stream, grouping) also works."""
        if isinstance(grouping, str) and not isinstance(stream, str):
            grouping, stream = stream, grouping
        return self.grouping(component, Grouping("custom", custom=grouping), str(stream))

    def function_grouping(
        self, component: str, function: Callable[[Sequence[Any]], int], *, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Send each tuple to task ``function(values) mod tasks``; the function gets the tuple's values, in order."""
        return self.grouping(component, Grouping("custom", custom=FunctionGrouping(function)), stream)

    def add_configuration(self, key: str, value: Any) -> BoltDeclarer:
        """Set a key of this component's own configuration, which is part of its tasks' ``context.settings``."""
        self._declaration.configuration[key] = value
        return self

    shuffleGrouping = shuffle_grouping  # noqa: N815 - Storm's name
    fieldsGrouping = fields_grouping  # noqa: N815 - Storm's name
    partialKeyGrouping = partial_key_grouping  # noqa: N815 - Storm's name
    globalGrouping = global_grouping  # noqa: N815 - Storm's name
    allGrouping = all_grouping  # noqa: N815 - Storm's name
    noneGrouping = none_grouping  # noqa: N815 - Storm's name
    directGrouping = direct_grouping  # noqa: N815 - Storm's name
    localOrShuffleGrouping = local_or_shuffle_grouping  # noqa: N815 - Storm's name
    customGrouping = custom_grouping  # noqa: N815 - Storm's name
    functionGrouping = function_grouping  # noqa: N815
    addConfiguration = add_configuration  # noqa: N815 - Storm's name


class SpoutDeclarer:
    """Paces and configures the spout; every method returns the declarer, so that calls can be chained."""

    def __init__(self, declaration: Declaration, settings: dict[str, Any]) -> None:
        self._declaration = declaration
        self._settings = settings

    def set_max_spout_pending(self, pending: int | str) -> SpoutDeclarer:
        """Set the maximum number of transactions in flight, or ``"auto"``."""
        self._settings["max_spout_pending"] = pending
        return self

    def add_configuration(self, key: str, value: Any) -> SpoutDeclarer:
        """Set a setting of the topology (as Storm's spout declarer does), or any key of the spout's configuration."""
        known = key in Settings.model_fields or key in STORM_KEYS
        (self._settings if known else self._declaration.configuration)[key] = value
        return self

    setMaxSpoutPending = set_max_spout_pending  # noqa: N815 - Storm's name
    addConfiguration = add_configuration  # noqa: N815 - Storm's name


def _fields_and_stream(
    fields: str | Iterable[str], then: str | Iterable[str] | None, stream: str
) -> tuple[tuple[str, ...], str]:
    """Return fields and stream from arguments given as ``(fields)``, ``(stream, fields)`` or ``(fields, stream)``."""
    if then is None:
        return _names(fields), stream
    if isinstance(fields, str):
        return _names(then), fields
    return _names(fields), str(then)


def _names(fields: str | Iterable[str]) -> tuple[str, ...]:
    return (fields,) if isinstance(fields, str) else tuple(fields)
