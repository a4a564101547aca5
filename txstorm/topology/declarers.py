"""What the builder's calls return, to say where a bolt's tuples come from and how a spout is paced.

What the builder was told about one component, before anything is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from txstorm.api.grouping import CustomStreamGrouping, Grouping
from txstorm.api.names import DEFAULT_STREAM
from txstorm.topology.graph import Input
from txstorm.topology.settings import STORM_KEYS, Settings

Role = Literal["spout", "bolt", "committer"]


@dataclass
class Declaration:
    """One call of the builder; every value is as the user gave it.

    Attributes:
        id: the component's id.
        object: the spout or bolt.
        parallelism: as given; None stands for 1.
        role: which call it was: the constructor, `set_bolt` or `set_committer_bolt`.
        inputs: the groupings declared so far.
        configuration: the component's own configuration.
        external: whether it has effects of its own; None stands for what its class says.
    """

    id: Any
    object: Any
    parallelism: Any
    role: Role
    inputs: list[Input] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    external: bool | None = None


class BoltDeclarer:
    """Declares the inputs of one bolt; every call returns the declarer, so calls can be chained.

    Nothing is checked here: `build_topology` reports all faults together.
    """

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration

    def grouping(self, component: str, grouping: Grouping | str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Subscribe to a stream of `component`, divided by a `Grouping` or one named by its kind."""
        known = grouping if isinstance(grouping, Grouping) else Grouping(str(grouping))
        self._declaration.inputs.append(Input(component, stream, known))
        return self

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Spread the tuples evenly over the tasks."""
        return self.grouping(component, Grouping("shuffle"), stream)

    def fields_grouping(
        self,
        component: str,
        fields: str | Iterable[str],
        then: str | Iterable[str] | None = None,
        *,
        stream: str = DEFAULT_STREAM,
    ) -> BoltDeclarer:
        """Give tuples that are equal in `fields` to the same task.

        Either ``fields_grouping("partial", ["word"])``, with ``stream=`` if wanted, or Storm's order
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
        """Give tuples that are equal in `fields` to one of two tasks, so that a frequent key is shared by both."""
        names, source = _fields_and_stream(fields, then, stream)
        return self.grouping(component, Grouping("partial_key", names), source)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Give every tuple to task 0."""
        return self.grouping(component, Grouping("global"), stream)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Give every tuple to every task."""
        return self.grouping(component, Grouping("all"), stream)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Leave the division to the framework."""
        return self.grouping(component, Grouping("none"), stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Let the emitter name the task of each tuple; the stream must be declared with ``direct=True``."""
        return self.grouping(component, Grouping("direct"), stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Keep tuples in the worker they are in where source and bolt have equal parallelism, else shuffle."""
        return self.grouping(component, Grouping("local_or_shuffle"), stream)

    def custom_grouping(
        self, component: str, grouping: CustomStreamGrouping | str, stream: str | CustomStreamGrouping = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Let an object of your own choose the tasks; Storm's order (component, stream, grouping) works too."""
        if isinstance(grouping, str) and not isinstance(stream, str):
            grouping, stream = stream, grouping
        return self.grouping(component, Grouping("custom", custom=grouping), str(stream))

    def add_configuration(self, key: str, value: Any) -> BoltDeclarer:
        """Set a key in this component's own configuration, which its tasks find in ``context.settings``."""
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
    addConfiguration = add_configuration  # noqa: N815 - Storm's name


class SpoutDeclarer:
    """Sets what concerns the spout; every call returns the declarer."""

    def __init__(self, declaration: Declaration, settings: dict[str, Any]) -> None:
        self._declaration = declaration
        self._settings = settings

    def set_max_spout_pending(self, pending: int | str) -> SpoutDeclarer:
        """Set how many transactions may be in flight at once, or ``"auto"``."""
        self._settings["max_spout_pending"] = pending
        return self

    def add_configuration(self, key: str, value: Any) -> SpoutDeclarer:
        """Set a setting of the topology (Storm keeps those with the spout), or a key of the spout's configuration."""
        known = key in Settings.model_fields or key in STORM_KEYS
        (self._settings if known else self._declaration.configuration)[key] = value
        return self

    setMaxSpoutPending = set_max_spout_pending  # noqa: N815 - Storm's name
    addConfiguration = add_configuration  # noqa: N815 - Storm's name


def _fields_and_stream(
    fields: str | Iterable[str], then: str | Iterable[str] | None, stream: str
) -> tuple[tuple[str, ...], str]:
    """Sort out ``(fields)``, ``(stream, fields)`` and ``(fields, stream)``."""
    if then is None:
        return _names(fields), stream
    if isinstance(fields, str):
        return _names(then), fields
    return _names(fields), str(then)


def _names(fields: str | Iterable[str]) -> tuple[str, ...]:
    return (fields,) if isinstance(fields, str) else tuple(fields)
