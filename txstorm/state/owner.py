"""Whose tables they are, which of them, and under which names they keep their txid and epoch."""

from __future__ import annotations

from dataclasses import dataclass

from txstorm.state.intent import DIRECTORIES

FORMAT = "1"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose table it is.

    Attributes:
        topology: its id.
        incarnation: made at the first run of the data directory.
        timeline: 0, and one more after every rewind.
    """

    topology: str
    incarnation: str
    timeline: int = 0

    @property
    def epoch_app(self) -> str:
        """The app id under which tables keep the coordinator's epoch."""
        return f"txstorm/{self.incarnation}/epoch"

    def properties(self) -> dict[str, str]:
        """What every table of this owner says about itself."""
        return {
            "txstorm.format": FORMAT,
            "txstorm.topology": self.topology,
            "txstorm.incarnation": self.incarnation,
        }


@dataclass(frozen=True, slots=True)
class TableRef:
    """Which table: ``changes``, ``state`` or ``sink`` and its name, or ``dead-letters``, which has none."""

    kind: str
    name: str

    @property
    def uri(self) -> str:
        """Its directory, relative to the data directory; also its name in ledger and messages."""
        return f"{DIRECTORIES[self.kind]}/{self.name}" if self.name else DIRECTORIES[self.kind]

    def txid_app(self, owner: Owner) -> str:
        """The app id under which it keeps its last txid."""
        table = f"{self.kind}-{self.name}" if self.name else self.kind
        return f"txstorm/{owner.incarnation}/{owner.timeline}/{table}"
