"""What the builder was told about one component, before anything is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from txstorm.topology.graph import Input

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
