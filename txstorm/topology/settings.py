"""Settings of a topology: names, types, ranges, defaults, and the equivalent keys of Storm.

It is one module, so that all there is to say of a setting stands in one place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from txstorm.api.context import MAX_ENDS
from txstorm.api.names import near
from txstorm.errors import SettingError

MIB = 1024 * 1024
STORM_KEYS: dict[str, tuple[str, float]] = {
    "topology.max.spout.pending": ("max_spout_pending", 1),
    "topology.message.timeout.secs": ("batch_timeout", 1),
    "topology.enable.message.timeouts": ("enable_timeouts", 1),
    "topology.trident.batch.emit.interval.millis": ("min_interval", 1000),
    "transactional.zookeeper.servers": ("zookeeper_servers", 1),
    "transactional.zookeeper.port": ("zookeeper_port", 1),
    "transactional.zookeeper.root": ("zookeeper_root", 1),
    "storm.zookeeper.session.timeout": ("zookeeper_session_timeout", 1000),
    "topology.state.provider": ("state_provider", 1),
    "topology.state.provider.config": ("state_provider_config", 1),
    "topology.state.checkpoint.interval.ms": ("state_checkpoint_interval", 1000),
}
"""Storm's key → the setting's name, and the factor to divide Storm's value by (1000: milliseconds to seconds)."""

_SET_ELSEWHERE = {
    "topology.transactional.id": "the id is the first argument of TransactionalTopologyBuilder; set it there",
}


_POLICY = re.compile(r"fail_topology|dead_letter|retry\([1-9][0-9]{0,5}\)( *, *dead_letter)?")
LEAST_ENTRIES = 1000
_BOUND = re.compile(r"((?P<sink>[A-Za-z][A-Za-z0-9_-]*) *= *)?(?P<most>[0-9]{1,12})")
_LETTERS = re.compile(r"(?P<count>[0-9]{1,18})|(?P<percent>[0-9]{1,3}(\.[0-9]{1,9})?) *%")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, got a truth value")
    return value


def _none_word(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in ("none", "null", "") else value


def _host_list(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _json_object(value: Any) -> Any:
    """Return the text of a JSON object, given as text or as a mapping; empty if it has no keys."""
    text = _none_word(value) or "{}"
    try:
        found = dict(text) if isinstance(text, Mapping) else json.loads(text) if isinstance(text, str) else None
        if isinstance(found, dict):
            return json.dumps(found) if found else ""
    except (TypeError, ValueError, RecursionError):  # the reason may quote the value
        pass
    raise ValueError("expected a JSON object")


def _error_policy(value: Any) -> Any:
    if isinstance(value, str) and (found := _POLICY.fullmatch(value.strip())):
        return ", ".join(found.group(0).replace(" ", "").split(","))
    raise ValueError("expected fail_topology, retry(N), dead_letter, or 'retry(N), dead_letter', with N >= 1")


HALF = "half"
"""The default of ``max_dead_letters``."""


def _letters_limit(value: Any) -> Any:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    text = _none_word(value)
    if text is None or (isinstance(text, str) and text.strip().lower() == HALF):
        return text if text is None else HALF
    if isinstance(text, str) and (found := _LETTERS.fullmatch(text.strip())):
        if found["count"] is not None:
            return int(found["count"])
        if float(found["percent"]) <= 100:
            return f"{float(found['percent']):g}%"
    raise ValueError("expected N or P%, such as 10 or 0.5%, half, or none")


def _log_bounds(value: Any) -> Any:
    """Return the normal text of a bound for states, and of bounds for sinks by name."""
    text = _none_word(value)
    if text is None:
        return None
    parts = [part.strip() for part in str(text).split(",")] if isinstance(text, str | int) else []
    found = [_BOUND.fullmatch(part) for part in parts if not isinstance(text, bool)]
    names = [match and match["sink"] for match in found]
    if not found or not all(found) or len(set(names)) < len(names):
        msg = "expected N for all states, and NAME=N for sinks, such as 50000 or '50000, clicks=100000', or none"
        raise ValueError(msg)
    if any(int(match["most"]) < LEAST_ENTRIES for match in found if match):
        msg = f"expected at least {LEAST_ENTRIES} entries, since a log keeps its last versions and whole checkpoints"
        raise ValueError(msg)
    return ", ".join(
        sorted(f"{match['sink'] or ''}{'=' if match['sink'] else ''}{match['most']}" for match in found if match)
    )


Count = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
Size = Annotated[int, Field(ge=0), BeforeValidator(_no_bool)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
Duration = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_bool)]


class SettingInfo(NamedTuple):
    """One setting with its default, description and Storm key, as an entry of a listing."""

    name: str
    default: Any
    description: str
    storm_key: str | None


class Settings(BaseModel):
    """The settings of one topology; immutable. Sizes are in bytes, times in seconds.

    `Settings.parse` accepts text and Storm's dotted keys; the constructor takes typed values by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_spout_pending: Count | Literal["auto"] = Field(
        "auto", description="transactions in flight at once; auto: up to 256, bounded by max_in_flight_bytes"
    )
    max_pack_txids: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        None, description="transactions that one job processes at most; none: as many as pay off"
    )
    max_group_txids: Count = Field(64, description="transactions decided and published together at most")
    finish_ahead: bool = Field(
        True, description="whether committers finish the next group while the previous one is published"
    )
    max_jobs: Count = Field(2, description="jobs that process at the same time")
    batch_timeout: Duration = Field(
        600.0, description="seconds in either phase after which an attempt is abandoned and the batch replayed"
    )
    enable_timeouts: bool = Field(True, description="whether batch_timeout applies")
    min_interval: Seconds = Field(0.0, description="seconds between the starts of two transactions at least")
    heartbeat_interval: Duration = Field(
        1.0, description="seconds between two heartbeats at least, which run timers while the source is silent"
    )
    max_ends_per_txid: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        MAX_ENDS, description="window ends that a component fires in one transaction at most; none: no limit"
    )
    check_laws: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        None, description="the laws of monoids are tried on live states in every N-th transaction; none: never"
    )
    pin_timeout: Duration = Field(
        2.0, description="seconds that a component has to return the value to pin for a transaction"
    )
    clock_patience: Seconds = Field(
        600.0,
        description="seconds for which a clock that has jumped forward by more than an hour is not believed; a "
        "topology with a ttl or processing time plans nothing meanwhile",
    )
    max_stop: Annotated[Duration | None, BeforeValidator(_none_word)] = Field(
        31 * 86_400.0,
        description="seconds since an earlier run beyond which a start of a topology with a ttl or processing time "
        "waits for clock_patience, and is then refused without --accept-clock; none: no limit",
    )
    on_error: Annotated[str, BeforeValidator(_error_policy)] = Field(
        "fail_topology",
        description="what an exception does: fail_topology, retry(N), dead_letter, or retry(N), dead_letter",
    )
    max_dead_letters: Annotated[int | str | None, BeforeValidator(_letters_limit)] = Field(
        HALF,
        description=(
            "dead letters after which a run fails: more than N, or than P% of its input rows; half: more than half of "
            "the rows of a component, from 1,000 rows on; none: no limit"
        ),
    )
    retry_backoff: Seconds = Field(
        0.05, description="seconds before a failed batch is replayed; doubles with each attempt"
    )
    retry_backoff_max: Seconds = Field(5.0, description="seconds between two attempts at a batch at most")
    max_retries: Annotated[Size | None, BeforeValidator(_none_word)] = Field(
        None, description="replays after a FailedException before it is treated as a permanent error; none: unlimited"
    )
    max_in_flight_bytes: Count = Field(256 * MIB, description="bytes of processed but undecided batches at most")
    spill_bytes: Size = Field(
        8 * MIB, description="bytes of committers' input per task and transaction beyond which it goes through a file"
    )
    large_commit_rows: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        1_000_000,
        description="rows of a committer's input in a transaction beyond which a job commits it, if that is "
        "possible; none: no limit",
    )
    large_commit_bytes: Annotated[Count | None, BeforeValidator(_none_word)] = Field(
        256 * MIB, description="large_commit_rows in bytes"
    )
    cargo_bytes: Annotated[Count, Field(le=16 * MIB)] = Field(
        16 * MIB, description="bytes of one row sent between tasks at most; no more than 16 MiB"
    )
    index_cache_bytes: Count = Field(
        1024 * MIB, description="bytes of state kept in the driver's memory at most; the rest is read from disk"
    )
    state_max_lag: Annotated[Duration | None, BeforeValidator(_none_word)] = Field(
        10.0,
        description="seconds that the table of a state may lag behind its changes while the topology is busy; more "
        "if keeping up would take more than 3 % of a core; none: no limit",
    )
    compact_on_stop: bool = Field(True, description="bring state tables up to date when the run stops")
    state_provider: str = Field(
        "delta", description="where stateful bolts keep their states: delta, memory, redis or MODULE:CLASS"
    )
    state_provider_config: Annotated[str, BeforeValidator(_json_object)] = Field(
        "", description="configuration of the state provider, as a JSON object; never shown", exclude=True, repr=False
    )
    state_checkpoint_interval: Annotated[Duration, Field(ge=0.1)] = Field(
        1.0, description="seconds between checkpoints, for Storm's sake: every transaction is one"
    )
    state_may_be_lost: bool = Field(
        False, description="whether a start accepts that states outside of the tables have lost transactions"
    )
    history_retention: Annotated[Duration | None, BeforeValidator(_none_word)] = Field(
        None,
        description="seconds for which earlier transactions can be read and rewound to; none: for ever. Older history "
        "is removed, except for what savepoints need",
    )
    log_retention: Annotated[Duration, Field(le=36_500 * 86_400)] = Field(
        86_400.0,
        description="seconds that other readers can go back in the log of a table, and a streaming query of it may "
        "pause; older entries are archived, where only txstorm reads them",
    )
    log_entries: Annotated[str | None, BeforeValidator(_log_bounds)] = Field(
        None,
        description="entries that the log of each table of a state has at most, N, also if they are younger than "
        "log_retention, and those of sinks by name: 'N, NAME=N, …'; none: no bound",
    )
    ledger: Annotated[str | None, BeforeValidator(_none_word)] = Field(
        None,
        description="where the coordinator keeps its ledger: sqlite:PATH, zookeeper:HOSTS/CHROOT, delta:URI or memory; "
        "none: ledger.db in the data directory",
    )
    snapshot_every: Duration = Field(
        10.0, description="seconds between two automatic snapshots of a Hailstorm topology, if its clock has moved"
    )
    snapshot_wait: Duration = Field(
        60.0, description="seconds that a run waits for the data of a snapshot at a wanted clock"
    )
    keep_snapshots: Count = Field(2, description="automatic snapshots that are kept; those with a name are, too")
    keep_intents: Count = Field(3, description="published intents whose files are kept")
    zookeeper_servers: Annotated[str, BeforeValidator(_host_list)] = Field(
        "", description="host:port,… of the ZooKeeper ensemble with the ledger; empty: the ledger is not in ZooKeeper"
    )
    zookeeper_port: Annotated[int, Field(ge=1, le=65535), BeforeValidator(_no_bool)] = Field(
        2181, description="port of servers listed without one"
    )
    zookeeper_root: str = Field(
        "/transactional", description="parent of the ledger's node, which is named by the topology's id"
    )
    zookeeper_session_timeout: Duration = Field(
        10.0, description="seconds without contact after which ZooKeeper releases the lease of a run"
    )
    zookeeper_connect_timeout: Duration = Field(
        5.0, description="seconds to connect to a ZooKeeper server at the start"
    )
    zookeeper_patience: Duration = Field(
        30.0, description="seconds that a run waits for ZooKeeper to come back before it stops"
    )
    zookeeper_acl: Literal["creator", "open"] = Field(
        "creator",
        description="who may change the ledger's nodes: creator, the user of TXSTORM_ZOOKEEPER_AUTH; or open, any "
        "client of the servers, without credentials",
    )
    zookeeper_tls: bool = Field(
        False, description="whether to speak TLS with ZooKeeper; a CA or certificate implies it"
    )
    zookeeper_ca: str = Field(
        "", description="PEM file of the certificate authorities to trust; empty: those of the system"
    )
    zookeeper_certificate: str = Field(
        "", description="PEM file of this client's certificate, if the servers ask for it"
    )
    zookeeper_key: str = Field("", description="PEM file of the private key of that certificate")
    zookeeper_check_hostname: bool = Field(True, description="whether a server's certificate must match its host name")

    @property
    def error_retries(self) -> int:
        """N of ``retry(N)`` in `on_error`; 0 if there is none."""
        return int(self.on_error[6 : self.on_error.index(")")]) if self.on_error.startswith("retry(") else 0

    @property
    def log_bounds(self) -> dict[str | None, int]:
        """The bounds in `log_entries`: of states under None, of sinks by name."""
        parts = (part.strip().rpartition("=") for part in (self.log_entries or "").split(",") if part)
        return {name or None: int(most) for name, _, most in parts}

    @property
    def dead_letters(self) -> bool:
        """Whether records that keep failing go to the dead-letter table instead of stopping the topology."""
        return self.on_error.endswith("dead_letter")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Settings:
        """Parse settings; values may be text such as ``"4"`` or ``"true"``, keys may be Storm's dotted ones.

        Raises:
            SettingError: a key is unknown or a value is invalid; lists all faults at once, with suggestions for keys.
        """
        settings, faults = cls.read(values)
        if settings is None:
            raise SettingError("\n".join(faults))
        return settings

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
        """Parse settings like `parse`, but return faults instead of raising them; if there are any, no settings."""
        named, faults = _named(values)
        try:
            settings = cls.model_validate(named)
        except ValidationError as error:
            return None, faults + _sentences(error)
        if settings.max_dead_letters not in (None, HALF) and not settings.dead_letters:
            faults.append(
                f"setting max_dead_letters: got {settings.max_dead_letters!r}, but on_error is {settings.on_error!r}, "
                "which leaves nothing out; set on_error to dead_letter, too"
            )
        return (None, faults) if faults else (settings, [])

    def updated(self, changes: Mapping[str, Any]) -> Settings:
        """Return these settings with `changes` applied; arguments and errors are those of `parse`."""
        named, faults = _named(changes)
        if faults:
            raise SettingError("\n".join(faults))
        return self.parse({**dict(self), **named})

    @classmethod
    def listed(cls) -> list[SettingInfo]:
        """Return all settings with their defaults, one-line descriptions and Storm keys."""
        storm = {name: key for key, (name, _) in STORM_KEYS.items()}
        fields = cls.model_fields.items()
        return [SettingInfo(name, one.default, one.description or "", storm.get(name)) for name, one in fields]


def _named(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return `values` keyed by the settings' names (Storm's keys translated), and the faults of the keys."""
    named: dict[str, Any] = {}
    faults = []
    for key, value in values.items():
        name, scaled = _own_name(str(key), value)
        if name not in Settings.model_fields:
            faults.append(_unknown(str(key)))
        elif name in named:
            faults.append(f"setting {name} is given twice (also as {key!r}); give it once")
        else:
            named[name] = scaled
    return named, faults


def _own_name(key: str, value: Any) -> tuple[str, Any]:
    name, units = STORM_KEYS.get(key, (key, 1))
    if units == 1 or isinstance(value, bool):
        return name, value
    try:
        return name, float(value) / units
    except (TypeError, ValueError):
        return name, value


def _unknown(key: str) -> str:
    for prefix, sentence in _SET_ELSEWHERE.items():
        if key.startswith(prefix):
            return f"setting {key!r}: {sentence}"
    known = [*Settings.model_fields, *STORM_KEYS]
    hint = near(key, known) or f"; known are {', '.join(Settings.model_fields)}"
    return f"unknown setting {key!r}{hint}"


def _sentences(error: ValidationError) -> list[str]:
    """Return one sentence per invalid setting, even for a union type, whose every alternative reports an error."""
    tried: dict[str, tuple[Any, list[str]]] = {}
    for one in error.errors(include_url=False):
        name = str(one["loc"][0])
        tried.setdefault(name, (one["input"], []))[1].append(one["msg"].removeprefix("Value error, "))
    return [
        f"setting {name}: got {_shown(name, value)}: {' or '.join(_lower(reason) for reason in reasons)}"
        for name, (value, reasons) in tried.items()
    ]


def _shown(name: str, value: Any) -> str:
    """Return the text of a rejected value; of a value that may hold a password, only its type."""
    secret = name in Settings.model_fields and Settings.model_fields[name].exclude
    return f"a {type(value).__name__}" if secret else repr(value)


def _lower(reason: str) -> str:
    return reason[0].lower() + reason[1:]
